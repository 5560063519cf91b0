"""`penstock run` with real servers: everything in one command, and the same command continues."""

import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pymysql
import pytest
from confluent_kafka import Consumer, KafkaException
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.local.kafka import KafkaServer
from penstock.local.sql_server import SqlProcess, SqlServer
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import MARIADB, MYSQL, numbers
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.wait import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.etcd]

# The usual ports may belong to somebody else, and others' tests expect nothing there.
PROGRAM = """
import sys
from penstock.local.process import free_port
from penstock.local.run import parts
parts._PORTS = {name: free_port() for name in parts._PORTS}
from penstock.local.run.__main__ import main
raise SystemExit(main(sys.argv[1:]))
"""
START_S, STOP_S_MAX = 120, 60


class Runs:
    """`penstock run` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._command = [sys.executable, "-c", PROGRAM]
        self._running: subprocess.Popen[str] | None = None

    def completed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *arguments, "--data-dir", str(self.folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def start(self, *arguments: str) -> None:
        with (self.folder.parent / "run.log").open("w") as log:
            self._running = subprocess.Popen(
                [*self._command, *arguments, "--data-dir", str(self.folder)],
                stdout=log, stderr=log, text=True,
            )  # fmt: skip

    def parts(self) -> dict[str, Any]:
        try:
            found = json.loads(self.completed("status", "-o", "json").stdout)
        except ValueError:
            return {}
        return dict(found["parts"]) if found["is_running"] else {}

    def is_up(self) -> bool:
        parts = self.parts()
        return bool(parts) and all(each["state"] == "running" for each in parts.values())

    def says(self, text: str) -> bool:
        """Return whether the last start has printed a text."""
        return text in self.text()

    def text(self) -> str:
        return (self.folder.parent / "run.log").read_text()

    def stop(self) -> int:
        """Interrupt it; return its exit code."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        return self._running.wait(STOP_S_MAX)

    def ended(self) -> int:
        """Return the exit code, once it has ended without being asked to."""
        assert self._running is not None
        return self._running.wait(300)

    def close(self) -> None:
        if self._running is not None and self._running.poll() is None:
            self.stop()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "data")
    yield made
    made.close()


def url(server: SqlServer) -> str:
    return f"mysql://{server.user}:{quote(server.password, safe='')}@127.0.0.1:{server.port}/"


@pytest.mark.fault(
    "the Drainer of `penstock run` is killed, and `penstock run` is stopped and started again",
    "the Drainer is started again; both sides become equal",
    cases="2",
)
def test_one_command_loads_a_server_into_another_and_continues_after_a_kill_and_a_restart(
    runs: Runs, mariadb_binlog: MariadbServer, mariadb: MariadbServer
) -> None:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO shop.t VALUES (1, 'a'), (2, 'b')",
    )
    asked = ("--from", url(mariadb_binlog), "--to", url(mariadb))
    once = runs.completed(*asked, "--once")
    assert once.returncode == 0, f"{once.stdout}\n{once.stderr}"
    assert "equal" in once.stdout
    assert mariadb.query("SELECT * FROM shop.t ORDER BY id") == [(1, "a"), (2, "b")]
    runs.start(*asked)
    eventually(runs.is_up, START_S)
    first = runs.parts()["drainer"]["pid"]
    os.kill(first, signal.SIGKILL)
    mariadb_binlog.run("UPDATE shop.t SET v = 'c' WHERE id = 2", "DELETE FROM shop.t WHERE id = 1")
    eventually(lambda: mariadb.query("SELECT * FROM shop.t") == [(2, "c")], START_S)
    parts = runs.parts()
    assert (parts["drainer"]["starts"], parts["pump"]["starts"]) == (2, 1)
    second = runs.completed(*asked)
    assert second.returncode == 2
    assert "another penstock run uses" in second.stderr
    assert runs.stop() == 0
    assert not any(psutil.pid_exists(part["pid"]) for part in parts.values())
    assert runs.completed("status").returncode == 1


