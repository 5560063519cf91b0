"""Batches: consecutive transactions of a reader as Arrow record batches, one for each table.

A batch ends at a DDL, at a number of rows, and where the next transaction has not arrived yet. A
transaction is in one batch, unless it is larger than memory: then each slice of it is a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from drainer.stream.decoder import Committed, Ddl, Reached, Transaction
from drainer.task.change_batches import ChangeBatches

ROWS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of consecutive transactions, by table as schema.table; up to `commit_ts`.

    `checkpoint` is the position after them. The slices of a transaction that is larger than memory
    have the checkpoint before it, the last one that after it.
    """

    tables: Mapping[str, pa.RecordBatch]
    commit_ts: int
    checkpoint: str = field(repr=False)


Take = Callable[[float | None], Committed | None]
"""Returns the next element, None at the end; raises `TimeoutError` if none comes in the seconds."""


def batches_of(
    take: Take, begin: Reached, *, rows_max: int, timeout_s: float | None
) -> Iterator[Batch | Ddl]:
    """Yield batches and DDL until the end, or until nothing comes for `timeout_s`.

    Raises `Malformed` for rows that cannot be decoded, and the errors of `take`.
    """
    held = _Held(begin, rows_max)
    while True:
        try:
            each = take(0.0 if held.rows else timeout_s)
        except TimeoutError:
            if not held.rows:
                return
            yield held.batch()
            continue
        if isinstance(each, Transaction):
            yield from held.add(each)
            continue
        if held.rows:
            yield held.batch()
        if each is None:
            return
        held.reached = each.reached
        yield each


class _Held:
    """The transactions of the next batch; `reached` is the position after the last whole one."""

    def __init__(self, reached: Reached, rows_max: int) -> None:
        self.reached = reached
        self._rows_max = rows_max
        self._changes = ChangeBatches()
        self._last_ts = 0

    @property
    def rows(self) -> int:
        return self._changes.rows

    def batch(self) -> Batch:
        lines = {f"{each.schema}.{each.table.name}": each.rows for each in self._changes.take()}
        return Batch(lines, self._last_ts, self.reached.text)

    def add(self, transaction: Transaction) -> Iterator[Batch]:
        """Add a transaction; yield what must be a batch before its end, and a full batch after."""
        for part in transaction.changes.parts():
            if self.rows >= self._rows_max or not self._changes.fits(part):
                yield self.batch()
            self._changes.add(transaction.commit_ts, transaction.start_ts, part, 0)
            self._last_ts = transaction.commit_ts
        self.reached = transaction.reached
        if self.rows >= self._rows_max:
            yield self.batch()
