"""An audit log of all commits: each changed row, in commit order, in a separate database.

    python -m deploy.examples.audit --database /tmp/audit.db --etcd-urls 127.0.0.1:2379

It reads the stream as a Drainer does. A transaction's rows and the checkpoint after it are one
transaction here as well: kill this program at any point and restart it, and no row is missing or
duplicated. Its name keeps the Pumps from purging binlogs that it has not read, even while it is
stopped; `penstock ctl drainers` lists it.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from penstock.stream import BEGINNING, Ddl, Reader, Transaction

SCHEMA = """
    CREATE TABLE IF NOT EXISTS change (
        commit_ts INTEGER, number INTEGER, what TEXT, kind TEXT, before TEXT, after TEXT,
        PRIMARY KEY (commit_ts, number)
    );
    CREATE TABLE IF NOT EXISTS checkpoint (id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT);
"""
IDLE_S = 5.0


def open_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    return connection


def stored_checkpoint(connection: sqlite3.Connection) -> str | int:
    """Return where to continue; a new audit starts with the entire history."""
    found = connection.execute("SELECT text FROM checkpoint").fetchone()
    return BEGINNING if found is None else str(found[0])


def record(connection: sqlite3.Connection, each: Transaction | Ddl) -> None:
    if isinstance(each, Ddl):
        put(connection, each.commit_ts, 0, each.schema, "ddl", None, each.query)
        return
    for number, change in enumerate(each.changes):
        what = f"{change.schema}.{change.table}"
        put(connection, each.commit_ts, number, what, change.kind, change.before, change.after)


def put(connection: sqlite3.Connection, commit_ts: int, number: int, *values: object) -> None:
    """Insert one row; a row that already exists is an error."""
    texts = (json.dumps(v, default=str) if isinstance(v, dict) else v for v in values)
    connection.execute("INSERT INTO change VALUES (?, ?, ?, ?, ?, ?)", (commit_ts, number, *texts))


def store(connection: sqlite3.Connection, checkpoint: str) -> None:
    """Store the checkpoint in the open transaction."""
    connection.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?)", (checkpoint,))


def follow(reader: Reader, connection: sqlite3.Connection) -> None:
    """Record every commit until the reader is closed or the program ends."""
    while True:
        each = reader.get(timeout_s=IDLE_S)
        with connection:
            if each is not None:
                record(connection, each)
            store(connection, reader.checkpoint)
        reader.acknowledge(reader.checkpoint)
        if each is None and (reason := reader.waits_for()):
            print(f"waiting: {reason}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", type=Path, default=Path("audit.db"))
    parser.add_argument("--etcd-urls", default="127.0.0.1:2379")
    asked = parser.parse_args(argv)
    connection = open_database(asked.database)
    after = stored_checkpoint(connection)
    with Reader.connect(asked.etcd_urls, after=after, name="audit") as reader:
        follow(reader, connection)


if __name__ == "__main__":
    main()
