"""DDL of tables that several sources bring into one: what runs, what is there already. Pure.

    CREATE                          the first one's runs
    adds a column, an index         the first one's runs; it is there for the others
    drops one                       nothing runs: others may have it; rows without it hold NULL
    changes one, sets defaults      runs each time
    TRUNCATE, DROP, RENAME          would take the rows of the others too: refused

Nobody knows all sources, so nothing here waits for the last one, as `penstock.filters.merging`
does: a column that all of them have dropped is dropped by hand.
"""

from __future__ import annotations

from enum import Enum, auto

from penstock.ddl.operations import (
    AddColumns,
    AddKey,
    ChangeColumn,
    DropColumn,
    DropKey,
    DropPrimary,
    Operation,
    Partitions,
    RenameColumn,
    RenameKey,
    RenameTo,
)
from penstock.ddl.statements import (
    AlterTable,
    CreateLike,
    CreateTable,
    DropSchema,
    DropTables,
    IndexStatement,
    RenameTables,
    Statement,
    TruncateTable,
)
from penstock.errors import NeedsOperator
from penstock.schema import TableInfo

_HINT = (
    "change the table by hand so that rows of all sources fit, then skip this statement, or replace"
    " it by others"
)


class _Vote(Enum):
    RUN = auto()
    DONE = auto()


def runs(name: str, statement: Statement, table: TableInfo | None) -> bool:
    """Tell whether a statement of one of several sources is to run on their `table`, if it is.

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
    return _Vote.DONE not in votes


def _votes(name: str, operation: Operation, table: TableInfo) -> set[_Vote]:
    columns = {column.name.lower() for column in table.columns}
    match operation:
        case AddColumns():
            return {_there(each.name.lower() in columns) for each in operation.columns}
        case AddKey():
            return {_there(_has_key(operation, table))}
        case DropColumn() | DropKey() | DropPrimary():
            return {_Vote.DONE}
        case RenameKey():
            names = {index.name.lower() for index in table.indexes}
            return {_there(operation.new.lower() in names)}
        case ChangeColumn() if operation.old.lower() == operation.column.name.lower():
            return {_Vote.RUN}
        case ChangeColumn() | RenameColumn() | RenameTo() | Partitions():
            raise _refused(name, "rows of the others do not fit behind it")
        case _:
            return {_Vote.RUN}


def _there(is_there: bool) -> _Vote:
    return _Vote.DONE if is_there else _Vote.RUN


def _has_key(operation: AddKey, table: TableInfo) -> bool:
    key = operation.key
    if key.name:
        return any(index.name.lower() == key.name.lower() for index in table.indexes)
    wanted = [part.name.lower() for part in key.parts]
    return any([part.name.lower() for part in i.columns] == wanted for i in table.indexes)


def _refused(name: str, why: str) -> NeedsOperator:
    return NeedsOperator(f"several tables are replicated into {name}, and {why}", hint=_HINT)
