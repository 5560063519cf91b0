"""An upstream that is reset, put back or replaced, at random: no wrong value without a stop."""

import pytest

from tests.kit.replicas.sweep import found_by, sweep_of
from tests.kit.simulation.upstream import FAILOVERS, UPSTREAM_RULES, WEIGHTS, Upstream, Weights

PROGRAM = "tests.kit.simulation.upstream"


@pytest.mark.fault(
    "an upstream is reset, put back to a backup, or replaced by a replica, at random; etcd"
    " and the source's checkpoint are older, and its relay log is lost",
    "the source stops with PS-8010 wherever it read more than the server has, the Drainer"
    " with PS-6015 wherever an epoch is not that of before or does not continue the one before;"
    " downstream never keeps a wrong value after a reload",
    cases="80 / 10,000 + 7 rules",
)
def test_no_second_history_of_an_upstream_leaves_a_wrong_value() -> None:
    (counts,) = sweep_of(Upstream, 0, 40, PROGRAM)
    assert counts.violations == []
    (failovers,) = sweep_of(_with_failovers, 0, 40, PROGRAM)
    assert failovers.violations == []
    assert failovers.counted["epochs continued"] > 8, failovers.counted
    # A world in which nothing happens would prove nothing.
    for what, least in (("servers put back", 40), ("resets", 20), ("failovers", 30), ("stops", 40)):
        assert counts.counted[what] > least, counts.counted


@pytest.mark.parametrize("name", UPSTREAM_RULES)
def test_without_a_rule_about_histories_a_value_is_wrong(name: str) -> None:
    rules = UPSTREAM_RULES[name]

    def is_missed(weights: Weights) -> bool:
        return found_by(lambda seed: Upstream(seed, rules, weights), 200) is not None

    assert is_missed(WEIGHTS) or is_missed(FAILOVERS)


@pytest.mark.slow
def test_thousands_of_upstreams_leave_no_wrong_value() -> None:
    for begin in (Upstream, _with_failovers):
        (counts,) = sweep_of(begin, 0, 5000, PROGRAM, block=5000)
        assert counts.violations == []


def _with_failovers(seed: int) -> Upstream:
    return Upstream(seed, weights=FAILOVERS)
