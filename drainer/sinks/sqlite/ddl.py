"""SQLite's DDL: changes a schema from the tables before and after, not from the DDL's text.

    MySQL column                     SQLite type   so that
    integers, YEAR, BIT up to 63     INTEGER       they are numbers
    BIGINT UNSIGNED, BIT(64)         (none)        values above 2^63 - 1 can be text
    FLOAT, DOUBLE                    REAL
    BINARY, VARBINARY, BLOBs         BLOB
    geometries                       BLOB          SRID and WKB, as MySQL keeps them
    all others                       TEXT          '1.50' stays '1.50', and a date a text

One integer column as the key is the row id; any other key makes the table WITHOUT ROWID. Generated
columns are omitted: their values are not all in the row bytes, and MySQL's expressions mean
something else here. Views and sequences hold no rows and are also omitted. So are partitions, but a
statement that drops, empties or exchanges one is rejected. An index is named by ids, which never
change, although its name and its table's name may.

A column whose stored form changes is converted row by row, and a table whose change ALTER cannot
express is rebuilt; all of it is part of the transaction that stores the checkpoint. A change of
type is not in the row bytes of any binlog: upstream converts its rows itself, so every downstream
has to do the same. The new column's own field codec decides: a value that it rejects stops the
Drainer with the column's name; the value is not changed to fit.
"""

# ruff: noqa: S608  -- names come from `quote` and values from `literal`.
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

from drainer.sinks.ddl_effects import ROWS_BY_PARTITION, default_value
from drainer.task.sql.literals import SQLITE, Family, family, literal, number_to_text, padded_length
from drainer.task.sql.rows import apply_key, is_written
from drainer.task.sql.upserts import quote, table_name
from penstock.codes import Code
from penstock.datum.rows.fields import compile_field, decimal_size
from penstock.ddl import adopted
from penstock.ddl.successors import check_known
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import (
    PUBLIC,
    ColumnFlag,
    ColumnInfo,
    DdlType,
    IndexInfo,
    MysqlType,
    TableInfo,
)

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

_BUILDING = "penstock.building"
Converter = Callable[[Any], Any]


@dataclass(slots=True)
class Plan:
    """Statements to run in order, and the functions that they call, by name."""

    statements: list[str] = field(default_factory=list)
    functions: dict[str, Converter] = field(default_factory=dict)
    rebuilt: dict[str, frozenset[str]] = field(default_factory=dict)
    """Tables that are rebuilt, by the statement that reads them, with the columns it knows."""


def plan(change: SchemaChange) -> Plan:
    """Return how to bring SQLite from before `change` to after it; raise `Malformed`.

    Raises `NeedsOperator` for a change that moves or removes rows by partitions, which SQLite
    lacks.
    """
    made = Plan()
    if change.job.type in ROWS_BY_PARTITION:
        raise NeedsOperator(
            f"SQLite has no partitions, so it cannot run: {change.job.query}",
            "delete or move the partition's rows in the SQLite file by hand",
            Code.SINK_DDL,
        )
    if change.job.type == DdlType.RECOVER_TABLE:
        raise NeedsOperator(
            f"SQLite has no rows of a dropped table to bring back: {change.job.query}",
            "make the table in the SQLite file by hand, with its rows as they are upstream",
            Code.SINK_DDL,
        )
    for schema, table in change.dropped:
        if table.kind == "TABLE":
            made.statements.append(f"DROP TABLE {table_name(SQLITE, schema, table.name)}")
    _rename(made, change)
    for schema, before, after in change.altered:
        if before.kind == "TABLE":
            name = table_name(SQLITE, schema, after.name)
            check_known(change.job, before, after)
            _alter(made, name, adopted(change.job, before, after), after)
    for schema, table in change.created:
        if table.kind == "TABLE":
            name = table_name(SQLITE, schema, table.name)
            made.statements += [create_table(name, table), *create_indexes(name, table)]
    return made


def check_columns(table: str, known: frozenset[str], there: Iterable[str]) -> None:
    more = sorted(name for name in there if name.lower() not in known)
    if more:
        raise NeedsOperator(
            f"SQLite would rebuild {table} and lose its columns {', '.join(more)}, which"
            " upstream has not",
            "move what is in them elsewhere and drop them in the SQLite file",
            Code.SINK_DDL,
        )


