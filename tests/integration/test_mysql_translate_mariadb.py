"""Random histories on real servers: their binlogs, transcoded, are what their tables hold."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.local.sql_server import SqlServer
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from pumpclient.mysql.events.frame import FILE_MAGIC, read_header
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.rows.table_map import TableMap
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.ddl_pieces import Translator
from pumpclient.mysql.translate.outputs import Finished, Statement, TableChanges
from pumpclient.mysql.translate.statement_text import plain_text, statement_text
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.servers.fix_mariadb import MariadbServer

COLUMNS: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "127", "0"),
    "SMALLINT UNSIGNED": ("65535", "1"),
    "MEDIUMINT": ("-8388608", "8388607"),
    "BIGINT UNSIGNED": ("18446744073709551615", "7"),
    "DECIMAL(30,10)": ("-12345678901234567890.0123456789", "0", "0.5"),
    "FLOAT": ("1.5", "-3.4e38", "0"),
    "DOUBLE": ("1.7976931348623157e308", "-0.1"),
    "BIT(9)": ("b'101010101'", "0"),
    "YEAR": ("1901", "2155", "0000"),
    "DATE": ("'0000-00-00'", "'2020-00-00'", "'9999-12-31'"),
    "DATETIME(4)": ("'2020-02-29 23:59:59.9999'", "'0000-00-00 00:00:00'"),
    "TIMESTAMP(2) NULL": ("'2038-01-19 03:14:07.25'", "'1970-01-01 00:00:01'", "'0000-00-00'"),
    "TIME(6)": ("'-838:59:59'", "'00:00:00.000001'", "'-00:00:00.5'"),
    "VARCHAR(300)": ("'é€😀'", "''", "REPEAT('x', 300)"),
    "VARCHAR(30) CHARACTER SET latin1": ("'é€'", "'plain'"),
    "CHAR(9)": ("'ä'", "'ab '"),
    "BINARY(6)": ("x'0100'", "x''"),
    "VARBINARY(300)": ("x'00ff00'", "REPEAT('y', 299)"),
    "LONGTEXT": ("REPEAT('ü', 3000)", "'t'"),
    "BLOB": ("x'00010203'", "x''"),
    "GEOMETRY": ("ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)", "POINT(1, -2.5)"),
    "ENUM('a','b','c')": ("'b'", "0", "'c'"),
    "SET('a','b','c')": ("'a,c'", "''", "7"),
    "JSON": ('\'{"b": [1, 2.5, null], "a": "ü"}\'', "'[]'"),
}


def events(folder: Path) -> Iterator[tuple[Location, Location, bytes]]:
    """Yield the events of all binlog files in a server's data folder."""
    for path in sorted(folder.glob("mysql-bin.0*[0-9]")):
        data, at = path.read_bytes(), len(FILE_MAGIC)
        file = FileName("mysql-bin", int(path.suffix[1:]))
        while at < len(data):
            size = read_header(data, at).size
            yield Location(1, file, at), Location(1, file, at + size), data[at : at + size]
            at += size


class Follower:
    """Does what a source does, into a catalog and rows in memory."""

    def __init__(self, schema: str) -> None:
        self.catalog = Catalog()
        self.rows: dict[int, dict[object, tuple[object, ...]]] = {}
        self._ids = iter(range(1, 10_000))
        self._schema = schema
        self._translator = Translator(is_replicated=lambda owner, _: owner == schema)

    def choose(self, table_map: TableMap) -> Transcoder | None:
        if table_map.schema != self._schema:
            return None
        table = self.catalog.table(table_map.schema, table_map.table)
        assert table is not None, table_map.name
        return Transcoder(table_map, table)

    def follow(self, folder: Path) -> int:
        assembler, ends = Assembler(self.choose), 0
        for begin, end, event in events(folder):
            for each in assembler.take(begin, end, event):
                if isinstance(each, TableChanges):
                    self._apply(each)
                elif isinstance(each, Statement):
                    self._execute(each)
                    assembler.forget_tables()
                ends += isinstance(each, Finished)
        return ends

    def _execute(self, statement: Statement) -> None:
        variables = statement.query.variables()
        text = plain_text(
            statement_text(statement.query), variables.sql_mode or 0, statement.dialect
        )
        schema = statement.query.schema.decode()
        for piece in self._translator.translate(text, schema, {}).pieces:
            for job in plan_ddl(piece.sql, None, self.catalog, lambda: next(self._ids)):
                self.catalog.apply(job)

    def _apply(self, made: TableChanges) -> None:
        codec, table = RowCodec(made.transcoder.table), made.transcoder.table
        rows = self.rows.setdefault(table.id, {})
        kind, found = made.changes
        for data in found:
            if kind is MutationType.INSERT:
                row = codec.decode_insert(data)
                rows[row[0]] = row
            elif kind is MutationType.DELETE:
                del rows[codec.decode_delete(data)[0]]
            else:
                before, after = codec.decode_update(data)
                # A column that was added meanwhile has its default in rows from before.
                known = rows.pop(before[0])
                assert before[: len(known)] == known
                rows[after[0]] = after


