"""Clocks that jump, and machines that are paused, at random: each rule is missed without it."""

import pytest

from tests.kit.replicas.sweep import found_by, sweep_of
from tests.kit.simulation.clocks import CLOCK_RULES, ClockWorld

PROGRAM = "tests.kit.simulation.clocks"


@pytest.mark.fault(
    "wall clocks jump and machines are paused, at random (60 / 3,000 simulated worlds"
    " (`tests/kit/simulation/clocks.py`))",
    "timestamps keep order and pace, no acknowledged DDL is lost, no live Drainer is missed",
    cases="60 + 5 rules",
)
def test_no_jump_of_a_clock_and_no_pause_breaks_a_promise() -> None:
    (counts,) = sweep_of(ClockWorld, 0, 60, PROGRAM)
    assert counts.violations == []
    # A world in which nothing happens would prove nothing.
    for what, least in (("jumps", 600), ("pauses", 400), ("DDLs", 1000), ("terms", 300)):
        assert counts.counted[what] > least, counts.counted


@pytest.mark.parametrize("name", CLOCK_RULES)
def test_without_a_rule_about_clocks_something_goes_wrong(name: str) -> None:
    assert found_by(lambda seed: ClockWorld(seed, CLOCK_RULES[name]), 60) is not None


@pytest.mark.slow
def test_thousands_of_worlds_of_clocks_break_nothing() -> None:
    (counts,) = sweep_of(ClockWorld, 0, 3000, PROGRAM, block=3000)
    assert counts.violations == []
