"""The tables of a load: their keys, the ranges in which they are read, and their targets.

A range is (after, up to], and unbounded where a bound is None. Bounds are complete keys of one or
several columns. They come from the server itself in the key's order, or, for a single integer
column, from arithmetic. Only the server, in its collation, decides whether a key belongs to a
range.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.codes import Code
from penstock.datum.rows.row_codec import stored_columns
from penstock.ddl import Catalog, plan_ddl
from penstock.ddl.rewrite.explicit import explicit
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.client import PumpClient
from pumpclient.ddl import DDLS_MAX
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.ddl_pieces import Translator
from pumpclient.mysql.translate.statement_text import Dialect, built_into, plain_text
from pumpclient.rows import Table

Key = tuple[object, ...]

INTEGER_TYPES = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
TEXT_TYPES = frozenset({"char", "varchar", "binary", "varbinary"})
_TIME_TYPES = frozenset({"date", "datetime", "timestamp", "time", "year"})
ORDERED_TYPES = INTEGER_TYPES | {"decimal"} | TEXT_TYPES | _TIME_TYPES
"""Types that compare with a literal as they are ordered; ENUM, SET, BIT and floats do not."""


@dataclass(frozen=True, slots=True)
class Range:
    """The keys after `after` up to and including `until`."""

    after: Key | None = None
    until: Key | None = None

    def condition(self, columns: Sequence[str]) -> tuple[str, tuple[object, ...]]:
        """Return an SQL condition on quoted columns, and its parameters; "" for all rows."""
        parts: list[str] = []
        values: list[object] = []
        if self.after is not None:
            sql, more = _beyond(columns, self.after, ">", strict=True)
            parts.append(sql)
            values += more
        if self.until is not None:
            sql, more = _beyond(columns, self.until, "<", strict=False)
            parts.append(sql)
            values += more
        return " AND ".join(parts), tuple(values)


def _beyond(
    columns: Sequence[str], key: Key, sign: str, *, strict: bool
) -> tuple[str, list[object]]:
    """Compare `columns` with `key` in a form for which servers use an index, unlike tuples."""
    first, rest = columns[0], columns[1:]
    if not rest:
        return f"{first} {sign if strict else sign + '='} %s", [key[0]]
    inner, values = _beyond(rest, key[1:], sign, strict=strict)
    sql = f"({first} {sign}= %s AND ({first} {sign} %s OR {inner}))"
    return sql, [key[0], key[0], *values]


def ranges_between(bounds: Sequence[Key]) -> list[Range]:
    """Return ranges that meet at the bounds and together cover every key."""
    ends: list[Key | None] = [None, *bounds, None]
    return [Range(after, until) for after, until in pairwise(ends)]


def integer_bounds(low: int, high: int, count: int) -> list[tuple[int]]:
    """Return at most `count` - 1 bounds that cut the numbers from `low` to `high` evenly."""
    span = high - low + 1
    count = max(1, min(count, span))
    return [(low + span * n // count - 1,) for n in range(1, count)]


def packed(rows: Iterator[list[bytes]], bytes_max: int) -> Iterator[list[bytes]]:
    """Yield encoded rows in groups of at most `bytes_max` bytes, but at least one row."""
    group: list[bytes] = []
    size_bytes = 0
    for block in rows:
        block_bytes = sum(map(len, block))
        if size_bytes + block_bytes <= bytes_max:
            group += block
            size_bytes += block_bytes
            continue
        for row in block:
            if group and size_bytes + len(row) > bytes_max:
                yield group
                group, size_bytes = [], 0
            group.append(row)
            size_bytes += len(row)
    if group:
        yield group


SYSTEM_SCHEMAS = ("mysql", "information_schema", "performance_schema", "sys", "tidb_binlog")
TABLE_TYPES = ("BASE TABLE", "SYSTEM VERSIONED")
"""Types of tables with rows in `information_schema.tables`; the latter is MariaDB's."""
IS_BOUND = "COALESCE(generation_expression, '') IN ('ROW START', 'ROW END')"
"""Whether a column bounds a system-versioned table's history, and thus does not count here."""
OF_SNAPSHOTS = frozenset({"innodb", "rocksdb", "tokudb"})
OF_LOCKS = frozenset({"myisam", "aria", "memory", "archive", "csv"})
"""Engines without transactions: their tables are locked from the snapshot on until they are read.

Other engines keep rows elsewhere (FEDERATED, CONNECT, MERGE), or do not log all changes as rows
(BLACKHOLE).
"""


