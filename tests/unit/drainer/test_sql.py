"""Literals and statements say exactly what the values are."""

import pickle
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.sinks.sqlite.sink import exact_double
from drainer.task.compaction import compact_few
from drainer.task.sql.literals import MYSQL, SQLITE, Column, literal, literal_column, sqlite_float
from drainer.task.sql.rows import normal_key, row_codec
from drainer.task.sql.upserts import STATEMENT_BYTES_MAX, TableSql
from drainer.task.work_unit import BOUNDS, Op
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import table_of

COLUMNS = {
    c.name: c
    for c in table_of(
        "CREATE TABLE t (i INT PRIMARY KEY, u BIGINT UNSIGNED, d DOUBLE, n DECIMAL(10,2),"
        " s VARCHAR(20), b VARBINARY(20), z BINARY(4), e ENUM('x','it''s'), m SET('p','q'),"
        " f BIT(64), j JSON, t DATETIME, g POINT)"
    ).columns
}
_POINT = bytes.fromhex("e61000000101000000000000000000f03f0000000000000040")
_DOUBLES = [0.1, None, -2.5, 1e-300, 1e300, -0.0]
_TEXTS = ["it's", "", None, "\\", "a\0b", "ü😀"]
VALUES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    # Arrow type, values as rows decode them, the same values in storage form.
    "i": (pa.int64(), [1, -5, None], [1, -5, None]),
    "u": (pa.uint64(), [0, 2**64 - 1, 2**63 - 1, 2**63], [0, 2**64 - 1, 2**63 - 1, 2**63]),
    "d": (pa.float64(), _DOUBLES, _DOUBLES),
    "n": (pa.string(), [Decimal("-1.50"), None], ["-1.50", None]),
    "s": (pa.string(), _TEXTS, _TEXTS),
    "b": (pa.binary(), [b"", b"\0\xff'", None], [b"", b"\0\xff'", None]),
    "z": (pa.binary(), [b"ab", b"abcd", None], [b"ab", b"abcd", None]),
    "e": (pa.uint64(), ["x", "it's", None, ""], [1, 2, None, 0]),
    "m": (pa.uint64(), ["", "p", "p,q", None], [0, 1, 3, None]),
    "f": (pa.uint64(), [0, 2**64 - 1, None], [0, 2**64 - 1, None]),
    "j": (pa.string(), ['{"a": "it\'s"}', None], ['{"a": "it\'s"}', None]),
    "t": (pa.string(), ["2022-04-27 04:05:07", None], ["2022-04-27 04:05:07", None]),
    "g": (pa.binary(), [_POINT, None], [_POINT, None]),
}  # fmt: skip


def texts(column: Column) -> list[str | None]:
    return [
        None if v is None else column.open + v + column.close for v in column.values.to_pylist()
    ]


def read(connection: sqlite3.Connection, text: str) -> Any:
    return connection.execute(f"SELECT {text}").fetchone()[0]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("cut", [0, 1])
def test_a_column_is_written_like_its_values_one_by_one(name: str, cut: int) -> None:
    kind, decoded, stored = VALUES[name]
    write = literal(SQLITE, COLUMNS[name])
    one_by_one = [None if v is None else write(v) for v in decoded[cut:]]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("exact_double", 1, exact_double)
        array = pa.array(stored, kind).slice(cut)
        whole = texts(literal_column(SQLITE, COLUMNS[name], array))
        for one, other in zip(one_by_one, whole, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                a, b = read(connection, one), read(connection, other)
                assert (a, type(a)) == (b, type(b)) or float(a) == float(b)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("i", -5, "-5"),
        ("u", 2**64 - 1, "18446744073709551615"),
        ("d", 1.0, "1.0e0"),
        ("d", 1e-300, "1e-300"),
        ("n", Decimal("-1.50"), "-1.50"),
        ("n", Decimal("0E-2"), "0.00"),
        ("s", "it's \\", "'it''s \\\\'"),
        ("b", b"\0'", "x'0027'"),
        ("z", b"ab", "x'61620000'"),
        ("e", "it's", "2"),
        ("e", "", "0"),
        ("m", "p,q", "3"),
        ("m", "", "0"),
        ("f", 2**64 - 1, "18446744073709551615"),
        ("t", "2022-04-27 04:05:07", "'2022-04-27 04:05:07'"),
        ("g", _POINT, f"x'{_POINT.hex()}'"),
    ],
)
def test_mysql_literals(name: str, value: Any, text: str) -> None:
    assert literal(MYSQL, COLUMNS[name])(value) == text


