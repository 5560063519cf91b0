"""Schema file: the schemas and tables at the beginning of a file of records.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainer.sinks.files.savepoint import FileEnd
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange
from penstock.errors import Corrupt
from penstock.log.files import DRAFT, Files
from penstock.schema.model import SchemaInfo, TableInfo
from penstock.schema.tidb_json import (
    schema_from_json,
    schema_to_json,
    table_from_json,
    table_to_json,
)

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
    body = {
        "after_ts": schema.after_ts,
        "before": schema.before and [schema.before.size, schema.before.last_crc],
        "schemas": [schema_to_json(each) for each in schema.catalog.schemas()],
        "tables": [(home, table_to_json(table)) for home, table in schema.catalog.tables()],
    }
    draft = folder / (schema_name(number) + DRAFT)
    file = files.create(draft)
    try:
        file.write([gzip.compress(json.dumps(body, ensure_ascii=False).encode(), mtime=0)], 0)
        file.sync()
    finally:
        file.close()
    files.rename(draft, folder / schema_name(number))


def read_schema(path: Path) -> FileSchema:
    """Read a schema file; raise `Corrupt` if it is invalid."""
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
    return _with_own_ids(schemas.values(), [(home, table) for (home, _), table in tables.items()])


def _with_own_ids(
    schemas: Iterable[SchemaInfo], tables: Iterable[tuple[str, TableInfo]]
) -> Catalog:
    by_id = {table.id: (home, table) for home, table in tables}
    return Catalog.of(0, schemas, by_id.values())
