"""The part of planning that knows ALTER TABLE: what stays of it, and what kind of job it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.ddl.parse.versioning import versioned
from penstock.ddl.rewrite.explicit_clauses import (
    changed_option_edits,
    convert_edits,
    implied_edits,
    own_column_edits,
)
from penstock.ddl.syntax.elements import Edit, TableRef, edited
from penstock.ddl.syntax.lexer import quote_text
from penstock.ddl.syntax.operations import (
    AddColumns,
    AddKey,
    ChangeColumn,
    Convert,
    DropColumn,
    DropKey,
    DropPrimary,
    Operation,
    Part,
    Partitions,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    SetOptions,
    Untracked,
)
from penstock.ddl.tables.actions import live_parts
from penstock.ddl.tables.alter import altered
from penstock.ddl.tables.partitioning import partitioned
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType, SchemaInfo, TableInfo

_TYPES: dict[type[Operation], DdlType] = {
    DropColumn: DdlType.DROP_COLUMN,
    RenameColumn: DdlType.MODIFY_COLUMN,
    DropKey: DdlType.DROP_INDEX,
    DropPrimary: DdlType.DROP_PRIMARY_KEY,
    RenameKey: DdlType.RENAME_INDEX,
    SetDefault: DdlType.SET_DEFAULT,
    RenameTo: DdlType.RENAME_TABLE,
    Convert: DdlType.MODIFY_TABLE_CHARSET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPlan:
    """What an ALTER TABLE comes to; `table` still has its old name."""

    type: DdlType
    table: TableInfo
    rename: TableRef | None
    parts: tuple[Part, ...]
    edits: tuple[Edit, ...]
    other: TableRef | None = None
    """Another table that gets, becomes or is made of a partition."""

    def text(self, source: str, edits: Sequence[Edit]) -> str:
        """Return the operations that stay, as SQL."""
        text = ""
        for part in self.parts:
            piece = edited(source, part.start, part.end, edits)
            if piece:
                partition = piece.upper().startswith(("PARTITION", "REMOVE"))
                text += (" " if partition else ", ") * bool(text) + piece
        # A server has to run something: this changes nothing there.
        return text or f"COMMENT = {quote_text(self.table.comment)}"


def plan_alter(before: TableInfo, schema: SchemaInfo, parts: Sequence[Part]) -> AlterPlan | None:
    """Return what the operations come to, None if that is nothing."""
    period, live = versioned(before, live_parts(before, parts))
    operations = [_tracked(before, p.operation) for p in live]
    if period == before.period and all(isinstance(o, Untracked) and o.tuning for o in operations):
        return None
    renames = [o.ref for o in operations if isinstance(o, RenameTo)]
    if len(renames) > 1:
        raise NeedsOperator(f"table {before.name!r} is renamed twice", hint="rename it once")
    table, implied = altered(before, operations, schema)
    edits = [edit for o in operations for edit in _edits(o, table)]
    edits += implied_edits(implied, "ADD ")
    return AlterPlan(
        type=_job_type(operations),
        table=replace(partitioned(table, operations), period=period),
        rename=renames[0] if renames else None,
        parts=live,
        edits=tuple(edits),
        other=next((o.table for o in operations if isinstance(o, Partitions)), None),
    )


def _tracked(table: TableInfo, operation: Operation) -> Operation:
    """Return DROP CONSTRAINT as what it drops: an index, or something that is not tracked."""
    if isinstance(operation, DropKey) and operation.lenient:
        wanted = operation.name.lower()
        if wanted == "primary":
            return DropPrimary()
        if not any(i.name.lower() == wanted and i.unique for i in table.indexes):
            return Untracked()
    return operation


def _edits(operation: Operation, table: TableInfo) -> list[Edit]:
    match operation:
        case AddColumns(columns):
            return [edit for column in columns for edit in own_column_edits(column, table)]
        case ChangeColumn(_, column):
            return own_column_edits(column, table)
        case SetOptions(options):
            given = options.charset
            if given.is_default or (given.says_nothing and given.collate_is_default):
                clause = f" DEFAULT CHARSET={table.charset} COLLATE={table.collate}"
                return [Edit(options.end, options.end, clause)]
            return changed_option_edits(options)
        case Convert():
            return convert_edits(operation, table)
    return []


def _job_type(operations: Sequence[Operation]) -> DdlType:
    real = [o for o in operations if not (isinstance(o, Untracked) and o.tuning)]
    if len(real) != 1:
        return DdlType.MULTI_SCHEMA_CHANGE
    match real[0]:
        case AddColumns(columns):
            single = len(columns) == 1 and not columns[0].keys
            return DdlType.ADD_COLUMN if single else DdlType.MULTI_SCHEMA_CHANGE
        case ChangeColumn(_, column):
            return DdlType.MULTI_SCHEMA_CHANGE if column.keys else DdlType.MODIFY_COLUMN
        case AddKey(key):
            return DdlType.ADD_PRIMARY_KEY if key.primary else DdlType.ADD_INDEX
        case Partitions(type_):
            return type_
        case SetOptions(options):
            charset = options.charset.charset or options.charset.collate
            if options.comment is None:
                return DdlType.MODIFY_TABLE_CHARSET if charset else DdlType.MULTI_SCHEMA_CHANGE
            return DdlType.MULTI_SCHEMA_CHANGE if charset else DdlType.TABLE_COMMENT
    return _TYPES.get(type(real[0]), DdlType.MULTI_SCHEMA_CHANGE)


def check_alike(table: TableInfo, other: TableInfo) -> None:
    """Raise NeedsOperator unless the two tables may exchange rows."""
    ours, theirs = ([(c.name.lower(), c.tp, c.flen) for c in t.columns] for t in (table, other))
    if table.id == other.id or ours != theirs:
        raise NeedsOperator(
            f"tables {table.name!r} and {other.name!r} have different columns",
            hint="EXCHANGE PARTITION needs two tables of the same definition",
        )
