"""Strategy `statements`: runs each row change, for downstreams that must see every change.

    batch ──> units ──> tasks: SQL and causality keys ──> groups ──> queues, run concurrently
                                                               └──> last, with the checkpoint

While queues run, the downstream is between two states. Its checkpoint says so, with the `commit_ts`
up to which changes may be there (`applying_ts`). After a crash everything up to that timestamp is
written in the safe form. This ends in the right state, wherever the crash was. Every change of the
range runs again, in an order that preserves each key's order of changes. A row that a REPLACE
removes has a unique value that another row had upstream at that time. It is therefore also a row of
the range, at a later time, and its last change is still to come and writes it whole.

Changes that share a causality key form a group, and groups are spread over worker queues:

    changes   a  b  c  d  e  f        in commit order
    keys      1  2  1  3  23 4        (e shares one with b, and one with d)
    groups    [a c] [b d e] [f]       order matters within a group and nowhere else
    queues    [a c | f] [b d | e]     one connection each; a `|` is a commit

Changes of tables without row key must happen exactly once. They, and all changes that share a group
with them, go into `last`: the transaction that also stores the checkpoint.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.apply.batches import HeldBatch, RowBatch
from drainer.apply.strategies import Prepared, Strategy
from drainer.settings.config import ApplyConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import (
    ForeignKey,
    InDoubt,
    Missed,
    RowStatement,
    Split,
    SqlSink,
    Transaction,
)
from drainer.spark.dispatcher import Dispatcher
from drainer.task.sql.row_statements import NO_KEY, UNBOUNDED, Keys, RowStatements, tag_of
from drainer.task.work_unit import ROWS_SCHEMA, Batch, Link, Op, TableRows, WorkUnit
from penstock.schema.model import IndexColumn, TableInfo

log = logging.getLogger(__name__)

UNIT_ROWS_MIN = 1000

ForeignKeys = tuple[ForeignKey, ...]


class EachChange(Strategy):
    """Every change as its own statement."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sink: SqlSink,
        thread: SinkThread,
        *,
        config: ApplyConfig,
        parts: int,
        start: Checkpoint,
    ) -> None:
        """`start` is the downstream's position; `parts` is the maximum of units per table."""
        super().__init__(start)
        self._dispatcher = dispatcher
        self._sink = sink
        self._thread = thread
        self._config = config
        self._parts = parts
        self._keys: ForeignKeys | None = None
        if self.is_safe:
            log.info("safe mode: inserts replace, updates delete and replace")

    @property
    def is_safe(self) -> bool:
        """True while changes may already be downstream, or if the settings require it."""
        return self._config.safe_mode or self.is_partial

    async def prepare(self, batch: RowBatch) -> Prepared:
        assert isinstance(batch, HeldBatch), "with this strategy payloads come here"
        keys = self._keys
        if keys is None:
            keys = await self._foreign_keys()
        split = await self._split(batch, keys, safe=self.is_safe)
        return partial(self._commit, batch, keys, split)

    async def _foreign_keys(self) -> ForeignKeys:
        """Return the downstream's foreign keys as they are after all earlier batches commit."""
        self._keys = await self._thread.call(self._sink.foreign_keys)
        return self._keys

    async def _split(self, batch: Batch, keys: ForeignKeys, *, safe: bool) -> Split:
        units, numbers = await asyncio.to_thread(self._units, batch, keys, safe)
        answers = await self._dispatcher.run(units)
        made = await asyncio.to_thread(self._arranged, answers, numbers, safe)
        return await self._split(batch, keys, safe=True) if made is None else made

    def _units(self, batch: Batch, keys: ForeignKeys, safe: bool) -> tuple[list[bytes], list[Ints]]:
        units: list[bytes] = []
        numbers: list[Ints] = []
        for changes in batch.tables:
            assert changes.transactions is not None, "the batch says which rows belong together"
            table, links = changes.table, links_of(changes.schema, changes.table, keys)
            whole_unit = _rows(changes, Op.SAFE if safe else Op.EACH)
            count = len(whole_unit)
            step = max(UNIT_ROWS_MIN, -(-count // self._parts))
            for at in range(0, count, step):
                unit = WorkUnit(
                    batch.batch_id,
                    len(units),
                    self._sink.dialect,
                    changes.schema,
                    table.name,
                    table,
                    whole_unit.slice(at, step),
                    links=links,
                )
                units.append(unit.encode())
                numbers.append(changes.transactions[at : at + step])
        return units, numbers

    def _arranged(self, answers: list[bytes], numbers: list[Ints], safe: bool) -> Split | None:
        changes = in_commit_order([RowStatements.decode(answer) for answer in answers], numbers)
        if not safe and is_crossing(changes):
            return None
        if not self._config.dispatch:  # Transactions stay whole, in one queue.
            return whole(changes, safe=safe)
        queues, batch = self._config.worker_count, self._config.txn_batch
        return spread(changes, queues=queues, statements_max=batch, safe=safe)

    async def _commit(
        self, batch: Batch, keys: ForeignKeys, split: Split, checkpoint: Checkpoint
    ) -> None:
        """Apply; if a commit gets no answer, apply the batch's rows once more in the safe form."""
        now = await self._foreign_keys()
        if now is not keys:  # A DDL has run since, and other tables are linked now.
            split = await self._split(batch, now, safe=split.safe)
        try:
            await self._apply(split, checkpoint)
        except InDoubt as doubt:
            log.warning("%s; the batch up to %d is run again", doubt, checkpoint.commit_ts)
            del split
            await self._apply(await self._split(batch, now, safe=True), checkpoint)

    async def _apply(self, split: Split, checkpoint: Checkpoint) -> None:
        """Apply queues and checkpoint; raise `InDoubt` if the batch must be applied again."""
        missed: Missed = await self._thread.call(
            lambda: self._sink.apply_split(split, checkpoint, self._start)
        )
        self._committed_ts = checkpoint.commit_ts
        if missed.count:
            self.missed_rows += missed.count
            log.warning(
                "%d updated or deleted rows up to %d were not in the downstream, such as %s;"
                " someone else changes it: compare the tables",
                missed.count, checkpoint.commit_ts, "; ".join(missed.examples),
            )  # fmt: skip


def _rows(changes: TableRows, op: Op) -> pa.RecordBatch:
    count = len(changes.rows)
    columns = [
        pa.array([int(op)] * count, pa.uint8()),
        pa.array(changes.kind_array()),
        changes.rows.cast(pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


_NON_REPEATABLE = UNBOUNDED
"""Links all changes that must happen once; `_conservative` keeps values' keys off this number."""

Ints = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change: its statements, its causality keys, the number of its transaction."""

    statements: Transaction
    before: Sequence[int]
    after: Sequence[int]
    unique: Sequence[bool]
    transaction: int
    once: bool


@dataclass(slots=True)
class _Groups:
    """A forest over the changes: each points to an earlier change of its group, or to itself."""

    parents: list[int] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)

    def add(self, keys: Iterable[int]) -> int:
        number = len(self.parents)
        self.parents.append(number)
        for key in keys:
            if key == NO_KEY:
                continue
            other = self.owners.setdefault(key, number)
            if other != number:
                self._join(number, other)
        return number

    def root(self, number: int) -> int:
        parents = self.parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def _join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self.parents[high] = low


def links_of(schema: str, table: TableInfo, keys: Iterable[ForeignKey]) -> tuple[Link, ...]:
    """Return the foreign keys with the table as child or parent, in the form units use."""
    here = (schema.lower(), table.name.lower())
    links = []
    for key in keys:
        pairs = sorted(key.columns, key=lambda pair: pair[1].lower())
        ends = ((key.schema, key.table), (key.parent_schema, key.parent))
        columns = [IndexColumn(name=parent, offset=0) for _, parent in pairs]
        tag = tag_of(key.parent_schema, key.parent, columns, "foreign key")
        for side, end in enumerate(ends):
            found = [table.column(pair[side]) for pair in pairs]
            offsets = tuple(column.offset for column in found if column is not None)
            if (end[0].lower(), end[1].lower()) == here and len(offsets) == len(pairs):
                links.append((tag, offsets))
    return tuple(dict.fromkeys(links))


def in_commit_order(answers: Sequence[RowStatements], numbers: Sequence[Ints]) -> list[RowChange]:
    """Return all changes of a batch; `numbers` are the transactions of each answer's changes.

    Within a transaction, tables are in the order of `answers`.
    """
    unbounded = _unbounded_tags(answers)
    changes: list[RowChange] = []
    for answer, transactions in zip(answers, numbers, strict=True):
        before = _conservative(answer.before, answer.tags, unbounded).tolist()
        after = _conservative(answer.after, answer.tags, unbounded).tolist()
        pairs = zip(answer.unique, answer.tags, strict=True)
        unique = [each and tag not in unbounded for each, tag in pairs]
        for i, first in enumerate(answer.first):
            row, second = answer.row[i], answer.second[i]
            statements: Transaction = [RowStatement(first, row)]
            if second is not None:
                statements.append(RowStatement(second, row))
            number = int(transactions[i])
            changes.append(RowChange(statements, before[i], after[i], unique, number, answer.once))
    changes.sort(key=lambda change: change.transaction)  # Stable: the rest of the order stays.
    return changes


def _unbounded_tags(answers: Sequence[RowStatements]) -> set[int]:
    unbounded = set()
    for answer in answers:
        for i, tag in enumerate(answer.tags):
            if (answer.before[:, i] == UNBOUNDED).any() or (answer.after[:, i] == UNBOUNDED).any():
                unbounded.add(tag)
    return unbounded


def _conservative(keys: Keys, tags: Sequence[int], unbounded: set[int]) -> Keys:
    """Give all values of an index that has unbounded values the same key."""
    affected = [i for i, tag in enumerate(tags) if tag in unbounded]
    if affected:
        keys = keys.copy()
        for i in affected:
            keys[:, i] = np.where(keys[:, i] == NO_KEY, np.uint64(NO_KEY), np.uint64(tags[i]))
    return keys


def is_crossing(changes: Iterable[RowChange]) -> bool:
    """Return whether a change takes a unique value that another row of the batch still holds.

    A database that checks at a transaction's end, such as TiDB, allows that. Only the safe form can
    apply it.
    """
    holders: dict[int, int] = {}
    for change in changes:
        if change.once:
            continue
        old, new = change.before[0], change.after[0]
        for key, unique in zip(change.before, change.unique, strict=True):
            if unique and key != NO_KEY and holders.pop(key, old) != old:
                return True
        for key, unique in zip(change.after, change.unique, strict=True):
            if unique and key != NO_KEY and holders.setdefault(key, new) != new:
                return True
    return False


def spread(changes: Sequence[RowChange], *, queues: int, statements_max: int, safe: bool) -> Split:
    """Return the changes' groups over `queues`, in transactions of about `statements_max`.

    Changes that fit into one transaction are committed with the checkpoint.
    """
    if sum(len(change.statements) for change in changes) <= statements_max:
        return Split([], _flat(changes), safe)
    groups = _Groups()
    once = groups.add((_NON_REPEATABLE,))
    for change in changes:
        keys = (*change.before, *change.after)
        groups.add((_NON_REPEATABLE, *keys) if change.once else keys)
    members: dict[int, list[RowChange]] = {}
    for i, change in enumerate(changes, start=once + 1):
        members.setdefault(groups.root(i), []).append(change)
    last = members.pop(groups.root(once), [])
    filled: list[list[RowChange]] = [[] for _ in range(queues)]
    for group in members.values():
        min(filled, key=len).extend(group)
    transactions = [_cut(queue, statements_max) for queue in filled if queue]
    return Split(transactions, _flat(last), safe)


def whole(changes: Sequence[RowChange], *, safe: bool) -> Split:
    """Return the changes in one queue, each upstream transaction as one of the downstream's.

    With a table without row key the whole batch is one transaction, so that no part of it repeats.
    """
    if any(change.once for change in changes):
        return Split([], _flat(changes), safe)
    numbered = itertools.groupby(changes, key=lambda change: change.transaction)
    transactions = [_flat(group) for _, group in numbered]
    return Split([transactions[:-1]] if len(transactions) > 1 else [], transactions[-1], safe)


def _cut(changes: Iterable[RowChange], statements_max: int) -> list[Transaction]:
    """Return the changes in transactions; the statements of one change stay together."""
    transactions: list[Transaction] = [[]]
    for change in changes:
        if len(transactions[-1]) >= statements_max:
            transactions.append([])
        transactions[-1] += change.statements
    return transactions


def _flat(changes: Iterable[RowChange]) -> Transaction:
    return [statement for change in changes for statement in change.statements]
