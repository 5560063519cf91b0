"""Transactions that are committed both in the writer's own database and in Penstock, or in neither.

    box = Outbox("shop")                   # one for each database, shared by all threads
    box.create_table(connection)           # once; commits
    with box.transaction(client, connection, "shop") as txn:
        connection.execute("UPDATE item SET ...")
        txn.update("item", before, after)

At the end of the block the Prewrite goes to a Pump and the outbox row into the connection's
transaction; then that transaction is committed, and the Commit goes to the Pump. `penstock.outbox`
gives the reasons. The Pumps must know the database: `[resolver] kind = "sql"`, `url = …`.

The database locks of the block are held until the Prewrite is durable: milliseconds, or
`write_timeout_s` when no Pump answers. SQLite has one lock for all writers. Read a row that the
block is going to change with FOR UPDATE; otherwise Penstock may get a wrong before image.

The connection is of sqlite3 or PyMySQL, or a SQLAlchemy session on either, which is flushed at the
block's end. Changes already pending on it belong to the transaction. The database may be in
autocommit mode. A DDL within the block would commit too early in MySQL and is refused at its end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock import outbox
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.outbox import TABLE, Fenced
from pumpclient.errors import OutcomeUnknown

if TYPE_CHECKING:
    from pumpclient.client import PumpClient
    from pumpclient.rows import Row

__all__ = ["TABLE", "Fenced", "Outbox", "OutboxTransaction"]

log = logging.getLogger(__name__)

_FORGOTTEN_AT_ONCE = 32
_ACKNOWLEDGED_MAX = 100_000
_DAY_S = 86_400.0


class Outbox:
    """The outbox of one database; safe to share between threads, each with its own connection."""

    def __init__(self, name: str = "main", *, table: str = TABLE) -> None:
        """`name` is the name in the Pumps' `resolver.url`: `name=URL` leads to the database."""
        outbox.new_key(name)  # Raises for an invalid name.
        self._name = name
        self._table = table
        self._is_checked = False
        # Rows that are not needed any more; later transactions remove them.
        self._acknowledged: deque[bytes] = deque(maxlen=_ACKNOWLEDGED_MAX)

    def __repr__(self) -> str:
        return f"<Outbox {self._name}, table {self._table}>"

    def create_table(self, connection: Any) -> None:
        """Create the outbox table unless it exists, and commit."""
        outbox.create_table(_driver_connection(connection), self._table)

    def transaction(
        self, client: PumpClient, connection: Any, schema: str | None = None
    ) -> OutboxTransaction:
        """Return a transaction of both, for a `with`; `schema` is for tables named without one.

        The end of the block raises `Retryable` or another error when nothing happened, neither in
        the database nor in Penstock. It raises `OutcomeUnknown` when the database was lost while it
        committed (see `settle`).
        """
        return OutboxTransaction(self, client, connection, schema)

    def settle(self, connection: Any, transaction: OutboxTransaction) -> int:
        """Return the commit_ts of a transaction that ended in `OutcomeUnknown`, 0 if rolled back.

        `connection` must work and have no open transaction. If the transaction was not committed,
        it never will be. Raises the driver's errors.
        """
        found = outbox.settle(
            _driver_connection(connection),
            self._table,
            transaction.key,
            transaction.start_ts,
            fence=True,
        )
        assert found is not None, "with a fence there is an answer"
        return found

    def purge(
        self, connection: Any, *, checkpoint_ts: int, fences_older_than_s: float = _DAY_S
    ) -> int:
        """Remove outbox rows left by writers that died, commit, and return their number.

        `checkpoint_ts` is the smallest of all Drainers' (`penstock ctl drainers`). Run this now and
        then, on a connection without an open transaction; running writers clean up their own rows.
        """
        return outbox.purge(
            _driver_connection(connection),
            self._table,
            checkpoint_ts=checkpoint_ts,
            fences_older_than_s=fences_older_than_s,
        )

    def _write(self, connection: Any, key: bytes, start_ts: int, commit_ts: int) -> list[bytes]:
        if not self._is_checked:
            outbox.check_engine(connection, self._table)
            self._is_checked = True
        outbox.put(connection, self._table, key, start_ts, commit_ts)
        done: list[bytes] = []
        try:
            while self._acknowledged and len(done) < _FORGOTTEN_AT_ONCE:
                done.append(self._acknowledged.popleft())
            outbox.forget(connection, self._table, done)
        except BaseException:
            self._acknowledged.extend(done)
            raise
        return done


