"""Gathers rows into transactions, and transactions into groups of bounded count and size.

Pure, except for the file that holds a transaction's rows when they are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.filters.rules import RowPolicy
from penstock.wire.binlog import MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.delivery.group_commit import PendingTransaction
from pumpclient.rows import Table


class Gatherer:
    """The group that is being made, and the transaction that is open after it."""

    def __init__(
        self, *, count_max: int, bytes_max: int, spill_bytes: int, spill_dir: str | Path | None
    ) -> None:
        """A group has at most `count_max` transactions and little more than `bytes_max` bytes."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        # The rows in memory must fit into one message, whatever their frames add to them.
        self._spill_bytes = spill_bytes // 4
        self._spill_dir = spill_dir
        self._group: list[PendingTransaction] = []
        self._group_bytes = 0
        self._open: ChangeSet | None = None
        self._open_bytes = 0
        self._in_memory_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._group) >= self._count_max or self._group_bytes >= self._bytes_max

    @property
    def is_large(self) -> bool:
        return self._open is not None and self._open.spool_file is not None

    @property
    def count(self) -> int:
        return len(self._group)

    def add(
        self, table: Table, policy: RowPolicy, kind: MutationType, rows: Sequence[bytes]
    ) -> None:
        if not policy.takes_all:
            rows = policy.passing(kind, rows)
        if not rows:
            return
        if self._open is None:
            self._open = ChangeSet(self._spill_bytes, self._spill_dir)
        changes = self._open.tables.get(table.info.id)
        if changes is None:
            changes = self._open.tables[table.info.id] = Changes(table)
        if kind is MutationType.INSERT:
            changes.inserted += rows
        elif kind is MutationType.UPDATE:
            changes.updated += rows
        else:
            changes.deleted += rows
        count = len(rows)
        if count == 1:  # Most events of a server that many sessions write to.
            changes.sequence.append(kind)
            size = len(rows[0])
        else:
            changes.sequence += [kind] * count
            size = sum(map(len, rows))
        self._open_bytes += size
        self._in_memory_bytes += size
        if self._in_memory_bytes > self._spill_bytes:
            self._open.spool_all()
            self._in_memory_bytes = 0

    def finish(self, origin: Origin) -> bool:
        """End the open transaction; drop it and return False if it has no rows."""
        changes, self._open = self._open, None
        if changes is not None:
            self._group.append(PendingTransaction(changes, origin))
            self._group_bytes += self._open_bytes
        self._open_bytes = self._in_memory_bytes = 0
        return changes is not None

    def take(self) -> list[PendingTransaction]:
        group, self._group, self._group_bytes = self._group, [], 0
        return group

    def undo(self) -> dict[tuple[str, str], int]:
        """Forget the open transaction; return how many rows it had of each table."""
        found = {} if self._open is None else self._open.tables
        counts = {
            (each.table.schema_name, each.table.info.name): len(each.sequence)
            for each in found.values()
        }
        self.drop_open()
        return counts

    def drop_open(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
        self._open_bytes = self._in_memory_bytes = 0

    def close(self) -> None:
        for each in self._group:
            each.changes.close()
        self._group = []
        self.drop_open()