def write_history(cursor: Any, schema: str, seed: int) -> None:
    """Make tables with a few columns, and change rows and tables at random."""
    rng = random.Random(seed)
    cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
    cursor.execute(f"CREATE DATABASE {schema}")
    cursor.execute(f"USE {schema}")
    types = list(COLUMNS)
    rng.shuffle(types)
    shares = [types[i::3] for i in range(3)]
    for number, share in enumerate(shares):
        columns = ", ".join(f"c{i} {each}" for i, each in enumerate(share))
        cursor.execute(
            f"CREATE TABLE t{number} (id INT PRIMARY KEY, {columns},"
            " g INT AS (id + 1) STORED, h INT AS (id) VIRTUAL)"
        )
    for step in range(90):
        number = rng.randrange(3)
        values = [rng.choice((*COLUMNS[each], "NULL")) for each in shares[number]]
        names = [f"c{i}" for i in range(len(values))]
        key = rng.randrange(12)
        if step == 45:
            for each in range(3):
                cursor.execute(f"ALTER TABLE t{each} ADD late VARCHAR(9) DEFAULT 'x'")
        if rng.random() < 0.5:
            listed = ", ".join(values)
            cursor.execute(
                f"REPLACE INTO t{number} (id, {', '.join(names)}) VALUES ({key}, {listed})"
            )
        elif rng.random() < 0.7:
            listed = ", ".join(f"{n} = {v}" for n, v in zip(names, values, strict=True))
            cursor.execute(
                f"UPDATE IGNORE t{number} SET {listed}, id = id + 20 WHERE id % 5 = {key % 5}"
            )
        else:
            cursor.execute(f"DELETE FROM t{number} WHERE id % 4 = {key % 4}")


@pytest.mark.main_case("0-FULL")
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
@pytest.mark.parametrize("compressed", [0, 1])
def test_what_was_transcoded_is_what_the_server_holds(
    mariadb_binlog: MariadbServer, metadata: str, compressed: int
) -> None:
    schema = f"h_{metadata.lower()}_{compressed}"
    connection = mariadb_binlog.connect()
    try:
        cursor = connection.cursor()
        cursor.execute("RESET MASTER")
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        cursor.execute(f"SET GLOBAL log_bin_compress = {compressed}")
        cursor.execute("SET GLOBAL log_bin_compress_min_len = 20")
        write_history(cursor, schema, seed=compressed * 7 + len(metadata))
        connection.commit()
        follower = Follower(schema)
        assert follower.follow(mariadb_binlog.home / "data") > 30
        for owner, table in follower.catalog.tables(schema):
            compare(cursor, owner, table, follower.rows.get(table.id, {}))
    finally:
        connection.close()
        mariadb_binlog.query("SET GLOBAL binlog_row_metadata = FULL")
        mariadb_binlog.query("SET GLOBAL log_bin_compress = 0")


