from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.ts import compose
from pumpclient.delivery.pump_set import Selector

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
