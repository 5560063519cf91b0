"""TIMESTAMP columns for a server that gives them defaults unasked."""

import pytest

from penstock.ddl.rewrite.explicit import explicit_timestamps


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("CREATE TABLE t (a TIMESTAMP, b TIMESTAMP(3) DEFAULT NULL, c DATETIME)",
         "CREATE TABLE t (a TIMESTAMP NULL, b TIMESTAMP(3) NULL DEFAULT NULL, c DATETIME)"),
        ("ALTER TABLE t ADD a TIMESTAMP NOT NULL",
         "ALTER TABLE t ADD a TIMESTAMP DEFAULT '0000-00-00 00:00:00' NOT NULL"),
        ("ALTER TABLE t MODIFY a TIMESTAMP DEFAULT '2020-01-01 00:00:00', DROP b",
         "ALTER TABLE t MODIFY a TIMESTAMP NULL DEFAULT '2020-01-01 00:00:00', DROP b"),
        ("ALTER TABLE t CHANGE a b TIMESTAMP NOT NULL DEFAULT NOW()",
         "ALTER TABLE t CHANGE a b TIMESTAMP NOT NULL DEFAULT NOW()"),
        ("CREATE TABLE t (a TIMESTAMP NULL)", "CREATE TABLE t (a TIMESTAMP NULL)"),
        ("DROP TABLE t", "DROP TABLE t"),
    ],
)  # fmt: skip
def test_a_column_is_what_its_definition_says(sql: str, wanted: str) -> None:
    assert explicit_timestamps(sql) == wanted
