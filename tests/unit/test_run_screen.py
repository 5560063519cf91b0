"""What `penstock run` says about its parts, on a terminal and elsewhere."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.local.run.parts import CONSOLE, DRAINER, PUMP, SOURCE, Part
from penstock.local.run.screen import Screen, awaited, following, loading
from penstock.local.run.supervisor import ENDED, RUNNING, STOPPED, Running

LOAD: dict[str, Any] = {
    "tables": 19, "tables_done": 4, "rows": 2000, "rows_done": 500, "seconds_left": 12.4,
    "running": [{"table": "shop.t", "rows": 1000, "rows_done": 250}],
}  # fmt: skip


def running(*names: str, state: str = RUNNING) -> dict[str, Running]:
    made = {}
    for name in names:
        part = Part(name=name, command=(), log=Path("log"), pages="http://h/")
        made[name] = Running(part, state=state)
        if state == RUNNING:
            made[name].is_ready.set()
    return made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_part_that_is_waited_for_is_named_with_the_reason() -> None:
    parts = running(PUMP) | running(DRAINER, SOURCE, state="starting")
    assert awaited(parts, 7.2, is_stopping=False) == [
        "waits for drainer: Spark starts, which takes about 15 s (7 s)"
    ]
    assert awaited(running(PUMP, DRAINER), 1, is_stopping=False) == []
    parts = running(PUMP, DRAINER) | running(SOURCE, state=STOPPED)
    assert awaited(parts, 3, is_stopping=True) == ["stopping: waits for drainer (3 s)"]
    assert awaited(running(PUMP, state=STOPPED), 3, is_stopping=True) == []


def test_a_load_has_a_bar_for_each_table_in_work_and_one_for_all() -> None:
    assert loading(LOAD) == [
        "[######..................]  25 % shop.t, 250 of about 1,000 rows",
        "[######..................]  25 % loading: 4 of 19 tables, 500 of about 2,000 rows,"
        " about 12 s left",
    ]
    empty = {**LOAD, "rows": 0, "rows_done": 0, "seconds_left": None, "running": []}
    assert loading(empty) == [
        "[........................]   0 % loading: 4 of 19 tables, 0 of about 0 rows,"
        " time left unknown"
    ]


def test_a_line_has_rate_lag_and_problems_and_another_one_the_console() -> None:
    source = {"state": "syncing", "transactions_per_s": 7.5, "seconds_behind": 0.25, "load": None}
    drainer = {"self": {"lag_s": 1.04, "progress_downstream_waits_for": "nothing"}}
    parts = running(SOURCE, DRAINER, CONSOLE)
    assert following(parts, {SOURCE: source, DRAINER: drainer}) == [
        "syncing, 7.5 transactions/s, 0.2 s behind the upstream; downstream 1.0 s behind",
        "console http://h/",
    ]
    new = {"self": {"lag_s": 1795811022.4}}
    paused = {**source, "state": "paused"}
    assert following(parts, {SOURCE: paused, DRAINER: new}) == ["paused", "console http://h/"]
    assert following(parts, {SOURCE: {**paused, "load": LOAD}}) == ["console http://h/"]
    failed = {**source, "state": "failed", "problem": "no", "hint": "do"}
    parts[DRAINER].state, parts[DRAINER].problem = ENDED, "gone"
    assert following(parts, {SOURCE: failed})[0] == "source failed: no (do); drainer: gone"


def test_lines_are_drawn_in_place_on_a_terminal_and_those_that_stay_come_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "21")
    screen = Screen(tmp_path / "run.json", "a", "b")
    assert screen.is_due(in_stage=True)
    screen.show(["one", "x" * 50])
    screen.show(["two"])
    screen.line("stays")
    assert out.getvalue() == f"\r\x1b[Jone\n{'x' * 20}\r\x1b[1A\x1b[Jtwo\r\x1b[Jstays\n"
    screen.show(["last"])
    screen.end()
    assert out.getvalue().endswith("stays\n\r\x1b[Jlast\r\x1b[J")
    screen.is_paused = True
    assert not screen.is_due(in_stage=True)


def test_elsewhere_a_line_comes_every_few_seconds_and_at_once_when_all_parts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(f"{Screen.__module__}.time.monotonic", lambda: now_s[0])
    screen = Screen(tmp_path / "run.json", "a", "b")
    due = []
    for second, in_stage in ((4, True), (5, True), (6, False), (7, False), (16, False)):
        now_s[0] = 100.0 + second
        due.append(screen.is_due(in_stage=in_stage))
        if due[-1]:
            screen.show(["a", str(second)])
    assert due == [False, True, True, False, True]
    assert capsys.readouterr().out == "a; 5\na; 6\na; 16\n"


def test_a_load_of_this_run_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(tmp_path / "run.json", "a", "b")
    report = {"is_complete": True, "ended": "2999-01-01T00:00:00Z", "rows": {"s.t": 4000}}
    screen.report({"state": "loading", "loaded": {}})
    screen.report({"state": "syncing", "loaded": report})
    screen.report({"state": "syncing", "loaded": report})
    assert capsys.readouterr().out == "loaded 1 tables with 4,000 rows\n"
    again = Screen(tmp_path / "run.json", "a", "b")
    again.report({"state": "syncing", "loaded": {**report, "ended": "2001-01-01T00:00:00Z"}})
    assert capsys.readouterr().out == ""
