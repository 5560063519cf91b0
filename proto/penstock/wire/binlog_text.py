"""Binlog text: a binlog as text for people: one line, or all of it with its row changes.

Rows are shown as their bytes in hexadecimal. Their meaning depends on a schema, and someone who
looks at a Pump's log in the night may have nothing but the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from penstock.errors import Malformed
from penstock.ts import physical_ms
from penstock.wire.binlog import Binlog, MutationType, TableMutation
from penstock.wire.codec import decode_prewrite_value

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