def test_programs_write_through_one_command(runs: Runs, tmp_path: Path) -> None:
    database = tmp_path / "down.db"
    runs.start("--from", "app", "--to", f"sqlite:///{database}", "--no-console")
    eventually(runs.is_up, START_S)
    with closing(PumpClient.connect(runs.parts()["etcd"]["address"])) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
        with client.begin("shop") as transaction:
            transaction.insert("t", {"id": 7})

    def rows() -> list[tuple[int]]:
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
            return connection.execute("SELECT * FROM `shop.t`").fetchall()
        return []

    eventually(lambda: rows() == [(7,)], START_S)
    assert runs.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("etcd runs at", 0),
        ("loading: 1 of 2 tables", 0),
        ("transactions/s,", 0),
        ("penstock verify compares both sides", 130),
    ],
    ids=["start", "load", "follow", "verify"],
)
def test_it_can_be_interrupted_at_every_stage_and_the_same_command_continues(
    runs: Runs, mariadb_binlog: MariadbServer, mariadb: MariadbServer, moment: str, code: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(600))",
        "CREATE TABLE shop.u (id INT PRIMARY KEY) ENGINE=MyISAM",
        f"INSERT INTO shop.t SELECT seq, REPEAT('x', 600) FROM {numbers(4000)}",
        "INSERT INTO shop.u VALUES (1)",
    )
    slow = tmp_path / "slow.toml"
    slow.write_text("[source.load]\nrate-bytes-per-s = 100_000\n")
    asked = ("--from", url(mariadb_binlog), "--to", url(mariadb))
    more = {"loading: 1 of 2 tables": ("--config", str(slow))}.get(moment, ())
    runs.start(*asked, *more, *(["--once"] if code else []))
    eventually(lambda: runs.says(moment), START_S)
    assert runs.stop() == code, runs.text()
    assert "stopped; the same command continues" in runs.text()
    mariadb_binlog.run("INSERT INTO shop.u VALUES (2)")
    done = runs.completed(*asked, "--once")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "equal" in done.stdout