class OutboxTransaction:
    """Row changes for Penstock that are committed with those of a database; for one thread."""

    def __init__(
        self, box: Outbox, client: PumpClient, connection: Any, schema: str | None
    ) -> None:
        outbox.is_mysql(_driver_connection(connection))  # Raises for an unsupported connection.
        self._box = box
        self._connection = connection
        self.key = outbox.new_key(box._name)
        self._txn = client.begin(schema, prewrite_key=self.key)
        self._is_decided = False
        self._interrupt: BaseException | None = None

    @property
    def start_ts(self) -> int:
        return self._txn.start_ts

    @property
    def commit_ts(self) -> int | None:
        """The commit_ts once it is committed; 0 if Penstock had no changes to commit."""
        return self._txn.commit_ts

    def insert(self, table: str, row: Row) -> None:
        self._txn.insert(table, row)

    def insert_many(self, table: str, rows: Iterable[Row]) -> int:
        return self._txn.insert_many(table, rows)

    def update(self, table: str, before: Row, after: Row) -> None:
        self._txn.update(table, before, after)

    def delete(self, table: str, before: Row) -> None:
        self._txn.delete(table, before)

    def __repr__(self) -> str:
        return repr(self._txn).replace("Transaction", "OutboxTransaction", 1)

    def __enter__(self) -> Self:
        outbox.begin(_driver_connection(self._connection))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._commit()
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        self._txn.rollback()
        self._undo()

    def _commit(self) -> None:
        if _is_session(self._connection):
            try:
                self._connection.flush()  # The Prewrite comes after all changes.
            except BaseException:
                self._roll_back()
                raise
        try:
            self._txn.commit(decide=self._decide)
        except OutcomeUnknown as unknown:
            if not self._is_decided:
                raise
            # Not in doubt: the outbox row decides, and the Pump reads it if necessary.
            log.info("committed, the Pump will know later: %s", unknown)
            return
        except BaseException as error:
            if not self._is_decided:
                self._undo()
                raise
            if not isinstance(error, Retryable):
                raise
            raise NeedsOperator(
                f"committed in the database at {self.commit_ts}, but a Pump has rolled it back:"
                f" {error}",
                'every Pump needs resolver.kind = "sql" and the URL of this database',
                Code.OUTBOX_ROLLED_BACK,
            ) from error
        if self._is_decided:
            self._box._acknowledged.append(self.key)
        else:
            self._connection.commit()  # The transaction has no changes for Penstock.
        if self._interrupt is not None:
            raise self._interrupt

    def _decide(self, commit_ts: int) -> None:
        connection = _driver_connection(self._connection)
        if not outbox.in_transaction(connection):
            raise NeedsOperator(
                "the database's transaction was ended within the block",
                "leave COMMIT and ROLLBACK to the block's end, and DDL out of it",
                Code.OUTBOX_MISUSED,
            )
        forgotten = self._box._write(connection, self.key, self.start_ts, commit_ts)
        try:
            self._connection.commit()
        except BaseException as error:
            if not self._was_committed(error):
                self._box._acknowledged.extend(forgotten)
                if isinstance(error, Exception):
                    raise Retryable(
                        f"the database did not commit: {error}", Code.TRANSACTION_ROLLED_BACK
                    ) from error
                raise
            self._interrupt = None if isinstance(error, Exception) else error
        self._is_decided = True

    def _was_committed(self, error: BaseException) -> bool:
        """Determine the outcome of a failed COMMIT, or raise `OutcomeUnknown`."""
        try:
            if _is_session(self._connection):
                self._connection.rollback()  # The query needs a connection that works.
            return self._box.settle(self._connection, self) > 0
        except Exception as second:
            self._undo()
            raise OutcomeUnknown(
                f"the database was lost while it committed transaction {self.start_ts}; the Pump"
                f" asks it when it is back, and so can you ({error}; {second})",
                start_ts=self.start_ts,
                commit_ts=0,
                wait=lambda timeout_s: False,
            ) from error

    def _undo(self) -> None:
        """Ensure that the connection's open transaction can never be committed."""
        try:
            self._connection.rollback()
        except Exception as error:
            log.warning("no rollback in the database, so the connection is closed: %s", error)
            self._connection.close()


def _is_session(connection: Any) -> bool:
    """Return whether it is a session of SQLAlchemy, which this package does not import."""
    return hasattr(connection, "get_bind")


def _driver_connection(connection: Any) -> Any:
    if not _is_session(connection):
        return connection
    return connection.connection().connection.driver_connection
