"""Committed: a transaction and a DDL as a program sees them, and the changes of rows in them.

`drainer.stream` gives them to a reader, `drainer.sinks.third_party` to a sink of a third party.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from drainer.task.events.messages import PerTable
from drainer.task.row_changes import TableChanges
from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec, stored_columns
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.ts import physical_ms
from penstock.wire.binlog import MutationType, Origin

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.ddl import SchemaChange

Row = Mapping[str, object]
"""Values by column name, as `penstock.datum.rows.fields` says for each type."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row that a transaction changed.

    `before` is None for an insert, `after` for a delete. Columns that rows do not hold (generated
    VIRTUAL columns) are in neither. `key` names the columns of the primary key, empty without one.
    """

    kind: Literal["insert", "update", "delete"]
    schema: str
    table: str
    before: Row | None
    after: Row | None
    key: tuple[str, ...] = ()


class RowForm:
    """How the rows of one version of a table become changes."""

    def __init__(self, schema: str, table: TableInfo) -> None:
        self._schema, self._table = schema, table.name
        self._codec = RowCodec(table)
        self._names = [(each.position, each.column.name) for each in stored_columns(table)]
        key = table.primary_key
        self._key = tuple(part.name for part in key.columns) if key is not None else ()

    def change(self, kind: int, data: bytes) -> Change:
        """Decode a row's change; raise `Malformed` for invalid bytes."""
        place = (self._schema, self._table)
        if kind == MutationType.INSERT:
            row = self._codec.decode_insert(data)
            return Change("insert", *place, None, self._named(row), self._key)
        if kind == MutationType.DELETE:
            row = self._codec.decode_delete(data)
            return Change("delete", *place, self._named(row), None, self._key)
        before, after = self._codec.decode_update(data)
        return Change("update", *place, self._named(before), self._named(after), self._key)

    def _named(self, row: tuple[object, ...]) -> Row:
        return {name: row[position] for position, name in self._names}


class SpooledFile(Protocol):
    """The file of a large transaction."""

    @property
    def path(self) -> Path: ...
    @property
    def outline(self) -> Any: ...
    def release(self) -> None: ...


class Changes(Iterable[Change]):
    """The changes of one transaction, decoded during iteration, which may be repeated.

    Changes of a table come in their order, one table after the other. A row that cannot be decoded
    raises `Malformed`.
    """

    def __init__(
        self,
        parts: Callable[[], Iterable[list[TableChanges]]],
        forms: PerTable[RowForm],
        spooled: SpooledFile | None = None,
        *,
        is_large: bool = False,
    ) -> None:
        """`parts` yields all changes from the first on; a large transaction's from its file."""
        self._made = parts
        self._forms = forms
        self._spooled = spooled
        self.is_large = is_large or spooled is not None
        """True if the changes are read piece by piece: they exist only during their turn."""
        self._is_gone = False

    def __iter__(self) -> Iterator[Change]:
        for part in self.parts():
            for changes in part:
                if changes.rows:
                    change = self._forms.of(*changes.target).change
                    yield from map(change, changes.kinds, changes.rows)

    def parts(self) -> Iterable[list[TableChanges]]:
        """Return the undecoded changes, a large transaction's slice by slice."""
        spooled = self._spooled
        if spooled is not None and (self._is_gone or not spooled.path.exists()):
            raise NeedsOperator(
                f"the changes of the large transaction {spooled.outline.commit_ts} are gone",
                "read them before asking for what comes next",
                Code.READER_MISUSED,
            )
        return self._made()

    def expire(self) -> None:
        """Prevent new reads of a large transaction; callable from any thread."""
        self._is_gone = True

    def release(self) -> None:
        """Delete the file of a large transaction; must be called in the event loop."""
        self.expire()
        if self._spooled is not None:
            self._spooled.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """The common fields of a transaction and a DDL."""

    commit_ts: int
    start_ts: int
    origin: Origin | None
    """Where it was made, if a source passed it on."""
    tables: tuple[str, ...]
    """The tables concerned, as schema.table; empty for a large transaction of a sink."""

    @property
    def committed_at(self) -> datetime:
        """The commit time by the cluster's clock, to the millisecond."""
        return datetime.fromtimestamp(physical_ms(self.commit_ts) / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(_Committed):
    """Row changes that were committed together."""

    changes: Changes = field(repr=False)

    @property
    def is_large(self) -> bool:
        """True if the changes are in pieces: read them before requesting the next element."""
        return self.changes.is_large


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl(_Committed):
    """A schema change: rows before it have the columns before it, and rows after it those after.

    `schema` is the database of `query`, `change` is the effect on tables, by their definitions
    before and after.
    """

    schema: str
    query: str
    change: SchemaChange = field(repr=False)


def concerned(change: SchemaChange) -> tuple[str, ...]:
    """Return the tables that a DDL makes, changes or drops, as schema.table."""
    named = [(schema, table) for schema, table in (*change.dropped, *change.created)]
    named += [(schema, after) for schema, _, after in change.altered]
    named += [(schema, after) for _, _, schema, after in change.renamed]
    return tuple(dict.fromkeys(f"{schema}.{table.name}" for schema, table in named))
