"""Encoder: makes messages of changes; the interface of every format.

An encoder is a pure function of its arguments. It gets a whole transaction, or slice after slice if
the transaction is too large for memory; and each DDL separately. Filters, routes and loop-back have
already decided which rows it gets, and the names of tables and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from drainer.task.events.messages import Message
from penstock.schema.model import TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

Values = tuple[Any, ...]
"""One value per column of the table, as `penstock.datum.rows.fields` reads them; times in UTC."""


class RowEvent(NamedTuple):
    """One row change: an insert has no row before, a delete no row after, an update both."""

    schema: str
    table: TableInfo
    before: Values | None
    after: Values | None


class Encoder(Protocol):
    """Makes messages; equal arguments give equal messages."""

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        """Return the messages of a transaction; `events` is not empty, each table's are contiguous.

        Raises `Malformed` for a value that the format cannot represent.
        """
        ...

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]: ...

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        """Return the messages of a DDL, whose job has the text with the downstream's names."""
        ...


class StreamEncoder(Encoder, Protocol):
    """An encoder of an output that readers follow while it grows."""

    def watermark(self, commit_ts: int) -> Message:
        """Return the watermark message: no later message is at or before `commit_ts`."""
        ...


T = TypeVar("T")

_KEPT_MAX = 1024


class PerTable(Generic[T]):
    """Compiles once for each table version."""

    def __init__(self, compiled: Callable[[str, TableInfo], T]) -> None:
        self._compiled = compiled
        self._known: dict[tuple[str, int], tuple[TableInfo, T]] = {}

    def of(self, schema: str, table: TableInfo) -> T:
        """Return the compiled table version, cached by identity since hashing takes longer."""
        known = self._known.get((schema, id(table)))
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[schema, id(table)] = table, self._compiled(schema, table)
        return known[1]
