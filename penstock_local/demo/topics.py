"""Reads a Kafka's canal-json with Kafka's own console consumer, and folds it into a SQLite.

    console consumer ──> a line for each message ──> by commit_ts ──> DDL, delete or insert

The Drainer's code is not used: the effect of a message follows from the message alone. SQLite runs
the demo's DDL unchanged except for a few words (`_SPELLINGS`); it would turn a DECIMAL into a
float.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.codes import Code
from penstock.errors import Retryable
from penstock_local.kafka import KafkaServer

SILENT_S = 10
"""After this long without a message, all messages have been read."""
_COMMIT_TS = re.compile(rb'"commitTs":(\d+)')
_SPELLINGS = (
    (r"DECIMAL\([^)]*\)", "TEXT"),
    (r"\) DEFAULT CHARSET=.*$", ")"),
    (r"^RENAME TABLE (\S+) TO (\S+)", r"ALTER TABLE \1 RENAME TO \2"),
)

Row = dict[str, str | None]


def folded(kafka: KafkaServer, prefix: str, schema: str, home: Path) -> str:
    """Build an SQLite database of a schema from its topics; return its URL."""
    lines = home / "topics.jsonl"
    print_topics(kafka, prefix, lines)
    path = home / "folded.db"
    with closing(sqlite3.connect(path)) as database:
        for message in in_order(lines):
            if message["database"] == schema:
                apply(database, message)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            database.execute(f'ALTER TABLE "{name}" RENAME TO "{schema}.{name}"')
        database.commit()
    return f"sqlite:///{path}"


def print_topics(kafka: KafkaServer, prefix: str, lines: Path) -> None:
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
        _run(database, message["sql"])
        return
    table, key = message["table"], message["pkNames"]
    for row in message["data"]:
        gone = row if message["type"] == "DELETE" else (message["old"] or [None])[0]
        if gone is not None:
            _delete(database, table, {name: gone[name] for name in key or gone})
        if message["type"] != "DELETE":
            _insert(database, table, row)


def _run(database: sqlite3.Connection, sql: str) -> None:
    if sql.startswith("CREATE DATABASE"):
        return
    for mysql, sqlite in _SPELLINGS:
        sql = re.sub(mysql, sqlite, sql)
    database.execute(sql)


def _insert(database: sqlite3.Connection, table: str, row: Row) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(row.values()))  # noqa: S608


def _delete(database: sqlite3.Connection, table: str, row: Row) -> None:
    """Delete a single row: a table without a key may have duplicates."""
    same = " AND ".join(f'"{name}" IS ?' for name in row)
    found = f'SELECT rowid FROM "{table}" WHERE {same} LIMIT 1'  # noqa: S608
    sql = f'DELETE FROM "{table}" WHERE rowid = ({found})'  # noqa: S608
    done = database.execute(sql, tuple(row.values()))
    assert done.rowcount == 1, f"{table} has no row {row}"