Fetch = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement, with a sequence of parameters if it has any, and returns its rows.

Without parameters, several statements may be separated by `;`: the rows of all are returned.
"""
_SHOWN_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A base table; `key` is empty where no key can divide it into chunks."""

    schema: str
    name: str
    engine: str
    rows_estimated: int
    key: tuple[str, ...] = ()
    key_types: tuple[str, ...] = ()

    @property
    def full_name(self) -> Name:
        return self.schema, self.name

    @property
    def quoted(self) -> str:
        return parameter_safe(quote_path(*self.full_name))

    @property
    def needs_lock(self) -> bool:
        return self.engine.lower() in OF_LOCKS

    @property
    def reading(self) -> str:
        """SELECT; of a locked table before the writers that wait for it, and for the load."""
        return "SELECT HIGH_PRIORITY" if self.needs_lock else "SELECT"


def parameter_safe(sql: str) -> str:
    return sql.replace("%", "%%")


def base_tables(fetch: Fetch) -> list[SourceTable]:
    found = fetch(
        "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"  # noqa: S608
        f" WHERE table_type IN {TABLE_TYPES} AND table_schema NOT IN {SYSTEM_SCHEMAS} ORDER BY 1, 2"
    )
    keys = _keys(fetch)
    return [
        SourceTable(str(s), str(t), str(engine), _number(count), *keys.get((str(s), str(t)), ()))
        for s, t, engine, count in found
    ]


