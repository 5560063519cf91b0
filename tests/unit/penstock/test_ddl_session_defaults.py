"""Defaults are what the server stores: of the statement's session, or computed from a row."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.datum.rows.defaults import missing_datum
from penstock.ddl import plan_ddl
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import ROUNDS, DdlContext
from penstock.schema.model import ColumnInfo, TableInfo
from penstock.schema.tidb_json import table_from_json, table_to_json
from tests.unit.penstock.ddl_session import DdlSession

EAST = DdlContext(time_zone="+08:00", sql_mode=frozenset())
ROUNDING = DdlContext(time_zone="+08:00", sql_mode=frozenset({ROUNDS}))
BERLIN = DdlContext(time_zone="Europe/Berlin", sql_mode=frozenset())


def made(sql: str, context: DdlContext | None, *before: str) -> TableInfo:
    session = DdlSession(*before)
    ids = itertools.count(1000)
    for job in plan_ddl(sql, "d", session.catalog, lambda: next(ids), context):
        session.catalog.apply(job)
    return session.table()


def default(definition: str, context: DdlContext | None = None) -> str | None:
    return made(f"CREATE TABLE t (a INT, b {definition})", context).columns[1].default


@pytest.mark.parametrize(
    ("definition", "context", "text"),
    [
        ("TIMESTAMP DEFAULT '2020-06-01 08:00:00'", EAST, "2020-06-01 00:00:00"),
        ("TIMESTAMP DEFAULT '2020-06-01 08:00:00'", BERLIN, "2020-06-01 06:00:00"),
        ("TIMESTAMP DEFAULT '2020-12-01 08:00:00'", BERLIN, "2020-12-01 07:00:00"),
        ("TIMESTAMP DEFAULT '2020-06-01 08:00:00'", None, "2020-06-01 08:00:00"),
        ("TIMESTAMP NOT NULL DEFAULT '0000-00-00'", EAST, "0000-00-00 00:00:00"),
        ("DATETIME DEFAULT '2020-06-01 08:00:00'", EAST, "2020-06-01 08:00:00"),
        ("TIMESTAMP(3) DEFAULT '2020-06-01 08:00:00.0987'", EAST, "2020-06-01 00:00:00.098"),
        ("TIMESTAMP(3) DEFAULT '2020-06-01 08:00:00.0987'", ROUNDING, "2020-06-01 00:00:00.099"),
        ("DATETIME DEFAULT '1999-12-31 23:59:59.5'", ROUNDING, "2000-01-01 00:00:00"),
        ("DATETIME DEFAULT '1999-12-31 23:59:59.5'", EAST, "1999-12-31 23:59:59"),
        ("TIME DEFAULT '10:20:30.9'", EAST, "10:20:30"),
    ],
)
def test_a_literal_is_what_its_session_made_of_it(
    definition: str, context: DdlContext | None, text: str
) -> None:
    assert default(definition, context) == text


def test_a_changed_default_follows_its_session_too() -> None:
    table = "CREATE TABLE t (a INT, b TIMESTAMP NULL)"
    for sql in (
        "ALTER TABLE t ALTER b SET DEFAULT '2020-06-01 08:00:00'",
        "ALTER TABLE t MODIFY b TIMESTAMP DEFAULT '2020-06-01 08:00:00'",
    ):
        assert made(sql, EAST, table).columns[1].default == "2020-06-01 00:00:00"
    added = made("ALTER TABLE t ADD c TIMESTAMP DEFAULT '2020-06-01 08:00:00'", EAST, table)
    assert added.columns[2].origin_default == "2020-06-01 00:00:00"


@pytest.mark.parametrize("text", ["2020-10-25 02:30:00", "2020-03-29 02:30:00"])
def test_a_time_that_a_zone_has_twice_or_never_is_refused(text: str) -> None:
    with pytest.raises(NeedsOperator, match="Europe/Berlin"):
        default(f"TIMESTAMP DEFAULT '{text}'", BERLIN)
    with pytest.raises(NeedsOperator, match="Atlantis"):
        default("TIMESTAMP DEFAULT '2020-06-01'", DdlContext(time_zone="Atlantis/Deep"))


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ("INT DEFAULT (((1)))", "1"), ("INT DEFAULT (--1)", "1"), ("INT DEFAULT - 1", "-1"),
        ("VARCHAR(9) DEFAULT ((_latin1'x'))", "x"),
        ("TIME DEFAULT (((TIME'10:20:30')))", "10:20:30"), ("BLOB DEFAULT 1", "1"),
        ("INET4 DEFAULT 0x7F000001", "127.0.0.1"), ("INET6 DEFAULT '::0'", "::"),
        ("INET6 DEFAULT '2001:DB8:0:0::1'", "2001:db8::1"),
        ("INET6 DEFAULT '::ffff:1.2.3.4'", "::ffff:1.2.3.4"),
        ("UUID DEFAULT '00000000000000000000000000000ABC'", "00000000-0000-0000-0000-000000000abc"),
    ],
)  # fmt: skip
def test_a_literal_stays_one_in_parentheses(definition: str, text: str) -> None:
    column = made(f"CREATE TABLE t (a INT, b {definition})", None).columns[1]
    assert (column.default, column.default_is_expr) == (text, False)


@pytest.mark.parametrize(
    "expression", ["a", "t.a", "CASE WHEN a THEN CASE a WHEN 1 THEN 2 END ELSE 3 END"]
)
def test_what_mariadb_takes_bare_is_put_in_parentheses(expression: str) -> None:
    session = DdlSession(f"CREATE TABLE t (a INT, b INT DEFAULT {expression} NOT NULL)")
    column = session.table().columns[1]
    assert (column.default, column.default_is_expr) == (expression, True)
    assert column.is_not_null
    assert f"DEFAULT ({expression}) NOT NULL" in session.history[-1].query
    with pytest.raises(NeedsOperator, match="does not exist"):
        DdlSession("CREATE TABLE t (a INT DEFAULT z)")


def test_the_current_time_may_have_fewer_decimals_than_its_column() -> None:
    two = "b DATETIME(6) DEFAULT CURRENT_TIMESTAMP(2)"
    columns = (
        DdlSession(f"CREATE TABLE t (a INT, {two}, c DATETIME(3) DEFAULT NOW())").table().columns
    )
    assert [c.default for c in columns[1:]] == ["CURRENT_TIMESTAMP(2)", "CURRENT_TIMESTAMP(3)"]
    session = DdlSession("CREATE TABLE t (a INT)")
    ids = itertools.count(1000)
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    context = DdlContext(moment_us=int(moment.timestamp() * 1_000_000))
    (job,) = plan_ddl(f"ALTER TABLE t ADD {two}", "d", session.catalog, lambda: next(ids), context)
    session.catalog.apply(replace(job, finished_ts=1 << 18))
    assert session.table().columns[1].origin_default == "2023-11-14 22:13:20.120000"


def added(expression: str) -> ColumnInfo:
    sql = f"ALTER TABLE t ADD w INT DEFAULT ({expression})"
    session = DdlSession("CREATE TABLE t (id INT, v INT)", sql)
    assert session.history[-1].query == f"ALTER TABLE `t` ADD w INT DEFAULT ({expression})"
    table = session.table()
    assert table_from_json(table_to_json(table)) == table
    return table.columns[2]


@pytest.mark.parametrize("expression", ["v*0+3", "5+1", "LENGTH('RAND')", "YEAR(NOW())", "`v`"])
def test_a_column_may_be_added_with_a_default_that_each_row_gives(expression: str) -> None:
    column = added(expression)
    assert column.origin_is_expr
    assert column.origin_default is None
    with pytest.raises(NeedsOperator, match="only a MySQL or MariaDB downstream computes"):
        missing_datum(column)
    session = DdlSession(
        "CREATE TABLE t (id INT, v INT)", f"ALTER TABLE t ADD w INT DEFAULT ({expression})"
    )
    session.run("ALTER TABLE t ALTER w SET DEFAULT 1", "ALTER TABLE t MODIFY w BIGINT")
    assert session.table().columns[2].origin_is_expr
    session.run("TRUNCATE t")
    assert not session.table().columns[2].origin_is_expr


@pytest.mark.parametrize(
    "expression", ["RAND()", "v + UUID_SHORT()", "NEXTVAL(s)", "@x", "SYSDATE()"]
)
def test_a_default_with_another_value_each_time_is_refused_in_a_new_column(expression: str) -> None:
    with pytest.raises(NeedsOperator, match="each time"):
        added(expression)


def test_a_lax_session_makes_a_text_of_a_varchar_that_is_too_long() -> None:
    sql = (
        "CREATE TABLE t (a VARCHAR(32768) CHARACTER SET ucs2, b VARBINARY(70000),"
        " c VARCHAR(65535) CHARACTER SET latin1, d VARCHAR(9))"
    )
    kinds = [column.sql_type for column in made(sql, EAST).columns]
    assert kinds == ["MEDIUMTEXT", "MEDIUMBLOB", "TEXT", "VARCHAR"]
    strict = DdlContext(sql_mode=frozenset({"STRICT_TRANS_TABLES"}))
    for context in (strict, None):
        with pytest.raises(NeedsOperator, match="more than"):
            made(sql, context)


def test_an_index_that_a_server_made_over_a_long_text_holds_what_has_room() -> None:
    sql = "CREATE TABLE t (a TEXT CHARACTER SET utf8mb4, b VARCHAR(2000), KEY (a), KEY (b), {})"
    table = made(sql.format("UNIQUE u (b)"), EAST)
    assert [i.columns[0].length for i in table.indexes] == [768, 768, -1]
    with pytest.raises(NeedsOperator, match=r"takes|without a prefix"):
        made(sql.format("UNIQUE u (b)"), None)


def test_a_primary_key_of_a_followed_server_has_no_nulls_whatever_is_written() -> None:
    sql = "CREATE TABLE t (a INT NULL, b INT, PRIMARY KEY (a, b))"
    assert all(column.is_not_null for column in made(sql, EAST).columns)
    with pytest.raises(NeedsOperator, match="NULL"):
        made(sql, None)


def test_a_default_of_oracle_mode_is_an_expression() -> None:
    column = made("CREATE TABLE t (a INT, b DATETIME DEFAULT SYSDATE NOT NULL)", EAST).columns[1]
    assert (column.default, column.default_is_expr, column.is_not_null) == ("SYSDATE()", True, True)


def test_a_label_is_what_its_session_and_its_column_made_of_it() -> None:
    latin1 = DdlContext(variables=(("collation_connection", "latin1_swedish_ci"),))
    sql = (
        "CREATE TABLE t (a ENUM('日', 'ä') CHARACTER SET {0}, b SET('日ä') CHARACTER SET {0},"
        " c VARCHAR(9) CHARACTER SET {0} DEFAULT {1})"
    )
    columns = made(sql.format("utf8mb4", "'日ä'"), latin1).columns
    assert [c.elems for c in columns] == [("?", "ä"), ("?ä",), ()]
    assert columns[2].default == "?ä"
    assert made(sql.format("utf8mb4", "_utf8mb4'日'"), latin1).columns[2].default == "日"
    plain = made(sql.format("utf8mb4", "'日'"), None).columns
    assert [c.elems for c in plain] == [("日", "ä"), ("日ä",), ()]
    narrow = made(sql.format("latin1", "'x'"), None).columns
    assert [c.elems for c in narrow] == [("?", "ä"), ("?ä",), ()]


def test_a_label_beyond_what_its_character_set_has_is_a_question_mark() -> None:
    columns = made("CREATE TABLE t (a ENUM('😀', 'b') CHARACTER SET utf8mb3)", None).columns
    assert columns[0].elems == ("?", "b")
