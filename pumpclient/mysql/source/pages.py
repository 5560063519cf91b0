"""A source's HTTP pages: its status, metrics for Prometheus, and an operator's commands.

`load` is null unless the tables are being loaded, `loaded` the result of the last load. Estimates
of rows are the server's; `running` has the tables in work, at most one or two for each reader:

    {"tables": 19, "tables_done": 4, "rows": 160000, "rows_done": 25000, "seconds_left": 12.5,
     "running": [{"table": "shop.orders", "rows": 90000, "rows_done": 8000}]}

The metrics are formatted here: eight numbers do not justify a package that writers must install.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node.http_status import JSON, Answer, HttpStatus
from penstock.node.logs import RECENT, one_line
from penstock.node.metrics import BUILD_ABOUT, BUILD_LABELS, BUILD_NAME
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state.skipped import SkippedTable
from pumpclient.mysql.source.sync.loading import EDITS


def described(service: SourceService) -> dict[str, Any]:
    counters, relay = service.counters, service.relay.status() if service.relay else None
    checkpoint = counters.checkpoint
    reloads = {} if service.reloads is None else service.reloads.statuses
    behind_s = counters.behind_s(relay.behind_s if relay else 0.0)
    return {
        "state": counters.state,
        "problem": counters.problem,
        "hint": counters.hint,
        "code": counters.code,
        "overrides": counters.overrides,
        "statement": counters.statement_place,
        "seconds_behind": round(behind_s, 3),
        "server": relay.server.uuid if relay and relay.server else "",
        "relay": {
            "connected": relay.connected if relay else False,
            "end": str(relay.end) if relay and relay.end else "",
            "gtids": relay.gtids if relay else "",
            "bytes": relay.relayed_bytes if relay else 0,
            "bytes_per_s": round(relay.bytes_per_s) if relay else 0,
            "reconnects": relay.reconnects if relay else 0,
            "problem": relay.problem if relay else "",
        },
        "read": str(counters.read_location or ""),
        "committed": checkpoint.done if checkpoint else "",
        "gtids": checkpoint.gtids if checkpoint else "",
        "epoch": checkpoint.epoch if checkpoint else 0,
        "transactions": counters.transactions,
        "transactions_per_s": round(counters.rate, 1),
        "groups": counters.groups,
        "ddl": counters.ddl,
        "lives": counters.runs,
        "history_rows": counters.history_rows,
        "rulings": counters.rulings,
        "problems": [asdict(each) for each in RECENT.facts()],
        "left_out": {
            each.label: {
                "since": each.since,
                "is_whole": each.is_whole,
                "is_partial": each.is_partial,
                "rows": each.rows,
                "events": each.events,
                "statements": each.statements,
                "reload_number": each.reload,
                "reload": None if each.reload not in reloads else asdict(reloads[each.reload]),
            }
            for each in counters.left_out
        },
        "reloaded": checkpoint.reloaded if checkpoint else {},
        "cascaded": checkpoint.cascaded if checkpoint else {},
        "load": counters.load.facts() if counters.load is not None else None,
        "loaded": counters.loaded,
    }


def problem(service: SourceService) -> str:
    """Return why the source does not follow its server now; empty if it does."""
    counters = service.counters
    if counters.state != "syncing" or counters.problem:
        return f"{counters.state}: {counters.problem}".removesuffix(": ")
    relay = service.relay.status() if service.relay else None
    if relay is None or not relay.connected:
        return f"not connected to the server: {relay.problem if relay else ''}".removesuffix(": ")
    return ""


_TABLES_SHOWN = 3
"""In the text of a status, which stays readable; `-o json` has all."""


def status_text(status: Mapping[str, Any]) -> str:
    """Return a source's status as a few lines for people."""
    lines = [("source", status["source"]), ("state", status["state"])]
    if status["state"] == "syncing":
        lines.append(("lag", f"{status['seconds_behind']:.1f} s behind the server"))
    done = f"{status['transactions']:,} transactions and {status['ddl']:,} DDL since the start"
    lines.append(("rate", f"{status['transactions_per_s']:.1f} transactions/s; {done}"))
    lines += _load_lines(status["load"] or {})
    relay = status["relay"]
    connected = f"reads at {relay['end']}, {relay['bytes_per_s']:,} bytes/s"
    apart = f"not connected: {relay['problem']}".removesuffix(": ")
    lines.append(("server", connected if relay["connected"] else apart))
    if status["committed"]:
        gtids = f", GTIDs {status['gtids']}" if status["gtids"] else ""
        lines.append(("checkpoint", f"{status['committed']}{gtids}"))
    tables = [(label, each) for label, each in status["left_out"].items()]
    for label, each in tables[:_TABLES_SHOWN]:
        what = "no longer followed" if each["is_whole"] else "followed, without some changes"
        counts = f"{each['rows']} rows and {each['statements']} statements skipped"
        reload = each["reload"] and f"; reload: {each['reload']['state']}"
        lines.append(("left out", f"{label}: {what}; {counts}{reload or ''}"))
    if len(tables) > _TABLES_SHOWN:
        lines.append(("left out", f"and {len(tables) - _TABLES_SHOWN} more tables (-o json)"))
    noted = list(status.get("cascaded", ()))
    if noted:
        more = f" and {len(noted) - _TABLES_SHOWN} more" if len(noted) > _TABLES_SHOWN else ""
        lines.append((
            "to repair",
            f"{', '.join(noted[:_TABLES_SHOWN])}{more}: foreign keys may have changed rows"
            f" (penstock verify --repair --source-status, or penstock source reload {noted[0]})",
        ))  # fmt: skip
    if status["problem"]:
        coded = f" [{status['code']}]" if status["code"] else ""
        lines.append(("problem", f"{status['problem']}{coded}"))
        lines.append(("remedy", status["hint"] or "none: it is tried again"))
        lines += [("choice", each) for each in status["overrides"]]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.ljust(width)}  {one_line(text)}" for name, text in lines)


