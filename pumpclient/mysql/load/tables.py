"""What a server has: tables, their keys, how they are created; and chunks of one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator
from pumpclient.mysql.load.chunks import (
    INTEGER_TYPES,
    ORDERED_TYPES,
    Key,
    Range,
    chunk_count,
    integer_bounds,
    ranges_between,
)
from pumpclient.mysql.load.state import Name

SYSTEM_SCHEMAS = ("mysql", "information_schema", "performance_schema", "sys", "tidb_binlog")
TABLE_TYPES = ("BASE TABLE", "SYSTEM VERSIONED")
"""What `information_schema.tables` calls a table with rows; the latter is MariaDB's."""
IS_BOUND = "COALESCE(generation_expression, '') IN ('ROW START', 'ROW END')"
"""Whether a column is of a system-versioned table's history, and so is no column here."""
_OF_SNAPSHOTS = ("InnoDB", "ROCKSDB", "TokuDB")


class Fetch(Protocol):
    """Runs a statement and returns its rows."""

    def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a statement."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A base table; `key` is empty where no key can cut it into chunks."""

    schema: str
    name: str
    engine: str
    rows_estimated: int
    key: tuple[str, ...] = ()
    key_types: tuple[str, ...] = ()

    @property
    def full_name(self) -> Name:
        """Schema and table."""
        return self.schema, self.name

    @property
    def quoted(self) -> str:
        """The same for a statement that takes parameters."""
        return parameter_safe(quote_path(*self.full_name))


def parameter_safe(sql: str) -> str:
    """Return SQL that may stand in a statement with parameters."""
    return sql.replace("%", "%%")


def base_tables(session: Fetch) -> list[SourceTable]:
    """Return all tables of users, in the order of their names."""
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    found = session.fetch(
        "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"  # noqa: S608
        f" WHERE table_type IN (%s, %s) AND table_schema NOT IN ({marks}) ORDER BY 1, 2",
        (*TABLE_TYPES, *SYSTEM_SCHEMAS),
    )
    keys = _keys(session)
    return [
        SourceTable(str(s), str(t), str(engine), _number(count), *keys.get((str(s), str(t)), ()))
        for s, t, engine, count in found
    ]


def views(session: Fetch) -> list[Name]:
    """Return the views of users."""
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    found = session.fetch(
        "SELECT table_schema, table_name FROM information_schema.tables"  # noqa: S608
        f" WHERE table_type = 'VIEW' AND table_schema NOT IN ({marks})",
        SYSTEM_SCHEMAS,
    )
    return [(str(schema), str(table)) for schema, table in found]


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _keys(session: Fetch) -> dict[Name, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the primary keys whose columns are whole and ordered as they compare."""
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    found = session.fetch(
        "SELECT s.table_schema, s.table_name, s.column_name, c.data_type, s.sub_part"  # noqa: S608
        " FROM information_schema.statistics s JOIN information_schema.columns c"
        " ON c.table_schema = s.table_schema AND c.table_name = s.table_name"
        " AND c.column_name = s.column_name"
        f" WHERE s.index_name = 'PRIMARY' AND s.table_schema NOT IN ({marks}) AND NOT {IS_BOUND}"
        " ORDER BY s.table_schema, s.table_name, s.seq_in_index",
        SYSTEM_SCHEMAS,
    )
    keys: dict[Name, list[tuple[str, str]]] = {}
    unfit: set[Name] = set()
    for schema, table, column, type_, part in found:
        name = str(schema), str(table)
        keys.setdefault(name, []).append((str(column), str(type_).lower()))
        if part is not None or str(type_).lower() not in ORDERED_TYPES:
            unfit.add(name)
    return {
        name: (tuple(c for c, _ in columns), tuple(t for _, t in columns))
        for name, columns in keys.items()
        if name not in unfit
    }


def check_engines(tables: Sequence[SourceTable]) -> None:
    """Raise `NeedsOperator` naming tables of which no snapshot can be had."""
    others = [t for t in tables if t.engine.lower() not in map(str.lower, _OF_SNAPSHOTS)]
    if others:
        names = ", ".join(f"{t.schema}.{t.name} ({t.engine})" for t in others[:10])
        raise NeedsOperator(
            f"{len(others)} tables are of engines without transactions: {names}",
            hint="ALTER TABLE … ENGINE = InnoDB, or leave them out by the filters",
        )


def create_database(session: Fetch, schema: str, target: str) -> str:
    """Return the statement that makes the database of `schema` under the name `target`."""
    ((charset, collation),) = session.fetch(
        "SELECT default_character_set_name, default_collation_name"
        " FROM information_schema.schemata WHERE schema_name = %s",
        (schema,),
    )
    return (
        f"CREATE DATABASE IF NOT EXISTS {quote_name(target)}"
        f" CHARACTER SET {charset} COLLATE {collation}"
    )


def create_table(session: Fetch, table: SourceTable) -> str:
    """Return what SHOW CREATE TABLE says."""
    name = quote_path(*table.full_name)
    return str(session.fetch(f"SHOW CREATE TABLE {name}")[0][1])


def chunks_of(session: Fetch, table: SourceTable, rows_per_chunk: int) -> Iterator[Range]:
    """Yield ranges that together have every row of a table, found as they are asked for."""
    count = chunk_count(table.rows_estimated, rows_per_chunk)
    if not table.key or count == 1:
        yield Range()
        return
    columns = quoted_key(table)
    if len(columns) == 1 and table.key_types[0] in INTEGER_TYPES:
        ((low, high),) = session.fetch(
            f"SELECT MIN({columns[0]}), MAX({columns[0]}) FROM {table.quoted}".replace("%%", "%")  # noqa: S608
        )
        if isinstance(low, int) and isinstance(high, int):
            yield from ranges_between(integer_bounds(low, high, count))
            return
    after: Key | None = None
    listed = ", ".join(columns)
    while True:
        condition, values = Range(after).condition(columns)
        where = f" WHERE {condition}" if condition else ""
        found = session.fetch(
            f"SELECT {listed} FROM {table.quoted}{where} ORDER BY {listed}"  # noqa: S608
            " LIMIT 1 OFFSET %s",
            (*values, rows_per_chunk - 1),
        )
        if not found:
            yield Range(after)
            return
        until = tuple(found[0])
        yield Range(after, until)
        after = until


def quoted_key(table: SourceTable) -> list[str]:
    """Return the key's columns as a statement with parameters has them."""
    return [parameter_safe(quote_name(column)) for column in table.key]


def select(
    table: SourceTable, columns: Sequence[str], range_: Range
) -> tuple[str, Sequence[object]]:
    """Return the SELECT of a range's rows and its parameters, in no order."""
    condition, values = range_.condition(quoted_key(table))
    listed = parameter_safe(", ".join(columns) or "NULL")
    where = f" WHERE {condition}" if condition else ""
    sql = f"SELECT {listed} FROM {table.quoted}{where}"  # noqa: S608
    return (sql, values) if values else (sql.replace("%%", "%"), ())