def test_it_can_be_interrupted_while_the_upstream_does_not_answer(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        runs.start("--from", f"mysql://me:x@127.0.0.1:{port}/", "--to", "sqlite:///x.db")
        eventually(lambda: runs.says("checking upstream"), START_S)
        assert runs.stop() == 130
    assert not (runs.folder / "run.json").exists()


def statements(printed: str) -> dict[str, list[str]]:
    """Return the SQL statements of the list of what is missing, by side."""
    found: dict[str, list[str]] = {}
    side = ""
    for line in printed.splitlines():
        side = line.split()[0] if line.startswith(("upstream", "downstream")) else side
        if line.endswith(";"):
            found.setdefault(side, []).append(line.strip())
    return found


@contextmanager
def poor_account(server: SqlProcess) -> Iterator[str]:
    """Create an account without any right; yield a URL with it."""
    who = "'poor'@'%'"
    server.run(f"DROP USER IF EXISTS {who}", f"CREATE USER {who} IDENTIFIED BY 'p:w'")
    yield f"mysql://poor:p%3Aw@127.0.0.1:{server.port}/"
    server.run(f"DROP USER {who}")


def test_what_both_sides_lack_is_reported_at_once_before_anything_starts(
    runs: Runs, mariadb: MariadbServer, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = runs.completed("--from", url(mariadb), "--to", f"file://{tmp_path}/file/changes")
    assert done.returncode == 2
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert {"FAILED   log_bin: OFF", "log-bin = mysql-bin"} <= set(lines)
    assert f"FAILED   folder: {tmp_path}/file cannot be written: Not a directory" in lines
    assert "requirements are not met" in done.stderr
    assert not (runs.folder / "run.json").exists()


# --- the acceptance: a stranger's schema, an account without rights, one command ----------------

TABLES = 19


def rental() -> list[str]:
    text = (Path(__file__).parent / "rental.sql").read_text()
    return [each for each in text.split(";\n") if each.strip()]


def first_row_s(began_s: float, has_row: Callable[[], bool]) -> float:
    """Return how long the first row took; unreachable tables have none yet."""

    def found() -> bool:
        with suppress(pymysql.err.MySQLError, OSError, KafkaException, TableNotFoundError):
            return has_row()
        return False

    eventually(found, START_S)
    return round(time.monotonic() - began_s, 1)


def accepted(
    runs: Runs, asked: Sequence[str], sides: Mapping[str, SqlServer], has_row: Callable[[], bool]
) -> None:
    """Run the command without rights, then the printed statements, then the same command."""
    began_s = time.monotonic()
    refused = runs.completed(*asked)
    preflight_s = round(time.monotonic() - began_s, 1)
    assert refused.returncode == 2, f"{refused.stdout}\n{refused.stderr}"
    wanted = statements(refused.stdout)
    assert wanted.keys() == sides.keys(), refused.stdout
    for side, server in sides.items():
        server.run(*wanted[side])
    began_s = time.monotonic()
    runs.start(*asked)
    row_s = first_row_s(began_s, has_row)
    assert runs.ended() == 0, runs.text()
    print(json.dumps({"preflight_s": preflight_s, "first_row_s": row_s, "to": asked[3][:5]}))  # noqa: T201


@pytest.mark.parametrize("kind", [MARIADB, pytest.param(MYSQL, marks=pytest.mark.slow)])
@pytest.mark.mysql
def test_a_rental_with_five_engines_and_cascades_is_replicated_by_one_command(
    runs: Runs, source_server: SqlServer, sink_server: SqlServer, kind: str
) -> None:
    there = {MARIADB: "Aria", MYSQL: "ARCHIVE"}[kind]
    source_server.run(*(each.replace("=Aria", f"={there}") for each in _of_kind(rental(), kind)))
    sides = {"upstream": source_server, "downstream": sink_server}
    with poor_account(source_server) as upstream, poor_account(sink_server) as downstream:
        asked = ("--from", upstream, "--to", downstream, "--once")
        accepted(
            runs, asked, sides,
            lambda: bool(sink_server.query("SELECT 1 FROM rental.film LIMIT 1")),
        )  # fmt: skip
        assert f"{TABLES} tables" in runs.text()
        assert "equal" in runs.text()
        assert f"loaded {TABLES} tables with" in runs.text()
        source_server.run(
            "ALTER TABLE rental.film ADD note INT",
            "CREATE TABLE rental.late (id INT PRIMARY KEY)",
            "INSERT INTO rental.film (title, language_id) VALUES ('Cog', 1)",
            "DELETE FROM rental.film WHERE title = 'Bolt'",
            "DELETE FROM rental.city WHERE name = 'Wien'",
            "UPDATE rental.language SET language_id = 9 WHERE language_id = 3",
            "UPDATE rental.visit SET visitors = 18",
        )
        again = runs.completed(*asked)
        assert again.returncode == 0, f"{again.stdout}\n{again.stderr}"
        for table in ("film_actor", "address", "film", "film_text", "visit"):
            rows = f"SELECT * FROM rental.{table}"
            assert sink_server.query(rows) == source_server.query(rows), table


def _of_kind(statements: Iterable[str], kind: str) -> Iterator[str]:
    """With GTIDs, a MySQL refuses triggers that change a table without transactions."""
    for each in statements:
        is_mixed = kind == MYSQL and "film_text" in each and each.startswith("CREATE TABLE")
        yield each.replace("ENGINE=MyISAM", "ENGINE=InnoDB") if is_mixed else each


@pytest.mark.slow
def test_the_same_rental_goes_into_a_kafka(
    runs: Runs, mariadb_binlog: MariadbServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(*rental())
    to = f"kafka://{kafka.address}/?prefix=rental-{tmp_path.name}"
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": "x", "auto.offset.reset": "earliest"}
    )
    topics = [f"rental-{tmp_path.name}.rental.film"]
    with poor_account(mariadb_binlog) as upstream:
        asked = ("--from", upstream, "--to", to, "--once")

        def has_row() -> bool:
            consumer.subscribe(topics)
            found = consumer.poll(1.0)
            return found is not None and found.error() is None

        accepted(runs, asked, {"upstream": mariadb_binlog}, has_row)
    consumer.close()


@pytest.mark.slow
def test_the_same_rental_goes_into_a_lake(
    runs: Runs, mariadb_binlog: MariadbServer, tmp_path: Path
) -> None:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(*rental())
    lake = tmp_path / "lake"
    with poor_account(mariadb_binlog) as upstream:
        asked = ("--from", upstream, "--to", f"delta://{lake}?interval=1s", "--once")

        def rows() -> int:
            return int(DeltaTable(lake / "rental/film").to_pyarrow_table().num_rows)

        accepted(runs, asked, {"upstream": mariadb_binlog}, lambda: rows() > 0)
    assert rows() == 3


# --- the page -----------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs/start/run.md"
PORTS = re.compile(r"127\.0\.0\.1:(2379|8249|8250|9249|9250|9251|9252)/? *")


def blocks(kind: str) -> list[tuple[str, str]]:
    return re.findall(rf'```{kind}(?: title="(.*?)")?\n(.*?)```', PAGE.read_text(), re.DOTALL)


def test_the_page_shows_what_happens(
    runs: Runs, mariadb_binlog: MariadbServer, mariadb: MariadbServer
) -> None:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(*rental())
    sides = {"upstream": [mariadb_binlog], "downstream": [mariadb]}
    sides["both"] = [mariadb_binlog, mariadb]

    def here(text: str) -> str:
        # The account of this name is what the servers were installed with.
        text = text.replace("'penstock'@", "'follower'@").replace("penstock@", "follower@")
        text = text.replace("penstock:secret@", "follower:secret@")
        text = text.replace(":3306", f":{mariadb_binlog.port}")
        return text.replace(":3307", f":{mariadb.port}").replace("/home/me/penstock.data", "…")

    def is_said(shown: str) -> bool:
        wanted = re.escape(PORTS.sub("…", here(shown)).strip()).replace("…", ".*")
        return re.search(wanted, runs.text(), re.DOTALL) is not None

    def run_sql(wanted: str) -> None:
        for side, statement in blocks("sql"):
            if side in wanted.split():
                for server in sides[side]:
                    server.run(here(statement))

    refused, started, status, stopped = (text for _, text in blocks("console"))
    command = shlex.split(here(refused).splitlines()[0])[3:]
    for server in sides["both"]:
        server.run("DROP USER IF EXISTS 'follower'@'%'")
    run_sql("both")
    try:
        runs.start(*command)
        assert runs.ended() == 2
        assert is_said(refused.partition("\n")[2]), runs.text()
        run_sql("upstream downstream")
        assert started.splitlines()[0] == refused.splitlines()[0]
        runs.start(*command)
        shown = started.partition("\n")[2]
        eventually(lambda: is_said(shown), START_S)
        eventually(lambda: film_rows(mariadb) == film_rows(mariadb_binlog), START_S)
        printed = runs.completed("status").stdout
        for line in status.splitlines()[2:]:
            assert line.split()[:2] in [each.split()[:2] for each in printed.splitlines()]
        assert runs.stop() == 0
        assert is_said(stopped.removeprefix("^C\n")), runs.text()
    finally:
        for server in sides["both"]:
            server.run("DROP USER 'follower'@'%'")


def film_rows(server: SqlServer) -> object:
    with suppress(pymysql.err.MySQLError):
        return server.query("SELECT * FROM rental.film ORDER BY film_id")
    return None