def _load_lines(load: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "tables_done" not in load:
        return []
    left = load["seconds_left"]
    more = "" if left is None else f", about {left:.0f} s left"
    lines = [
        f"{load['tables_done']} of {load['tables']} tables,"
        f" {load['rows_done']:,} of about {load['rows']:,} rows{more}"
    ]
    for each in load["running"][:_TABLES_SHOWN]:
        lines.append(f"{each['table']}: {each['rows_done']:,} of about {each['rows']:,} rows")
    return [("load", each) for each in lines]


_PREFIX = "penstock_source_"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """The content of one source's pages."""

    def __init__(self, service: SourceService, source_id: str) -> None:
        self._service = service
        self._source_id = source_id

    def add_to(self, server: HttpStatus) -> None:
        add = server.add
        server.problem = partial(problem, self._service)
        add("GET", "/status", self.status, "state, places, GTIDs, seconds behind the server")
        add("GET", "/metrics", self.metrics, "for Prometheus")
        add("GET", "/reached", self.reached, "what is committed, and a timestamp above it")
        add("PUT", "/state/{action}", self.change_state, "pause or resume")
        for request, (path, about) in EDITS.items():
            add("POST", path, partial(self.edit, request), about)
        add("POST", "/purge/{strategy}/{what}", self.purge, "inactive, filename or time; - is none")

    async def status(self, names: Mapping[str, str]) -> Answer:
        page = {"source": self._source_id, **described(self._service)}
        return Answer(json.dumps(page, indent=2, default=list) + "\n", JSON)

    async def metrics(self, names: Mapping[str, str]) -> Answer:
        return Answer(metrics_text(self._service, self._source_id), _PROMETHEUS)

    async def reached(self, names: Mapping[str, str]) -> Answer:
        place, ts = await asyncio.to_thread(self._service.reached)
        found = {"place": [place.file.number, place.position] if place else [], "ts": ts}
        return Answer(json.dumps(found), JSON)

    async def change_state(self, names: Mapping[str, str]) -> Answer:
        action = names["action"]
        if action not in ("pause", "resume"):
            raise NeedsOperator(f"no action {action!r}", "pause or resume", Code.COMMAND_INVALID)
        await asyncio.to_thread(getattr(self._service, action))
        return Answer(f"{action}: done\n")

    async def edit(self, request: str, names: Mapping[str, str]) -> Answer:
        return Answer(await asyncio.to_thread(self._service.request, request, names))

    async def purge(self, names: Mapping[str, str]) -> Answer:
        purger, what = self._service.purger, names["what"].removeprefix("-")
        if purger is None:
            raise NeedsOperator(
                "the relay log is not open yet", "try again in a moment", Code.NODE_STATE
            )
        match names["strategy"]:
            case "inactive":
                gone = await asyncio.to_thread(purger.inactive)
            case "filename":
                gone = await asyncio.to_thread(purger.before, *_file(what))
            case "time":
                gone = await asyncio.to_thread(purger.expired, float(what or 0))
            case other:
                raise NeedsOperator(
                    f"no strategy {other!r}", "inactive, filename or time", Code.COMMAND_INVALID
                )
        return Answer("".join(f"{name}\n" for name in gone) or "nothing to purge\n")


def _file(text: str) -> tuple[FileName, int | None]:
    """Read `mysql-bin.000003` or `mysql-bin|000001.000003`."""
    if "|" in text:
        place = Location.parse(f"{text}:4")
        return place.file, place.suffix
    return FileName.parse(text), None


def metrics_text(service: SourceService, source_id: str) -> str:
    status = described(service)
    counters = service.counters
    checkpoint, read = counters.checkpoint, counters.read_location
    end = service.relay.status().end if service.relay else None
    place = checkpoint.place if checkpoint else None
    metrics = [
        ("behind_seconds", "gauge", status["seconds_behind"], "Lag behind the server."),
        ("is_syncing", "gauge", int(status["state"] == "syncing"), "1 while the source syncs."),
        ("transactions_total", "counter", status["transactions"], "Committed transactions."),
        ("groups_total", "counter", status["groups"], "Groups of committed transactions."),
        ("ddl_total", "counter", status["ddl"], "DDL statements executed."),
        ("lives_total", "counter", status["lives"], "Starts from the checkpoint."),
        (
            "history_rows_total",
            "counter",
            status["history_rows"],
            "Skipped history rows of system-versioned tables.",
        ),
        ("read_bytes_total", "counter", counters.read_bytes, "Bytes read from the relay log."),
        ("relay_bytes_total", "counter", status["relay"]["bytes"], "Bytes added to the relay log."),
        ("relay_reconnects_total", "counter", status["relay"]["reconnects"], "Reconnections."),
        (
            "relay_purged_files_total",
            "counter",
            service.purger.purged if service.purger else 0,
            "Purged files of the relay log.",
        ),
        ("relay_file", "gauge", end.file.number if end else 0, "Number of the newest file."),
        ("relay_position", "gauge", end.position if end else 0, "Position of this file's end."),
        ("read_file", "gauge", read.file.number if read else 0, "Number of the file that is read."),
        ("read_position", "gauge", read.position if read else 0, "Last position read in it."),
        ("committed_file", "gauge", place.file.number if place else 0, "Last commit: file number."),
        ("committed_position", "gauge", place.position if place else 0, "Last commit: position."),
    ]
    label = json.dumps(source_id)
    build = ",".join(f"{name}={json.dumps(value)}" for name, value in BUILD_LABELS.items())
    lines = [
        f"# HELP {BUILD_NAME} {BUILD_ABOUT}",
        f"# TYPE {BUILD_NAME} gauge",
        f"{BUILD_NAME}{{{build}}} 1",
    ]
    for name, kind, value, about in metrics:
        lines.append(f"# HELP {_PREFIX}{name} {about}")
        lines.append(f"# TYPE {_PREFIX}{name} {kind}")
        lines.append(f"{_PREFIX}{name}{{source={label}}} {value}")
    lines += _skipped_lines(label, counters.left_out)
    lines.append(f"# HELP {_PREFIX}cascaded_rows Parents' rows by which foreign keys may have")
    lines[-1] += " changed rows of a table since its last repair."
    lines.append(f"# TYPE {_PREFIX}cascaded_rows gauge")
    for table, note in status["cascaded"].items():
        labels = f"source={label},table={json.dumps(table)}"
        lines.append(f"{_PREFIX}cascaded_rows{{{labels}}} {note['rows']}")
    return "\n".join(lines) + "\n"


def _skipped_lines(source: str, tables: Sequence[SkippedTable]) -> list[str]:
    kinds: list[tuple[str, str, str, Callable[[SkippedTable], int]]] = [
        ("table_left_out", "gauge", "1 while no changes of a table are followed.",
         lambda each: int(each.is_whole)),
        ("table_partial", "gauge", "1 after an ended reload of a table, until another is complete.",
         lambda each: int(each.is_partial)),
        ("left_out_rows_total", "counter", "Skipped rows.", lambda each: each.rows),
        ("left_out_events_total", "counter", "Skipped events whose rows cannot be counted.",
         lambda each: each.events),
        ("left_out_statements_total", "counter", "Skipped statements.",
         lambda each: each.statements),
    ]  # fmt: skip
    lines = []
    for name, kind, about, of in kinds:
        lines.append(f"# HELP {_PREFIX}{name} {about}")
        lines.append(f"# TYPE {_PREFIX}{name} {kind}")
        for each in tables:
            labels = f"source={source},table={json.dumps(each.label)}"
            lines.append(f"{_PREFIX}{name}{{{labels}}} {of(each)}")
    return lines
