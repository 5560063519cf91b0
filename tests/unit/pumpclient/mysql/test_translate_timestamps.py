"""TIMESTAMP columns of sessions that give them defaults unasked: what is written out for them."""

import pytest

from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import TableInfo
from pumpclient.mysql.events.transactions import StatusVariables
from pumpclient.mysql.translate.statement_text import (
    dialect_of,
    is_implicit,
    may_hold_timestamps,
    written_out,
)

NOW = "DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"
ZEROS = "DEFAULT '0000-00-00 00:00:00'"


@pytest.mark.parametrize(
    ("version", "variables", "implicit"),
    [
        ("10.11.6-MariaDB", StatusVariables(flags2=1 << 24), False),
        ("10.11.6-MariaDB", StatusVariables(flags2=1 << 26), True),
        ("10.11.6-MariaDB", StatusVariables(), False),
        ("5.7.44", StatusVariables(flags2=0), True),
        ("8.0.36", StatusVariables(flags2=0), False),
        ("8.0.36", StatusVariables(explicit_defaults_ts=0), True),
        ("8.4.0", StatusVariables(explicit_defaults_ts=1), False),
    ],
)
def test_a_session_is_known_by_what_its_server_says(
    version: str, variables: StatusVariables, implicit: bool
) -> None:
    assert is_implicit(variables, dialect_of(version)) is implicit


def before() -> TableInfo:
    catalog = Catalog()
    ids = iter(range(1, 99))
    for sql in ("CREATE DATABASE s", "CREATE TABLE t (a INT, s TIMESTAMP NULL, z INT)"):
        for job in plan_ddl(sql, "s", catalog, lambda: next(ids)):
            catalog.apply(job)
    found = catalog.table("s", "t")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("CREATE TABLE n (a INT, b DATETIME)", "CREATE TABLE n (a INT, b DATETIME)"),
        ("CREATE TABLE n (a TIMESTAMP, b TIMESTAMP)",
         f"CREATE TABLE n (a TIMESTAMP NOT NULL {NOW}, b TIMESTAMP NOT NULL {ZEROS})"),
        ("CREATE TABLE n (a TIMESTAMP(3) NOT NULL COMMENT 'x')",
         "CREATE TABLE n (a TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3)"
         " ON UPDATE CURRENT_TIMESTAMP(3) NOT NULL COMMENT 'x')"),
        ("CREATE TABLE n (a TIMESTAMP NULL, b TIMESTAMP NOT NULL)",
         f"CREATE TABLE n (a TIMESTAMP NULL, b TIMESTAMP {ZEROS} NOT NULL)"),
        ("CREATE TABLE n (a TIMESTAMP ON UPDATE NOW(), b TIMESTAMP DEFAULT '2020-01-01')",
         f"CREATE TABLE n (a TIMESTAMP NOT NULL {ZEROS} ON UPDATE NOW(),"
         " b TIMESTAMP NOT NULL DEFAULT '2020-01-01')"),
        ("ALTER TABLE t ADD b TIMESTAMP", f"ALTER TABLE t ADD b TIMESTAMP NOT NULL {ZEROS}"),
        ("ALTER TABLE t ADD b TIMESTAMP FIRST",
         f"ALTER TABLE t ADD b TIMESTAMP NOT NULL {NOW} FIRST"),
        ("ALTER TABLE t ADD b TIMESTAMP AFTER s",
         f"ALTER TABLE t ADD b TIMESTAMP NOT NULL {ZEROS} AFTER s"),
        ("ALTER TABLE t DROP COLUMN s, ADD b TIMESTAMP",
         f"ALTER TABLE t DROP COLUMN s, ADD b TIMESTAMP NOT NULL {NOW}"),
        ("ALTER TABLE t CHANGE s q TIMESTAMP, MODIFY z TIMESTAMP",
         f"ALTER TABLE t CHANGE s q TIMESTAMP NOT NULL {NOW},"
         f" MODIFY z TIMESTAMP NOT NULL {ZEROS}"),
        ("ALTER TABLE t RENAME COLUMN s TO q, MODIFY z TIMESTAMP AFTER a",
         f"ALTER TABLE t RENAME COLUMN s TO q, MODIFY z TIMESTAMP NOT NULL {NOW} AFTER a"),
    ],
)  # fmt: skip
def test_what_such_a_session_adds_is_written_out(sql: str, wanted: str) -> None:
    assert written_out(sql, lambda _: before()) == wanted


def test_only_statements_that_define_columns_are_read() -> None:
    assert may_hold_timestamps("ALTER TABLE t ADD b timestamp")
    assert not may_hold_timestamps("CREATE TABLE t (a INT)")
    assert not may_hold_timestamps("DROP TABLE `timestamp`")
