"""A source's status is at most about fifteen lines for people, with each problem and its remedy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from pumpclient.mysql.source.pages import described, status_text
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.source.state.skipped import SkippedTable
from pumpclient.mysql.source.sync.context import SourceCounters

CHECKPOINT = Checkpoint(epoch=1, server="uuid", done="mysql-bin.000003:1207", gtids="0-1-12")
SKIPPED = SkippedTable(
    schema="shop", table="log", since="mysql-bin.000003:4", is_whole=True, rows=12, statements=1
)
STATES = ("starting", "loading", "syncing", "paused", "failed", "stopped")
LOAD = {
    "tables": 40,
    "tables_done": 12,
    "rows": 20_000,
    "rows_done": 1_000,
    "seconds_left": 12.4,
    "running": [{"table": f"shop.t{n}", "rows": 2_000, "rows_done": 100} for n in range(9)],
}


def text_of(load: Any = None, **counters: Any) -> list[str]:
    counted = SourceCounters(checkpoint=CHECKPOINT, **counters)
    service = SimpleNamespace(counters=counted, relay=None, reloads=None)
    found = described(cast(SourceService, service))
    return status_text({"source": "shop", **found, "load": load}).splitlines()


def test_each_state_is_a_few_lines() -> None:
    for state in STATES:
        lines = text_of(state=state)
        assert lines[:2] == ["source      shop", f"state       {state}"]
        assert len(lines) == (6 if state == "syncing" else 5)
    assert lines[2:] == [
        "rate        0.0 transactions/s; 0 transactions and 0 DDL since the start",
        "server      not connected",
        "checkpoint  mysql-bin.000003:1207, GTIDs 0-1-12",
    ]


def test_a_load_shows_its_total_its_time_left_and_some_of_its_tables() -> None:
    lines = [line for line in text_of(LOAD, state="loading") if line.startswith("load")]
    assert lines[0] == "load        12 of 40 tables, 1,000 of about 20,000 rows, about 12 s left"
    assert lines[1] == "load        shop.t0: 100 of about 2,000 rows"
    assert len(lines) == 4
    assert "s left" not in "".join(text_of({**LOAD, "seconds_left": None}))


def test_the_report_of_a_load_that_is_complete_is_not_shown() -> None:
    assert text_of({"tables": {}}) == text_of({}) == text_of(None)


def test_tables_that_are_left_out_are_counted_and_many_of_them_are_cut() -> None:
    many = tuple(replace(SKIPPED, table=f"t{n}") for n in range(9))
    lines = [line for line in text_of(left_out=many) if line.startswith("left out")]
    assert lines[0].endswith("shop.t0: no longer followed; 12 rows and 1 statements skipped")
    assert lines[3:] == ["left out    and 6 more tables (-o json)"]


def test_a_problem_comes_with_its_code_its_remedy_and_each_choice_on_one_line() -> None:
    lines = text_of(
        state="failed",
        problem="cannot follow\n'X'",
        hint="replace it",
        code="PS-5002",
        overrides=("penstock source skip", "penstock source replace"),
    )
    assert lines[-4:] == [
        r"problem     cannot follow\n'X' [PS-5002]",
        "remedy      replace it",
        "choice      penstock source skip",
        "choice      penstock source replace",
    ]
    assert len(text_of(LOAD, state="loading", left_out=(SKIPPED,) * 9, problem="x")) <= 15
