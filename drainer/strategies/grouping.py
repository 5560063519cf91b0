"""Row changes into groups that share causality keys, and groups into lanes of transactions (pure).

    changes   a  b  c  d  e  f        in commit order
    keys      1  2  1  3  23 4        (e shares one with b, and one with d)
    groups    [a c] [b d e] [f]       order matters within a group and nowhere else
    lanes     [a c | f] [b d | e]     one connection each; a `|` is a commit

Changes of tables without row key must happen exactly once. They, and whatever shares a group with
them, go into `last`: the transaction that also stores the checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drainer.sinks.protocol import ForeignKey, RowStatement, Split, Transaction
from drainer.task.sql.causality import NO_KEY, WILD, tag_of
from drainer.task.sql.row_statements import Keys, RowStatements
from drainer.task.work_unit import Link
from penstock.schema.model import IndexColumn, TableInfo

_ONCE = WILD
"""Ties all that must happen once; no value's key is this number once wild ones are tamed."""

Ints = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Change:
    """One row change: its statements, its causality keys, the number of its transaction."""

    statements: Transaction
    before: Sequence[int]
    after: Sequence[int]
    unique: Sequence[bool]
    transaction: int
    once: bool


@dataclass(slots=True)
class _Groups:
    """A forest over the changes: each points to an earlier one of its group, or to itself."""

    parents: list[int] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)

    def add(self, keys: Iterable[int]) -> int:
        """Take the next change and return its number."""
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
        """Return the number of the first change in a change's group."""
        parents = self.parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def _join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self.parents[high] = low


def links_of(schema: str, table: TableInfo, keys: Iterable[ForeignKey]) -> tuple[Link, ...]:
    """Return the foreign keys that a table is child or parent of, as its units tell of them."""
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


def in_commit_order(answers: Sequence[RowStatements], numbers: Sequence[Ints]) -> list[Change]:
    """Return all changes of a batch; `numbers` are the transactions of each answer's changes.

    Within a transaction tables follow one another as in `answers`.
    """
    wild = _wild_tags(answers)
    changes: list[Change] = []
    for answer, transactions in zip(answers, numbers, strict=True):
        before = _tamed(answer.before, answer.tags, wild).tolist()
        after = _tamed(answer.after, answer.tags, wild).tolist()
        pairs = zip(answer.unique, answer.tags, strict=True)
        unique = [each and tag not in wild for each, tag in pairs]
        for i, first in enumerate(answer.first):
            row, second = answer.row[i], answer.second[i]
            statements: Transaction = [RowStatement(first, row)]
            if second is not None:
                statements.append(RowStatement(second, row))
            number = int(transactions[i])
            changes.append(Change(statements, before[i], after[i], unique, number, answer.once))
    changes.sort(key=lambda change: change.transaction)  # Stable: the rest of the order stays.
    return changes


def _wild_tags(answers: Sequence[RowStatements]) -> set[int]:
    wild = set()
    for answer in answers:
        for i, tag in enumerate(answer.tags):
            if (answer.before[:, i] == WILD).any() or (answer.after[:, i] == WILD).any():
                wild.add(tag)
    return wild


def _tamed(keys: Keys, tags: Sequence[int], wild: set[int]) -> Keys:
    """Give all values of an index with wild ones the same key."""
    affected = [i for i, tag in enumerate(tags) if tag in wild]
    if affected:
        keys = keys.copy()
        for i in affected:
            keys[:, i] = np.where(keys[:, i] == NO_KEY, np.uint64(NO_KEY), np.uint64(tags[i]))
    return keys


def is_crossing(changes: Iterable[Change]) -> bool:
    """Tell whether a unique value is taken while another row of the batch still holds it.

    A database that checks at a transaction's end, as TiDB does, lets that happen. Only the safe
    form gets through it.
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


def spread(changes: Sequence[Change], *, lanes: int, statements_max: int, safe: bool) -> Split:
    """Return the changes' groups over `lanes`, in transactions of `statements_max` or little more.

    What fits into one transaction goes with the checkpoint.
    """
    if sum(len(change.statements) for change in changes) <= statements_max:
        return Split([], _flat(changes), safe)
    groups = _Groups()
    once = groups.add((_ONCE,))
    for change in changes:
        keys = (*change.before, *change.after)
        groups.add((_ONCE, *keys) if change.once else keys)
    members: dict[int, list[Change]] = {}
    for i, change in enumerate(changes, start=once + 1):
        members.setdefault(groups.root(i), []).append(change)
    last = members.pop(groups.root(once), [])
    filled: list[list[Change]] = [[] for _ in range(lanes)]
    for group in members.values():
        min(filled, key=len).extend(group)
    transactions = [_cut(lane, statements_max) for lane in filled if lane]
    return Split(transactions, _flat(last), safe)


def whole(changes: Sequence[Change], *, safe: bool) -> Split:
    """Return the changes in one lane, each upstream transaction as one of the downstream's.

    With a table without row key the whole batch is one transaction, so that none is torn.
    """
    if any(change.once for change in changes):
        return Split([], _flat(changes), safe)
    numbered = itertools.groupby(changes, key=lambda change: change.transaction)
    transactions = [_flat(group) for _, group in numbered]
    return Split([transactions[:-1]] if len(transactions) > 1 else [], transactions[-1], safe)


def _cut(changes: Iterable[Change], statements_max: int) -> list[Transaction]:
    """Return the changes in transactions; the statements of one change stay together."""
    transactions: list[Transaction] = [[]]
    for change in changes:
        if len(transactions[-1]) >= statements_max:
            transactions.append([])
        transactions[-1] += change.statements
    return transactions


def _flat(changes: Iterable[Change]) -> Transaction:
    return [statement for change in changes for statement in change.statements]
