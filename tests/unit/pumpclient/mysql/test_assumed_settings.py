"""What a server must show if a DDL's session had its global settings."""

import pytest

from penstock.ddl.parse.parser import parse
from pumpclient.mysql.source.ddl.session import conditions, week_modes
from tests.unit.penstock.ddl_session import DdlSession

TABLE = "CREATE TABLE t (n INT, tm TIME, d DATE, old INT AS (n) STORED, ts TIMESTAMP NULL)"


def found(parts: str, *, is_mariadb: bool = True, old_mode: str = "", table: str = TABLE) -> object:
    session = DdlSession(table)
    before = session.catalog.table("d", "t")
    sql = f"ALTER TABLE t {parts}"
    for job in session.plan(sql):
        session.catalog.apply(job)
    (statement,) = parse(sql)[1]
    after = session.catalog.table("d", "t")
    return conditions(statement, before, after, {"old_mode": old_mode}, is_mariadb=is_mariadb)


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ("ADD a DECIMAL(9,2) AS (n / 7) STORED", ["NOT (`a` <=> ROUND(n / 7, 2))"]),
        ("ADD a BIGINT AS (n / 7) STORED", ["NOT (`a` <=> ROUND(n / 7))"]),
        ("ADD a TEXT AS (CONCAT(n / 7)) STORED", ["NOT (`a` <=> CAST((CONCAT(n / 7)) AS CHAR))"]),
        ("ADD a DOUBLE AS (n / 7) STORED", ["NOT (`a` <=> (n / 7))"]),
        ("ADD a INT DEFAULT (1 / 7)", ["NOT (`a` <=> ROUND(1 / 7))"]),
        ("ADD a INT AS (EXTRACT(WEEK FROM d)) STORED",
         ["NOT (`a` <=> ROUND(EXTRACT(WEEK FROM d)))"]),
        ("MODIFY old INT AS (n / 7) STORED", ["NOT (`old` <=> ROUND(n / 7))"]),
    ],
)  # fmt: skip
def test_stored_values_are_compared_as_their_columns_hold_them(
    parts: str, wanted: list[str]
) -> None:
    assert found(parts, is_mariadb=True) == found(parts, is_mariadb=False) == wanted


@pytest.mark.parametrize(
    "parts",
    [
        "ADD a INT AS (n / 7) VIRTUAL", "ADD a INT AS (n DIV 7) STORED", "ADD a INT DEFAULT 7",
        "ADD a INT AS (WEEK(d, 3)) STORED", "ADD a INT AS (YEARWEEK(d)) STORED",
        "ADD a DATE AS (d + INTERVAL 1 WEEK) STORED", "ADD a TEXT AS ('1/7') STORED",
        "ALTER n SET DEFAULT (1 / 7)", "MODIFY n INT DEFAULT (1 / 7)", "MODIFY ts DATETIME",
        "ADD a INT AS (n) STORED /* n / 7 */",
    ],
)  # fmt: skip
def test_what_no_such_setting_changes_is_not_asked_for(parts: str) -> None:
    assert found(parts) == []


def test_a_rebuilt_table_computes_its_stored_columns_once_more() -> None:
    table = "CREATE TABLE t (n INT, a INT AS (n / 7) STORED)"
    assert found("MODIFY n BIGINT", table=table) == ["NOT (`a` <=> ROUND(n / 7))"]


def test_a_week_without_a_mode_is_in_the_definition_of_a_mysql_and_in_values_of_a_mariadb() -> None:
    parts = "ADD a INT DEFAULT (WEEK(d))"
    assert found(parts) == ["NOT (`a` <=> ROUND(WEEK(d)))"]
    assert found(parts, is_mariadb=False) == []


def test_a_time_that_became_a_moment_has_the_date_that_old_mode_gives() -> None:
    parts = "MODIFY tm DATETIME"
    assert found(parts) == ["YEAR(`tm`) = 0"]
    assert found(parts, old_mode="UTF8_IS_UTF8MB3,ZERO_DATE_TIME_CAST") == ["YEAR(`tm`) <> 0"]
    assert found(parts, is_mariadb=False) == found("MODIFY tm VARCHAR(9)") == []


def test_modes_of_weeks_are_found_in_any_expression() -> None:
    shown = """CREATE TABLE `t` (
  `a` int GENERATED ALWAYS AS (week((`d` + interval 1 week),3)) VIRTUAL,
  `b` int DEFAULT (week(_utf8mb4'2021,01)02',0)),
  `week` int DEFAULT '7' COMMENT 'week(d,5)',
  CONSTRAINT `c` CHECK ((week(greatest(`d`,`e`),7) < 60)))"""
    assert week_modes(shown) == ["3", "0", "7"]
    assert week_modes("ADD INDEX i ((WEEK(GREATEST(d, e)))), ADD x INT AS (WEEK(d))") == ["", ""]
