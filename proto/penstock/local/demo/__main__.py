"""Runs the complete pipeline on real data and compares the downstream with the committed rows.

    penstock demo [--sink sqlite|mysql|files|kafka|delta] [--transactions 6000] [--rows N] [--keep]
    penstock demo --spark standalone [--sink mysql] [--transactions 6000] [--rows N] [--keep]
    penstock demo --source mysql [--seconds 30] [--rate 300] [--rows 10000] [--keep]
    penstock demo --source tidb [--seconds 40] [--rate 100] [--rows 10000] [--keep]

Exits 0 when every table is identical, 1 when anything differs or fails, 130 after Ctrl-C; it
always stops every process and removes every file.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drainer.spark.jvm import use_java
from penstock import __version__
from penstock.errors import PenstockError, coded
from penstock.local.demo import flights, servers
from penstock.node import command
from penstock.settings.load import Parser

SINKS = ("sqlite", "mysql", "files", "kafka", "delta")


def _interrupt(number: int, frame: object) -> None:
    """Interrupt the demo once; a second Ctrl-C must not interrupt the stop of its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted: stopping every process, which may take half a minute", file=sys.stderr)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    return command.run("penstock demo", lambda: _run(argv), extra="demo")


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="penstock demo", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"penstock demo {__version__}")
    parser.add_argument(
        "--source", choices=("flights", "mysql", "tidb"), default="flights",
        help="flights: a program with the data set; mysql, tidb: a MariaDB, a TiDB under sysbench",
    )  # fmt: skip
    parser.add_argument("--sink", choices=SINKS, help="sqlite, for flights on a local Spark")
    parser.add_argument(
        "--spark", choices=("local", "standalone"), default="local",
        help="standalone: a Spark master and two workers, for flights into a MariaDB by default",
    )  # fmt: skip
    parser.add_argument("--transactions", type=int, default=6000, help="mixed transactions to run")
    parser.add_argument("--rows", type=int, help="load only so many rows of each table")
    parser.add_argument("--seconds", type=int, help="how long sysbench runs")
    parser.add_argument("--rate", type=int, help="sysbench's transactions a second")
    parser.add_argument("--keep", action="store_true", help="keep data and logs, and say where")
    options = parser.parse_args(argv)
    if options.source != "flights" and options.sink not in (None, "mysql"):
        parser.error(f"--source {options.source} is compared with a server: --sink mysql")
    on_cluster = options.spark == "standalone"
    if on_cluster and options.source != "flights":
        parser.error("--spark standalone is for --source flights")
    signal.signal(signal.SIGINT, _interrupt)
    home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        use_java(home / "java")  # Before any process starts.
        given = {name: vars(options)[name] for name in ("seconds", "rate", "rows")}
        given = {name: value for name, value in given.items() if value}
        if options.source == "mysql":
            identical = servers.run_mysql(
                home, replace(servers.Size(seconds=30, rate=300), **given)
            )
        elif options.source == "tidb":
            identical = servers.run_tidb(home, replace(servers.Size(seconds=40, rate=100), **given))
        else:
            sink = options.sink or ("mysql" if on_cluster else "sqlite")
            identical = flights.run(
                home, sink, options.transactions, options.rows, spark=on_cluster
            )
    except PenstockError as error:
        print(f"the demo failed: {coded(error)}", file=sys.stderr)
        return command.FAILED
    except KeyboardInterrupt:
        return command.INTERRUPTED
    finally:
        if options.keep:
            print(f"data and logs: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