@settings(max_examples=500)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-4, 1e15))
def test_sqlite_reads_every_double_back_exactly(value: float) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("exact_double", 1, exact_double)
        assert read(connection, sqlite_float(value)) == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_sqlite_reads_every_text_back(value: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert read(connection, literal(SQLITE, COLUMNS["s"])(value)) == value


def test_an_enum_number_beyond_the_elements_is_refused() -> None:
    with pytest.raises(Malformed, match="'e'"):
        literal_column(SQLITE, COLUMNS["e"], pa.array([3], pa.uint64()))


def test_a_type_without_row_encoding_is_refused() -> None:
    column = ColumnInfo(id=1, name="g", offset=0, tp=MysqlType.NULL)
    with pytest.raises(Malformed, match="'g'"):
        literal(MYSQL, column)


def sql_of(columns: str, dialect: str = MYSQL) -> TableSql:
    return TableSql(dialect, "s", "t", table_of(f"CREATE TABLE t ({columns})"))


def test_statements_end_at_so_many_rows() -> None:
    sql = sql_of("id INT PRIMARY KEY, v INT")
    ids = pa.array(range(2 * BOUNDS.statement_rows_max + 1))
    made = sql.upserts(sql.rows_column([ids, ids]))
    assert [s.count(b"(") - 2 for s in made] == [
        BOUNDS.statement_rows_max,
        BOUNDS.statement_rows_max,
        1,
    ]
    assert made[2] == (
        b"INSERT INTO `s`.`t` (`id`,`v`) VALUES (1000,1000) ON DUPLICATE KEY UPDATE `v`=VALUES(`v`)"
    )


@given(st.lists(st.integers(0, STATEMENT_BYTES_MAX * 2), max_size=8))
@settings(max_examples=30, deadline=None)
def test_statements_end_at_so_many_bytes(sizes: list[int]) -> None:
    sql = sql_of("id INT PRIMARY KEY, v LONGTEXT")
    columns = [
        pa.array(range(len(sizes)), pa.int64()),
        pa.array(["x" * n for n in sizes], pa.string()),
    ]
    made = sql.upserts(sql.rows_column(columns))
    assert sum(s.count(b"x") for s in made) == sum(sizes)
    for statement in made:
        rows = statement.count(b"'") // 2
        assert rows == 1 or len(statement) < STATEMENT_BYTES_MAX + 200


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (MYSQL, b"DELETE FROM `s`.`t` WHERE (`a`,`b`) IN ((1,'x'),(2,'y'))"),
        (SQLITE, b"DELETE FROM `s.t` WHERE (`a`,`b`) IN (VALUES (1,'x'),(2,'y'))"),
    ],
)
def test_deletes_by_a_key_of_two_columns(dialect: str, text: bytes) -> None:
    sql = sql_of("b VARCHAR(9) NOT NULL, a INT NOT NULL, PRIMARY KEY (a, b)", dialect)
    assert sql.deletes(sql.keys_column([pa.array([1, 2]), pa.array(["x", "y"])])) == [text]


def test_a_table_of_nothing_but_its_key_is_written_too() -> None:
    for dialect in (MYSQL, SQLITE):
        sql = sql_of("id INT PRIMARY KEY", dialect)
        (made,) = sql.upserts(sql.rows_column([pa.array([1])]))
        assert made.endswith((b"UPDATE `id`=VALUES(`id`)", b"ON CONFLICT (`id`) DO NOTHING"))


