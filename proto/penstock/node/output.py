"""Output: a node's status, a command's result and a binlog, as text for people or as JSON.

Commands write JSON for programs with `-o json`, `--output json`: one document on stdout, or one
object a line where a command goes through many records. Keys are snake_case, timestamps numbers,
times UTC as in RFC 3339. Errors stay lines on stderr, and the exit code is the same.

A binlog's rows are shown as their bytes in hexadecimal. Their meaning depends on a schema, and
someone who looks at a Pump's log in the night may have nothing but the log.

*Facts* are a node's status, described once by dataclasses:

    dataclass field            JSON                              text, a line each
    uptime_s = 12              "uptime_s": 12                    uptime_s        12
    storage = {"segments": 2}  "storage_segments": 2             storage_segments 2
    pumps = (AtMerge(          "pumps": [{"node_id": "h:8250",   pump h:8250     online
      node_id="h:8250",                   "summary": "online",   pump h:8250 received_ts 463…
      summary="online", …),)              "received_ts": 463…}]

A nested dataclass stands for its fields. None is left out. The first field of a dataclass in a
tuple names the object. `field(metadata=NO_TEXT)` is a field that another field describes as text.
`StatusReply` carries both views, because older programs read only the text.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.pb import penstock_pb2
from penstock.settings.setting import did_you_mean
from penstock.ts import physical_ms
from penstock.wire.binlog import Binlog, MutationType, TableMutation
from penstock.wire.codec import decode_prewrite_value

NO_TEXT: Final = {"text": False}
TEXT: Final = "text"
JSON: Final = "json"


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=(TEXT, JSON), default=TEXT, help="text (default), or json"
    )


def take_output(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the output that a command line asks for, and the command line without that.

    For commands whose other flags are a node's settings; raises `NeedsOperator` for another output.
    """
    form, rest, words = TEXT, [], iter(argv)
    for word in words:
        if word in ("-o", "--output"):
            form = next(words, "")
        elif word.startswith("--output="):
            form = word.partition("=")[2]
        else:
            rest.append(word)
    if form not in (TEXT, JSON):
        raise NeedsOperator(
            f"unknown output {form!r}",
            did_you_mean(form, (TEXT, JSON), "use -o text or -o json"),
            Code.COMMAND_INVALID,
        )
    return form, rest


def show(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    write(arguments.output, facts, text)


def write(output: str, facts: Any, text: str) -> None:
    if output == JSON:
        text = json.dumps(facts, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(f"{text}\n")


def write_line(facts: Any) -> None:
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, default=str) + "\n")


def plain(value: object) -> object:
    """Return a value of a row as JSON has it: numbers and texts as they are, bytes in hexadecimal.

    A value without a form in JSON, such as a date or a decimal, is text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def moment_of(ts: int) -> str | None:
    return time_text(ts) if ts else None


def facts_of(tree: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value, _ in _fields(tree):
        if isinstance(value, tuple):
            facts[name] = [facts_of(each) for each in value]
        else:
            facts[name] = value
    return facts


def lines_of(tree: Any) -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, value, has_text in _fields(tree):
        if not has_text:
            continue
        if isinstance(value, tuple):
            for each in value:
                (_, subject, _), *about = _fields(each)
                for key, fact, is_shown in about:
                    end = "" if key == "summary" else f" {key}"
                    if is_shown:
                        lines[f"{name.removesuffix('s')} {subject}{end}"] = str(fact)
        else:
            lines[name] = str(value)
    return lines


def reply_of(
    tree: Any, *, node_id: str, state: str, max_commit_ts: int, **rest: Any
) -> penstock_pb2.StatusReply:
    return penstock_pb2.StatusReply(
        node_id=node_id,
        state=state,
        max_commit_ts=max_commit_ts,
        details=lines_of(tree),
        facts=json.dumps(facts_of(tree)),
        **rest,
    )


def facts_in(reply: penstock_pb2.StatusReply) -> dict[str, Any]:
    """Return a node's facts; those of an older node are all text."""
    facts = json.loads(reply.facts) if reply.facts else dict(reply.details)
    own = {"node_id": reply.node_id, "state": reply.state, "max_commit_ts": reply.max_commit_ts}
    return own | facts


