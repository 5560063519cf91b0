"""A transaction: row changes are encoded as they come and written at the commit.

    insert, update, delete ──> row bytes per table            nothing is sent; many wait in a file
    commit:  pin the schema ── are the tables as they were? if not, carry the rows over
             Prewrite durable on a Pump ── from now on a crash leaves an orphan, rolled back later
             commit_ts from the oracle ── unpin
             Commit to the same Pump ── acknowledged: committed, for good

The order matters: a `commit_ts` that is fetched only after the Prewrite is durable is greater than
every timestamp which that Pump has streamed so far. The schema is pinned from the last look at the
tables until `commit_ts` is known, so no DDL's `commit_ts` can lie between a row and its encoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.wire.binlog import Binlog, BinlogType, MutationType, Origin
from pumpclient.changes import Changes, ChangeSet, next_row_id
from pumpclient.delivery.payload import bring_up_to_date, prewrite_of
from pumpclient.rows import Row, Table
from pumpclient.schema import split_name

if TYPE_CHECKING:
    from pumpclient.delivery.session import Session


class Transaction:
    """Row changes that are committed together; for one thread at a time.

    As a context manager it commits at the end of the block, and rolls back when the block raises.
    """

    def __init__(
        self,
        session: Session,
        schema: str | None,
        prewrite_key: bytes,
        origin: Origin | None = None,
    ) -> None:
        self._session = session
        self._schema = schema
        self._prewrite_key = prewrite_key
        self._origin = origin
        options = session.options
        self._changes = ChangeSet(options.spill_bytes, options.spill_dir)
        self._start_ts = 0
        self._start_s = 0.0
        self._is_over = False
        self.commit_ts: int | None = None

    def __repr__(self) -> str:
        if self.commit_ts:
            state = f"committed at {self.commit_ts}"
        else:
            state = "over" if self._is_over else "open"
        return f"<Transaction {state}, {self._changes.size_bytes} bytes of rows>"

    @property
    def start_ts(self) -> int:
        """The transaction's own timestamp, fetched when first asked for; raises `Retryable`."""
        if not self._start_ts:
            self._start_s = time.monotonic()
            self._start_ts = self._session.oracle.get_ts()
        return self._start_ts

    def insert(self, table: str, row: Row) -> None:
        """Add a row; columns that a mapping does not name take their default.

        Raises `Malformed` for an unknown table or column, or a value that is missing or does not
        fit.
        """

        def encode(current: Table) -> bytes:
            return current.codec.encode_insert(current.inserted(row), rowid=next_row_id())

        changes, data = self._encoded(table, encode)
        self._note(changes, data, MutationType.INSERT)

    def insert_many(self, table: str, rows: Iterable[Row]) -> int:
        """Add rows and return how many; raises like `insert`, with the rows before it added."""
        count = 0
        for row in rows:
            self.insert(table, row)
            count += 1
        return count

    def update(self, table: str, before: Row, after: Row) -> None:
        """Change a row from `before`, complete, to `after`, which may name only the changes.

        The primary key may change like any other column. Raises as `insert` does.
        """

        def encode(current: Table) -> bytes:
            image = current.before(before)
            return current.codec.encode_update(image, current.after(image, after))

        changes, data = self._encoded(table, encode)
        self._note(changes, data, MutationType.UPDATE)

    def delete(self, table: str, before: Row) -> None:
        """Delete the row `before`, which must name every column; raises like `insert`."""
        changes, data = self._encoded(
            table, lambda current: current.codec.encode_delete(current.before(before))
        )
        self._note(changes, data, MutationType.DELETE)

    def commit(
        self, *, wait: bool = True, decide: Callable[[int], None] = lambda commit_ts: None
    ) -> int:
        """Write everything and return the `commit_ts`, once the Pump acknowledged the commit.

        An empty transaction writes nothing and returns 0. If this fails before the commit was sent,
        the transaction did not happen and never will: `Retryable` (run it again), `NeedsOperator`
        or `Malformed`. When the Pump of the Prewrite does not answer the Commit within the write
        time-out, `OutcomeUnknown` is raised and the Commit is retried in the background, by default
        until just under 10 minutes after the Prewrite: it normally succeeds as soon as the Pump is
        back. No other Pump can accept it. If this process ends before, the Pump's resolver decides,
        and without a resolver (`none`) the transaction is rolled back.

        Without `wait` the whole delivery happens in the background and this returns immediately; a
        failure is then only logged.

        `decide` is called with the `commit_ts` after the Prewrite and before the Commit. When it
        returns, the transaction is committed; when it raises, it is not; when it raises
        `OutcomeUnknown`, the Pump's resolver finds out. `pumpclient.outbox` commits the database in
        `decide`.
        """
        self._end()
        if self._changes.is_empty:
            self.commit_ts = 0
            return 0
        try:
            return self._commit(wait, decide)
        finally:
            self._changes.close()

    def _commit(self, wait: bool, decide: Callable[[int], None]) -> int:
        session = self._session
        self._check_age()
        with ExitStack() as pinned:
            version = pinned.enter_context(session.fence.pin())
            session.schemas.catch_up(version)
            bring_up_to_date(self._changes, session.schemas)
            prewrite = prewrite_of(
                self._changes,
                version,
                start_ts=self.start_ts,
                prewrite_key=self._prewrite_key,
                origin=self._origin,
                large_bytes=session.options.spill_bytes,
            )
            with session.prewritten(prewrite) as home:
                commit_ts = session.oracle.get_ts()
                # Unpinning fails when a DDL may have passed in between: then all is undone.
                pinned.close()
                decide(commit_ts)
        self.commit_ts = commit_ts
        commit = Binlog(tp=BinlogType.COMMIT, start_ts=self.start_ts, commit_ts=commit_ts)
        session.commit(home, commit, start_s=self._start_s, wait=wait)
        return commit_ts

    def rollback(self) -> None:
        """Discard all changes; nothing was sent before the commit, so nothing must be undone."""
        self._end()
        self._changes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _end(self) -> None:
        if self._is_over:
            raise _over()
        self._is_over = True

    def _check_age(self) -> None:
        """Refuse a `start_ts` so old that a Pump might soon consider the writer dead."""
        age_s = time.monotonic() - self._start_s
        if self._start_ts and age_s > self._session.options.commit_timeout_s / 2:
            raise Retryable(
                f"start_ts was fetched {age_s:.0f} s ago, too long before the commit: begin again",
                Code.TRANSACTION_ROLLED_BACK,
            )

    def _encoded(self, name: str, encode: Callable[[Table], bytes]) -> tuple[Changes, bytes]:
        changes = self._changes_of(name)
        try:
            return changes, encode(changes.table)
        except Malformed:
            # The row may be right for a table that has just been altered.
            stale = changes.table
            self._session.schemas.catch_up()
            changes = self._changes_of(name)
            if changes.table is stale:
                raise
            return changes, encode(changes.table)

    def _changes_of(self, name: str) -> Changes:
        if self._is_over:
            raise _over()
        table = self._session.schemas.table(*split_name(name, self._schema))
        changes = self._changes.tables.get(table.info.id)
        if changes is None:
            changes = self._changes.tables[table.info.id] = Changes(table)
        elif changes.table is not table:
            self._changes.carry_over({table.info.id: table})
        return changes

    def _note(self, changes: Changes, data: bytes, kind: MutationType) -> None:
        size_bytes = self._changes.size_bytes + len(data)
        size_max = self._session.options.transaction_bytes_max
        try:
            if size_bytes > size_max:
                raise NeedsOperator(
                    f"the transaction has {size_bytes} bytes of rows with this one, more than"
                    f" transaction_bytes_max, {size_max}; it is rolled back",
                    "commit more often",
                    Code.BINLOG_TOO_LARGE,
                )
            self._changes.note(changes, kind, data)
        except NeedsOperator:
            self.rollback()
            raise


def _over() -> NeedsOperator:
    return NeedsOperator("the transaction is over", "begin another one", Code.WRITER_MISUSED)
