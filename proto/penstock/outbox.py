"""The outbox: a table in a writer's own database that records which transactions are committed.

A writer changes its database and notifies Penstock. If it dies in between, only the database can
tell whether the change happened. The same local transaction therefore also inserts a row here.

    column        MySQL, MariaDB      SQLite     value
    prewrite_key  VARBINARY(255), PK  BLOB, PK   outbox/<name>/<32 hex digits>, new for each one
    start_ts      BIGINT              INTEGER    of the transaction
    commit_ts     BIGINT              INTEGER    of the transaction; 0: a fence, rolled back
    asked         INT                 INTEGER    how often a Pump asked and found the row

The writer's order, and why no other is right:

    1  change the own tables       from here on, locks are held until 5
    2  Prewrite durable on a Pump  it carries the rows, so it comes after 1
    3  commit_ts from the oracle   after 2, or the Pump might have streamed past it
    4  insert the row              the last statement; it holds commit_ts, so it comes after 3
    5  local COMMIT                by this alone the transaction is committed, at commit_ts
    6  Commit to that Pump         a message about a fact; any reader of the row may send it

If two transactions changed the same row, or one read a row that the other wrote, the first in the
database has the smaller commit_ts: 3 lies between 1 and 5, so the second waited for the first
before it got to 3. The downstream therefore sees changes in the order in which the database made
them; transactions that have nothing in common may change places.

When the writer is silent the Pump asks. A row that is found is committed: nothing removes it before
6. But a missing row may mean *not yet*: between 2 and 5 the writer may be paused for any time, and
no time-out, however long, turns "not yet" into "never". So the Pump does not wait longer, it
*decides*, by inserting its own row under the same key with commit_ts 0, durably, before it writes
its Rollback. A primary key accepts one row, so exactly one of the two is inserted:

    the writer's row is  committed         the fence fails; the Pump reads commit_ts and commits
                         inserted          the fence waits for its lock, or times out and is tried
                                           again later; it cannot get in beside it
                         still to come     the fence gets in, and 4 fails however late it comes:
                                           the writer rolls back and reports that nothing happened

The only time-out (`fence_after_s`) is patience with a slow writer; a short one costs a writer a
retry, never a transaction. Reading from a replica, or one that lags, causes no error either: an
INSERT, which only the primary accepts, finds out whether the row is absent.

Visible is not durable: InnoDB shows a commit to others before its log is on the disk. A Pump that
believed such a row could commit a transaction that the database loses in a power cut. So it changes
the row it found (`asked`) and commits that: the log is flushed in order. The database must be set
to keep acknowledged commits (innodb_flush_log_at_trx_commit = 1; SQLite: synchronous FULL with WAL,
else EXTRA).

A Prewrite may lie on several Pumps, when the first did not answer in time. Each of them asks and
gets the same answer; equal transactions merge to one in the Drainer. A Pump where the Prewrite
arrived only after 3 may have streamed past commit_ts. Then it is not the Pump of 2, which commits,
and it drops its Prewrite (`pump/cluster/resolver.py`).

A committed row is needed until the Pump of 2 has the Commit. The writer removes the rows of
acknowledged transactions along with a later one. `purge` removes the rows of dead writers once
every Drainer has passed them. A Prewrite on another Pump that asks later finds nothing, fences, and
is dropped. Fences stay for a day: the database disconnects a writer whose connection is older.
"""

import re
import sqlite3
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.ts import compose

# ruff: noqa: S608  -- the table's name is checked by `_statements`, values are parameters.

TABLE = "penstock_outbox"
KEY_BYTES_MAX = 255

_KEY = re.compile(rb"outbox/([A-Za-z0-9_.-]{1,200})/[0-9a-f]{32}")
_TABLE_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)

Connection = Any
"""A DB-API connection of `sqlite3` or PyMySQL."""


class Fenced(Retryable):
    """A Pump took the writer for dead and has rolled the transaction back: run it again."""


