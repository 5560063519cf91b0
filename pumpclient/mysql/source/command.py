"""`penstock source`: runs a source, or asks a source that runs on this machine.

    penstock source --config mysql_source.toml       run until asked to stop
    penstock source check --config …                 only check the server
    penstock source … --ignore-table DB.TABLE        leave a table out, as filter.ignore-tables does
    penstock source status | pause | resume          the source at --status-addr
    penstock source skip | replace SQL | inject SQL  decide on a place, by default the failed one
    penstock source skip-table DB.TABLE              skip a table from here on, counted
    penstock source reload DB.TABLE                  load a table again, while all others continue
    penstock source reload --all                     load all tables again at the next start
    penstock source continue --accept-gap            follow a server that was reset or restored
    penstock source revoke PLACE | DB.TABLE          take such an override back
    penstock source purge inactive | filename | time relay log files

Each command accepts --status-addr HOST:PORT, or --config FILE (then an override can also be given
to a stopped source), and -o json. A command that changes a source requires one of them (no default
exists), and the answer names the source. `penstock source COMMAND --help` shows the details.
"""

import argparse
import asyncio
import gc
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from penstock.cluster import etcd
from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.filters.settings import TablePattern
from penstock.node import service
from penstock.node.http_status import HttpStatus
from penstock.node.logs import one_line
from penstock.node.output import TEXT, add_output, take_output, write
from penstock.security.tls import Security
from penstock.settings.load import Parser, check_command, read_settings
from penstock.settings.setting import check_address
from pumpclient.mysql.source.checks import checks_of
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.pages import Pages, status_text
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state.checkpoint import SourceStore
from pumpclient.mysql.source.state.overrides import VERBS, Edit, table_name
from pumpclient.mysql.source.sync.loading import EDITS, edit_of, reload_all, report_text

_POLL_S = 0.5


