"""SQLite sink: writes one file; the embedded default and the simplest proof of exactly once.

Every upstream table is the table `schema.name` of the file. Rows, DDL and checkpoint share the
transaction, so no intent is needed: a crash leaves the state before or after. Readers see whole
batches (WAL). The checkpoint is compared as in `drainer.sinks.checkpoint`.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drainer.settings.targets import SqliteTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, overridden, own_row
from drainer.sinks.patience import RetryingSink
from drainer.sinks.protocol import (
    ForeignKey,
    Missed,
    Refused,
    RowStatement,
    Split,
    SqlSink,
    Transaction,
    checkpoint_stored,
    ddl_run,
    lane_committed,
    row_of,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.sinks.sqlite.ddl import check_columns, plan
from drainer.sinks.sqlite.main_file import MainFile, reader_of
from drainer.task.sql.literals import SQLITE
from penstock.codes import Code
from penstock.errors import NeedsOperator

if TYPE_CHECKING:
    from drainer.sinks.protocol import StatementLists
    from penstock.ddl import SchemaChange

log = logging.getLogger(__name__)

_TABLE = "`tidb_binlog.checkpoint`"
_BUSY_S = 1.0
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)

_UNUSABLE = (
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM,
)  # fmt: skip

T = TypeVar("T")


Inodes = tuple[tuple[int, int] | None, ...]


def inodes_of(path: Path) -> Inodes:
    def inode(one: Path) -> tuple[int, int] | None:
        try:
            found = os.stat(one)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    return inode(path), inode(path.with_name(f"{path.name}-wal"))


def exact_double(data: bytes) -> float:
    """Return the double whose eight big-endian bytes are `data`; see `literals.sqlite_float`."""
    value: float = struct.unpack(">d", data)[0]
    return value


class SqliteSink(RetryingSink, SqlSink):
    """See `Sink`; one connection, usable from any one thread at a time."""

    dialect = SQLITE

    def __init__(self, target: SqliteTarget, *, cluster_id: int, retry_s_max: float) -> None:
        super().__init__(str(target.file), cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._path = target.file
        self._cluster = str(cluster_id)  # Text, because SQLite's integers end at 2^63 - 1.
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._main = MainFile(self._path)
        self._inodes: Inodes | None = None
        """The inodes of the file and the log that the connection has open."""

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        return self._ledger.loaded(self._retrying(self._own))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.apply((), checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        def attempt(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            self._store(connection, overridden(self._stored(connection), change))
            connection.execute("COMMIT")

        self._retrying(attempt)

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        self.apply_slices(lambda: (each for each in (statements,)), checkpoint)

    def apply_slices(self, slices: StatementLists, checkpoint: Checkpoint) -> None:
        def work(connection: sqlite3.Connection) -> None:
            with closing(slices()) as lists:
                for statements in lists:
                    for text in (s if isinstance(s, str) else s.decode() for s in statements):
                        try:
                            connection.execute(text)
                        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                            raise _refused(error, f" {row_of(text, '')}") from error
                    del statements
                    rows_changed()

        self._commit(work, checkpoint)

    def apply_split(self, split: Split, checkpoint: Checkpoint, start: Checkpoint) -> Missed:
        """Run the queues one by one, since only one can write, then the last transaction."""
        missed, last = Missed(), Missed()
        if split.queues:
            self.save_checkpoint(self._ledger.applying(checkpoint, start))
        for transaction in itertools.chain.from_iterable(split.queues):
            missed.add((self._queue_transaction(transaction, split.safe),))

        def work(connection: sqlite3.Connection) -> None:
            last.forget()  # Rows that an earlier attempt missed.
            _run_rows(connection, split.last, None if split.safe else last)

        self._commit(work, checkpoint)
        return missed.add((last,))

    def _queue_transaction(self, transaction: Transaction, safe: bool) -> Missed:
        def attempt(connection: sqlite3.Connection) -> Missed:
            missed = Missed()
            connection.execute("BEGIN IMMEDIATE")
            self._ledger.check(self._stored(connection))
            _run_rows(connection, transaction, None if safe else missed)
            connection.execute("COMMIT")
            lane_committed()
            if not self._is_in_place():
                raise self._replaced()
            return missed

        return self._retrying(attempt)

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        return ()

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Change the tables and store `checkpoint`, all or nothing.

        `maybe_done` changes nothing: a checkpoint before the DDL says that it was not done.
        """
        planned = plan(change)

        def work(connection: sqlite3.Connection) -> None:
            failures: list[NeedsOperator] = []
            for name, function in planned.functions.items():
                connection.create_function(name, 1, _noting(function, failures))
            try:
                for statement in planned.statements:
                    if statement in planned.rebuilt:
                        table = statement.rpartition(" FROM ")[2]
                        info = connection.execute(f"PRAGMA table_info({table})")
                        check_columns(table, planned.rebuilt[statement], [c[1] for c in info])
                    connection.execute(statement)
            except sqlite3.OperationalError:
                if failures:
                    raise failures[0] from None
                raise
            ddl_run()

        self._commit(work, checkpoint)

    # --- details ---------------------------------------------------------------------------

    def _commit(self, work: Callable[[sqlite3.Connection], None], checkpoint: Checkpoint) -> None:
        def attempt(text: str, _: bool) -> None:
            connection = self._connected()
            self._check_kept(connection)
            connection.execute("BEGIN IMMEDIATE")
            is_written = self._ledger.is_written(self._stored(connection), text, retried=False)
            assert not is_written, "a commit that failed has changed nothing"
            transaction_begun()
            work(connection)
            self._store(connection, text)
            self._main.mark(connection)
            checkpoint_stored()
            connection.execute("COMMIT")
            transaction_committed()
            self._main.committed()
            if not self._is_in_place():
                raise self._replaced()
            self._check_kept(connection)

        self._storing(attempt, checkpoint)

    def _own(self, connection: sqlite3.Connection) -> str | None:
        def others() -> list[Any]:
            found = connection.execute(f"SELECT clusterID FROM {_TABLE} LIMIT 3")  # noqa: S608
            return [row[0] for row in found]

        return own_row(lambda: self._stored(connection), others, self._cluster, "file")

    def _stored(self, connection: sqlite3.Connection) -> str | None:
        sql = f"SELECT checkPoint FROM {_TABLE} WHERE clusterID = ?"  # noqa: S608
        row = connection.execute(sql, (self._cluster,)).fetchone()
        return (row[0] or "") if row else None  # A row without text is not a checkpoint.

    def _store(self, connection: sqlite3.Connection, text: str) -> None:
        sql = f"INSERT OR REPLACE INTO {_TABLE} VALUES (?, ?)"  # noqa: S608
        connection.execute(sql, (self._cluster, text))

    def _retrying(self, attempt: Callable[[sqlite3.Connection], T]) -> T:
        return self._patience.retrying(lambda _: attempt(self._connected()))

    def _passing(self, error: Exception) -> str:
        if not isinstance(error, sqlite3.Error):
            raise error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _UNUSABLE:
            raise self._unusable(str(error)) from error
        if code not in _PASSING:
            raise _refused(error) from error
        return str(error)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_in_place():
            log.warning("%s was replaced: it is opened again", self._path)
            self._let_go()
        if self._connection is None:
            self._check_path()
            if self._main.is_cut():
                raise self._unusable("it was cut: it ends within a page")
            if self._inodes is not None:
                file, wal = inodes_of(self._path)
                if file != self._inodes[0] and wal is not None and wal == self._inodes[1]:
                    raise self._replaced()  # The log is that of another file.
            # An existing file is not created again, because its content would be missing.
            mode = "rwc" if self._ledger.has_no_row else "rw"
            if mode == "rwc" and not self._path.exists():
                self._path.touch(mode=0o600)  # Its log gets the same mode.
            self._connection = connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
                # No two statements are alike, and the cache would keep a hundred of a megabyte
                # each.
                cached_statements=0,
            )
            connection.execute("PRAGMA journal_mode = WAL")
            # FULL syncs each commit: an acknowledged checkpoint must survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = OFF")
            # A reader's own view must not prevent a table from being rebuilt.
            connection.execute("PRAGMA legacy_alter_table = ON")
            connection.create_function("exact_double", 1, exact_double, deterministic=True)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {_TABLE} (clusterID TEXT PRIMARY KEY, checkPoint TEXT)"
            )
            self._inodes = inodes_of(self._path)
            self._reader = reader_of(self._path)
            if not self._main.open(connection):
                self._abandon(connection)
                raise NeedsOperator(
                    f"{self._path} is not the file that the log beside it continues"
                    f" ({self._path.name}-wal): another state of it was put there",
                    "if the file was restored from a backup, remove the -wal and -shm files beside"
                    " it and start the Drainer, which continues at the backup's checkpoint; else"
                    " put the file back as it was",
                    Code.SINK_FILE,
                )
        return self._connection

    def _check_kept(self, connection: sqlite3.Connection) -> None:
        if not self._main.is_kept(connection):
            self._abandon(connection)
            raise self._replaced()

    def _abandon(self, connection: sqlite3.Connection) -> None:
        self._connection = None
        connection.close()
        self._let_go()

    def _is_in_place(self) -> bool:
        return inodes_of(self._path) == self._inodes

    def _replaced(self) -> NeedsOperator:
        return NeedsOperator(
            f"{self._path}, or the log beside it, was removed or replaced while this Drainer wrote"
            " it: what it has written is not in that place",
            "put the file back as it was, with the -wal file beside it, and start the Drainer;"
            " or name another file and begin it with initial-commit-ts",
            Code.SINK_FILE,
        )

    def _check_path(self) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unusable(f"its folder: {error.strerror}") from error
        if not self._ledger.has_no_row and not self._path.exists():
            raise self._replaced()
        if self._path.exists() and not self._path.is_file():
            raise self._unusable("it is no file")
        # SQLite writes its log and its index beside the file.
        for path in (folder, self._path):
            if path.exists() and not os.access(path, os.W_OK):
                raise self._unusable(f"{path} may not be written")

    def _unusable(self, why: str) -> NeedsOperator:
        return NeedsOperator(
            f"the downstream {self._path} cannot be used: {why}",
            "check the path, its rights, and that it is a database of SQLite",
            Code.SINK_FILE,
        )

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if connection is not None:
            connection.close()  # An open transaction is rolled back.


def _run_rows(
    connection: sqlite3.Connection, rows: Sequence[RowStatement], missed: Missed | None
) -> None:
    """Run the statements one by one; count missing rows unless `missed` is None."""
    for statement in rows:
        try:
            found = connection.execute(statement.sql.decode()).rowcount
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise _refused(error, f" {statement.row}") from error
        if missed is not None and not found and statement.names_a_row:
            missed.note(statement.row)


def _noting(function: Callable[[Any], Any], failures: list[NeedsOperator]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        try:
            return function(value)
        except NeedsOperator as error:
            failures.append(error)
            raise

    return call


def _refused(error: sqlite3.Error, row: str = "") -> Refused:
    return Refused(
        f"the downstream refused{row}: {error}",
        hint="compare the downstream's schema and data with the upstream's",
        code=Code.SINK_REFUSES,
    )