def new_key(name: str) -> bytes:
    """Return a unique key for an outbox with that name."""
    key = f"outbox/{name}/{uuid.uuid4().hex}".encode()
    if name_in(key) is None:
        raise NeedsOperator(
            f"an outbox cannot be called {name!r}",
            "use letters, digits, and . _ -",
            Code.OUTBOX_MISUSED,
        )
    return key


def name_in(prewrite_key: bytes) -> str | None:
    """Return the outbox that a key names, None if the key is not an outbox's."""
    match = _KEY.fullmatch(prewrite_key)
    return None if match is None else match[1].decode()


def is_mysql(connection: Connection) -> bool:
    """True for PyMySQL, False for `sqlite3`; raise `NeedsOperator` for any other connection."""
    if isinstance(connection, sqlite3.Connection):
        return False
    pymysql = sys.modules.get("pymysql.connections")  # A caller with a connection has imported it.
    if pymysql is not None and isinstance(connection, pymysql.Connection):
        return True
    raise NeedsOperator(
        f"no outbox through a {type(connection).__module__}.{type(connection).__qualname__}",
        "use a connection of sqlite3 or PyMySQL",
        Code.OUTBOX_MISUSED,
    )


def check_engine(connection: Connection, table: str) -> None:
    """Raise `NeedsOperator` for a table whose engine has no transactions, such as MyISAM.

    A row there proves nothing: it stays when its transaction is rolled back.
    """
    if not is_mysql(connection):
        return
    *schema, name = table.split(".")
    home = "%s" if schema else "DATABASE()"
    with closing(connection.cursor()) as cursor:
        cursor.execute(
            "SELECT t.engine AS engine FROM information_schema.tables t"
            " JOIN information_schema.engines e ON e.engine = t.engine"
            f" WHERE t.table_schema = {home} AND t.table_name = %s AND e.transactions <> 'YES'",
            (*schema, name),
        )
        row = cursor.fetchone()
    if row is not None:
        (engine,) = row.values() if isinstance(row, dict) else row
        raise NeedsOperator(
            f"the outbox {table} has the engine {engine}, which has no transactions",
            f"ALTER TABLE {table} ENGINE=InnoDB",
            Code.ENGINE_WITHOUT_TRANSACTIONS,
        )


def in_transaction(connection: Connection) -> bool:
    if is_mysql(connection):
        return bool(connection.server_status & 1)  # SERVER_STATUS_IN_TRANS
    return bool(connection.in_transaction)


def begin(connection: Connection) -> None:
    """Start a transaction for writing, unless a transaction is open."""
    if not in_transaction(connection):
        # SQLite would refuse a later step from reading to writing; MySQL has no such steps.
        _execute(connection, "BEGIN" if is_mysql(connection) else "BEGIN IMMEDIATE")


def create_table(connection: Connection, table: str = TABLE) -> None:
    """Create the table if it is missing; in MySQL this commits the current transaction."""
    _execute(connection, _of(connection, table, "create"))
    connection.commit()


def put(connection: Connection, table: str, key: bytes, start_ts: int, commit_ts: int) -> None:
    """Insert a row into the connection's transaction; raise `Fenced` if the key is taken."""
    try:
        _execute(connection, _of(connection, table, "put"), (key, start_ts, commit_ts))
    except connection.IntegrityError as error:
        raise Fenced(
            f"transaction {start_ts} took too long between its Prewrite and its commit in the"
            " database: a Pump has rolled it back",
            code=Code.TRANSACTION_ROLLED_BACK,
        ) from error


def forget(connection: Connection, table: str, keys: Sequence[bytes]) -> None:
    """Remove rows within the current transaction; their Commits must be acknowledged."""
    for key in keys:
        _execute(connection, _of(connection, table, "forget"), (key,))


