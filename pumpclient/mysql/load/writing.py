"""Encoded rows to the Pumps: one transaction a group, in the order of their origins, journaled.

The journal is the load's own, beside its state: what a killed load left open on a Pump is rolled
back by the next attempt, or it would hold up that Pump's stream until the Pump gives up on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.filters.rules import RowPolicy
from penstock.wire.binlog import MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.delivery.group_commit import GroupJournal, GroupWriter, PendingTransaction
from pumpclient.delivery.session import Session
from pumpclient.rows import Table


@dataclass(frozen=True, slots=True)
class Passing:
    """A table as it was when its rows were encoded, and which of them pass."""

    table: Table
    policy: RowPolicy | None = None

    @property
    def takes_all(self) -> bool:
        """True when every row passes."""
        return self.policy is None or self.policy.takes_all

    def rows(self, rows: list[bytes]) -> list[bytes]:
        """Return the rows that pass as inserts; raise `NeedsOperator` where a rule says Error."""
        policy = self.policy
        if policy is None or policy.takes_all:
            return rows
        policy.check(bytes([MutationType.INSERT]))
        if MutationType.INSERT in policy.dropped:
            return []
        is_kept = policy.is_kept
        if is_kept is None:
            return rows
        return [row for row in rows if is_kept(MutationType.INSERT, row)]


class RowWriter:
    """Writes for one attempt; raises `NeedsOperator`, and `Retryable` for all else."""

    def __init__(
        self, session: Session, journal: GroupJournal, may_commit: Callable[[], bool]
    ) -> None:
        """Commit as long as `may_commit` says so."""
        self._session = session
        self._writer = GroupWriter(session, journal, may_commit=may_commit)

    def write(self, table: Table, rows: Sequence[bytes], origin: Origin) -> None:
        """Send rows on their way."""
        options = self._session.options
        if self._session.schemas.table_by_id(table.info.id) is not table:
            raise Retryable(f"table {table.schema_name}.{table.info.name} was altered here")
        changes = ChangeSet(options.spill_bytes, options.spill_dir)
        changes.tables[table.info.id] = Changes(
            table, inserted=list(rows), sequence=[MutationType.INSERT] * len(rows)
        )
        # As many bytes as a message holds stay in memory; more wait in a file.
        if sum(map(len, rows)) > options.spill_bytes // 4:
            changes.spool_all()
        self._tried(lambda: self._writer.submit([PendingTransaction(changes, origin)], _nothing))

    def drain(self) -> None:
        """Return once everything is committed."""
        self._tried(self._writer.drain)

    def close(self) -> None:
        """End; what is under way is committed or rolled back."""
        self._writer.close()

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (NeedsOperator, Retryable):
            raise
        except PenstockError as error:
            raise Retryable(f"rows were not written: {error}") from error


def _nothing() -> None:
    """Do nothing: `drain` tells."""
