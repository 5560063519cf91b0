"""Command: `penstock run` replicates from one system to another, with everything on this machine.

    penstock run --from mysql://user:password@host:3306/ --to URL    load, then follow every change
    penstock run --from app --to URL                                  for programs with pumpclient
    penstock run … --once                                             end when both sides are equal
    penstock run … --print-config                                     show the settings of each part
    penstock run status                                               the state of each part

It starts etcd, a Pump, a Drainer, a source and the console, and keeps all their data below one
folder (`--data-dir`). Ctrl-C stops everything cleanly, and the same command continues. URLs of the
downstream are those of a Drainer's setting `sink`.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from drainer.settings.targets import (
    MYSQL_TYPES,
    MysqlTarget,
    PluginTarget,
    SqliteTarget,
    Target,
    target_of,
)
from drainer.sinks.opening import open_sink
from penstock import __version__
from penstock.cluster import etcd
from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator
from penstock.local.process import open_local
from penstock.local.run.parts import DRAINER, ETCD, SOURCE, Choice, Part, parts_of
from penstock.local.run.preflight import Look, check_apart, downstream_checks, report, sides_of
from penstock.local.run.repair import Repairs, comparison
from penstock.local.run.screen import EVERY_S, Screen, awaited, following, loading
from penstock.local.run.supervisor import ENDED, RUNNING, STOPPED, Running, Supervisor
from penstock.node import command, service
from penstock.node.output import add_output, show
from penstock.oracle.client import OracleClient
from penstock.settings.load import Parser, check_command
from pumpclient.mysql.protocol.server import address_in
from pumpclient.mysql.source.state.overrides import table_name

PROG = "penstock run"
_APP = "app"
_FOLDER = Path("penstock.data")
_ANSWER_S = 2.0
_POLL_S, _SURELY_S, _WAITS_S = 0.5, 1.0, 5.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["status"]:
        return command.run(f"{PROG} status", lambda: _status(arguments[1:]))

    def body() -> int:
        check_command(PROG, arguments, ("status",))
        return _run(_parser().parse_args(arguments))

    return command.run(PROG, body, extra="run")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROG,
        description="Replicate from one system to another, with everything on this machine.",
        epilog="`penstock run status` shows the state of each part.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument(
        "--from", dest="upstream", metavar="URL",
        help="mysql://user:password@host:port/ of a MySQL or MariaDB, or app for programs with"
        " pumpclient; the password also from PENSTOCK_UPSTREAM_PASSWORD",
    )  # fmt: skip
    parser.add_argument(
        "--to", dest="downstream", metavar="URL",
        help="mysql://, mariadb://, tidb://, kafka://, delta://, file:// or sqlite://, as for a"
        " Drainer; the password also from PENSTOCK_DOWNSTREAM_PASSWORD",
    )  # fmt: skip
    _folder_option(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="TOML with from, to, and more settings of the parts in [pump], [drainer] and [source]",
    )  # fmt: skip
    parser.add_argument(
        "--etcd-urls", default="", metavar="URLS", help="use this etcd, do not start one"
    )
    parser.add_argument(
        "--ignore-table", action="append", default=[], metavar="DB.TABLE",
        help="leave a table out, as filter.ignore-tables of the source does; may be repeated",
    )  # fmt: skip
    parser.add_argument("--no-console", action="store_true", help="do not start the console")
    parser.add_argument(
        "--once", action="store_true", help="end when the downstream has everything; compare SQL"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="write and show each part's settings, and end"
    )
    return parser


def _folder_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, default=_FOLDER, metavar="DIR",
        help="folder of all data, settings and logs (default: %(default)s)",
    )  # fmt: skip


def _run(asked: argparse.Namespace) -> int:
    more = _read(asked.config) if asked.config else {}
    upstream, downstream = (
        str(given or more.pop(name, "")) for given, name in
        ((asked.upstream, "from"), (asked.downstream, "to"))
    )  # fmt: skip
    for name, given in (("--from", upstream), ("--to", downstream)):
        if not given:
            raise NeedsOperator(
                f"{name} is missing",
                f"name a system: {PROG} --from URL --to URL",
                Code.SETTING_VALUE,
            )
    if asked.once and upstream == _APP:
        raise NeedsOperator(
            "--once needs an upstream server", "leave it out for programs", Code.SETTING_VALUE
        )
    _ignore(asked.ignore_table, more)
    server = None
    if upstream != _APP:
        password = os.environ.get("PENSTOCK_UPSTREAM_PASSWORD", "")
        server = address_in(upstream, "upstream (--from)", password)
    downstream = _with_password(downstream, os.environ.get("PENSTOCK_DOWNSTREAM_PASSWORD", ""))
    _check_downstream(target_of(downstream))  # Report an invalid URL before anything starts.
    with command.private_files():
        asked.data_dir.mkdir(parents=True, exist_ok=True)
        with _locked(asked.data_dir):
            choice = Choice(
                upstream=server,
                downstream=downstream,
                folder=asked.data_dir.resolve(),
                etcd_urls=asked.etcd_urls,
                with_console=not asked.no_console,
                more=more,
            )
            parts = parts_of(choice)
            if asked.print_config:
                _print_config(choice, parts)
                return command.DONE
            _check(choice)
            return asyncio.run(_supervised(choice, parts, once=asked.once))


def _ignore(tables: Sequence[str], more: dict[str, Any]) -> None:
    """Add tables to the source's filter.ignore-tables."""
    if tables:
        rules = more.setdefault(SOURCE, {}).setdefault("filter", {})
        names = [table_name(each) for each in tables]
        added = [{"db-name": schema, "tbl-name": table} for schema, table in names]
        rules["ignore-tables"] = [*rules.get("ignore-tables", ()), *added]


