"""What the catalog says after a DDL is what a real MariaDB says after the planned statement.

Each statement is planned against the catalog, its jobs' queries run on the server, and the
server's own description of all columns and indexes is held against the tracked one.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from drainer.sinks.mysql.server import spelled
from penstock.ddl import Catalog, SchemaChange
from penstock.ddl.tables.column_types import GEOMETRIES
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, DdlJob, DdlType, MysqlType, TableInfo
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.ddl_history import RandomDdl
from tests.unit.penstock.ddl_session import DdlSession

pytestmark = pytest.mark.mariadb

HISTORY = Path(__file__).with_name("ddl_mariadb.sql")

SPATIAL_BYTES = 32
"""A rectangle: what MariaDB says that an entry of a SPATIAL index has."""
_LARGE = {
    MysqlType.TINY_BLOB: "tiny",
    MysqlType.BLOB: "",
    MysqlType.MEDIUM_BLOB: "medium",
    MysqlType.LONG_BLOB: "long",
}
_INTEGERS = {
    MysqlType.TINY: "tinyint",
    MysqlType.SHORT: "smallint",
    MysqlType.INT24: "mediumint",
    MysqlType.LONG: "int",
    MysqlType.LONGLONG: "bigint",
}
_TIMES = {
    MysqlType.DATETIME: "datetime",
    MysqlType.TIMESTAMP: "timestamp",
    MysqlType.DURATION: "time",
}
_TEXTS = {
    *_LARGE,
    MysqlType.JSON,
    MysqlType.STRING,
    MysqlType.VARCHAR,
    MysqlType.ENUM,
    MysqlType.SET,
}


def column_type(c: ColumnInfo) -> str:
    """The type as MariaDB spells it."""
    if c.native:
        return c.native.lower()
    sign = " unsigned" * c.is_unsigned + " zerofill" * (ColumnFlag.ZEROFILL in c.flag)
    if c.tp in _INTEGERS:
        return f"{_INTEGERS[c.tp]}({c.flen}){sign}"
    if c.tp is MysqlType.NEWDECIMAL:
        return f"decimal({c.flen},{c.decimal}){sign}"
    if c.tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return c.tp.name.lower() + (f"({c.flen},{c.decimal})" if c.decimal >= 0 else "") + sign
    if c.tp in _TIMES:
        return _TIMES[c.tp] + (f"({c.decimal})" if c.decimal else "")
    if c.tp in _LARGE:
        return _LARGE[c.tp] + ("blob" if c.is_binary else "text")
    if c.tp in (MysqlType.ENUM, MysqlType.SET):
        names = ",".join("'" + _escaped(e) + "'" for e in c.elems)
        return f"{c.tp.name.lower()}({names})"
    if c.tp is MysqlType.STRING:
        return f"{'binary' if c.is_binary else 'char'}({c.flen})"
    if c.tp is MysqlType.VARCHAR:
        return f"{'varbinary' if c.is_binary else 'varchar'}({c.flen})"
    sizes = {
        MysqlType.BIT: f"bit({c.flen})",
        MysqlType.YEAR: f"year({c.flen})",
        MysqlType.DATE: "date",
    }
    sizes[MysqlType.JSON] = "longtext"
    if c.tp is MysqlType.GEOMETRY:
        return GEOMETRIES[c.decimal].lower()
    return sizes[c.tp]


def _escaped(label: str) -> str:
    for plain, escaped in (
        ("\\", "\\\\"),
        ("'", "''"),
        ("\0", "\\0"),
        ("\n", "\\n"),
        ("\r", "\\r"),
    ):
        label = label.replace(plain, escaped)
    return label


EXPRESSION = "an expression"
"""A server spells expressions its own way."""


def default_text(c: ColumnInfo) -> str | None:
    """The default as MariaDB spells it in information_schema."""
    if c.default is None:
        return None if c.is_not_null or ColumnFlag.AUTO_INCREMENT in c.flag else "NULL"
    if c.default_is_expr:
        return EXPRESSION
    if c.default.startswith("CURRENT_TIMESTAMP"):
        fsp = str(c.decimal) if c.decimal else ""
        written = re.search(r"\d", c.default)
        return f"current_timestamp({written[0] if written else fsp})"
    if c.tp is MysqlType.BIT:
        return f"b'{int(c.default):b}'"
    if c.tp is MysqlType.STRING and c.is_binary:
        return "'" + c.default.ljust(c.flen, "\0").replace("\0", "\\0") + "'"
    if c.tp in (MysqlType.FLOAT, MysqlType.DOUBLE) and c.decimal >= 0:
        return f"{float(c.default):.{c.decimal}f}"
    is_bare = c.tp in (*_INTEGERS, MysqlType.YEAR, MysqlType.NEWDECIMAL)
    is_bare = is_bare or c.tp in (MysqlType.FLOAT, MysqlType.DOUBLE)
    if ColumnFlag.ZEROFILL in c.flag and c.tp in _INTEGERS:
        return c.default.zfill(c.flen)
    return c.default if is_bare else "'" + c.default.replace("'", "''") + "'"


def charset_name(name: str) -> str:
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name)


def tracked_columns(
    schema: str, table: TableInfo, *, shows_stand_in: bool
) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    # Without a primary key, MariaDB shows the first unique key without NULLs as one; but a key that
    # an ALTER in place rids of NULLs only once something makes the table again.
    key = table.row_key if shows_stand_in else None
    stand_in = {part.offset for part in key.columns} if key is not None else set()
    for c in table.columns:
        is_labels = c.tp in (MysqlType.ENUM, MysqlType.SET)
        text = c.tp in _TEXTS and not c.native and (is_labels or not c.is_binary)
        extra = {
            "auto_increment": ColumnFlag.AUTO_INCREMENT in c.flag,
            "on update": ColumnFlag.ON_UPDATE_NOW in c.flag,
            "virtual": c.is_generated and not c.generated_stored,
            "stored": c.is_generated and c.generated_stored,
        }
        out.append(
            (
                schema,
                table.name,
                c.offset + 1,
                c.name,
                column_type(c),
                charset_name(c.charset) if text else None,
                charset_name(c.collate) if text else None,
                "NO" if c.is_not_null else "YES",
                default_text(c),
                sorted(k for k, on in extra.items() if on),
                c.comment,
                "PRI" if ColumnFlag.PRI_KEY in c.flag or c.offset in stand_in else "",
            )
        )
    return out


def _sub_part(column: ColumnInfo, length: int) -> int | None:
    whole = SPATIAL_BYTES if column.tp is MysqlType.GEOMETRY else None
    return whole if length == -1 else length


def tracked_indexes(schema: str, table: TableInfo) -> list[tuple[Any, ...]]:
    indexes = list(table.indexes)
    primary = table.primary_key
    if primary is not None and primary not in indexes:
        indexes.append(primary)
    return [
        (
            schema,
            table.name,
            i.name,
            n,
            part.name,
            _sub_part(table.columns[part.offset], part.length),
            0 if i.unique else 1,
        )
        for i in indexes
        for n, part in enumerate(i.columns, 1)
    ]


_LITERAL = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|[-+]?[\d.]+(?:e[-+]?\d+)?|b'[01]*'|NULL|current_timestamp\(\d?\)",
    re.IGNORECASE | re.DOTALL,
)


def plain_default(text: str | None) -> str | None:
    """Return a default as MariaDB 10.11 shows it; 11.8 shows some binary ones in hex."""
    found = re.fullmatch(r"x'([0-9a-f]*)'", text or "")
    if found is None:
        return text if text is None or _LITERAL.fullmatch(text) else EXPRESSION
    return "'" + bytes.fromhex(found[1]).decode("latin1").replace("\0", "\\0") + "'"


_COMPRESSED = re.compile(r" /\*M?!100301 COMPRESSED\*/")


def server_columns(connection: Any, where: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name, ordinal_position, column_name, column_type,"
            " character_set_name, collation_name, is_nullable, column_default, extra,"
            f" column_comment, column_key FROM information_schema.columns WHERE {where}"
        )
        rows = cursor.fetchall()
    out: list[tuple[Any, ...]] = []
    for row in rows:
        extra = row[9].lower()
        words = ("auto_increment", "on update", "virtual", "stored")
        key = "PRI" if row[11] == "PRI" else ""
        found = sorted(w for w in words if w in extra)
        type_ = _COMPRESSED.sub("", row[4])
        default = plain_default(row[8])
        if type_.endswith(("text", "blob")) and default and default[0].isdigit():
            default = f"'{default}'"
        out.append((*row[:4], type_, *row[5:8], default, found, row[10], key))
    return out


def server_indexes(connection: Any, where: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name, index_name, seq_in_index, column_name, sub_part,"
            f" non_unique FROM information_schema.statistics WHERE {where}"
        )
        return [tuple(row) for row in cursor.fetchall()]


def tracked_partitions(schema: str, table: TableInfo) -> list[tuple[Any, ...]]:
    return [(schema, table.name, i, name) for i, name in enumerate(table.partitions or (), 1)]


def server_partitions(connection: Any, where: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT table_schema, table_name, partition_ordinal_position, partition_name"
            f" FROM information_schema.partitions WHERE partition_name IS NOT NULL AND {where}"
        )
        return [tuple(row) for row in cursor.fetchall()]


def differences(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> list[str]:
    out = [f"tracked only: {row}" for row in ours if row not in theirs]
    return out + [f"server only:  {row}" for row in theirs if row not in ours]


def compare(connection: Any, tables: Iterable[tuple[str, TableInfo]], where: str) -> list[str]:
    base = [(s, t) for s, t in tables if t.kind == "TABLE"]
    # The columns and partitions of SYSTEM_TIME are left out here.
    bounds = {(s, t.name, name.lower()) for s, t in base for name in t.period}
    columns = [row for row in server_columns(connection, where) if _plain(row, 3) not in bounds]
    keyed = {row[:2] for row in columns if row[-1]}
    tracked = [
        row for s, t in base for row in tracked_columns(s, t, shows_stand_in=(s, t.name) in keyed)
    ]
    indexes = [row for s, t in base for row in tracked_indexes(s, t)]
    assert all(t.partitions is not None for _, t in base)
    partitions = [row for s, t in base for row in tracked_partitions(s, t)]
    columns = _in_order(columns, 2) if bounds else columns
    out = differences(tracked, columns)
    by_time = {(s, t.name) for s, t in base if t.period and not t.partitions}
    theirs = [row for row in server_partitions(connection, where) if row[:2] not in by_time]
    out += differences(partitions, theirs)
    theirs = [row for row in server_indexes(connection, where) if _plain(row, 4) not in bounds]
    return out + differences(indexes, _in_order(theirs, 3) if bounds else theirs)


def _plain(row: tuple[Any, ...], name: int) -> tuple[str, str, str]:
    return row[0], row[1], (row[name] or "").lower()


def _in_order(rows: list[tuple[Any, ...]], at: int) -> list[tuple[Any, ...]]:
    """Number what is left of each table or index, which the first `at` fields name."""
    out: list[tuple[Any, ...]] = []
    for row in sorted(rows, key=lambda row: row[: at + 1]):
        before = out[-1][at] if out and out[-1][:at] == row[:at] else 0
        out.append((*row[:at], before + 1, *row[at + 1 :]))
    return out


SESSION = "SET SESSION foreign_key_checks = 0, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
EVERYTHING = (
    "table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')"
    " AND (table_schema, table_name) NOT IN (SELECT table_schema, table_name"
    " FROM information_schema.tables WHERE table_type IN ('VIEW', 'SEQUENCE'))"
)


def statements() -> list[str]:
    lines = HISTORY.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("--")]


_REFUSED_IN_GENERATED = 1901


def left_by(change: SchemaChange) -> list[tuple[str, TableInfo]]:
    out = [*change.created, *((s, after) for s, _, after in change.altered)]
    return [*out, *((s, after) for _, _, s, after in change.renamed)]


class ServerSession(DdlSession):
    """Runs on a server what it plans, and holds every changed table against the server's."""

    def __init__(self, connection: Any, *statements: str) -> None:
        self.connection = connection
        super().__init__(*statements)

    def run(self, *statements: str) -> list[DdlJob]:
        for job in (job for sql in statements for job in self.plan(sql)):
            with self.connection.cursor() as cursor:
                if job.type not in (DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA):
                    cursor.execute(f"USE `{job.schema_name}`")
                change = self.catalog.apply(job)
                cursor.execute(spelled(self.connection, change, is_tidb=False))
            for schema, table in left_by(change):
                if table.kind == "TABLE":
                    name = table.name.replace("'", "''")
                    where = f"table_schema = '{schema}' AND table_name = '{name}'"
                    wrong = compare(self.connection, [(schema, table)], where)
                    assert not wrong, (job.query, wrong)
        return []