def _rename(made: Plan, change: SchemaChange) -> None:
    """Rename tables via unused names, because upstream names may be swapped."""
    renamed = [r for r in change.renamed if r[1].kind == "TABLE"]
    for schema, before, _, after in renamed:
        old = table_name(SQLITE, schema, before.name)
        made.statements.append(f"ALTER TABLE {old} RENAME TO {_aside(after)}")
    for _, before, schema, after in renamed:
        _alter(made, _aside(after), adopted(change.job, before, after), after)
        new = table_name(SQLITE, schema, after.name)
        made.statements.append(f"ALTER TABLE {_aside(after)} RENAME TO {new}")


def _aside(table: TableInfo) -> str:
    return quote(f"penstock.aside.{table.id}")


# --- tables --------------------------------------------------------------------------------


def column_type(column: ColumnInfo) -> str:
    """Return the declared type of a column; empty for a column without affinity."""
    kind = family(column)
    if kind is Family.INT:
        return "" if column.tp is MysqlType.LONGLONG and column.is_unsigned else "INTEGER"
    if kind is Family.BIT:
        return "" if column.flen > 63 else "INTEGER"
    return {Family.FLOAT: "REAL", Family.BYTES: "BLOB"}.get(kind, "TEXT")


def _columns(table: TableInfo) -> list[ColumnInfo]:
    return [c for c in table.columns if is_written(c)]


def _definition(table: TableInfo, column: ColumnInfo) -> str:
    parts = [quote(column.name), column_type(column)]
    key = table.primary_key
    in_key = key is not None and column.offset in {p.offset for p in key.columns}
    if column.is_not_null or in_key or ColumnFlag.PRI_KEY in column.flag:
        parts.append("NOT NULL")
    return " ".join(part for part in parts if part)


def _key_clause(table: TableInfo) -> str:
    """Return the PRIMARY KEY clause; empty for a key that only an index can express."""
    key = table.primary_key
    if key is None or apply_key(table) is None or any(p.length != -1 for p in key.columns):
        return ""
    return f"PRIMARY KEY ({','.join(quote(table.columns[p.offset].name) for p in key.columns)})"


def create_table(name: str, table: TableInfo) -> str:
    definitions = [_definition(table, column) for column in _columns(table)]
    clause = _key_clause(table)
    options = ""
    if clause:
        definitions.append(clause)
        key = table.primary_key
        assert key is not None
        types = [column_type(table.columns[p.offset]) for p in key.columns]
        # "INTEGER" alone is the row id itself; any other key is best kept without a row id.
        options = "" if types == ["INTEGER"] else " WITHOUT ROWID"
    return f"CREATE TABLE {name} ({', '.join(definitions)}){options}"


# --- indexes -------------------------------------------------------------------------------


def _indexes(table: TableInfo) -> Iterator[IndexInfo]:
    for index in table.indexes:
        is_in_row = not any(table.columns[p.offset].is_generated for p in index.columns)
        if index.state == PUBLIC and is_in_row and not (index.primary and _key_clause(table)):
            yield index


def _index_name(table: TableInfo, index: IndexInfo) -> str:
    return quote(f"penstock.index.{table.id}.{index.id}")


def _create_index(name: str, table: TableInfo, index: IndexInfo) -> str:
    parts = []
    for part in index.columns:
        column = quote(table.columns[part.offset].name)
        # A prefix matters only in a unique index.
        whole = part.length == -1 or not index.unique
        parts.append(column if whole else f"substr({column}, 1, {part.length})")
    unique = "UNIQUE " if index.unique else ""
    return f"CREATE {unique}INDEX {_index_name(table, index)} ON {name} ({', '.join(parts)})"


def create_indexes(name: str, table: TableInfo) -> list[str]:
    return [_create_index(name, table, index) for index in _indexes(table)]


# --- changes -------------------------------------------------------------------------------


def _alter(made: Plan, name: str, before: TableInfo, after: TableInfo) -> None:
    old, new = _shape(before), _shape(after)
    added = _added(before, after) if new[: len(old)] == old else None
    if added is None or _key_clause(before) != _key_clause(after):
        _rebuild(made, name, before, after)
        return
    made.statements += [f"ALTER TABLE {name} ADD COLUMN {text}" for text in added]
    gone = {_create_index(name, before, i): _index_name(before, i) for i in _indexes(before)}
    wanted = create_indexes(name, after)
    made.statements += [f"DROP INDEX {n}" for sql, n in gone.items() if sql not in wanted]
    made.statements += [sql for sql in wanted if sql not in gone]


def _shape(table: TableInfo) -> list[tuple[int, str, object]]:
    return [(c.id, _definition(table, c), form(c)) for c in _columns(table)]


