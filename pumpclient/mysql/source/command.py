"""`mysql-source`: runs a source, or asks one that runs on this machine.

mysql-source --config mysql_source.toml        run until asked to stop
mysql-source check --config …                  only check the server
mysql-source status | pause | resume           of the one at --status-addr
mysql-source skip | replace SQL | inject SQL   decide about a statement, by default the failed one
mysql-source purge inactive | filename | time  relay log files
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import sys
from collections.abc import Sequence
from urllib.parse import quote

from penstock import config, service
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.http_status import HttpStatus
from penstock.settings import check_address
from pumpclient.mysql.protocol.prechecks import check_server
from pumpclient.mysql.source.cascades import Cascades
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.pages import VERBS, Pages
from pumpclient.mysql.source.unit import SourceUnit

PROG, ENV_PREFIX = "mysql-source", "MYSQL_SOURCE"
_TIMEOUT_S = 60
_COMMANDS = ("status", "pause", "resume", *VERBS, "purge")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a source or one command; return the exit code, raise what `penstock.command` sorts."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["check"]:
        return check(load(arguments[1:]))
    if arguments and arguments[0] in _COMMANDS:
        sys.stdout.write(ask(arguments))
        return 0
    return run(load(arguments))


def load(argv: Sequence[str]) -> SourceConfig:
    """Return the settings; raise `NeedsOperator` for what cannot be."""
    return config.load(SourceConfig, argv, prog=PROG, env_prefix=ENV_PREFIX)


def run(settings: SourceConfig) -> int:
    """Run until a signal asks to stop; return the exit code."""
    unit = SourceUnit(settings)

    async def serve(stop: asyncio.Event) -> None:
        pages = HttpStatus(f"Penstock source {settings.source_id}")
        Pages(unit, settings.source_id).add_to(pages)
        await pages.start(settings.status_addr, 0)
        running = asyncio.create_task(asyncio.to_thread(unit.run))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            unit.stop()
            await running
        finally:
            stopping.cancel()
            await pages.close()

    # Else the reader, the finisher and gRPC's threads wait for each other.
    sys.setswitchinterval(0.0005)
    # Groups are made of some ten thousand lists that no cycle runs through: they need no visits.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    return service.run(
        serve,
        log_level=settings.log_level,
        log_file=settings.log_file,
        log_format=settings.log_format,
        extra="mysql",
    )


def check(settings: SourceConfig) -> int:
    """Print what was found on the server; return 2 when it cannot be replicated from."""
    address = settings.source.address()
    with address.session() as connection:
        checks = check_server(connection)
    if settings.mode != "full":
        checks += Cascades.of(settings).checks(address)
    for each in checks:
        verdict = "ok" if each.passed else "FAILED" if each.required else "warning"
        hint = f" ({each.hint})" if each.hint else ""
        sys.stdout.write(f"{verdict:8} {each.name}: {each.found}{hint}\n")
    return 2 if any(each.required and not each.passed for each in checks) else 0


def ask(argv: Sequence[str]) -> str:
    """Ask the source that runs here; return its answer, raise what it refuses."""
    told = _parser().parse_args(argv)
    method, path = _request(told)
    check_address("addr", told.status_addr)
    host, _, port = told.status_addr.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Retryable(f"no source answers at {told.status_addr}: {error!r}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise _refusal(text)
    return text


def _refusal(text: str) -> PenstockError:
    """Return the error that a page answered with."""
    try:
        told = json.loads(text)
        problem, hint = told["error"], told.get("hint")
    except (ValueError, KeyError, TypeError):
        return NeedsOperator(text.strip(), hint="look at the source's log")
    return NeedsOperator(problem, hint=hint) if hint else Retryable(problem)


def _request(told: argparse.Namespace) -> tuple[str, str]:
    match told.command:
        case "status":
            return "GET", "/status"
        case "pause" | "resume":
            return "PUT", f"/state/{told.command}"
        case "purge":
            return "POST", f"/purge/{told.strategy}/{_part(told.what)}"
        case verb:
            sql = getattr(told, "sql", "")
            return "POST", f"/ruling/{verb}/{_part(told.at)}/{_part(sql)}"


def _part(text: str) -> str:
    return quote(text, safe="") or "-"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description="Ask a source that runs here.")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--status-addr", default="127.0.0.1:9251", metavar="HOST:PORT")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("status", "pause", "resume"):
        commands.add_parser(name, parents=[shared])
    for name in VERBS:
        command = commands.add_parser(name, parents=[shared])
        command.add_argument("--at", default="", metavar="FILE:POSITION")
        if name != "skip":
            command.add_argument("sql", help="statements, with their schemas")
    purge = commands.add_parser("purge", parents=[shared])
    purge.add_argument("strategy", choices=("inactive", "filename", "time"))
    purge.add_argument("what", nargs="?", default="", help="file, or age in seconds")
    return parser
