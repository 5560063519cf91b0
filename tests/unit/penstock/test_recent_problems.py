"""The last warnings and errors of a process, as its status has them."""

import logging
import re

from penstock.node.logs import KINDS_MAX, RecentProblems


def log_to(problems: RecentProblems) -> logging.Logger:
    log = logging.Logger("pump.node")
    log.addHandler(problems)
    return log


def test_warnings_and_errors_are_kept_with_their_moment_and_nothing_else_is() -> None:
    problems = RecentProblems()
    log = log_to(problems)
    log.info("fine")
    log.warning("slow: %s", "pump-2")
    log.error("broken\nin two lines")
    slow, broken = problems.facts()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", slow.time)
    assert slow.summary == "WARNING pump.node: slow: pump-2"
    assert broken.summary == "ERROR pump.node: broken\\nin two lines"


def test_lines_of_one_kind_are_one_entry_with_their_number_and_the_last_of_them() -> None:
    problems = RecentProblems()
    for second in range(12):
        log_to(problems).warning("no answer for %d s", second)
    assert [each.summary for each in problems.facts()] == [
        "WARNING pump.node: no answer for 11 s (12 times)"
    ]


def test_the_oldest_kinds_give_way_and_long_lines_are_cut() -> None:
    problems = RecentProblems()
    for number in range(KINDS_MAX + 3):
        log_to(problems).error(f"kind {number} " + "x" * 10_000)
    lines = [each.summary for each in problems.facts()]
    assert len(lines) == KINDS_MAX
    assert "kind 12 " in lines[-1]
    assert max(map(len, lines)) < 3000