def settle(
    connection: Connection, table: str, key: bytes, start_ts: int, *, fence: bool
) -> int | None:
    """Return the transaction's commit_ts, 0 if it is rolled back, None if it is undecided.

    With `fence` an absent row is made absent for good, so that the answer is never None. The
    connection must not be in use; its open transaction is rolled back. The answer is as durable as
    the database. Raises the driver's errors, `Malformed` if the key was used twice.
    """
    connection.rollback()
    found = _found(connection, table, key, start_ts)
    if found is None and fence:
        try:
            put(connection, table, key, start_ts, 0)
        except Fenced:
            connection.rollback()
            found = _found(connection, table, key, start_ts)
            if found is None:
                raise Retryable(
                    f"the outbox row of {start_ts} came and went", Code.TRANSACTION_ROLLED_BACK
                ) from None
        else:
            connection.commit()
            return 0
    if found is not None:
        _execute(connection, _of(connection, table, "asked"), (key,))
    connection.commit()
    return found


def purge(
    connection: Connection, table: str, *, checkpoint_ts: int, fences_older_than_s: float
) -> int:
    """Remove decided rows that are no longer needed, commit, and return the number of rows.

    `checkpoint_ts` is the smallest checkpoint of all Drainers: it is past a transaction only when
    every Pump is, so no Pump will ask about it. Fences go by their age at that time.
    """
    fences_ts = max(0, checkpoint_ts - compose(int(fences_older_than_s * 1000), 0))
    sql = _of(connection, table, "purge")
    removed = _execute(connection, sql, (checkpoint_ts, fences_ts))
    connection.commit()
    return removed


def _found(connection: Connection, table: str, key: bytes, start_ts: int) -> int | None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(_of(connection, table, "find"), (key,))
        row = cursor.fetchone()
    if row is None:
        return None
    found_start_ts, commit_ts = row.values() if isinstance(row, dict) else row
    if found_start_ts != start_ts:
        raise Malformed(
            f"the outbox key {key!r} belongs to transaction {found_start_ts}, not {start_ts}",
            "every transaction needs a key of its own; `pumpclient.outbox` sees to that",
            Code.OUTBOX_MISUSED,
        )
    return int(commit_ts)


def _execute(connection: Connection, sql: str, values: Sequence[object] = ()) -> int:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def _of(connection: Connection, table: str, what: str) -> str:
    return _statements(table, is_mysql(connection))[what]


@lru_cache(maxsize=64)
def _statements(table: str, mysql: bool) -> dict[str, str]:
    if not _TABLE_NAME.fullmatch(table):
        raise NeedsOperator(
            f"no table can be called {table!r}", "write name or schema.name", Code.OUTBOX_MISUSED
        )
    name = ".".join(f"`{part}`" for part in table.split("."))
    mark, key, number = ("%s", "VARBINARY(255)", "BIGINT") if mysql else ("?", "BLOB", "INTEGER")
    tail = "ENGINE=InnoDB" if mysql else "WITHOUT ROWID"
    return dict(
        create=(
            f"CREATE TABLE IF NOT EXISTS {name} (prewrite_key {key} NOT NULL PRIMARY KEY,"
            f" start_ts {number} NOT NULL, commit_ts {number} NOT NULL,"
            f" asked {number} NOT NULL DEFAULT 0) {tail}"
        ),
        put=(
            f"INSERT INTO {name} (prewrite_key, start_ts, commit_ts)"
            f" VALUES ({mark}, {mark}, {mark})"
        ),
        find=f"SELECT start_ts, commit_ts FROM {name} WHERE prewrite_key = {mark}",
        asked=f"UPDATE {name} SET asked = asked + 1 WHERE prewrite_key = {mark}",
        forget=f"DELETE FROM {name} WHERE prewrite_key = {mark}",
        purge=(
            f"DELETE FROM {name} WHERE (commit_ts > 0 AND commit_ts <= {mark})"
            f" OR (commit_ts = 0 AND start_ts <= {mark})"
        ),
    )