@pytest.mark.parametrize(
    ("columns", "tail"),
    [
        ("id INT PRIMARY KEY, v INT", "`v`=VALUES(`v`)"),
        (
            "id INT PRIMARY KEY, v TEXT, u INT UNIQUE",
            "`u`=IF(`id`=VALUES(`id`) OR 1+LENGTH(`id`)+18446744073709551615,"
            "VALUES(`u`),VALUES(`u`)),"
            "`v`=VALUES(`v`)",
        ),
        (  # No column but the key passes through IF unchanged: that one keeps what it is.
            "id INT PRIMARY KEY, e ENUM('x') UNIQUE",
            "`id`=IF(`id`=VALUES(`id`) OR 1+LENGTH(`id`)+18446744073709551615,`id`,`id`),"
            "`e`=VALUES(`e`)",
        ),
        ("e ENUM('x') PRIMARY KEY, f ENUM('x') UNIQUE", "`f`=VALUES(`f`)"),
        ("b VARBINARY(9) PRIMARY KEY, v INT", "`v`=VALUES(`v`)"),
        (  # Other bytes are another row, whatever the downstream's collation says.
            "n INT, k VARCHAR(9), v INT, PRIMARY KEY (n, k)",
            "`v`=IF(`n`=VALUES(`n`) AND CAST(`k` AS BINARY)=CAST(VALUES(`k`) AS BINARY)"
            " OR 1+LENGTH(`n`)+18446744073709551615,VALUES(`v`),VALUES(`v`))",
        ),
        ("a VARCHAR(9), u INT UNIQUE, PRIMARY KEY (a(2))", "`u`=VALUES(`u`)"),
    ],
)
def test_where_another_row_may_be_found_an_upsert_is_guarded(columns: str, tail: str) -> None:
    assert sql_of(columns)._upsert_tail == f" ON DUPLICATE KEY UPDATE {tail}"


def test_generated_columns_are_never_written() -> None:
    sql = sql_of("id INT PRIMARY KEY, g INT AS (id + 1) VIRTUAL, h INT AS (id + 2) STORED")
    assert sql.insert_one((1, None, 3)) == b"INSERT INTO `s`.`t` (`id`) VALUES (1)"


def test_a_row_without_key_is_found_by_all_its_values() -> None:
    sql = sql_of("a INT, s VARCHAR(9), j JSON")
    has_text = (
        b"CAST(CAST(`j` AS CHAR) AS BINARY)"
        b"=CAST(/*!50708 CAST(CAST(*/'[]'/*!50708 AS JSON) AS CHAR)*/ AS BINARY)"
    )
    assert sql.delete_one((None, "a ", "[]")) == (
        b"DELETE FROM `s`.`t` WHERE `a` IS NULL AND"
        b" (`s`='a ' AND CAST(CONVERT(`s` USING utf8mb4) AS BINARY)=x'6120')"
        b" AND (`j`=/*!50708 CAST(*/'[]'/*!50708 AS JSON)*/ OR " + has_text + b")"
        b" ORDER BY " + has_text + b" DESC LIMIT 1"
    )


def test_names_are_quoted() -> None:
    sql = TableSql(MYSQL, "a`b", "c`d", table_of("CREATE TABLE t (`x``y` INT PRIMARY KEY)"))
    assert sql.insert_one((1,)) == b"INSERT INTO `a``b`.`c``d` (`x``y`) VALUES (1)"


def test_an_error_value_beside_an_empty_label_and_equal_labels_keep_their_numbers() -> None:
    sql = sql_of("e ENUM('a','','B'), m SET('','q')")
    codec = row_codec(sql.table)
    for row, texts, numbers in (
        ((0, 1), ("", ""), "`e`=0 AND `m`=1"),
        ((2, 0), ("", ""), "`e`=2 AND `m`=0"),
        ((3, 3), ("B", ",q"), "`e`=3 AND `m`=3"),
    ):
        decoded = codec.decode_insert(codec.encode_insert(row))
        assert decoded == texts
        assert sql.delete_one(decoded).decode().endswith(f"WHERE {numbers} LIMIT 1")
        again = codec.encode_insert(pickle.loads(pickle.dumps(decoded)))
        assert again == codec.encode_insert(row)


def test_rows_whose_enum_keys_read_alike_are_two_rows() -> None:
    table = table_of("CREATE TABLE t (e ENUM('a','') PRIMARY KEY, n INT)")
    codec = row_codec(table)
    rows = pa.array([codec.encode_insert((0, 1)), codec.encode_insert((2, 2))], pa.binary())
    ops, indexes = compact_few(table, np.zeros(2, np.uint8) + int(MutationType.INSERT), rows)
    assert (ops.tolist(), indexes.tolist()) == ([Op.UPSERT] * 2, [0, 1])


def test_a_negative_zero_keeps_its_sign_and_is_no_key_of_its_own() -> None:
    table = table_of("CREATE TABLE t (k DOUBLE PRIMARY KEY, n DOUBLE)")
    codec = row_codec(table)
    column = table.columns[0]
    decoded = codec.decode_insert(codec.encode_insert((-0.0, -0.0)))
    assert TableSql(MYSQL, "s", "t", table).row_text(decoded) == "(-0.0e0,-0.0e0)"
    assert str(normal_key(column, pa.array([-0.0]))[0]) == "0.0"