JSON_CHANGES = (
    "CREATE TABLE documents (id INT PRIMARY KEY, j JSON, k JSON, v INT)",
    "INSERT INTO documents SELECT 1, JSON_OBJECT('a', REPEAT('x', 900), 'n', 1.5, 'l', JSON_ARRAY("
    "1, 2, 3)), JSON_ARRAY(REPEAT('y', 300), NULL), 7",
    "INSERT INTO documents SELECT id + 1, j, k, NULL FROM documents",
    "UPDATE documents SET j = JSON_SET(j, '$.n', 2, '$.new', 'ü'), v = 8",
    "UPDATE documents SET j = JSON_REPLACE(j, '$.l[1]', JSON_OBJECT()), k = JSON_SET(k, '$[1]', 1)",
    "UPDATE documents SET j = JSON_REMOVE(j, '$.l[0]', '$.a') WHERE id = 2",
    "UPDATE documents SET k = NULL WHERE id = 1",
)


@pytest.mark.main_case("FULL-OFF-")
@pytest.mark.parametrize(
    ("metadata", "compression", "options"),
    [("FULL", "OFF", ""), ("MINIMAL", "ON", "PARTIAL_JSON"), ("FULL", "ON", "PARTIAL_JSON")],
)
def test_what_a_mysql_logs_comes_to_what_it_holds_in_every_form_that_it_has(
    mysql: SqlServer, metadata: str, compression: str, options: str
) -> None:
    schema = f"m_{metadata.lower()}_{compression.lower()}"
    connection = mysql.connect()
    try:
        cursor = connection.cursor()
        cursor.execute("RESET BINARY LOGS AND GTIDS")
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        cursor.execute(f"SET SESSION binlog_transaction_compression = {compression}")
        cursor.execute(f"SET SESSION binlog_row_value_options = '{options}'")
        cursor.execute("SET gtid_next = 'AUTOMATIC:tagged'")
        write_history(cursor, schema, seed=len(metadata + options))
        for sql in JSON_CHANGES:
            cursor.execute(sql)
        follower = Follower(schema)
        assert follower.follow(mysql.home / "data") > 30
        tables = list(follower.catalog.tables(schema))
        assert len(tables) == 4
        for owner, table in tables:
            compare(cursor, owner, table, follower.rows.get(table.id, {}), is_mysql=True)
    finally:
        connection.close()
        mysql.query("SET GLOBAL binlog_row_metadata = MINIMAL")


@pytest.mark.thorough
def test_a_mysql_frames_xa_selects_and_many_tables_in_its_own_way(mysql: SqlServer) -> None:
    connection, other = mysql.connect(), mysql.connect()
    try:
        cursor = connection.cursor()
        for sql in (
            "RESET BINARY LOGS AND GTIDS", "CREATE DATABASE frames", "USE frames",
            "CREATE TABLE a (id INT PRIMARY KEY)",
            "XA START 'x', 'y', 5", "INSERT INTO a VALUES (1)", "XA END 'x', 'y', 5",
            "XA PREPARE 'x', 'y', 5",
        ):  # fmt: skip
            cursor.execute(sql)
        other.cursor().execute("INSERT INTO frames.a VALUES (2)")
        for sql in (
            "XA COMMIT 'x', 'y', 5",
            "XA START 'z'", "INSERT INTO a VALUES (3)", "XA END 'z'", "XA COMMIT 'z' ONE PHASE",
            "XA START 'r'", "INSERT INTO a VALUES (4)", "XA END 'r'", "XA PREPARE 'r'",
            "XA ROLLBACK 'r'",
            "CREATE TABLE c (PRIMARY KEY (id)) SELECT id FROM a",
            "CREATE TABLE gone (id INT)", "INSERT INTO gone VALUES (7)",
            "CREATE TEMPORARY TABLE tmp (id INT)", "INSERT INTO tmp VALUES (1)",
            "RENAME TABLE a TO b, c TO a", "CREATE TABLE d LIKE a", "DROP TABLE d, gone",
        ):  # fmt: skip
            cursor.execute(sql)
        follower = Follower("frames")
        follower.follow(mysql.home / "data")
        held = {t.name: follower.rows.get(t.id, {}) for _, t in follower.catalog.tables("frames")}
        assert {name: sorted(map(str, rows)) for name, rows in held.items()} == {
            "a": ["1", "2", "3"],
            "b": ["1", "2", "3"],
        }
    finally:
        connection.close()
        other.close()


