"""An upstream that is reset, put back or replaced, at random: no wrong value without a stop."""

import pytest

from tests.kit.replicas.sweep import found_by, sweep_of
from tests.kit.simulation.upstream import UPSTREAM_RULES, Upstream

PROGRAM = "tests.kit.simulation.upstream"


@pytest.mark.fault(
    "an upstream is reset, put back to a backup, or replaced by a replica, at random; etcd"
    " and the source's checkpoint are older",
    "the source stops with PS-8010 wherever it read more than the server has; downstream"
    " never keeps a wrong value after a reload",
    cases="40 / 5,000 + 5 rules",
)
def test_no_second_history_of_an_upstream_leaves_a_wrong_value() -> None:
    (counts,) = sweep_of(Upstream, 0, 40, PROGRAM)
    assert counts.violations == []
    # A world in which nothing happens would prove nothing.
    for what, least in (("servers put back", 40), ("resets", 20), ("failovers", 30), ("stops", 40)):
        assert counts.counted[what] > least, counts.counted


@pytest.mark.parametrize("name", UPSTREAM_RULES)
def test_without_a_rule_about_histories_a_value_is_wrong(name: str) -> None:
    assert found_by(lambda seed: Upstream(seed, UPSTREAM_RULES[name]), 200) is not None


@pytest.mark.slow
def test_thousands_of_upstreams_leave_no_wrong_value() -> None:
    (counts,) = sweep_of(Upstream, 0, 5000, PROGRAM, block=5000)
    assert counts.violations == []
