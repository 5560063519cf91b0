from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.errors import NeedsOperator
from penstock.ts import compose
from pumpclient.delivery.pump_set import Backoff, Pumps
from pumpclient.delivery.selector import Selector
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


THREE = dict.fromkeys("abc", 0)


def picks(strategy: str, candidates: dict[str, int], count: int) -> list[str]:
    selector = Selector(strategy)
    return [selector.pick(candidates, i, 0) for i in range(count)]


def test_range_takes_the_pumps_in_turn() -> None:
    assert picks("range", THREE, 7) == list("abcabca")


def test_range_begins_again_when_the_list_changes() -> None:
    selector = Selector("range")
    selector.pick(THREE, 1, 0)
    selector.pick(THREE, 2, 0)
    assert selector.pick({"a": 0, "b": 0}, 3, 0) == "a"


def test_hash_stays_with_a_transaction_and_moves_on_with_each_retry() -> None:
    selector = Selector("hash")
    first = selector.pick(THREE, 4711, 0)
    assert selector.pick(THREE, 4711, 0) == first
    assert {selector.pick(THREE, 4711, retry) for retry in range(3)} == set("abc")


@pytest.mark.parametrize("pumps", [2, 3, 4])
def test_hash_spreads_timestamps_whose_low_bits_are_all_alike(pumps: int) -> None:
    candidates = {str(i): 0 for i in range(pumps)}
    selector = Selector("hash")
    seen = Counter(selector.pick(candidates, compose(ms, 1), 0) for ms in range(3000))
    assert all(abs(n - 3000 / pumps) < 300 for n in seen.values())
    assert len(seen) == pumps


def test_score_without_any_score_is_even() -> None:
    assert Counter(picks("score", THREE, 9)) == {"a": 3, "b": 3, "c": 3}


def test_score_spreads_the_favourite_out_in_time() -> None:
    weighted = {"a": 5, "b": 1, "c": 1}
    assert picks("score", weighted, 7) == list("aabacaa")


def test_score_gives_nothing_to_a_pump_that_scores_zero_among_others() -> None:
    assert set(picks("score", {"a": 3, "b": 0}, 10)) == {"a"}


@settings(deadline=None)  # The machine may be busy.
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_score_is_exact_over_one_round(scores: list[int]) -> None:
    candidates = {str(i): score for i, score in enumerate(scores)}
    round_length = sum(scores) or len(scores)
    seen = Counter(picks("score", candidates, round_length))
    expected = scores if any(scores) else [1] * len(scores)
    assert [seen[str(i)] for i in range(len(scores))] == expected


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(NeedsOperator, match="did you mean 'range'"):
        Selector("rnage")
