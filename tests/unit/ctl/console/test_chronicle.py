"""An hour of rates and lags: what is kept, what is averaged, and what is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.ctl.console import observation
from penstock.ctl.console.observation import SLOTS, SPAN_S, STEP_S, Chronicle, Track


def test_a_counter_becomes_a_rate_and_one_that_falls_begins_again() -> None:
    seen = Chronicle(0.0)
    for at_s, count in ((0, 100), (2, 120), (4, 140), (6, 5), (8, 25)):
        seen.counter("pump p", "binlogs", float(at_s), float(count))
    assert seen.points("pump p", "binlogs", 9.0) == [10.0, 10.0]
    assert seen.now("pump p", "binlogs", 9.0) == 10.0


def test_of_a_slot_the_mean_of_a_rate_and_the_greatest_lag_stay() -> None:
    mean, greatest = Track(), Track(is_greatest=True)
    for track in (mean, greatest):
        for value in (1.0, 5.0, 3.0):
            track.note(1.0, value)
    assert (mean.last(1.0, 1), greatest.last(1.0, 1)) == ([3.0], [5.0])


def test_what_was_not_seen_is_a_gap_and_not_a_zero() -> None:
    seen = Chronicle(0.0)
    seen.gauge("drainer d", "lag_s", 1.0, 2.0)
    seen.gauge("drainer d", "lag_s", 6.0, None)
    seen.gauge("drainer d", "lag_s", 11.0, 4.0)
    assert seen.points("drainer d", "lag_s", 12.0) == [2.0, None, 4.0]


def test_after_an_hour_the_oldest_goes_and_a_node_that_left_is_forgotten() -> None:
    seen = Chronicle(0.0)
    seen.gauge("drainer d", "lag_s", 1.0, 7.0)
    seen.gauge("drainer d", "lag_s", SPAN_S - 1, 1.0)
    assert seen.points("drainer d", "lag_s", SPAN_S - 1)[0] == 7.0
    assert seen.points("drainer d", "lag_s", SPAN_S + 1)[0] is None
    assert seen.span_s(10 * SPAN_S) == SPAN_S
    seen.forget(2.5 * SPAN_S)
    assert seen.points("drainer d", "lag_s", 2.5 * SPAN_S) == []


def test_memory_is_bounded_however_many_nodes_there_were() -> None:
    seen = Chronicle(0.0)
    for number in range(observation.TRACKS_MAX + 5):
        seen.gauge(f"pump {number}", "lag", 1.0, 1.0)
    kept = sum(bool(seen.points(f"pump {n}", "lag", 1.0)) for n in range(number + 1))
    assert kept == observation.TRACKS_MAX


@given(st.lists(st.tuples(st.floats(0, 3 * SPAN_S), st.floats(0, 1e9)), min_size=1))
def test_a_track_has_what_was_noted_in_the_last_hour_and_nothing_else(
    notes: list[tuple[float, float]],
) -> None:
    track = Track(is_greatest=True)
    by_slot: dict[int, float] = {}
    for at_s, value in sorted(notes):
        track.note(at_s, value)
        slot = int(at_s / STEP_S)
        by_slot[slot] = max(by_slot.get(slot, 0.0), value)
    end = max(by_slot)
    wanted = [by_slot.get(slot) for slot in range(end - SLOTS + 1, end + 1)]
    assert track.last(end * STEP_S + 1, SLOTS) == wanted
