"""Transaction: a reader's elements, in commit order: the changes of a transaction, or a DDL.

Rows stay the writer's bytes until the program reads them. A large transaction's rows are in a file
and read from there slice by slice, so they exist until the program requests the next element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from drainer.intake.payload import Spooled
from drainer.sinks.checkpoint import Checkpoint
from drainer.task.row_changes import TableChanges, Target
from penstock.codes import Code
from penstock.datum.rows.reader import stored_columns
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import SchemaChange
from penstock.errors import Malformed, NeedsOperator
from penstock.ts import physical_ms
from penstock.wire.binlog import MutationType, Origin

Row = Mapping[str, object]
"""Values by column name, as `penstock.datum.rows.fields` says for each type."""

_CLUSTER: Final = "cluster"
_WRITER: Final = "reader"


class Reached(NamedTuple):
    """A position in a cluster's stream: everything up to it was read."""

    cluster_id: int
    checkpoint: Checkpoint

    @property
    def text(self) -> str:
        """The position as JSON for a program to store: the checkpoint and the cluster."""
        return json.dumps(
            json.loads(self.checkpoint.to_json(_WRITER)) | {_CLUSTER: self.cluster_id}
        )

    @classmethod
    def from_text(cls, text: str) -> Reached:
        """Parse a position; raise `Malformed` for any other text."""
        try:
            stored = json.loads(text)
        except ValueError:
            stored = None
        cluster_id = stored.get(_CLUSTER) if isinstance(stored, dict) else None
        if type(cluster_id) is not int:
            raise Malformed(
                f"{text!r} is no checkpoint of a reader",
                "hand back a `checkpoint` as it was; or give a commit_ts, as a number",
                Code.READER_MISUSED,
            )
        return cls(cluster_id, Checkpoint.from_fields(stored))


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


class _RowForm:
    """How the rows of one version of a table become changes."""

    def __init__(self, target: Target) -> None:
        self._schema, table = target
        self._table = table.name
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


class RowForms:
    """The forms of the tables between two DDLs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Target, _RowForm]] = {}

    def of(self, target: Target) -> _RowForm:
        """Return the form of a target, which is the same object until the next DDL."""
        known = self._known.get(id(target))
        if known is None:
            known = self._known[id(target)] = (target, _RowForm(target))
        return known[1]


class Changes(Iterable[Change]):
    """The changes of one transaction, decoded during iteration, which may be repeated.

    Changes of a table come in their order, one table after the other. A row that cannot be decoded
    raises `Malformed`.
    """

    def __init__(
        self,
        parts: Callable[[], Iterable[list[TableChanges]]],
        forms: RowForms,
        spooled: Spooled | None = None,
    ) -> None:
        """`parts` yields all changes from the first on; a large transaction's from its file."""
        self._parts = parts
        self._forms = forms
        self._spooled = spooled
        self._is_gone = False

    def __iter__(self) -> Iterator[Change]:
        spooled = self._spooled
        if spooled is not None and (self._is_gone or not spooled.path.exists()):
            raise NeedsOperator(
                f"the changes of the large transaction {spooled.outline.commit_ts} are gone",
                "read them before asking for what comes next",
                Code.READER_MISUSED,
            )
        for part in self._parts():
            for changes in part:
                if changes.rows:
                    change = self._forms.of(changes.target).change
                    yield from map(change, changes.kinds, changes.rows)

    @property
    def is_large(self) -> bool:
        """True if the changes are in a file, which exists only during the transaction's turn."""
        return self._spooled is not None

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
    """The common fields of every element of the stream."""

    commit_ts: int
    start_ts: int
    origin: Origin | None
    """Where it was made, if a source passed it on."""
    tables: tuple[str, ...]
    """The tables concerned, as schema.table."""
    reached: Reached = field(repr=False)

    @property
    def checkpoint(self) -> str:
        """The checkpoint to store when all up to here is processed, and to pass as `after`."""
        return self.reached.text

    @property
    def committed_at(self) -> datetime:
        """The commit time by the cluster's clock, to the millisecond."""
        return datetime.fromtimestamp(physical_ms(self.commit_ts) / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(_Committed):
    """Row changes that were committed together; `size_bytes` is their size on a Pump."""

    size_bytes: int
    changes: Changes = field(repr=False)

    @property
    def is_large(self) -> bool:
        """True if the changes are in a file: read them before requesting the next element."""
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


Committed = Transaction | Ddl
