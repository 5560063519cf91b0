"""Savepoint: the checkpoint of a folder of files, the valid end of its files, and its schemas.

    consistent = false
    commitTS = 414529105591271429
    schema-version = 7
    cluster-id = 6791641053252586769
    time-zone = "+00:00"
    begin = 0
    file = 3
    offset = 1048576
    last-crc = 2894601203
    checkpoint = "{…}"          all of it, in the format of a downstream with tables

The first three keys are TiDB-Binlog's, which writes no others. If only they are present, the
position of the checkpoint in the files must be searched for. Without `file` nothing has been
written yet. `last-crc` is the checksum of the record that ends at the offset; a file of another
history has a different one, and older versions stored none. `begin` is the first Drainer's first
checkpoint: the files hold everything after it, until the first of them expire. The savepoint is
replaced as a whole: a new file is written, synced and renamed, and its folder synced.

In an object store, `runs` distinguishes the files from those that a crash has left
(`drainer.sinks.files.object_sink`).

A schema file has the schemas and tables at the beginning of a file of records:

    schema-0000000000000012    gzip of JSON: after_ts, before, schemas, tables

`after_ts` separates the files: records up to it are in the previous files, later records in this
file and those that follow. A restore that starts in the middle needs both, and TiDB-Binlog's files
have neither. `before` is the end of the previous file, its size and the checksum of its last
record; it distinguishes an incomplete copy of a full file from a complete one. Older versions did
not store it.
"""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import checkpoint_stored
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange
from penstock.errors import Corrupt, Malformed
from penstock.log.files import DRAFT, Files
from penstock.schema.model import SchemaInfo
from penstock.schema.tidb_json import (
    schema_from_json,
    schema_to_json,
    table_from_json,
    table_to_json,
)

NAME = "savepoint"


class FilePosition(NamedTuple):
    """A position in the files: a file's number, and an offset in bytes."""

    file: int
    offset: int


class FileEnd(NamedTuple):
    """A file's end: its size in bytes, and the stored checksum of its last record.

    The checksum is None if an older version, which stored none, recorded the end.
    """

    size: int
    last_crc: int | None
    is_sealed: bool = True
    """False if uncommitted bytes may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """The stored state; `text` is the whole checkpoint, `position` None before any record."""

    text: str
    position: FilePosition | None
    cluster_id: int | None
    """None in TiDB-Binlog's savepoint."""
    time_zone: str = ""
    last_crc: int | None = None
    begin_ts: int = 0
    """The files hold everything after this commit_ts; 0: everything."""
    runs: tuple[tuple[int, str], ...] = ()
    """In an object store, the first file of each run, and the digits of its names."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.from_json(self.text)

    @property
    def is_of_tidb_binlog(self) -> bool:
        """True for a savepoint that does not describe the files."""
        return self.cluster_id is None


def load_savepoint(files: Files, folder: Path) -> Savepoint | None:
    """Return the stored savepoint, None without a file; raise `Malformed` if damaged."""
    path = folder / NAME
    if NAME not in files.names(folder):
        return None
    file = files.open(path)
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    return parsed(data, str(path))


def parsed(data: bytes, path: str) -> Savepoint:
    """Return a savepoint; raise `Malformed` if it is damaged."""
    try:
        return _savepoint(tomllib.loads(data.decode()))
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            f"{path} is damaged: {error}",
            "put back the savepoint that was there; or give the Drainer a folder of its own,"
            " and the initial-commit-ts up to which these files are whole",
            Code.CHECKPOINT_DAMAGED,
        ) from error


def _savepoint(stored: dict[str, Any]) -> Savepoint:
    if "checkpoint" not in stored:
        Checkpoint.from_fields(stored)  # Raises for damage.
        return Savepoint(text=json.dumps(stored, sort_keys=True), position=None, cluster_id=None)
    text = stored["checkpoint"]
    commit_ts = Checkpoint.from_json(text).commit_ts
    if commit_ts != stored["commitTS"]:
        raise ValueError(f"commitTS is not that of the checkpoint, {commit_ts}")
    position = None
    if "file" in stored:
        position = FilePosition(int(stored["file"]), int(stored["offset"]))
    last_crc = stored.get("last-crc")
    return Savepoint(
        text=text,
        position=position,
        last_crc=None if last_crc is None else int(last_crc),
        cluster_id=int(stored["cluster-id"]),
        time_zone=str(stored["time-zone"]),
        begin_ts=int(stored["begin"]),
        runs=tuple((int(first), str(digits)) for first, digits in stored.get("runs", ())),
    )


def store_savepoint(files: Files, folder: Path, savepoint: Savepoint) -> None:
    """Durably replace the savepoint; an `OSError` leaves the old or the new savepoint."""
    _replace(files, folder / NAME, encoded(savepoint), checkpoint_stored)
    files.sync_folder(folder)


def encoded(savepoint: Savepoint) -> bytes:
    checkpoint, position = savepoint.checkpoint, savepoint.position
    lines = [
        f"consistent = {'true' if checkpoint.consistent else 'false'}",
        f"commitTS = {checkpoint.commit_ts}",
        f"schema-version = {checkpoint.schema_version}",
        f"cluster-id = {savepoint.cluster_id}",
        f"time-zone = {_quoted(savepoint.time_zone)}",
        f"begin = {savepoint.begin_ts}",
    ]
    if position is not None:
        lines += [f"file = {position.file}", f"offset = {position.offset}"]
    if savepoint.last_crc is not None:
        lines.append(f"last-crc = {savepoint.last_crc}")
    lines.append(f"checkpoint = {_quoted(savepoint.text)}")
    if savepoint.runs:
        lines.append(f"runs = {json.dumps(savepoint.runs)}")
    return "\n".join([*lines, ""]).encode()


def _replace(files: Files, path: Path, data: bytes, before: Callable[[], object]) -> None:
    draft = path.with_name(path.name + DRAFT)
    file = files.create(draft)
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()
    before()
    files.rename(draft, path)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_NAME = re.compile(r"schema-(\d{16,20})", re.ASCII)
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The content of a schema file."""

    after_ts: int
    catalog: Catalog
    before: FileEnd | None = None


