"""Compares a downstream with the expected tables: row counts and checksums, table by table.

A Kafka's canal-json is first folded into a SQLite, without the Drainer's code:

    console consumer ──> a line for each message ──> by commit_ts ──> DDL, delete or insert

SQLite runs the demo's DDL unchanged except for a few words (`_SPELLINGS`); it would turn a DECIMAL
into a float.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.demo.workload import Tables
from penstock.local.kafka import KafkaServer
from penstock.local.sql_server import SqlProcess


@dataclass(frozen=True, slots=True)
class Verdict:
    """One table on both sides; None stands for a missing table."""

    table: str
    expected: tuple[int, str] | None
    found: tuple[int, str] | None

    @property
    def identical(self) -> bool:
        return self.expected == self.found

    @property
    def counts(self) -> list[str]:
        return [f"{side[0]:,}" if side else "no table" for side in (self.expected, self.found)]

    @property
    def sums(self) -> list[str]:
        return [side[1] if side else "-" for side in (self.expected, self.found)]


def compare(tables: Tables, sink_url: str, schema: str) -> list[Verdict]:
    expected = {name: fingerprint(rows.values()) for name, rows in tables.items()}
    return judged(expected, dict(fingerprints(sink_url, schema)))


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
    has_schema = (schema,) in server.query("SHOW DATABASES")
    found = server.query(f"SHOW FULL TABLES IN `{schema}`") if has_schema else []
    sums = {}
    for name in (str(name) for name, kind in found if kind == "BASE TABLE"):
        table = f"`{schema}`.`{name.replace('`', '``')}`"
        ((rows,),) = server.query(f"SELECT COUNT(*) FROM {table}")  # noqa: S608
        ((_, checksum),) = server.query(f"CHECKSUM TABLE {table} EXTENDED")
        sums[name] = int(rows), str(checksum)
    return sums


def judged(upstream: Sums, downstream: Sums) -> list[Verdict]:
    names = sorted(upstream.keys() | downstream.keys())
    return [Verdict(name, upstream.get(name), downstream.get(name)) for name in names]


def lines(verdicts: Sequence[Verdict], checksum: str = "CHECKSUM TABLE") -> list[str]:
    heads = ("table", "rows upstream", "rows downstream", checksum, "downstream")
    rows = [heads, *((each.table, *each.counts, *each.sums) for each in verdicts)]
    widths = [max(len(cells[n]) for cells in rows) for n in range(len(heads))]
    marks = ["", *("equal" if v.identical else "DIFFERENT" for v in verdicts)]
    return [
        "  ".join(
            [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:]), mark]
        ).rstrip()
        for cells, mark in zip(rows, marks, strict=True)
    ]


# --- the topics of a Kafka ------------------------------------------------------------------

SILENT_S = 10
"""After this long without a message, all messages have been read."""
_COMMIT_TS = re.compile(rb'"commitTs":(\d+)')
_SPELLINGS = (
    (r"DECIMAL\([^)]*\)", "TEXT"),
    (r"\) DEFAULT CHARSET=.*$", ")"),
    (r"^RENAME TABLE (\S+) TO (\S+)", r"ALTER TABLE \1 RENAME TO \2"),
)


def folded(kafka: KafkaServer, prefix: str, schema: str, home: Path) -> str:
    """Build an SQLite database of a schema from its topics; return its URL."""
    lines, path = home / "topics.jsonl", home / "folded.db"
    _print_topics(kafka, prefix, lines)
    with closing(sqlite3.connect(path)) as database:
        for message in in_order(lines):
            if message["database"] == schema:
                apply(database, message)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            database.execute(f'ALTER TABLE "{name}" RENAME TO "{schema}.{name}"')
        database.commit()
    return f"sqlite:///{path}"


def _print_topics(kafka: KafkaServer, prefix: str, lines: Path) -> None:
    """Make the console consumer print all committed messages; raise `Retryable` if it fails.

    It ends once the topics are silent, so they must have no watermarks.
    """
    command = kafka.java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", kafka.address, "--include", rf"{re.escape(prefix)}\..*",
        "--from-beginning", "--isolation-level", "read_committed",
        "--timeout-ms", str(SILENT_S * 1000),
    )  # fmt: skip
    with lines.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    if b"Processed a total of" not in done.stderr:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise Retryable(f"Kafka's console consumer failed: {said}", Code.CHILD_FAILED)


def in_order(lines: Path) -> Iterator[Any]:
    """Yield the messages by commit_ts; equal commit_ts keep their printed order."""
    places: list[tuple[int, int]] = []
    with lines.open("rb") as printed:
        at = 0
        for line in printed:
            found = _COMMIT_TS.findall(line)
            if found:
                places.append((int(found[-1]), at))
            at += len(line)
        for _, at in sorted(places):
            printed.seek(at)
            yield json.loads(printed.readline())


def apply(database: sqlite3.Connection, message: Any) -> None:
    if message["isDdl"]:
        sql = message["sql"]
        for mysql, sqlite in _SPELLINGS:
            sql = re.sub(mysql, sqlite, sql)
        if not sql.startswith("CREATE DATABASE"):
            database.execute(sql)
        return
    table, key = message["table"], message["pkNames"]
    for row in message["data"]:
        gone = row if message["type"] == "DELETE" else (message["old"] or [None])[0]
        if gone is not None:
            _delete(database, table, {name: gone[name] for name in key or gone})
        if message["type"] != "DELETE":
            names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
            sql = f'INSERT INTO "{table}" ({names}) VALUES ({marks})'  # noqa: S608
            database.execute(sql, tuple(row.values()))


def _delete(database: sqlite3.Connection, table: str, row: dict[str, str | None]) -> None:
    """Delete a single row: a table without a key may have duplicates."""
    same = " AND ".join(f'"{name}" IS ?' for name in row)
    found = f'SELECT rowid FROM "{table}" WHERE {same} LIMIT 1'  # noqa: S608
    sql = f'DELETE FROM "{table}" WHERE rowid = ({found})'  # noqa: S608
    done = database.execute(sql, tuple(row.values()))
    assert done.rowcount == 1, f"{table} has no row {row}"