def _added(before: TableInfo, after: TableInfo) -> list[str] | None:
    """Return definitions of columns added at the end, or None if ALTER refuses one of them."""
    texts = []
    for column in _columns(after)[len(_columns(before)) :]:
        value = default_value(column)
        text = _definition(after, column)
        if value is not None:
            default = literal(SQLITE, column)(value)
            if "(" in default:  # A default that is computed is not constant to SQLite.
                return None
            text += f" DEFAULT {default}"
        texts.append(text)
    return texts


def _rebuild(made: Plan, name: str, before: TableInfo, after: TableInfo) -> None:
    if after.constants:
        raise NeedsOperator(
            f"SQLite would rebuild {name}, and its columns for the source of a row are not ours",
            "change the SQLite file by hand, then track this DDL",
            Code.SINK_DDL,
        )
    old = {c.id: c for c in _columns(before)}
    sources = []
    for column in _columns(after):
        was = old.get(column.id)
        if was is None:
            value = default_value(column)
            sources.append("NULL" if value is None else literal(SQLITE, column)(value))
        elif form(was) == form(column):
            sources.append(quote(was.name))
        else:
            function = f"penstock_convert_{len(made.functions)}"
            made.functions[function] = converter(was, column)
            sources.append(f"{function}({quote(was.name)})")
    building = quote(_BUILDING)
    names = ", ".join(quote(c.name) for c in _columns(after))
    copying = f"INSERT INTO {building} ({names}) SELECT {', '.join(sources)} FROM {name}"
    made.rebuilt[copying] = frozenset(c.name.lower() for c in before.columns)
    made.statements += [
        create_table(building, after),
        copying,
        f"DROP TABLE {name}",
        f"ALTER TABLE {building} RENAME TO {name}",
        *create_indexes(name, after),
    ]


_INT64_MAX = (1 << 63) - 1
_TEXTS = (Family.TEXT, Family.ENUM, Family.SET)


def form(column: ColumnInfo) -> tuple[object, ...]:
    """Return the storage form of a column; equal forms need no conversion."""
    kind = family(column)
    if kind is Family.DECIMAL:
        return (kind, decimal_size(column)[1])
    if kind is Family.TEMPORAL:
        return (kind, column.tp is MysqlType.TIMESTAMP, column.tp, max(column.decimal, 0))
    if kind is Family.BYTES:
        return (kind, padded_length(column))
    if kind in _TEXTS:
        return (Family.TEXT,)
    if kind is Family.FLOAT:
        return (kind, column.tp)
    return (Family.INT,) if kind is Family.BIT else (kind,)


def converter(before: ColumnInfo, after: ColumnInfo) -> Callable[[Any], Any]:
    target = compile_field(after)

    def convert(stored: Any) -> Any:
        if stored is None:
            return None
        try:
            natural = _natural(before, after, stored)
        except (ValueError, ArithmeticError) as error:
            raise Malformed(
                f"column {after.name!r}: {stored!r} cannot become a {after.sql_type}",
                "change the value upstream before the column's type",
                Code.SINK_DDL,
            ) from error
        return stored_value(target.decode(target.encode(natural), 0)[0])

    return convert


def stored_value(value: Any) -> Any:
    """Return a decoded value as SQLite stores it; the counterpart of `literals.literal`."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int) and value > _INT64_MAX:
        return str(value)
    return value


def _natural(before: ColumnInfo, after: ColumnInfo, stored: Any) -> object:
    source, target = family(before), family(after)
    if target in (Family.INT, Family.BIT) and source is not Family.BYTES:
        return int(_rounded(stored, 0))
    if target is Family.DECIMAL and source is not Family.BYTES:
        return _rounded(stored, decimal_size(after)[1])
    if target is Family.FLOAT and source is not Family.BYTES:
        return float(stored)
    if target is Family.TEMPORAL and source is Family.TEMPORAL:
        return _temporal(before, after, stored)
    if target is Family.ENUM and source is Family.INT:
        return number_to_text(after, int(stored))
    if target in (Family.TEXT, Family.JSON, Family.ENUM, Family.SET):
        return stored.decode() if isinstance(stored, bytes) else str(stored)
    if target is Family.BYTES:
        return stored if isinstance(stored, bytes) else str(stored).encode()
    return stored


def _rounded(stored: Any, scale: int) -> Decimal:
    return Decimal(str(stored)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


def _temporal(before: ColumnInfo, after: ColumnInfo, stored: str) -> str:
    if before.tp is MysqlType.DATE and after.tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        return f"{stored} 00:00:00"
    if after.tp is MysqlType.DATE and " " in stored:
        return stored.partition(" ")[0]
    if after.tp is MysqlType.DURATION and " " in stored:
        return stored.partition(" ")[2]
    return stored
