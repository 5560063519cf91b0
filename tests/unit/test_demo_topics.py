"""What the demo makes of canal-json: rows by their key, or one of those that are the same."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.local.demo.comparison import apply, in_order


def message(kind: str, row: Any, old: Any = None, key: list[str] | None = None) -> dict[str, Any]:
    return {
        "isDdl": False, "type": kind, "table": "t", "pkNames": key, "data": [row],
        "old": old and [old],
    }  # fmt: skip


def ddl(sql: str) -> dict[str, Any]:
    return {"isDdl": True, "sql": sql}


def content(*messages: dict[str, Any], table: str = "t") -> list[Any]:
    database = sqlite3.connect(":memory:")
    for each in messages:
        apply(database, each)
    return database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


CREATED = "CREATE TABLE `t` (id INT PRIMARY KEY, d DECIMAL(8,2)) DEFAULT CHARSET=utf8mb4"
ONE, OTHER = {"id": "1", "d": "1.50"}, {"id": "2", "d": None}


def test_rows_come_change_get_another_key_and_go() -> None:
    key = ["id"]
    come = [ddl(CREATED), message("INSERT", ONE, key=key), message("INSERT", OTHER, key=key)]
    assert content(*come) == [(1, "1.50"), (2, None)]
    moved = message("UPDATE", {"id": "3", "d": None}, OTHER, key)
    assert content(*come, moved, message("DELETE", ONE, key=key)) == [(3, None)]


def test_of_rows_that_are_the_same_one_goes() -> None:
    created = ddl("CREATE TABLE `t` (id INT, d DECIMAL(8,2))")
    twice = [created, message("INSERT", OTHER), message("INSERT", OTHER)]
    assert content(*twice, message("DELETE", OTHER)) == [(2, None)]


def test_a_renamed_table_keeps_its_rows() -> None:
    renamed = ddl("RENAME TABLE `t` TO `u`")
    assert content(ddl(CREATED), message("INSERT", ONE), renamed, table="u") == [(1, "1.50")]


def test_a_row_that_goes_and_never_came_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="t has no row"):
        content(ddl(CREATED), message("DELETE", ONE, key=["id"]))


def test_messages_come_by_commit_ts_and_as_printed_within_one(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    made = [{"n": n, "_tidb": {"commitTs": ts}} for n, ts in enumerate((7, 3, 7, 5))]
    lines.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in made))
    assert [each["n"] for each in in_order(lines)] == [1, 3, 0, 2]