def _check_downstream(target: Target) -> None:
    """Raise `NeedsOperator` for a sink of another package that cannot be used."""
    if isinstance(target, PluginTarget):
        open_sink(target, cluster_id=0).close()


def _with_password(url: str, password: str) -> str:
    """Return the URL with a password if it has an account without one; MySQL's usual is root."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `target_of` reports it.
        return url
    account, _, server = parts.netloc.rpartition("@")
    account = account or ("root" if parts.scheme in MYSQL_TYPES else "")
    if not (password and account) or ":" in account:
        return url
    return urlunsplit(parts._replace(netloc=f"{account}:{quote(password, safe='')}@{server}"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NeedsOperator(
            f"{path} is not TOML: {error}", "correct it", Code.SETTING_VALUE
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "run.lock").open("w") as lock:
        if not _lock(lock.fileno()):
            raise NeedsOperator(
                f"another penstock run uses {folder}",
                f"{PROG} status --data-dir {folder} shows it; name another --data-dir",
                Code.NODE_ID_TAKEN,
            )
        yield


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _print_config(choice: Choice, parts: Sequence[Part]) -> None:
    for part in parts:
        path = choice.folder / "conf" / f"{part.name}.toml"
        settings = f"{path.read_text()}\n" if path.exists() else ""
        sys.stdout.write(f"# {' '.join(part.command)}\n{settings}")


def _check(choice: Choice) -> None:
    """Print all that both sides lack; raise `NeedsOperator` if something must be met first."""
    target = target_of(choice.downstream)
    if isinstance(target, MysqlTarget) and choice.upstream is not None:
        check_apart(choice.upstream, target)
    looks: dict[str, Look] = {f"downstream {target.label}": partial(downstream_checks, target)}
    if choice.upstream is not None:
        from pumpclient.mysql.source.checks import checks_of
        from pumpclient.mysql.source.command import load

        settings = load([f"--config={choice.folder / 'conf/source.toml'}"])
        looks = {f"upstream {choice.upstream}": partial(checks_of, settings), **looks}

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    say(f"checking {' and '.join(looks)}")
    text, error = report(sides_of(looks, say))
    sys.stdout.write(text)
    if error is not None:
        raise error


async def _supervised(choice: Choice, parts: Sequence[Part], *, once: bool) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    target = target_of(choice.downstream).label
    screen = Screen(choice.folder / "run.json", str(choice.upstream or _APP), target)
    supervisor = Supervisor(parts, screen.changed)
    repairs = Repairs(choice, {each.name: each for each in parts}, screen.line)

    def ask(number: signal.Signals) -> None:
        screen.is_paused = False
        screen.line("stopping, which may take a minute")
        service.notify(service.STOPPING)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)

    async def work() -> int:
        await supervisor.until_running()
        service.notify(service.READY)
        if once:
            await _drained(choice, supervisor.parts, repairs)
            screen.report(await asyncio.to_thread(_page, supervisor.parts[SOURCE].part))
            return await _compared(choice, screen)
        repairing = asyncio.ensure_future(repairs.keep())
        try:
            await stop.wait()
        finally:
            repairing.cancel()
            await asyncio.wait((repairing,))
        return command.DONE

    showing = asyncio.create_task(_shown(screen, supervisor.parts, repairs, stop))
    try:
        code = await supervisor.run(stop, work())
    finally:
        showing.cancel()
        await asyncio.wait((showing,))
        screen.end()
    if stop.is_set():
        screen.line("stopped; the same command continues")
    return command.INTERRUPTED if once and stop.is_set() else code


async def _shown(
    screen: Screen, parts: Mapping[str, Running], repairs: Repairs, stop: asyncio.Event
) -> None:
    """Show the awaited part, the load, and the rates of the parts, until cancelled."""
    began_s, was_stopping = time.monotonic(), False
    while True:
        if stop.is_set() != was_stopping:
            began_s, was_stopping = time.monotonic(), stop.is_set()
        waits_s = time.monotonic() - began_s
        wanted = awaited(parts, waits_s, is_stopping=was_stopping)
        if screen.is_due(in_stage=bool(wanted)):
            pages = {} if was_stopping else await asyncio.to_thread(_pages, parts)
            source = pages.get(SOURCE, {})
            screen.report(source)
            bars = loading(source["load"]) if source.get("load") else []
            steady = [] if wanted else [*filter(None, (repairs.text,)), *following(parts, pages)]
            if not stop.is_set() or was_stopping:
                screen.show([*wanted, *bars, *steady])
        await asyncio.sleep(EVERY_S)


def _pages(parts: Mapping[str, Running]) -> dict[str, dict[str, Any]]:
    return {name: _page(parts[name].part) for name in (SOURCE, DRAINER) if name in parts}


def _page(part: Part) -> dict[str, Any]:
    """Return the status page of a part, empty while it does not answer."""
    try:
        with open_local(f"{part.pages}status", timeout_s=_ANSWER_S) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return {}


async def _drained(choice: Choice, parts: Mapping[str, Running], repairs: Repairs) -> None:
    """Return once the downstream has all that the upstream had, with its repairs."""

    def follows(status: Mapping[str, Any]) -> bool:
        if status.get("state") == "failed":
            raise NeedsOperator(
                f"source: {status['problem']}",
                status["hint"],
                code_named(status["code"]) or Code.NODE_REFUSES,
            )
        return status.get("state") == "syncing" and bool(status["relay"]["connected"])

    source = parts[SOURCE].part
    await _until(source, follows)
    began_s = time.time() + _SURELY_S
    await _until(
        source, lambda found: follows(found) and time.time() - found["seconds_behind"] > began_s
    )
    with closing(etcd.connect(choice.etcd_urls or parts[ETCD].part.address)) as client:
        wanted_ts = await asyncio.to_thread(OracleClient(client).get_ts)
    await _until(parts[DRAINER].part, lambda found: found.get("LastTS", 0) >= wanted_ts)
    await repairs.settle()


async def _until(part: Part, holds: Callable[[Mapping[str, Any]], bool]) -> None:
    while not holds(await asyncio.to_thread(_page, part)):  # noqa: ASYNC110  # Another process.
        await asyncio.sleep(_POLL_S)


async def _compared(choice: Choice, screen: Screen) -> int:
    """Run `penstock verify` if the downstream is SQL, and return its exit code."""
    target = target_of(choice.downstream)
    if not isinstance(target, MysqlTarget | SqliteTarget):
        screen.line("the downstream has everything")
        return command.DONE
    screen.line("the downstream has everything; penstock verify compares both sides")
    screen.is_paused = True
    command_, environment = comparison(choice, target, "--wait-s", "5")
    process = await asyncio.create_subprocess_exec(*command_, env=environment)
    began_s = time.monotonic()
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAITS_S):
                    return await process.wait()
            screen.line(f"penstock verify compares ({time.monotonic() - began_s:.0f} s)")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _status(argv: Sequence[str]) -> int:
    parser = Parser(prog=f"{PROG} status", description="Show the state of each part.")
    _folder_option(parser)
    add_output(parser)
    asked = parser.parse_args(argv)
    try:
        found = json.loads((asked.data_dir / "run.json").read_text())
        with (asked.data_dir / "run.lock").open("r+") as lock:
            is_running = not _lock(lock.fileno())
    except FileNotFoundError as error:
        raise NeedsOperator(
            f"no penstock run was started in {asked.data_dir}",
            "name its folder: --data-dir DIR",
            Code.COMMAND_INVALID,
        ) from error
    if not is_running:
        for part in found["parts"].values():
            part["state"] = STOPPED
    lines = [f"{found['from']} to {found['to']}: {'runs' if is_running else 'stopped'}"]
    for name, part in found["parts"].items():
        where = part["pages"] or part["address"]
        problem = f"  {part['problem']}" if part["state"] == ENDED else ""
        lines.append(f"{name:8} {part['state']:8} {where:32} {part['log']}{problem}")
    show(asked, {"is_running": is_running, **found}, "\n".join(lines))
    is_sound = is_running and all(p["state"] == RUNNING for p in found["parts"].values())
    return command.DONE if is_sound else command.FAILED


if __name__ == "__main__":
    raise SystemExit(main())
