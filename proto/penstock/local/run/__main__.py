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
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from drainer.settings.targets import MYSQL_TYPES, MysqlTarget, SqliteTarget, target_of
from penstock import __version__
from penstock.cluster import etcd
from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator
from penstock.local.process import open_local
from penstock.local.run.parts import CONSOLE, DRAINER, ETCD, SOURCE, Choice, Part, parts_of
from penstock.local.run.preflight import Look, downstream_checks, report, sides_of
from penstock.local.run.repair import Repairs, comparison
from penstock.local.run.supervisor import ENDED, RUNNING, STOPPED, Running, Supervisor
from penstock.node import command, service
from penstock.node.output import add_output, show
from penstock.oracle.client import OracleClient
from penstock.settings.load import Parser, check_command
from pumpclient.mysql.protocol.server import address_in
from pumpclient.mysql.source.state.overrides import table_name

PROG = "penstock run"
_APP = "app"
_IGNORED = "ignore-tables"
_FOLDER = Path("penstock.data")
_EVERY_S, _EVERY_S_UNWATCHED = 1.0, 10.0
_ANSWER_S = 2.0
_POLL_S, _SURELY_S = 0.5, 1.0


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
    target_of(downstream)  # Report an invalid URL before anything starts.
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
    """Add tables to the source's filter.ignore-tables, however its keys are spelled."""
    if tables:
        rules = more.setdefault(SOURCE, {}).setdefault("filter", {})
        key = next((key for key in rules if key.replace("_", "-") == _IGNORED), _IGNORED)
        names = [table_name(each) for each in tables]
        added = [{"db-name": schema, "tbl-name": table} for schema, table in names]
        rules[key] = [*rules.get(key, ()), *added]


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
    looks: dict[str, Look] = {f"downstream {target.label}": partial(downstream_checks, target)}
    if choice.upstream is not None:
        from pumpclient.mysql.source.checks import checks_of
        from pumpclient.mysql.source.command import load

        settings = load([f"--config={choice.folder / 'conf/source.toml'}"])
        looks = {f"upstream {choice.upstream}": partial(checks_of, settings), **looks}
    sys.stdout.write(f"checking {' and '.join(looks)}\n")
    sys.stdout.flush()
    text, error = report(sides_of(looks))
    sys.stdout.write(text)
    if error is not None:
        raise error


class _Screen:
    """Lines about the parts, and a last line that changes; `run.json` for `penstock run status`."""

    def __init__(self, choice: Choice) -> None:
        self._file = choice.folder / "run.json"
        self._head = {
            "pid": os.getpid(), "from": str(choice.upstream or _APP),
            "to": target_of(choice.downstream).label,
        }  # fmt: skip
        self.is_live = sys.stdout.isatty()
        self._parts: dict[str, dict[str, Any]] = {}

    def changed(self, running: Running) -> None:
        part = running.part
        self._parts[part.name] = {
            "state": running.state,
            "pid": running.pid,
            "starts": running.starts,
            "problem": running.problem,
            "address": part.address,
            "pages": part.pages,
            "log": str(part.log),
        }
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({**self._head, "parts": self._parts}, indent=2))
        written.replace(self._file)
        if running.state == RUNNING:
            self.line(f"{part.name} runs{f' at {part.address}' if part.address else ''}")
        elif running.state == ENDED:
            self.line(f"{part.name} ended and is started again: {running.problem}")

    def line(self, text: str, end: str = "\n") -> None:
        sys.stdout.write(f"\r\x1b[K{text}{end}" if self.is_live else f"{text}\n")
        sys.stdout.flush()


async def _supervised(choice: Choice, parts: Sequence[Part], *, once: bool) -> int:
    stop, screen, loop = asyncio.Event(), _Screen(choice), asyncio.get_running_loop()
    supervisor = Supervisor(parts, screen.changed)

    def ask(number: signal.Signals) -> None:
        screen.line("stopping, which may take a minute")
        service.notify(service.STOPPING)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)

    async def work() -> int:
        await supervisor.until_running()
        service.notify(service.READY)
        repairs = Repairs(choice, {each.name: each for each in parts}, screen.line)
        if once:
            return await _once(choice, supervisor.parts, repairs)
        repairing = asyncio.ensure_future(repairs.keep())
        try:
            return await shown(repairs)
        finally:
            repairing.cancel()
            await asyncio.wait((repairing,))

    async def shown(repairs: Repairs) -> int:
        while True:
            text = await asyncio.to_thread(_progress, supervisor.parts)
            screen.line("; ".join(filter(None, (text, repairs.text))), end="")
            await asyncio.sleep(_EVERY_S if screen.is_live else _EVERY_S_UNWATCHED)

    return await supervisor.run(stop, work())


def _page(part: Part) -> dict[str, Any]:
    """Return the status page of a part, empty while it does not answer."""
    try:
        with open_local(f"{part.pages}status", timeout_s=_ANSWER_S) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return {}


def _progress(parts: Mapping[str, Running]) -> str:
    """Return one line with rate and lag."""
    texts = []
    if SOURCE in parts:
        source = _page(parts[SOURCE].part)
        if source.get("problem"):
            texts.append(f"source {source['state']}: {source['problem']} ({source['hint']})")
        elif source:
            texts.append(
                f"{source['state']}, {source['transactions_per_s']:,} transactions/s,"
                f" {source['seconds_behind']:.1f} s behind the upstream"
            )
    own = _page(parts[DRAINER].part).get("self", {})
    if "lag_s" in own:
        texts.append(f"downstream {own['lag_s']:.1f} s behind")
    waits = own.get("progress_ddl_waits_for"), own.get("progress_downstream_waits_for")
    texts += [each for each in waits if each and each != "nothing"]
    problems = (each for each in parts.values() if each.state == ENDED)
    texts += [f"{each.part.name}: {each.problem}" for each in problems]
    if CONSOLE in parts:
        texts.append(f"console {parts[CONSOLE].part.pages}")
    return "; ".join(texts)


async def _once(choice: Choice, parts: Mapping[str, Running], repairs: Repairs) -> int:
    """Return once the downstream has all that the upstream had; 1 if rows differ."""

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
    target = target_of(choice.downstream)
    if isinstance(target, MysqlTarget | SqliteTarget):
        return await _compared(choice, target)
    return command.DONE


async def _until(part: Part, holds: Callable[[Mapping[str, Any]], bool]) -> None:
    while not holds(await asyncio.to_thread(_page, part)):  # noqa: ASYNC110  # Another process.
        await asyncio.sleep(_POLL_S)


async def _compared(choice: Choice, target: MysqlTarget | SqliteTarget) -> int:
    """Run `penstock verify` and return its exit code."""
    command_, environment = comparison(choice, target, "--wait-s", "5")
    process = await asyncio.create_subprocess_exec(*command_, env=environment)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()


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
