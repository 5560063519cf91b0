"""The demo's verdict can fail: a missing, a changed and a surplus row are each reported."""

import sqlite3
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.local.demo.comparison import canonical, compare, fingerprint
from penstock.local.demo.workload import Change, Store, Tables


def downstream(path: Path, rows: list[tuple[int, str]]) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE "nyc.t" (id INTEGER, name TEXT)')
        connection.executemany('INSERT INTO "nyc.t" VALUES (?, ?)', rows)
    return f"sqlite:///{path}"


def test_the_same_rows_in_another_order_are_identical(tmp_path: Path) -> None:
    url = downstream(tmp_path / "d.db", [(2, "b"), (1, "a")])
    (verdict,) = compare({"t": {1: (1, "a"), 2: (2, "b")}}, url, "nyc")
    assert verdict.identical


def test_a_missing_a_changed_and_a_surplus_row_are_each_reported(tmp_path: Path) -> None:
    for number, rows in enumerate(
        ([(1, "a")], [(1, "a"), (2, "x")], [(1, "a"), (2, "b"), (3, "c")])
    ):
        url = downstream(tmp_path / f"{number}.db", rows)
        (verdict,) = compare({"t": {1: (1, "a"), 2: (2, "b")}}, url, "nyc")
        assert not verdict.identical


def test_a_table_on_one_side_only_is_reported(tmp_path: Path) -> None:
    url = downstream(tmp_path / "d.db", [])
    verdicts = compare({"other": {}}, url, "nyc")
    assert [(v.table, v.identical) for v in verdicts] == [("other", False), ("t", False)]


@given(st.lists(st.tuples(st.integers(), st.text(), st.none() | st.floats(allow_nan=False))))
def test_the_order_of_rows_does_not_matter(rows: list[tuple[object, ...]]) -> None:
    assert fingerprint(rows) == fingerprint(rows[::-1])


@given(st.text(), st.text())
def test_different_values_are_spelled_differently(one: str, other: str) -> None:
    assert (canonical(one) == canonical(other)) == (one == other)


def test_drivers_and_csv_readers_spell_a_value_the_same() -> None:
    assert canonical(Decimal("12.50")) == canonical("12.50")
    assert canonical(datetime(2013, 1, 1, 6)) == canonical("2013-01-01 06:00:00")  # noqa: DTZ001
    assert canonical(None) != canonical("NULL")


def test_the_ledger_replays_in_commit_order_whatever_the_order_of_its_entries() -> None:
    def create(tables: Tables) -> None:
        tables["t"] = {}

    store = Store()
    store.ledger += [
        (30, [Change("t", 1, None, (1, "b"), None)]),
        (20, [Change("t", 1, 1, (1, "a"), (1, "b"))]),
        (10, [Change("t", None, 1, None, (1, "a"))]),
        (5, create),
    ]
    assert store.replayed() == {"t": {}}
    assert store.last_commit_ts == 30
