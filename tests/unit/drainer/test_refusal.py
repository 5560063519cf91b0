"""A refused statement of many rows is named by its table and row."""

import pytest

from drainer.sinks.protocol import Refused, located, row_of
from penstock.codes import Code

UPSERT = (
    b"INSERT INTO `s`.`t(1)` (`id`,`v`) VALUES (1,'it''s, (so)'),(2,x'00'),(3,NULL),"
    b"(4,'" + b"long " * 20 + b"') ON DUPLICATE KEY UPDATE `v`=VALUES(`v`)"
)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "`s`.`t(1)` `id` = 1, `v` = 'it''s, (so)'"),
        (2, "`s`.`t(1)` `id` = 2, `v` = x'00'"),
        (3, "`s`.`t(1)` `id` = 3, `v` = NULL"),
        (4, "`s`.`t(1)` `id` = 4, `v` = 'long long long long long long long long…"),
        (5, "`s`.`t(1)` "),
    ],
)
def test_the_row_that_the_message_counts_is_named_with_its_values(
    number: int, expected: str
) -> None:
    assert row_of(UPSERT, f"Data too long for column 'v' at row {number}") == expected


def test_without_a_number_the_table_is_named() -> None:
    assert row_of(UPSERT, "Duplicate entry 'x' for key 'v'") == "a row of `s`.`t(1)`"
    assert row_of(b"DELETE FROM `s`.`t` WHERE `id` IN (1)", "no") == (
        "rows of `s`.`t` to be deleted"
    )
    assert row_of("SELECT 1", "no") == ""


def test_a_wide_row_is_described_in_part() -> None:
    names, values = ",".join(f"`c{i}`" for i in range(9)), ",".join("123456789")
    described = row_of(f"INSERT INTO `t` ({names}) VALUES ({values})", "out of range at row 1")
    assert described.endswith("`c5` = 6, …")


def test_the_batch_is_named_with_ways_to_continue() -> None:
    error = located(Refused("refused", hint="compare", code=Code.SINK_REFUSES), 10, 20)
    assert "after commit_ts 10 and up to 20" in str(error)
    assert "ignore-txn-commit-ts" in error.hint