@pytest.mark.thorough
def test_the_servers_own_framing_of_xa_selects_and_many_tables(
    mariadb_binlog: MariadbServer,
) -> None:
    connection, other = mariadb_binlog.connect(), mariadb_binlog.connect()
    try:
        cursor = connection.cursor()
        for sql in (
            "RESET MASTER", "CREATE DATABASE frames", "USE frames",
            "CREATE TABLE a (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM", "INSERT INTO m VALUES (1), (2)",
            "XA START 'x', 'y', 5", "INSERT INTO a VALUES (1)", "XA END 'x', 'y', 5",
            "XA PREPARE 'x', 'y', 5",
        ):  # fmt: skip
            cursor.execute(sql)
        other.cursor().execute("INSERT INTO frames.a VALUES (2)")
        other.commit()
        for sql in (
            "XA COMMIT 'x', 'y', 5",
            "XA START 'z'", "INSERT INTO a VALUES (3)", "XA END 'z'", "XA COMMIT 'z' ONE PHASE",
            "CREATE TABLE c (PRIMARY KEY (id)) SELECT id FROM a",
            "CREATE OR REPLACE TABLE m (id INT PRIMARY KEY)", "INSERT INTO m VALUES (7)",
            "CREATE TEMPORARY TABLE tmp (id INT)", "INSERT INTO tmp VALUES (1)",
            "RENAME TABLE a TO b, c TO a", "CREATE TABLE d LIKE a", "DROP TABLE d, m",
        ):  # fmt: skip
            cursor.execute(sql)
        connection.commit()
        follower = Follower("frames")
        follower.follow(mariadb_binlog.home / "data")
        held = {t.name: follower.rows.get(t.id, {}) for _, t in follower.catalog.tables("frames")}
        assert {name: sorted(map(str, rows)) for name, rows in held.items()} == {
            "a": ["1", "2", "3"],
            "b": ["1", "2", "3"],
        }
    finally:
        connection.close()
        other.close()


def compare(
    cursor: Any,
    schema: str,
    table: TableInfo,
    rows: dict[object, tuple[object, ...]],
    *,
    is_mysql: bool = False,
) -> None:
    """Write what was decoded into a twin of the table, and let the server compare the two."""
    twin = f"{schema}.{table.name}_twin"
    cursor.execute("SET sql_mode = '', time_zone = '+00:00', sql_log_bin = 0")
    cursor.execute(f"CREATE TABLE {twin} LIKE {schema}.{table.name}")
    plain = [i for i, column in enumerate(table.columns) if not column.is_generated]
    names = ", ".join(table.columns[i].name for i in plain)
    marks = ", ".join(["%s"] * len(plain))
    for row in rows.values():
        whole = (*row, "x") if len(row) < len(table.columns) else row
        cursor.execute(f"INSERT INTO {twin} ({names}) VALUES ({marks})", [whole[i] for i in plain])
    for where, other in ((twin, f"{schema}.{table.name}"), (f"{schema}.{table.name}", twin)):
        shown = ", ".join(
            f"HEX({c.name})" if c.tp.name not in ("JSON", "FLOAT", "DOUBLE") else c.name
            for c in table.columns
            if c.tp.name != "JSON"
        )
        cursor.execute(f"SELECT {shown} FROM {where} EXCEPT SELECT {shown} FROM {other}")
        assert list(cursor.fetchall()) == [], (table.name, where)
    for column in table.columns:
        if column.tp.name == "JSON":
            a, b = f"a.{column.name}", f"b.{column.name}"
            same = f"{a} <=> {b}" if is_mysql else f"JSON_EQUALS({a}, {b}) <=> 1"
            cursor.execute(
                f"SELECT COUNT(*) FROM {twin} a JOIN {schema}.{table.name} b USING (id) WHERE NOT"
                f" ({same} OR {a} IS NULL AND {b} IS NULL)"
            )
            assert cursor.fetchone()[0] == 0, column.name
    cursor.execute("SET sql_log_bin = 1")