def schema_name(number: int) -> str:
    return f"schema-{number:016d}"


def schema_numbers(names: Iterable[str]) -> set[int]:
    return {int(found[1]) for name in names if (found := _NAME.fullmatch(name)) is not None}


def write_schema(files: Files, folder: Path, number: int, schema: FileSchema) -> None:
    """Write a complete schema file; it is durable once the folder is synced."""
    _replace(files, folder / schema_name(number), encoded_schema(schema), lambda: None)


def encoded_schema(schema: FileSchema) -> bytes:
    body = {
        "after_ts": schema.after_ts,
        "before": schema.before and [schema.before.size, schema.before.last_crc],
        "schemas": [schema_to_json(each) for each in schema.catalog.schemas()],
        "tables": [(home, table_to_json(table)) for home, table in schema.catalog.tables()],
    }
    return gzip.compress(json.dumps(body, ensure_ascii=False).encode(), mtime=0)


def read_schema(path: Path) -> FileSchema:
    with _damage(path):
        body = _body(path)
        tables = [(home, table_from_json(each)) for home, each in body["tables"]]
        schemas = [schema_from_json(each) for each in body["schemas"]]
        return FileSchema(int(body["after_ts"]), Catalog.of(0, schemas, tables), _before(body))


def read_beginning(path: Path) -> tuple[int, FileEnd | None]:
    """Return `after_ts` and `before` of a schema file; raise `Corrupt` if it is invalid."""
    with _damage(path):
        body = _body(path)
        return int(body["after_ts"]), _before(body)


def _body(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return body


def _before(body: dict[str, Any]) -> FileEnd | None:
    found = body.get("before")
    if found is None:
        return None
    size, last_crc = found
    return FileEnd(int(size), None if last_crc is None else int(last_crc))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise Corrupt(str(path), 0, f"no schema file: {error}", code=Code.FILES_DAMAGED) from error


def changed(catalog: Catalog, change: SchemaChange) -> Catalog:
    """Return the catalog after a DDL that ran downstream, which may have other names and ids there.

    It works by names alone: if several tables become one, its id is that of any of them.
    """
    schemas = {each.name: each for each in catalog.schemas()}
    tables = {(home, table.name): table for home, table in catalog.tables()}
    job = change.job
    for home, table in change.dropped:
        tables.pop((home, table.name), None)
    for name in change.schemas_dropped:
        schemas.pop(name, None)
        tables = {place: table for place, table in tables.items() if place[0] != name}
    if job.schema is not None:
        schemas[job.schema.name] = job.schema
    for home, before, _, _ in change.renamed:
        tables.pop((home, before.name), None)
    came = [*change.created, *((home, after) for _, _, home, after in change.renamed)]
    for home, before, after in change.altered:
        tables.pop((home, before.name), None)
        came.append((home, after))
    for home, table in came:
        tables[home, table.name] = table
        schemas.setdefault(home, SchemaInfo(id=0, name=home))
    by_id = {table.id: (home, table) for (home, _), table in tables.items()}
    return Catalog.of(0, schemas.values(), by_id.values())