def waited_for(
    tables: Sequence[str],
    status: Callable[[], Mapping[str, Any]],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Return the report of the tables' reloads, once they have ended; `status` asks the source.

    Raises `NeedsOperator` for a reload that fails, or ends without the table being replicated.
    """
    return "".join(_waited(".".join(table_name(each)), status, sleep) for each in tables)


def _waited(
    label: str, status: Callable[[], Mapping[str, Any]], sleep: Callable[[float], None]
) -> str:
    while True:
        found = status()
        left_out = found.get("left_out", {}).get(label)
        if left_out is None or not left_out["is_whole"]:
            break
        reload = left_out["reload"] or {}
        if reload.get("state") == "failed":
            raise NeedsOperator(
                f"{label} was not loaded again: {reload['problem']}",
                reload["hint"],
                Code.NODE_STATE,
            )
        if not left_out["reload_number"]:
            raise NeedsOperator(
                f"the reload of {label} was ended before it was done",
                f"penstock source reload {label}",
                Code.NODE_STATE,
            )
        sleep(_POLL_S)
    report = found.get("reloaded", {}).get(label)
    if report is None:
        raise NeedsOperator(
            f"{label} is not loaded again under this name: the server renamed it",
            "see penstock source status",
            Code.NODE_STATE,
        )
    return report_text(label, report)


PROG, ENV_PREFIX = "penstock source", "MYSQL_SOURCE"
IGNORE_TABLE = "--ignore-table"
_TIMEOUT_S = 60
_AWAY_HINT = "start it, or correct --status-addr"
_STATUS_ADDR = "127.0.0.1:9251"
_DECIDES = {
    "skip": "skip one statement, or the rows of one event",
    "replace": "run other statements instead of the one at a place",
    "inject": "run other statements before the one at a place",
}
_STATUS = "status"
_COMMANDS = (
    _STATUS, "pause", "resume", *VERBS, "skip-table", "reload", "continue", "revoke", "purge",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments) and arguments[0] not in _COMMANDS:
        sys.stdout.write(f"{__doc__}\n")
    if arguments[:1] == ["check"]:
        form, arguments = take_output(arguments[1:])
        return check(load(arguments), form)
    if arguments and arguments[0] in _COMMANDS:
        form, arguments = take_output(arguments)
        asked = command_parser().parse_args(arguments)
        answer = ask(arguments)
        facts, text = _facts(answer), answer.removesuffix("\n")
        if asked.command == _STATUS:
            text = status_text(facts)
        else:
            changed = asked.config or asked.status_addr or _usual_address()
            facts, text = {"source": changed, **facts}, f"source {changed}:\n{text}"
        write(form, facts, text)
        return 0
    check_command(PROG, arguments, ("check", *_COMMANDS))
    return run(load(arguments))


def _facts(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return {"messages": answer.splitlines()}


def load(argv: Sequence[str], required: Sequence[Collection[str]] = ()) -> SourceConfig:
    """Return the settings, with tables to ignore; raise `NeedsOperator` if they are invalid."""
    rest, ignored, words = [], [], iter(argv)
    for word in words:
        name, joint, value = word.partition("=")
        if name == IGNORE_TABLE:
            schema, table = table_name(value if joint else next(words, ""))
            ignored.append(TablePattern(db_name=schema, tbl_name=table))
        else:
            rest.append(word)
    found = read_settings(SourceConfig, rest, prog=PROG, env_prefix=ENV_PREFIX, required=required)
    tables = (*found.filter.ignore_tables, *ignored)
    return replace(found, filter=replace(found.filter, ignore_tables=tables))


def _of_stopped(asked: argparse.Namespace) -> SourceConfig:
    """Return the settings for a change of the checkpoint in etcd, which has no default there."""
    return load(["--config", asked.config], (("etcd-urls",), ("source-id",)))


def run(settings: SourceConfig) -> int:
    source = SourceService(settings)

    async def serve(stop: asyncio.Event) -> None:
        pages = HttpStatus(f"Penstock source {settings.source_id}")
        Pages(source, settings.source_id).add_to(pages)
        await pages.start(settings.status_addr, 0)
        source.pages_url = reached_at(pages.url)
        service.notify(service.READY)
        running = asyncio.create_task(asyncio.to_thread(source.run))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            source.stop()
            await running
        finally:
            stopping.cancel()
            await pages.close()

    # Otherwise the reader, the finisher and gRPC's threads wait for each other.
    sys.setswitchinterval(0.0005)
    # Groups consist of some ten thousand lists without cycles: the collector need not visit them.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    return service.run(
        serve,
        log_level=settings.log_level,
        log_file=settings.log_file,
        log_format=settings.log_format,
        extra="mysql",
    )


def reached_at(pages_url: str) -> str:
    """Return the URL for other hosts: a wildcard address becomes this machine's name."""
    for every in ("//0.0.0.0:", "//[::]:"):
        pages_url = pages_url.replace(every, f"//{socket.gethostname()}:")
    return pages_url


def check(settings: SourceConfig, form: str = TEXT) -> int:
    """Print the checks of the server; return 2 if it cannot be replicated from."""
    checks = checks_of(settings)
    write(form, [each.facts for each in checks], "\n".join(map(str, checks)))
    return 2 if any(each.required and not each.passed for each in checks) else 0


def ask(argv: Sequence[str]) -> str:
    """Ask the running source; return its answer, raise its refusal.

    With `--config` the source may also be stopped: an override then goes into its checkpoint.
    """
    asked = command_parser().parse_args(argv)
    settings = load(["--config", asked.config]) if asked.config else None
    usual = _usual_address() or (_STATUS_ADDR if asked.command == _STATUS else "")
    at = asked.status_addr or (settings.status_addr if settings else usual)
    if not at:
        raise NeedsOperator(
            f"{PROG} {asked.command} changes a source, and none is named",
            "name it by --status-addr HOST:PORT or --config FILE; its status page and the"
            " console show the whole command",
            Code.COMMAND_INVALID,
        )
    _check_asked(asked, settings)
    if asked.command == "reload" and asked.all:
        return reload_all(_of_stopped(asked), accepts_gap=asked.accept_gap)
    edits = _edits(asked)
    try:
        if settings is not None:
            _check_identity(at, settings.source_id)
        answer = "".join(_answer(at, *each) for each in _requests(asked, edits))
    except Retryable:
        if settings is None or not edits:
            raise
        settings = _of_stopped(asked)
        made = [edit_of(settings, *each) for each in edits]
        return "".join(changed_while_stopped(settings, edit) for edit in made)
    if asked.command == "reload" and asked.wait:
        answer += waited_for(asked.tables, lambda: json.loads(_answer(at, "GET", "/status")))
    return answer


def _check_identity(status_addr: str, source_id: str) -> None:
    found = json.loads(_answer(status_addr, "GET", "/status"))["source"]
    if found != source_id:
        raise NeedsOperator(
            f"the source at {status_addr} is {found!r}, and the settings are those of"
            f" {source_id!r}",
            "give --status-addr, or status-addr in the settings",
            Code.COMMAND_INVALID,
        )


def _usual_address() -> str:
    return os.environ.get(f"{ENV_PREFIX}_STATUS_ADDR", "")


def _check_asked(asked: argparse.Namespace, settings: SourceConfig | None) -> None:
    if asked.command == "reload" and bool(asked.tables) == asked.all:
        problem, hint = "reload needs tables or --all", "name them, or give --all"
    elif asked.command == "reload" and asked.all and settings is None:
        problem, hint = "reload --all is for a source that is stopped", "give --config"
    elif asked.command == "continue" and not asked.accept_gap:
        problem = "what the source had not read of the history before stays missing downstream"
        hint = "give --accept-gap, or load all tables again: penstock source reload --all"
        raise NeedsOperator(problem, hint, Code.NOT_CONFIRMED)
    else:
        return
    raise NeedsOperator(problem, hint, Code.COMMAND_INVALID)


def _answer(status_addr: str, method: str, path: str) -> str:
    check_address("addr", status_addr)
    host, _, port = status_addr.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        problem = f"no source answers at {status_addr}: {error!r} ({_AWAY_HINT})"
        raise Retryable(problem, Code.NODE_AWAY) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise _refusal(status_addr, text)
    return text


def _refusal(status_addr: str, text: str) -> PenstockError:
    try:
        answer = json.loads(text)
        problem, hint = answer["error"], answer.get("hint")
        code = code_named(answer["code"]) or Code.NODE_REFUSES
    except (ValueError, KeyError, TypeError):
        problem = f"no source's pages are at {status_addr}: {one_line(text.strip())}"
        return NeedsOperator(problem, _AWAY_HINT, Code.NODE_REFUSES)
    if hint:
        return NeedsOperator(problem, hint, code)
    return Retryable(problem, code)


def _edits(asked: argparse.Namespace) -> list[tuple[str, dict[str, str]]]:
    gap = "accept" if getattr(asked, "accept_gap", False) else "-"
    match asked.command:
        case "skip-table" | "reload":
            return [(asked.command, {"table": table, "gap": gap}) for table in asked.tables]
        case "continue":
            return [("continue", {})]
        case "revoke":
            return [("revoke", {"what": asked.what, "gap": gap})]
        case verb if verb in VERBS:
            sql = getattr(asked, "sql", "")
            return [("ruling", {"verb": verb, "place": asked.at or "-", "sql": sql or "-"})]
        case _:
            return []


def _requests(
    asked: argparse.Namespace, edits: Sequence[tuple[str, Mapping[str, str]]]
) -> list[tuple[str, str]]:
    if asked.command == "status":
        return [("GET", "/status")]
    if asked.command == "purge":
        return [("POST", f"/purge/{asked.strategy}/{quote(asked.what, safe='') or '-'}")]
    if not edits:
        return [("PUT", f"/state/{asked.command}")]
    quoted = [(each, {k: quote(v, safe="") for k, v in parts.items()}) for each, parts in edits]
    return [("POST", EDITS[each][0].format(**parts)) for each, parts in quoted]


def changed_while_stopped(settings: SourceConfig, edit: Edit) -> str:
    """Change the checkpoint of a stopped source; return the edit's report.

    Raises `Retryable` when a process owns the source, `NeedsOperator` when it has no checkpoint.
    """
    security = Security(settings.security)
    with ExitStack() as opened:
        connection = etcd.connect(settings.etcd_urls, tls=security.etcd_tls)
        opened.callback(connection.close)
        store = SourceStore(connection, settings.source_id, ttl_s=settings.lease_s)
        store.own(f"{PROG} of an operator")
        opened.callback(store.close)
        found = store.load()
        if found is None:
            raise NeedsOperator(
                f"source {settings.source_id} has not begun: it has no checkpoint",
                "skip tables by ignore-tables in its settings",
                Code.NODE_STATE,
            )
        changed, text = edit(found)
        store.save(changed)
        return text


def command_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROG, description="Ask a source that runs here, or change one that is stopped."
    )
    shared = Parser(add_help=False)
    shared.add_argument(
        "--status-addr", default="", metavar="HOST:PORT", help="where the source's pages are"
    )
    shared.add_argument("--config", default="", metavar="FILE", help="the source's own settings")
    add_output(shared)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("status", "what it does, what it refuses, what is skipped"),
        ("pause", "stop syncing; the relay log still grows"),
        ("resume", "go on after a pause or a failure"),
    ):
        commands.add_parser(name, parents=[shared], help=about, description=about)
    for name, about in _DECIDES.items():
        command = commands.add_parser(name, parents=[shared], help=about, description=about)
        command.add_argument(
            "--at", default="", metavar="FILE:POSITION", help="by default what failed"
        )
        if name != "skip":
            command.add_argument("sql", help="statements, with their schemas")
    _about_tables(commands, shared)
    about = "take an override back, of a place or a table, while nothing was skipped by it"
    command = commands.add_parser("revoke", parents=[shared], help=about, description=about)
    command.add_argument("what", metavar="FILE:POSITION|DB.TABLE")
    command.add_argument(
        "--accept-gap",
        action="store_true",
        help="although something was: it stays missing downstream",
    )
    about = "delete relay log files that are read"
    purge = commands.add_parser("purge", parents=[shared], help=about, description=about)
    purge.add_argument("strategy", choices=("inactive", "filename", "time"))
    purge.add_argument("what", nargs="?", default="", help="file, or age in seconds")
    return parser


def _about_tables(commands: Any, shared: argparse.ArgumentParser) -> None:
    for name, about in (
        ("skip-table", "skip tables from here on, counted"),
        ("reload", "load tables again from the server, while all others go on"),
    ):
        command = commands.add_parser(name, parents=[shared], help=about, description=about)
        is_reload = name == "reload"
        command.add_argument("tables", nargs="*" if is_reload else "+", metavar="DB.TABLE")
        if is_reload:
            command.add_argument(
                "--all",
                action="store_true",
                help="all tables, at the next start of a stopped source, from the server's present"
                " state: downstream they are dropped, created and filled",
            )
            command.add_argument(
                "--wait",
                action="store_true",
                help="wait until the source follows the tables again, print how many rows were"
                " loaded, and fail if one was not; not for a source that is stopped",
            )
            command.add_argument(
                "--accept-gap",
                action="store_true",
                help="although rows that other sources have in the table are dropped with it",
            )
    about = "follow the binlogs that a server has after it was reset, put back or replaced"
    command = commands.add_parser("continue", parents=[shared], help=about, description=about)
    command.add_argument(
        "--accept-gap",
        action="store_true",
        help="although what was not read before is missing downstream",
    )