def _fields(tree: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name, the value and whether it has a text, of each field that is not None."""
    for each in fields(tree):
        value = getattr(tree, each.name)
        if is_dataclass(value):
            yield from _fields(value)
        elif isinstance(value, Mapping):
            yield from ((f"{each.name}_{name}", found, True) for name, found in value.items())
        elif value is not None:
            yield each.name, value, each.metadata.get("text", True)


_BYTES_SHOWN = 64
_ROWS_SHOWN = 100


def kind_of(binlog: Binlog) -> str:
    return "fake" if binlog.is_fake else binlog.tp.name.lower()


def time_text(ts: int) -> str:
    """Return the time of a timestamp in UTC, to the millisecond."""
    ms = physical_ms(ts)
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return "not a time"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def printable(data: bytes) -> str:
    """Return text on a single line that cannot affect a terminal."""
    text = " ".join(data.decode("utf-8", "backslashreplace").split())
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def line_of(binlog: Binlog, size_bytes: int) -> str:
    ts = binlog.commit_ts or binlog.start_ts
    line = f"{kind_of(binlog):8}  start_ts {binlog.start_ts:<19}"
    line += f"  commit_ts {binlog.commit_ts or '-':<19}  {time_text(ts)}  {size_bytes} bytes"
    if binlog.is_ddl:
        line += f"  DDL job {binlog.ddl_job_id}: {printable(binlog.ddl_query)}"
    return line.rstrip()


def describe(binlog: Binlog) -> str:
    """Return a binlog's content line by line; rows beyond a hundred are only counted."""
    lines = [f"type       {kind_of(binlog)}"]
    for name in ("start_ts", "commit_ts"):
        ts = getattr(binlog, name)
        lines.append(f"{name:9}  {ts}  {time_text(ts)}" if ts else f"{name:9}  none")
    if binlog.prewrite_key:
        lines.append(f"key        {_hex(binlog.prewrite_key)}")
    if binlog.is_ddl:
        lines.append(f"ddl job    {binlog.ddl_job_id}, schema state {binlog.ddl_schema_state}")
        lines.append(f"ddl query  {printable(binlog.ddl_query)}")
    if binlog.prewrite_value:
        lines += _changes(binlog.prewrite_value)
    return "\n".join(lines)


def _changes(data: bytes) -> Iterator[str]:
    try:
        value = decode_prewrite_value(data)
    except Malformed as error:
        yield f"changes    {len(data)} bytes, which are no row changes: {error}"
        return
    yield f"changes    {len(data)} bytes, schema version {value.schema_version}"
    for mutation in value.mutations:
        counts = Counter(kind.name.lower() for kind in mutation.sequence)
        counted = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
        yield f"  table {mutation.table_id}: {counted}"
        yield from _rows(mutation)


def _rows(mutation: TableMutation) -> Iterator[str]:
    rows = {
        MutationType.INSERT: iter(mutation.inserted_rows),
        MutationType.UPDATE: iter(mutation.updated_rows),
        MutationType.DELETE: iter(mutation.deleted_rows),
    }
    for kind in mutation.sequence[:_ROWS_SHOWN]:
        yield f"    {kind.name.lower()}  {_hex(next(rows[kind]))}"
    more = len(mutation.sequence) - _ROWS_SHOWN
    if more > 0:
        yield f"    and {more} more rows"


def _hex(data: bytes) -> str:
    more = f" and {len(data) - _BYTES_SHOWN} more bytes" if len(data) > _BYTES_SHOWN else ""
    return data[:_BYTES_SHOWN].hex() + more
