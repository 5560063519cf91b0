"""Compares a downstream with the expected tables: row counts and checksums, table by table."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from penstock_local.demo.workload import Tables
from penstock_local.sql_server import SqlProcess


@dataclass(frozen=True, slots=True)
class Verdict:
    """One table on both sides; None stands for a missing table."""

    table: str
    expected: tuple[int, str] | None
    found: tuple[int, str] | None

    @property
    def identical(self) -> bool:
        return self.expected == self.found


def compare(tables: Tables, sink_url: str, schema: str) -> list[Verdict]:
    found = dict(fingerprints(sink_url, schema))
    expected = {name: fingerprint(rows.values()) for name, rows in tables.items()}
    names = sorted(expected.keys() | found.keys())
    return [Verdict(name, expected.get(name), found.get(name)) for name in names]


def fingerprint(rows: Iterable[tuple[object, ...]]) -> tuple[int, str]:
    """Return the number of rows and a checksum that does not depend on their order."""
    lines = sorted("\t".join(map(canonical, row)) for row in rows)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return len(lines), digest[:16]


def canonical(value: object) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, (bool, int)):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def fingerprints(url: str, schema: str) -> Iterable[tuple[str, tuple[int, str]]]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        yield from _sqlite(parts.path, schema)
    elif parts.scheme == "delta":
        yield from _delta(parts.path, schema)
    else:
        yield from _mysql(parts, schema)


def _sqlite(path: str, schema: str) -> Iterable[tuple[str, tuple[int, str]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (full,) in names.fetchall():
            if full.startswith(f"{schema}."):
                quoted = full.replace('"', '""')
                rows = connection.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608
                yield full.split(".", 1)[1], fingerprint(rows)


def _delta(path: str, schema: str) -> Iterable[tuple[str, tuple[int, str]]]:
    from deltalake import DeltaTable

    states = DeltaTable(f"{path}/_penstock/versions").to_pyarrow_table().sort_by("commit_ts")
    for each in states.to_pylist()[-1]["tables"]:
        if each["schema"] == schema:
            name = each["table"]
            table = DeltaTable(f"{path}/{schema}/{name}", version=each["version"])
            columns = table.to_pyarrow_table().to_pydict().values()
            yield name, fingerprint(zip(*columns, strict=True))


def _mysql(parts: Any, schema: str) -> Iterable[tuple[str, tuple[int, str]]]:
    connection = pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=schema,
        charset="utf8mb4",
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (name,) in cursor.fetchall():
            quoted = name.replace("`", "``")
            cursor.execute(f"SELECT * FROM `{quoted}`")  # noqa: S608
            yield name, fingerprint(cursor.fetchall())


Sums = Mapping[str, tuple[int, str]]
"""Rows and checksum by table."""


def sums(server: SqlProcess, schema: str) -> Sums:
    found = server.query(f"SHOW FULL TABLES IN `{schema}`") if _has(server, schema) else []
    names = [str(name) for name, kind in found if kind == "BASE TABLE"]
    sums = {}
    for name in names:
        table = f"`{schema}`.`{name.replace('`', '``')}`"
        ((rows,),) = server.query(f"SELECT COUNT(*) FROM {table}")  # noqa: S608
        ((_, checksum),) = server.query(f"CHECKSUM TABLE {table} EXTENDED")
        sums[name] = int(rows), str(checksum)
    return sums


def _has(server: SqlProcess, schema: str) -> bool:
    return schema in {str(name) for (name,) in server.query("SHOW DATABASES")}


def judged(upstream: Sums, downstream: Sums) -> list[Verdict]:
    names = sorted(upstream.keys() | downstream.keys())
    return [Verdict(name, upstream.get(name), downstream.get(name)) for name in names]


def lines(verdicts: Sequence[Verdict], checksum: str = "CHECKSUM TABLE") -> list[str]:
    heads = ("table", "rows upstream", "rows downstream", checksum, "downstream")
    rows = [heads, *map(_cells, verdicts)]
    widths = [max(len(cells[n]) for cells in rows) for n in range(len(heads))]
    marks = ["", *("equal" if v.identical else "DIFFERENT" for v in verdicts)]
    return [
        "  ".join(
            [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:]), mark]
        ).rstrip()
        for cells, mark in zip(rows, marks, strict=True)
    ]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    sides = verdict.expected, verdict.found
    counts = [f"{side[0]:,}" if side else "no table" for side in sides]
    return verdict.table, *counts, *(side[1] if side else "-" for side in sides)