@pytest.fixture
def connection(mariadb: MariadbServer) -> Iterator[Any]:
    opened = mariadb.connect(init_command=SESSION)
    yield opened
    opened.close()


def test_the_tracked_schema_is_that_of_the_server_after_every_statement(connection: Any) -> None:
    session = ServerSession(connection)
    for sql in statements():
        session.run(sql)
        if sql.startswith(("DROP DATABASE", "ALTER TABLE keys3")):
            assert not compare(connection, session.catalog.tables(), EVERYTHING), sql
    assert not compare(connection, session.catalog.tables(), EVERYTHING)


def differences_overall(connection: Any, catalog: Catalog) -> list[str]:
    """What the server says of databases, tables, views and sequences that the catalog does not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT schema_name, default_character_set_name, default_collation_name"
            " FROM information_schema.schemata WHERE schema_name NOT IN"
            " ('mysql', 'information_schema', 'performance_schema', 'sys')"
        )
        schemas = [tuple(row) for row in cursor.fetchall()]
        cursor.execute(
            "SELECT table_schema, table_name, REPLACE(table_type, 'BASE ', ''),"
            " IF(table_type = 'BASE TABLE', table_collation, NULL),"
            " IF(table_type = 'BASE TABLE', table_comment, NULL) FROM information_schema.tables"
            " WHERE table_schema NOT IN"
            " ('mysql', 'information_schema', 'performance_schema', 'sys')"
        )
        tables = [tuple(row) for row in cursor.fetchall()]
    tracked_schemas: list[tuple[Any, ...]] = [
        (s.name, charset_name(s.charset), charset_name(s.collate)) for s in catalog.schemas()
    ]
    tracked_tables: list[tuple[Any, ...]] = []
    for schema, t in catalog.tables():
        of_table = (charset_name(t.collate), t.comment) if t.kind == "TABLE" else (None, None)
        tracked_tables.append((schema, t.name, t.kind, *of_table))
    out = differences(tracked_schemas, schemas) + differences(tracked_tables, tables)
    return out + compare(connection, catalog.tables(), EVERYTHING)


def hold_random_history(connection: Any, seed: int, length: int) -> int:
    """Run a random history and return how many statements of it the planner took."""
    session = ServerSession(connection)
    ddl = RandomDdl(seed, session.catalog)
    taken = 0
    for i in range(length):
        sql = ddl.statement()
        try:
            session.run(sql)
        except NeedsOperator:
            continue
        except pymysql.err.OperationalError as error:
            # What a column is computed from became a text, which numbers are not made of there.
            assert error.args[0] == _REFUSED_IN_GENERATED, sql  # noqa: PT017 - one of the answers.
            continue
        taken += 1
        if i % 20 == 0:
            assert not differences_overall(connection, session.catalog), sql
    assert not differences_overall(connection, session.catalog)
    return taken


@pytest.mark.thorough
def test_the_tracked_schema_is_that_of_the_server_through_a_long_random_history(
    mariadb: MariadbServer, connection: Any
) -> None:
    mariadb.drop_user_databases()
    assert hold_random_history(connection, seed=4, length=500) > 200


@pytest.mark.slow
def test_the_tracked_schema_is_that_of_the_server_through_many_random_histories(
    mariadb: MariadbServer, connection: Any
) -> None:
    for seed in range(100, 112):
        mariadb.drop_user_databases()
        hold_random_history(connection, seed, length=2000)
