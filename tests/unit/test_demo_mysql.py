"""The MySQL demo's verdict can fail, its plan leaves sysbench its tables, and reports are read."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from penstock.local.demo.comparison import judged, lines
from penstock.local.demo.servers import KILL, MYSQL_PLAN, START, TABLES
from penstock.local.upstream import SysbenchRun
from tests.unit.penstock.ddl_session import DdlSession

REPORT = """
    transactions:                        4897   (244.73 per sec.)
    queries:                             97958  (4895.52 per sec.)
    ignored errors:                      8      (0.40 per sec.)
"""


def sbtest(number: int) -> str:
    return (
        f"CREATE TABLE sbtest{number} (id INT NOT NULL AUTO_INCREMENT, k INT NOT NULL DEFAULT 0,"
        " c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '', PRIMARY KEY (id))"
    )


def test_after_the_plan_all_that_sysbench_names_is_still_there() -> None:
    session = DdlSession(*map(sbtest, range(1, TABLES + 1)))
    ddl = [s for step in MYSQL_PLAN for s in step.sql if not s.startswith(("INSERT", "UPDATE"))]
    for statement in ddl:
        before = {table.id for _, table in session.catalog.tables()}
        session.run(statement)
        for number in range(1, TABLES + 1):
            table = session.table(f"sbtest{number}")
            assert table.id in before
            assert {"id", "k", "c", "pad"} <= {column.name for column in table.columns}
    assert {table.name for _, table in session.catalog.tables()} == {
        "chosen",
        *(f"sbtest{number}" for number in range(1, TABLES + 1)),
    }


def test_the_plan_is_in_order_and_kills_the_source_once_with_a_ddl_while_it_is_down() -> None:
    assert all(0 < one.share < two.share < 1 for one, two in pairwise(MYSQL_PLAN))
    done = [step.action for step in MYSQL_PLAN]
    killed, started = done.index(KILL), done.index(START)
    assert killed < started
    assert any(step.sql for step in MYSQL_PLAN[killed:started])
    assert done.count(KILL) == done.count(START) == 1


def test_what_differs_and_what_only_one_side_has_is_reported() -> None:
    up = {"same": (1000, "17"), "fewer": (2, "5"), "other": (3, "6"), "here": (1, "7")}
    down = {"same": (1000, "17"), "fewer": (1, "5"), "other": (3, "8"), "there": (1, "7")}
    verdicts = judged(up, down)
    assert [v.table for v in verdicts if v.identical] == ["same"]
    cells = {line.split()[0]: line.split() for line in lines(verdicts)[1:]}
    assert cells["same"] == ["same", "1,000", "1,000", "17", "17", "equal"]
    assert cells["other"][-3:] == ["6", "8", "DIFFERENT"]
    assert cells["here"][1:] == ["1", "no", "table", "7", "-", "DIFFERENT"]
    assert {line[-1] for name, line in cells.items() if name != "same"} == {"DIFFERENT"}


def test_a_report_of_sysbench_is_read_and_a_failure_is_reported_with_its_last_lines(
    tmp_path: Path,
) -> None:
    def ended(code: str, name: str) -> tuple[int, int]:
        run = SysbenchRun([sys.executable, "-c", code], log=tmp_path / name).start()
        return run.ended(60)

    assert ended(f"print({REPORT!r})", "good") == (4897, 8)
    with pytest.raises(NeedsOperator, match="FATAL: no such table"):
        ended("print('FATAL: no such table'); raise SystemExit(1)", "bad")
    with pytest.raises(NeedsOperator, match="stopped early"):
        ended("print('stopped early')", "silent")