def views(fetch: Fetch) -> list[Name]:
    found = fetch(
        "SELECT table_schema, table_name FROM information_schema.tables"  # noqa: S608
        f" WHERE table_type = 'VIEW' AND table_schema NOT IN {SYSTEM_SCHEMAS}"
    )
    return [(str(schema), str(table)) for schema, table in found]


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _keys(fetch: Fetch) -> dict[Name, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the primary keys of complete columns that are ordered as they compare.

    The two results are joined here, because a MariaDB compares each row with each.
    """
    of_users = f"table_schema NOT IN {SYSTEM_SCHEMAS}"
    columns = fetch(
        f"SELECT table_schema, table_name, column_name, data_type, {IS_BOUND}"  # noqa: S608
        f" FROM information_schema.columns WHERE column_key = 'PRI' AND {of_users}"
    )
    types = {tuple(map(str, name)): (str(type_).lower(), end) for *name, type_, end in columns}
    found = fetch(
        "SELECT table_schema, table_name, column_name, sub_part"  # noqa: S608
        f" FROM information_schema.statistics WHERE index_name = 'PRIMARY' AND {of_users}"
        " ORDER BY table_schema, table_name, seq_in_index"
    )
    keys: dict[Name, dict[str, str]] = {}
    unfit: set[Name] = set()
    for *names, part in found:
        schema, table, column = map(str, names)
        type_, is_bound = types.get((schema, table, column), ("", False))
        if is_bound:
            continue
        keys.setdefault((schema, table), {})[column] = type_
        if part is not None or type_ not in ORDERED_TYPES:
            unfit.add((schema, table))
    fit = {name: key for name, key in keys.items() if name not in unfit}
    return {name: (tuple(key), tuple(key.values())) for name, key in fit.items()}


def check_engines(tables: Sequence[SourceTable]) -> None:
    """Raise `NeedsOperator` naming the tables whose rows, or changes, cannot be read exactly."""
    others = [t for t in tables if t.engine.lower() not in OF_SNAPSHOTS | OF_LOCKS]
    if others:
        names = ", ".join(f"{t.schema}.{t.name} ({t.engine})" for t in others[:10])
        raise NeedsOperator(
            f"{len(others)} tables are of engines that cannot be replicated: {names}",
            f"leave them out: --ignore-table {others[0].schema}.{others[0].name}; or run ALTER"
            " TABLE … ENGINE = InnoDB",
            Code.ENGINE_WITHOUT_TRANSACTIONS,
        )


def chunks_of(fetch: Fetch, table: SourceTable, rows_per_chunk: int) -> Iterator[Range]:
    """Yield ranges that together cover every row of a table, computed on demand."""
    count = -(-table.rows_estimated // rows_per_chunk)
    if not table.key or count <= 1:
        yield Range()
        return
    columns = quoted_key(table)
    if len(columns) == 1 and table.key_types[0] in INTEGER_TYPES:
        ((low, high),) = fetch(
            f"{table.reading} MIN({columns[0]}), MAX({columns[0]}) FROM {table.quoted}".replace(
                "%%", "%"
            )
        )
        if isinstance(low, int) and isinstance(high, int):
            yield from ranges_between(integer_bounds(low, high, count))
            return
    after: Key | None = None
    listed = ", ".join(columns)
    while True:
        condition, values = Range(after).condition(columns)
        where = f" WHERE {condition}" if condition else ""
        found = fetch(
            f"{table.reading} {listed} FROM {table.quoted}{where} ORDER BY {listed}"
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
    return [parameter_safe(quote_name(column)) for column in table.key]


def select(
    table: SourceTable, columns: Sequence[str], range_: Range
) -> tuple[str, Sequence[object]]:
    """Return the SELECT of a range's rows and its parameters, in no order."""
    condition, values = range_.condition(quoted_key(table))
    listed = parameter_safe(", ".join(columns) or "NULL")
    where = f" WHERE {condition}" if condition else ""
    sql = f"{table.reading} {listed} FROM {table.quoted}{where}"
    return (sql, values) if values else (sql.replace("%%", "%"), ())


class Targets:
    """The targets of one attempt; `fetch` is of a session in its snapshot.

    `next_origin` numbers its DDL, of which the errors of `check_stopped` end the rest.
    """

    def __init__(
        self,
        client: PumpClient,
        translator: Translator,
        fetch: Fetch,
        dialect: Dialect,
        next_origin: Callable[[], Origin],
        check_stopped: Callable[[], None],
    ) -> None:
        self._client = client
        self._translator = replace(translator, online=None)
        self._fetch = fetch
        self._dialect = dialect
        self._next_origin = next_origin
        self._check_stopped = check_stopped
        self._definitions: dict[Name, str] = {}
        """The CREATE TABLE of each target, once it was checked."""
        self.last_ddl_ts = 0
        """The commit_ts of the last DDL, 0 before the first."""

    def name(self, table: SourceTable) -> Name:
        return self._translator.target(*table.full_name)

    def check_free(self, tables: Iterable[SourceTable], stale: Iterable[Name]) -> None:
        """Raise `NeedsOperator` for a target that exists but is not from a stale source table."""
        ours = {self._translator.target(*name) for name in stale}
        catalog = self._client.session.schemas.catalog()
        for table in tables:
            target = self.name(table)
            if target not in ours and self.exists(target, catalog):
                raise NeedsOperator(
                    f"table {target[0]}.{target[1]} is there already, and not by this load",
                    "drop it, skip it by the filters, or load into it (into-existing)",
                    Code.LOAD_TARGET,
                )

    def check_definitions(self, tables: Sequence[SourceTable]) -> None:
        """Raise `NeedsOperator` for a table that cannot be defined here, before any is dropped.

        The same goes for tables that are merged but have different columns, and for names that
        differ only in letter case, which is insignificant here.
        """
        ids = itertools.count(1)
        spelled: dict[str, Name] = {}
        columns: dict[Name, tuple[SourceTable, object]] = {}
        for table, written in self._written(tables):
            catalog, (schema, name) = Catalog(), self.name(table)
            try:
                definition = self._translated(table, written)
                for sql in (f"CREATE DATABASE {quote_name(schema)}", definition):
                    for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
                        catalog.apply(job)
                found = catalog.table(schema, name)
                assert found is not None, "its CREATE TABLE was planned"
                stored_columns(found)  # Refuses types that no row can hold.
                other = spelled.setdefault(f"{schema}.{name}".lower(), (schema, name))
                if other != (schema, name):
                    raise NeedsOperator(
                        f"{'.'.join(other)} is loaded too, and letter case makes no difference",
                        "skip one of them by the filters, or route it to another name",
                        Code.ROUTE_CONFLICT,
                    )
                first, known = columns.setdefault((schema, name), (table, _essence(found)))
                if known != _essence(found):
                    raise NeedsOperator(
                        f"it and {first.schema}.{first.name} go into one table, and their columns"
                        " differ",
                        "alter one of them on the server, then load again",
                        Code.ROUTE_CONFLICT,
                    )
                self._definitions.setdefault((schema, name), definition)
            except NeedsOperator as error:
                raise NeedsOperator(
                    f"{table.schema}.{table.name} cannot be loaded: {error.problem}",
                    error.hint,
                    error.code,
                ) from error

    def _written(self, tables: Sequence[SourceTable]) -> Iterator[tuple[SourceTable, str]]:
        for begin in range(0, len(tables), _SHOWN_TOGETHER):
            some = tables[begin : begin + _SHOWN_TOGETHER]
            shows = (f"SHOW CREATE TABLE {quote_path(*table.full_name)}" for table in some)
            for table, (_, written) in zip(some, self._fetch("; ".join(shows)), strict=True):
                yield table, str(written)

    def _translated(self, table: SourceTable, written: str) -> str:
        text = explicit(plain_text(written, 0, self._dialect), built_into(self._dialect))
        made = self._translator.translate(text, table.schema, {})
        assert len(made.pieces) == 1, f"{table.full_name} is replicated and is one statement"
        return made.pieces[0].sql

    def exists(self, target: Name, catalog: Catalog) -> bool:
        found = catalog.table(*target)
        return found is not None and found.kind == "TABLE"

    def drop(self, stale: Iterable[Name], say: Callable[[str], None]) -> None:
        catalog = self._client.session.schemas.catalog()
        targets = sorted({self._translator.target(*name) for name in stale})
        there = [target for target in targets if self.exists(target, catalog)]
        for target in there:
            say(f"{target[0]}.{target[1]} was not done: dropped, to be loaded again")
        self._execute([f"DROP TABLE {quote_path(*target)}" for target in there])

    def create_databases(self, tables: Iterable[SourceTable]) -> None:
        """Create the databases of tables here, defined like those on the server."""
        found = self._fetch(
            "SELECT schema_name, default_character_set_name, default_collation_name"
            " FROM information_schema.schemata"
        )
        defined = {name: f"CHARACTER SET {charset} COLLATE {end}" for name, charset, end in found}
        wanted = dict.fromkeys((table.schema, self.name(table)[0]) for table in tables)
        create = "CREATE DATABASE IF NOT EXISTS"
        self._execute([f"{create} {quote_name(here)} {defined[name]}" for name, here in wanted])

    def create(self) -> None:
        """Create the targets that were checked and do not exist."""
        catalog = self._client.session.schemas.catalog()
        there = self._definitions.items()
        self._execute([sql for target, sql in there if not self.exists(target, catalog)])

    def compiled(self, table: SourceTable) -> Table:
        return self._client.compiled(quote_path(*self.name(table)))

    def _execute(self, statements: Sequence[str]) -> None:
        """Execute DDL, many statements under one fence, between which other writers commit."""
        for begin in range(0, len(statements), DDLS_MAX):
            self._check_stopped()
            some = [(sql, self._next_origin()) for sql in statements[begin : begin + DDLS_MAX]]
            self.last_ddl_ts = max(self.last_ddl_ts, *self._client.execute_ddls(some), 0)


def _essence(table: TableInfo) -> object:
    """Return the column properties that must match so that one table's rows fit the other."""
    return {
        (c.name.lower(), c.tp, c.decimal, c.is_unsigned, c.charset, c.elems) for c in table.columns
    }
