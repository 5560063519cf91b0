"""Decides which DDL of several sources runs on their merged table, and which is already done.

Pure.

    CREATE                          the first source's statement runs
    adds a column, an index         the first source's runs; the others' rows have its default until
                                    they add it as well; another type, or NULL that does not fit, is
                                    refused
    drops a column, an index        nothing runs: others may have it; rows without it have its
                                    default, or NULL; where it has neither, this is refused
    changes one, sets defaults      runs each time; refused if rows of the other sources
                                    would not fit: another kind of type, less room, NULL not allowed
    TRUNCATE, DROP, RENAME          would also affect the rows of the others: refused

The set of all sources is unknown, so nothing here waits for the last source (unlike
`penstock.filters.routes`): a column that all of them have dropped must be dropped by hand.
"""

from collections.abc import Mapping

from penstock.codes import Code
from penstock.datum.rows.fields import INTEGER_BITS, STRING_TYPES
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    CreateLike,
    CreateTable,
    DropColumn,
    DropKey,
    DropPrimary,
    DropSchema,
    DropTables,
    IndexStatement,
    KeyDef,
    Operation,
    Partitions,
    RenameColumn,
    RenameKey,
    RenameTables,
    RenameTo,
    Statement,
    TruncateTable,
)
from penstock.ddl.tables.column_types import GEOMETRIES, build_column
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from pumpclient.mysql.translate.column_mapping import stand_in

_HINT = (
    "change the table by hand so that rows of all sources fit, then skip this statement, or replace"
    " it by others"
)


def runs(name: str, statement: Statement, table: TableInfo | None) -> bool:
    """Return whether a statement of one of several sources must run on their `table`, if any.

    Raises `NeedsOperator` naming the table when it must not, or when only a part of it should.
    """
    if isinstance(statement, (CreateTable, CreateLike)):
        return table is None
    if isinstance(statement, (DropTables, TruncateTable, RenameTables, DropSchema)):
        raise _refused(name, "it would take the rows of the others too")
    if table is None or not isinstance(statement, (AlterTable, IndexStatement)):
        return True
    if isinstance(statement, AlterTable):
        operations = [part.operation for part in statement.parts]
    else:
        operations = [statement.operation]
    votes = {vote for operation in operations for vote in _votes(name, operation, table)}
    if len(votes) > 1:
        raise _refused(name, "a part of it is there already, and a part is not")
    return False not in votes


def _votes(name: str, operation: Operation, table: TableInfo) -> set[bool]:
    """Return for each part whether it must run, or is done already."""
    columns = {column.name.lower(): column for column in table.columns}
    match operation:
        case AddColumns():
            return {_added(name, table, columns, each) for each in operation.columns}
        case KeyDef():
            return {not _has_key(operation, table)}
        case DropColumn():
            column = columns.get(operation.name.lower())
            if column is not None and not column.is_generated and stand_in(column) is None:
                raise _refused(name, f"rows without {column.name!r} do not fit: it is NOT NULL")
            return {False}
        case DropKey() | DropPrimary():
            return {False}
        case RenameKey():
            names = {index.name.lower() for index in table.indexes}
            return {operation.new.lower() not in names}
        case ChangeColumn() if operation.old.lower() == operation.column.name.lower():
            _check_change(name, table, columns.get(operation.old.lower()), operation.column)
            return {True}
        case ChangeColumn() | RenameColumn() | RenameTo() | Partitions():
            raise _refused(name, "rows of the others do not fit behind it")
        case _:
            return {True}


def _added(
    name: str, table: TableInfo, columns: Mapping[str, ColumnInfo], definition: ColumnDef
) -> bool:
    there = columns.get(definition.name.lower())
    if there is None:
        return True
    wanted = build_column(definition, there.id, (table.charset, table.collate))
    if _kind(wanted) != _kind(there) or wanted.flen > there.flen:
        raise _refused(name, f"column {there.name!r} is of another type there")
    if there.is_not_null and not wanted.is_not_null:
        raise _refused(name, f"column {there.name!r} is NOT NULL there")
    return False


def _kind(column: ColumnInfo) -> tuple[object, ...]:
    """Return the attributes of a column, length aside, that must match for values to fit."""
    own = column.tp, column.is_unsigned, column.decimal, column.charset, column.elems
    return *own, column.generated_expr


def _check_change(
    name: str, table: TableInfo, there: ColumnInfo | None, definition: ColumnDef
) -> None:
    if there is None:
        return
    wanted = build_column(definition, there.id, (table.charset, table.collate))
    if wanted.is_not_null and not there.is_not_null:
        raise _refused(name, f"column {there.name!r} may be NULL in rows of the others")
    before, after = _room(there), _room(wanted)
    if before[0] != after[0] or any(a < b for b, a in zip(before[1], after[1], strict=True)):
        raise _refused(name, f"values of column {there.name!r} of the others do not fit behind it")
    if wanted.elems[: len(there.elems)] != there.elems:
        raise _refused(name, f"column {there.name!r} takes other values there")


def _room(column: ColumnInfo) -> tuple[object, tuple[int, ...]]:
    tp, scale = column.tp, max(column.decimal, 0)
    if tp in INTEGER_BITS:
        return ("integer", column.is_unsigned), (INTEGER_BITS[tp],)
    if tp is MysqlType.GEOMETRY:
        return tp, tuple(int(scale in (0, kind)) for kind in range(1, len(GEOMETRIES)))
    if tp in STRING_TYPES:
        return ("binary" if column.is_binary else "text"), (column.flen,)
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return "float", (int(tp is MysqlType.DOUBLE),)
    if tp is MysqlType.NEWDECIMAL:
        return tp, (column.flen - scale, scale)
    return tp, (0 if tp in (MysqlType.ENUM, MysqlType.SET) else column.flen, scale)


def _has_key(key: KeyDef, table: TableInfo) -> bool:
    if key.name:
        return any(index.name.lower() == key.name.lower() for index in table.indexes)
    wanted = [part.name.lower() for part in key.parts]
    return any([part.name.lower() for part in i.columns] == wanted for i in table.indexes)


def _refused(name: str, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"several tables are replicated into {name}, and {why}", _HINT, Code.ROUTE_CONFLICT
    )
