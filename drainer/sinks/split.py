"""A batch that reaches the downstream in several transactions, on several connections at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.failpoints import point

lane_committed = point("drainer.lane_committed")


class RowStatement(NamedTuple):
    """One statement for one row; `row` is its table and key, for an operator."""

    sql: bytes
    row: str

    @property
    def names_a_row(self) -> bool:
        """True when the row must be there already."""
        return self.sql.startswith((b"UPDATE", b"DELETE"))


Transaction = list[RowStatement]


class ForeignKey(NamedTuple):
    """One of the downstream's foreign keys; `columns` pairs the child's with the parent's."""

    schema: str
    table: str
    parent_schema: str
    parent: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Lanes of transactions, and the `last` one, which also stores the checkpoint.

    Lanes do not depend on one another, and `last` comes after all of them. `safe` says that every
    lane's transaction may be run again, and that missing rows mean nothing.
    """

    lanes: list[list[Transaction]]
    last: Transaction
    safe: bool


@dataclass(slots=True)
class Missed:
    """Rows that an update or a delete did not find: the downstream is not what upstream was."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, row: str) -> None:
        """Count a row that was not there."""
        self.count += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(row)

    def forget(self) -> None:
        """Begin anew."""
        self.count = 0
        self.examples = []

    def add(self, others: Iterable[Missed]) -> Missed:
        """Add what others counted, and return self."""
        for other in others:
            self.count += other.count
            self.examples = (self.examples + other.examples)[:_EXAMPLES_MAX]
        return self


_EXAMPLES_MAX = 5


class InDoubt(PenstockError):
    """A lane's commit got no answer, so that only the safe form of the batch may follow."""
