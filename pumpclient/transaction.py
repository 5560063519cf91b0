"""One transaction: row changes are encoded as they come and written at the commit.

    insert, update, delete ──> row bytes per table            nothing is sent
    commit:  pin the schema ── are the tables as they were? if not, carry the rows over
             Prewrite durable on a Pump ── from now on a crash leaves an orphan, rolled back later
             commit_ts from the oracle ── unpin
             Commit to the same Pump ── acknowledged: committed, for ever

The order is the point: a `commit_ts` asked for only after the Prewrite is durable is greater than
all that Pump has streamed so far. And as the schema is pinned from the last look at the tables
until `commit_ts` is known, no DDL's `commit_ts` can lie between a row and its encoding.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.codec import encode_prewrite_value
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.model import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from pumpclient.rows import Row, Table
from pumpclient.schema import split_name

if TYPE_CHECKING:
    from pumpclient.session import Session

# Tables without a primary key have a hidden row id. Nobody reads it; it only must differ.
_row_ids = itertools.count(time.time_ns())


@dataclass(slots=True)
class _Changes:
    """The changes of one table, as bytes of the table version in `table`."""

    table: Table
    inserted: list[bytes] = field(default_factory=list)
    updated: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    sequence: list[MutationType] = field(default_factory=list)

    def carry_over(self, now: Table) -> None:
        """Encode everything again for another version of the table."""
        then = self.table.codec
        inserted = [now.carried(self.table, then.decode_insert(data)) for data in self.inserted]
        updated = [then.decode_update(data) for data in self.updated]
        deleted = [now.carried(self.table, then.decode_delete(data)) for data in self.deleted]
        self.inserted = [now.codec.encode_insert(image, rowid=next(_row_ids)) for image in inserted]
        self.updated = [
            now.codec.encode_update(now.carried(self.table, before), now.carried(self.table, after))
            for before, after in updated
        ]
        self.deleted = [now.codec.encode_delete(image) for image in deleted]
        self.table = now

    def mutation(self) -> TableMutation:
        """Return the changes in the form that binlogs have."""
        return TableMutation(
            table_id=self.table.info.id,
            inserted_rows=tuple(self.inserted),
            updated_rows=tuple(self.updated),
            deleted_rows=tuple(self.deleted),
            sequence=tuple(self.sequence),
        )


class Transaction:
    """Row changes that are committed together; for one thread at a time.

    As a context manager it commits at the end of the block, and rolls back when the block raises.
    """

    def __init__(self, session: Session, schema: str | None, prewrite_key: bytes) -> None:
        self._session = session
        self._schema = schema
        self._prewrite_key = prewrite_key
        # By table id, because one table may be called by names of different letter case.
        self._changes: dict[int, _Changes] = {}
        self._size_bytes = 0
        self._start_ts = 0
        self._start_s = 0.0
        self._is_over = False
        self.commit_ts: int | None = None

    @property
    def start_ts(self) -> int:
        """The transaction's own timestamp, fetched when first asked for; raises `Retryable`."""
        if not self._start_ts:
            self._start_s = time.monotonic()
            self._start_ts = self._session.oracle.get_ts()
        return self._start_ts

    def insert(self, table: str, row: Row) -> None:
        """Add a row; columns that a mapping does not name take their default.

        Raises `Malformed` for an unknown table or column, a missing value or one that does not fit.
        """

        def encode(current: Table) -> bytes:
            return current.codec.encode_insert(current.inserted(row), rowid=next(_row_ids))

        changes, data = self._encoded(table, encode)
        self._note(changes, changes.inserted, data, MutationType.INSERT)

    def update(self, table: str, before: Row, after: Row) -> None:
        """Change a row from `before`, complete, to `after`, which may name only what changes.

        The primary key may change like any other column. Raises as `insert` does.
        """

        def encode(current: Table) -> bytes:
            image = current.before(before)
            return current.codec.encode_update(image, current.after(image, after))

        changes, data = self._encoded(table, encode)
        self._note(changes, changes.updated, data, MutationType.UPDATE)

    def delete(self, table: str, before: Row) -> None:
        """Remove a row that was `before`, every column named. Raises as `insert` does."""
        changes, data = self._encoded(
            table, lambda current: current.codec.encode_delete(current.before(before))
        )
        self._note(changes, changes.deleted, data, MutationType.DELETE)

    def commit(
        self, *, wait: bool = True, decide: Callable[[int], None] = lambda commit_ts: None
    ) -> int:
        """Write everything and return the `commit_ts`, once the Pump acknowledged the commit.

        An empty transaction writes nothing and returns 0. Any failure before the commit was sent
        means that the transaction did not happen and never will: `Retryable` (run it again),
        `NeedsOperator` or `Malformed`. When the Pump of the Prewrite does not answer the Commit
        within the write time-out, `OutcomeUnknown` is raised and the Commit goes on being tried in
        the background, by default just under 10 minutes from the Prewrite: it normally succeeds
        as soon as the Pump is back. No other Pump can take it. If this process ends before, the
        Pump's resolver decides, and without one (`none`) the transaction is rolled back.

        Without `wait` the background does all of that and this returns at once; a failure is then
        only logged.

        `decide` is called with the `commit_ts` after the Prewrite and before the Commit: when it
        returns, the transaction is committed; when it raises, it is not; when it raises
        `OutcomeUnknown`, the Pump's resolver finds out. `pumpclient.outbox` commits in it.
        """
        self._end()
        if not any(changes.sequence for changes in self._changes.values()):
            self.commit_ts = 0
            return 0
        session = self._session
        self._check_age()
        with ExitStack() as pinned:
            version = pinned.enter_context(session.fence.pin())
            with session.prewritten(self._prewrite(version)) as home:
                commit_ts = session.oracle.get_ts()
                # Unpinning fails when a DDL may have passed meanwhile: then all is undone.
                pinned.close()
                decide(commit_ts)
        self.commit_ts = commit_ts
        commit = Binlog(tp=BinlogType.COMMIT, start_ts=self.start_ts, commit_ts=commit_ts)
        session.commit(home, commit, start_s=self._start_s, wait=wait)
        return commit_ts

    def rollback(self) -> None:
        """Forget all changes; as nothing was sent before the commit, there is nothing to undo."""
        self._end()
        self._changes.clear()

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
        """Refuse a `start_ts` so old that a Pump might soon take us for dead."""
        age_s = time.monotonic() - self._start_s
        if self._start_ts and age_s > self._session.options.commit_timeout_s / 2:
            raise Retryable(
                f"start_ts was fetched {age_s:.0f} s ago, too long before the commit: begin again"
            )

    def _encoded(self, name: str, encode: Callable[[Table], bytes]) -> tuple[_Changes, bytes]:
        """Return a table's changes and the bytes of one more, encoded for its current version."""
        changes = self._changes_of(name)
        try:
            return changes, encode(changes.table)
        except Malformed:
            # The row may be right for a table that somebody altered a moment ago.
            stale = changes.table
            self._session.schemas.catch_up()
            changes = self._changes_of(name)
            if changes.table is stale:
                raise
            return changes, encode(changes.table)

    def _changes_of(self, name: str) -> _Changes:
        if self._is_over:
            raise _over()
        table = self._session.schemas.table(*split_name(name, self._schema))
        changes = self._changes.get(table.info.id)
        if changes is None:
            changes = self._changes[table.info.id] = _Changes(table)
        elif changes.table is not table:
            changes.carry_over(table)
        return changes

    def _note(self, changes: _Changes, into: list[bytes], data: bytes, kind: MutationType) -> None:
        self._size_bytes += len(data)
        size_max = self._session.options.transaction_bytes_max
        if self._size_bytes > size_max:
            raise NeedsOperator(
                f"the transaction holds more than {size_max} bytes", hint="commit more often"
            )
        into.append(data)
        changes.sequence.append(kind)

    def _prewrite(self, version: int) -> Binlog:
        """Return the Prewrite, its rows encoded with the tables of this schema version."""
        schemas = self._session.schemas
        schemas.catch_up(version)
        for table_id, changes in self._changes.items():
            now = schemas.table_by_id(table_id)
            if now is None:
                raise Retryable(
                    f"table {changes.table.schema_name}.{changes.table.info.name} was dropped or"
                    " truncated since the transaction began"
                )
            if now is not changes.table:
                changes.carry_over(now)
        value = PrewriteValue(
            schema_version=version,
            mutations=tuple(c.mutation() for c in self._changes.values() if c.sequence),
        )
        return Binlog(
            tp=BinlogType.PREWRITE,
            start_ts=self.start_ts,
            prewrite_key=self._prewrite_key,
            prewrite_value=encode_prewrite_value(value),
        )


def _over() -> NeedsOperator:
    return NeedsOperator("the transaction is over", hint="begin another one")
