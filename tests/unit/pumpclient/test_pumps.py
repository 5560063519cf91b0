from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import NeedsOperator
from penstock.registry import NodeState, NodeStatus
from pumpclient.options import Options
from pumpclient.pumps import Pumps
from pumpclient.selector import selector_for

Make = Callable[..., Pumps]


def status(node_id: str, score: int = 0, **labels: str) -> NodeStatus:
    return NodeStatus(
        node_id=node_id,
        host="127.0.0.1:1",
        state=NodeState.ONLINE,
        score=score,
        label={"labels": labels} if labels else None,
    )


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Pumps] = []

    def pumps(*statuses: NodeStatus, strategy: str = "range", **options: Any) -> Pumps:
        made.append(Pumps(7, selector_for(strategy), Options(**options)))
        made[-1].follow(statuses)
        return made[-1]

    yield pumps
    for each in made:
        each.close(1)


def picked(pumps: Pumps, count: int) -> Counter[str]:
    found = [pumps.pick(i, 0) for i in range(count)]
    return Counter(pump.node_id for pump in found if pump is not None)


def test_pumps_get_turns_in_proportion_to_what_they_report_last(make: Make) -> None:
    pumps = make(status("a", 900), status("b", 100), strategy="score")
    assert picked(pumps, 100) == {"a": 90, "b": 10}
    pumps.follow([status("a", 0), status("b", 100)])
    assert picked(pumps, 10) == {"b": 10}


def test_only_pumps_with_all_of_the_labels_are_chosen_from(make: Make) -> None:
    statuses = (status("a", zone="a", disk="fast"), status("b", zone="b"), status("c"))
    assert picked(make(*statuses), 9) == {"a": 3, "b": 3, "c": 3}
    assert picked(make(*statuses, labels=("zone=a",)), 9) == {"a": 9}
    assert picked(make(*statuses, labels=("zone=b", "disk=fast")), 9) == {}


def test_labels_are_followed_when_a_pump_changes_them(make: Make) -> None:
    pumps = make(status("a", zone="b"), labels=("zone=a",))
    assert pumps.pick(1, 0) is None
    assert not pumps.wait_for_any(0)
    pumps.follow([status("a", zone="a")])
    assert pumps.wait_for_any(0)
    assert picked(pumps, 3) == {"a": 3}


def test_labels_that_nobody_bears_are_named_with_those_that_there_are(make: Make) -> None:
    pumps = make(status("a", zone="b"), status("c"), labels=("zone=a",))
    told = str(pumps.missing())
    assert "no Pump bears the labels zone=a" in told
    assert "there are: a: zone=b; c: none" in told


def test_labels_that_only_a_stopped_pump_bears_are_told_apart(make: Make) -> None:
    pumps = make(status("a", zone="a"), status("b"), labels=("zone=a",))
    pumps.follow([status("b")])
    assert "no Pump with the labels zone=a is online; registered are a (" in str(pumps.missing())


def test_a_label_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(NeedsOperator, match="write name=value"):
        Options(labels=("zone:a",))
