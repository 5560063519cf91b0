from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.errors import NeedsOperator
from pumpclient.delivery.pump_set import Backoff, Pumps, Selector
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options

NO_SPACE = Failure(Reason.NO_SPACE, "no available space", maybe_stored=False)


def status(node_id: str, score: int = 0, **labels: str) -> NodeStatus:
    return NodeStatus(
        node_id=node_id,
        host="127.0.0.1:1",
        state=NodeState.ONLINE,
        score=score,
        label={"labels": labels} if labels else None,
    )


_made: list[Pumps] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close(1)


def make(*statuses: NodeStatus, strategy: str = "range", **options: Any) -> Pumps:
    _made.append(Pumps(7, Selector(strategy), Options(**options)))
    _made[-1].follow(statuses)
    return _made[-1]


def picked(pumps: Pumps, count: int) -> Counter[str]:
    found = [pumps.pick(i, 0) for i in range(count)]
    return Counter(pump.node_id for pump in found if pump is not None)


def test_pumps_get_turns_in_proportion_to_what_they_report_last() -> None:
    pumps = make(status("a", 900), status("b", 100), strategy="score")
    assert picked(pumps, 100) == {"a": 90, "b": 10}
    pumps.follow([status("a", 0), status("b", 100)])
    assert picked(pumps, 10) == {"b": 10}


def test_only_pumps_with_all_of_the_labels_are_chosen_from() -> None:
    statuses = (status("a", zone="a", disk="fast"), status("b", zone="b"), status("c"))
    assert picked(make(*statuses), 9) == {"a": 3, "b": 3, "c": 3}
    assert picked(make(*statuses, labels=("zone=a",)), 9) == {"a": 9}
    assert picked(make(*statuses, labels=("zone=b", "disk=fast")), 9) == {}


def test_pumps_that_are_preferred_come_first_and_others_stand_in() -> None:
    statuses = (status("a", zone="a"), status("b", zone="b"), status("c", zone="a"))
    pumps = make(*statuses, prefer=("zone=a",))
    assert picked(pumps, 8) == {"a": 4, "c": 4}
    both = [pump for pump in pumps.all if pump.node_id in "ac"]
    stand_in = pumps.pick(1, 1, both)
    assert stand_in is not None
    assert stand_in.node_id == "b"
    pumps.follow([statuses[1]])
    assert picked(pumps, 3) == {"b": 3}
    pumps.follow(statuses)
    assert picked(pumps, 8) == {"a": 4, "c": 4}


def test_preference_is_within_the_labels_that_are_a_must() -> None:
    statuses = (status("a", zone="a", disk="slow"), status("b", zone="b", disk="fast"))
    pumps = make(*statuses, labels=("disk=fast",), prefer=("zone=a",))
    assert picked(pumps, 3) == {"b": 3}


def test_a_pump_without_space_rests_longer_each_time_and_is_asked_again() -> None:
    now_s = [0.0]
    pumps = make(status("a"), status("b"), prefer=())
    full, _ = pumps.all
    full.backoff = Backoff(1, 3, monotonic_s=lambda: now_s[0])
    for length_s in (1, 2, 3, 3):
        for _ in range(5):  # Transactions that were under way together.
            pumps.report_prewrite(full, NO_SPACE)
        assert picked(pumps, 6) == {"b": 6}
        now_s[0] += length_s - 0.01
        assert picked(pumps, 6) == {"b": 6}
        now_s[0] += 0.02
        assert picked(pumps, 6) == {"a": 3, "b": 3}
    pumps.report_prewrite(full, None)
    pumps.report_prewrite(full, NO_SPACE)
    now_s[0] += 1.01
    assert picked(pumps, 6) == {"a": 3, "b": 3}


def test_a_commit_that_is_taken_ends_no_rest() -> None:
    pumps = make(status("a"), status("b"))
    full = pumps.all[0]
    pumps.report_prewrite(full, NO_SPACE)
    pumps.report(full, None)
    assert picked(pumps, 4) == {"b": 4}


def test_when_all_rest_all_are_asked() -> None:
    pumps = make(status("a"), status("b"))
    for pump in pumps.all:
        pumps.report_prewrite(pump, NO_SPACE)
    assert picked(pumps, 4) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    "options", [partial(Options, full_pause_s=0.0), partial(Options, full_pause_s_max=0.5)]
)
def test_a_rest_of_no_length_is_refused(options: Callable[[], Options]) -> None:
    with pytest.raises(NeedsOperator, match="full_pause_s"):
        options()


def test_labels_are_followed_when_a_pump_changes_them() -> None:
    pumps = make(status("a", zone="b"), labels=("zone=a",))
    assert pumps.pick(1, 0) is None
    assert not pumps.wait_for_any(0)
    pumps.follow([status("a", zone="a")])
    assert pumps.wait_for_any(0)
    assert picked(pumps, 3) == {"a": 3}


def test_labels_that_no_one_bears_are_named_with_those_that_there_are() -> None:
    pumps = make(status("a", zone="b"), status("c"), labels=("zone=a",))
    text = str(pumps.missing())
    assert "no Pump bears the labels zone=a" in text
    assert "there are: a: zone=b; c: none" in text


def test_labels_that_only_a_stopped_pump_bears_are_named_apart() -> None:
    pumps = make(status("a", zone="a"), status("b"), labels=("zone=a",))
    pumps.follow([status("b")])
    assert "no Pump with the labels zone=a is online; registered are a (" in str(pumps.missing())


def test_a_label_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(NeedsOperator, match="write name=value"):
        Options(labels=("zone:a",))
