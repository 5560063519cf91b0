"""A reader of TiDB-Binlog's files that shares no code with the product but protobuf's messages."""

import gzip
import struct
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google_crc32c import value as crc32c

from penstock.datum import values
from penstock.pb import pb_binlog_pb2 as pb


class Change(NamedTuple):
    """One row change; rows are what the datums hold, by column."""

    kind: str
    table: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Entry(NamedTuple):
    """One transaction, or one DDL."""

    commit_ts: int
    ddl: str
    changes: list[Change]


def entries(folder: Path) -> list[Entry]:
    """Return all that the files hold, up to where the savepoint says that they do."""
    return entries_of({path.name: path.read_bytes() for path in folder.iterdir()})


def entries_of(contents: Mapping[str, bytes]) -> list[Entry]:
    """Return the same of a folder that is given as its files' bytes."""
    saved = tomllib.loads(contents["savepoint"].decode())
    found: list[Entry] = []
    for name in sorted(name for name in contents if name.startswith("binlog-")):
        data = contents[name]
        data = gzip.decompress(data) if name.endswith(".gz") else data
        number = int(name.split("-")[1])
        if number <= saved.get("file", -1):
            found += read(data[: saved["offset"]] if number == saved["file"] else data)
    return found


def read(data: bytes) -> Iterator[Entry]:
    """Yield the records of a file's bytes."""
    at = 0
    while at < len(data):
        magic, length = struct.unpack_from("<IQ", data, at)
        assert magic == 0x1C1B0504
        payload = data[at + 12 : at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == crc32c(payload)
        yield entry_of(pb.Binlog.FromString(payload))
        at += 16 + length


def entry_of(binlog: Any) -> Entry:
    if binlog.tp == pb.DDL:
        return Entry(binlog.commit_ts, binlog.ddl_query.decode(), [])
    return Entry(binlog.commit_ts, "", [change_of(event) for event in binlog.dml_data.events])


def change_of(event: Any) -> Change:
    columns = [pb.Column.FromString(each) for each in event.row]
    value = {each.name: _plain(each, each.value) for each in columns}
    table = f"{event.schema_name}.{event.table_name}"
    if event.tp == pb.Insert:
        return Change("insert", table, None, value)
    if event.tp == pb.Delete:
        return Change("delete", table, value, None)
    return Change("update", table, value, {e.name: _plain(e, e.changed_value) for e in columns})


def _plain(column: Any, data: bytes) -> Any:
    value = datum(data)
    is_text = isinstance(value, bytes) and not column.mysql_type.endswith(("blob", "binary"))
    return value.decode() if is_text and column.mysql_type != "geometry" else value


def datum(data: bytes) -> Any:
    if data == b"\0":
        return None
    readers = {
        values.COMPACT_BYTES_FLAG: values.read_bytes,
        values.VARINT_FLAG: values.read_varint,
        values.UVARINT_FLAG: values.read_uvarint,
        values.FLOAT_FLAG: values.read_float_comparable,
    }
    value, end = readers[data[0]](data, 1)
    assert end == len(data)
    return value


def replayed(found: Iterable[Entry]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table after all entries, sorted; a change of no row is an error."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for entry in found:
        for change in entry.changes:
            rows = tables.setdefault(change.table, [])
            if change.before is not None:
                rows.remove(next(row for row in rows if is_row(row, change.before)))
            if change.after is not None:
                rows.append(change.after)
    return {name: sorted(map(_values, rows), key=repr) for name, rows in tables.items()}


def is_row(row: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a row is the one before a change, which may have columns that came later."""
    return all(row.get(name, value) == value for name, value in before.items())


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())
