"""What `penstock verify` takes for equal, and what it is sure of."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from pumpclient.mysql.protocol.server import BinlogPlace
from pumpclient.mysql.verify.sides import (
    ComparedColumn,
    ComparedRows,
    End,
    Position,
    SqliteSide,
    compared,
    normal,
    rows_of,
)

COLUMNS = (ComparedColumn("id", "int"), ComparedColumn("v", "varchar"))


def side(rows: dict[int, str]) -> ComparedRows:
    return rows_of(COLUMNS, ("id",), list(rows.items()))


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        ("int", "7", 7), ("bit", "5", 5), ("double", "0.1", 0.1), ("double", "-0", 0.0),
        ("decimal", "1.50", "1.5"), ("char", "a  ", "a"), ("time", "10:00:00.500", "10:00:00.5"),
        ("datetime", "2026-11-21 08:00:00.000", "2026-11-21 08:00:00"),
        ("json", '{"b":1,"a":[1, 2]}', '{"a": [1,2], "b": 1}'), ("varbinary", b"a\0", b"a\0"),
        ("json", "[1e20, 1.50]", "[100000000000000000000.0, 1.50]"), ("json", "[1.5e0]", "[1.5]"),
        ("varchar", "é", "é".encode()), ("text", None, None),
        ("point", b"\0\0\0\0\1\xff", memoryview(b"\0\0\0\0\1\xff")),
    ],
)  # fmt: skip
def test_one_value_in_two_spellings_is_equal(type_: str, one: Any, other: Any) -> None:
    assert normal(one, type_) == normal(other, type_)


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        ("varchar", "a ", "a"),
        ("varbinary", b"a\0", b"a"),
        ("int", "0", None),
        ("varchar", "", None),
        ("json", "[1.10]", "[1.1]"),
        ("json", "[0.12345678901234567891]", "[0.12345678901234567892]"),
    ],
)
def test_different_values_stay_different(type_: str, one: Any, other: Any) -> None:
    assert normal(one, type_) != normal(other, type_)


rows = st.dictionaries(st.integers(0, 5), st.sampled_from("abc"))


@given(before=rows, here=rows, after=rows)
def test_only_rows_that_held_still_upstream_are_called_different(
    before: dict[int, str], here: dict[int, str], after: dict[int, str]
) -> None:
    found, undecided = compared(side(before), side(here), side(after))
    for (key,), (kind, columns) in found.items():
        assert isinstance(key, int)
        assert before.get(key) == after.get(key) != here.get(key)
        assert (kind == "missing") == (key not in here)
        assert (kind == "extra") == (key not in before)
        assert columns == (("v",) if kind == "changed" else ())
    still = {k for k in before.keys() | here.keys() if before.get(k) == after.get(k)}
    assert {key for (key,) in found} == {k for k in still if before.get(k) != here.get(k)}
    if before == after:
        assert not undecided


def test_rows_without_a_key_are_counted() -> None:
    twice = rows_of(COLUMNS, (), [(1, "a"), (1, "a"), (2, "b")])
    once = rows_of(COLUMNS, (), [(2, "b"), (1, "a")])
    found, _ = compared(twice, once, twice)
    assert found == {(1, "a", 2): ("missing", ())}


def test_a_place_is_reached_when_the_origin_of_its_source_is_there() -> None:
    origins = {"db-1": [2, 5, 100]}
    assert End(BinlogPlace("bin.000005", 100)).is_in(Position(7, origins), "db-1")
    assert not End(BinlogPlace("bin.000005", 101)).is_in(Position(7, origins), "db-1")
    assert not End(BinlogPlace("bin.000001", 1)).is_in(Position(7, origins), "db-2")
    assert [End(ts).is_in(Position(7), "") for ts in (7, 8)] == [True, False]


def test_a_downstream_that_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a database, but longer than a header of one is" * 10)
    for wrong in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(NeedsOperator, match=f"{wrong}: .*name the Drainer's file"):
            SqliteSide(str(wrong))
