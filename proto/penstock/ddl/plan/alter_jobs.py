"""Plans ALTER TABLE: the remaining statement, the kind of job, and the resulting table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.codes import Code
from penstock.datum.jsonb import text_literal
from penstock.ddl.parse.versioning import versioned
from penstock.ddl.plan.jobs import Jobs, named
from penstock.ddl.rewrite.explicit import collate_edits, key_edits, own_column_edits, period_edits
from penstock.ddl.syntax import statements as ast
from penstock.ddl.tables.alter import altered, live_parts
from penstock.ddl.tables.column_types import LARGE_TYPES
from penstock.ddl.tables.partitioning import partitioned, without
from penstock.ddl.tables.table_builder import emptied
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import DdlType, SchemaInfo, TableInfo

_TYPES: dict[type[ast.Operation], DdlType] = {
    ast.DropColumn: DdlType.DROP_COLUMN,
    ast.RenameColumn: DdlType.MODIFY_COLUMN,
    ast.DropKey: DdlType.DROP_INDEX,
    ast.DropPrimary: DdlType.DROP_PRIMARY_KEY,
    ast.RenameKey: DdlType.RENAME_INDEX,
    ast.SetDefault: DdlType.SET_DEFAULT,
    ast.RenameTo: DdlType.RENAME_TABLE,
    ast.Convert: DdlType.MODIFY_TABLE_CHARSET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPlan:
    """The plan of an ALTER TABLE; `table` still has its old name."""

    type: DdlType
    table: TableInfo
    rename: ast.TableRef | None
    parts: tuple[ast.Part, ...]
    edits: tuple[ast.Edit, ...]
    other: ast.TableRef | None = None
    """Another table that gets, becomes or is made of a partition."""

    def text(self, source: str, edits: Sequence[ast.Edit]) -> str:
        text = ""
        for part in self.parts:
            piece = ast.edited(source, part.start, part.end, edits)
            if piece:
                partition = piece.upper().startswith(("PARTITION", "REMOVE"))
                text += (" " if partition else ", ") * bool(text) + piece
        # A server must run something: this changes nothing there.
        return text or f"COMMENT = {text_literal(self.table.comment)}"


def plan_alter(
    before: TableInfo,
    schema: SchemaInfo,
    parts: Sequence[ast.Part],
    context: DdlContext | None = None,
) -> AlterPlan | None:
    """Return the effect of the operations, None without any; `context` is the session."""
    period, live = versioned(before, live_parts(before, parts))
    operations = [_tracked(before, p.operation) for p in live]
    if period == before.period and all(
        isinstance(o, ast.Untracked) and o.tuning for o in operations
    ):
        return None
    renames = [o.ref for o in operations if isinstance(o, ast.RenameTo)]
    if len(renames) > 1:
        raise NeedsOperator(
            f"table {before.name!r} is renamed twice", "rename it once", Code.DDL_DEFINITION
        )
    table, unnamed = altered(before, operations, schema, context)
    edits = [edit for o in operations for edit in _edits(o, table)]
    edits += key_edits(unnamed, "ADD ")
    return AlterPlan(
        type=_job_type(operations),
        table=replace(partitioned(table, operations), period=period),
        rename=renames[0] if renames else None,
        parts=live,
        edits=tuple(edits),
        other=next((o.table for o in operations if isinstance(o, ast.Partitions)), None),
    )


def _tracked(table: TableInfo, operation: ast.Operation) -> ast.Operation:
    if isinstance(operation, ast.DropKey) and operation.lenient:
        wanted = operation.name.lower()
        if wanted == "primary":
            return ast.DropPrimary()
        if not any(i.name.lower() == wanted and i.unique for i in table.indexes):
            return ast.Untracked()
    return operation


def _edits(operation: ast.Operation, table: TableInfo) -> list[ast.Edit]:
    match operation:
        case ast.AddColumns(columns):
            return [edit for column in columns for edit in own_column_edits(column, table)]
        case ast.ChangeColumn(_, column):
            return own_column_edits(column, table)
        case ast.TableOptions(charset=given) as options:
            if given.is_default or (given.says_nothing and given.collate_is_default):
                clause = f" DEFAULT CHARSET={table.charset} COLLATE={table.collate}"
                return [ast.Edit(options.end, options.end, clause)]
            return collate_edits(given)
        case ast.SetDefault(name, ast.Value(kind=kind), at=(start, end)):
            types = {c.name.lower(): c.tp for c in table.columns}
            is_literal = kind not in (ast.ValueKind.NULL, ast.ValueKind.EXPRESSION)
            if is_literal and types.get(name.lower()) in LARGE_TYPES:
                # A MySQL takes an expression only, a MariaDB both.
                return [ast.Edit(start, start, "("), ast.Edit(end, end, ")")]
        case ast.Convert(charset, start):
            return [ast.Edit(start, charset.end, f"{table.charset} COLLATE {table.collate}")]
        case ast.KeyDef():
            return period_edits((operation,), table)
    return []


def _job_type(operations: Sequence[ast.Operation]) -> DdlType:
    real = [o for o in operations if not (isinstance(o, ast.Untracked) and o.tuning)]
    if len(real) != 1:
        return DdlType.MULTI_SCHEMA_CHANGE
    match real[0]:
        case ast.AddColumns(columns):
            single = len(columns) == 1 and not columns[0].keys
            return DdlType.ADD_COLUMN if single else DdlType.MULTI_SCHEMA_CHANGE
        case ast.ChangeColumn(_, column):
            return DdlType.MULTI_SCHEMA_CHANGE if column.keys else DdlType.MODIFY_COLUMN
        case ast.KeyDef(primary=is_primary):
            return DdlType.ADD_PRIMARY_KEY if is_primary else DdlType.ADD_INDEX
        case ast.Partitions(type_):
            return type_
        case ast.TableOptions() as options:
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
            "EXCHANGE PARTITION needs two tables of the same definition",
            Code.DDL_DEFINITION,
        )


def other_table(
    jobs: Jobs, kind: DdlType, ref: ast.TableRef, table: TableInfo, schema: SchemaInfo
) -> ast.Edit:
    """Check the table that a partition of `table` exchanges rows with, becomes or is made of.

    Returns the spelling of its name while `schema` is the database.
    """
    if kind == DdlType.CONVERT_PARTITION:
        place = jobs.schema(ref.schema)
        jobs.check_free(place, ref.name)
        return named(ref, place, ref.name, schema)
    place, other = jobs.base_table(ref)
    check_alike(table, other)
    return named(ref, place, other.name, schema)


def emit_altered(
    jobs: Jobs, plan: AlterPlan, schema: SchemaInfo, table: TableInfo, query: str
) -> None:
    if plan.other is not None and plan.type == DdlType.CONVERT_PARTITION:
        made = replace(emptied(without(table)), id=jobs.next_id(), name=plan.other.name)
        pairs = ((schema.name, table), (jobs.schema(plan.other.schema).name, made))
        jobs.emit(plan.type, schema, query, table_name=table.name, tables=pairs)
    elif plan.other is not None and plan.type == DdlType.CONVERT_TABLE:
        _, gone = jobs.base_table(plan.other)
        jobs.emit(plan.type, schema, query, table_id=gone.id, table_name=table.name, table=table)
    else:
        jobs.emit_table(plan.type, schema, table, query)
