"""Encoder: makes messages of changes; what every format promises.

An encoder is a pure function of what it is given. It sees a transaction whole, or, where that is
too large for memory, slice after slice; and every DDL, alone. What a table or a column is called,
and which rows there are, is decided before: filters, routes and loop-back come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from drainer.task.events.messages import Message
from penstock.schema.model import TableInfo

if TYPE_CHECKING:  # It brings the grammar of DDL with it, and tasks only encode rows.
    from penstock.ddl import SchemaChange

Values = tuple[Any, ...]
"""One value per column of the table, as `penstock.datum.rows.fields` reads them; times in UTC."""


class RowEvent(NamedTuple):
    """One row change: an insert has no row before, a delete none after, an update both."""

    schema: str
    table: TableInfo
    before: Values | None
    after: Values | None


class Encoder(Protocol):
    """Makes messages; the same ones whenever it is given the same."""

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        """Return the messages of a transaction; `events` are not empty, tables in one piece each.

        Raises `Malformed` for a value that the format has no form for.
        """
        ...

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]: ...

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        """Return the messages of a DDL, whose job has the text with the downstream's names."""
        ...


class StreamEncoder(Encoder, Protocol):
    """An encoder of an output whose readers follow it while it grows."""

    def watermark(self, commit_ts: int) -> Message:
        """Return the watermark message: no later message is at or before `commit_ts`."""
        ...
