"""Timestamps, and how an oracle makes them: strictly increasing whatever the clocks do."""

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Retryable
from penstock.local.process import free_port
from penstock.oracle.client import COUNT_MAX, OracleClient
from penstock.oracle.server import WINDOW_MS, Allocator
from penstock.ts import LOGICAL_END, compose, physical_ms, seconds_between
from tests.kit.fakes.oracle import MemoryOracle
from tests.kit.wait import eventually, is_within

NOW_MS = 1_700_000_000_000


@given(st.integers(0, 2**45 - 1), st.integers(0, LOGICAL_END - 1))
def test_a_timestamp_is_milliseconds_and_a_counter(ms: int, logical: int) -> None:
    ts = compose(ms, logical)
    assert physical_ms(ts) == ms
    assert ts % LOGICAL_END == logical
    assert ts < 2**63


def test_seconds_between_is_signed() -> None:
    assert seconds_between(compose(1000, 5), compose(3500, 0)) == 2.5
    assert seconds_between(compose(3500, 0), compose(1000, 5)) == -2.5


class Clock:
    """A wall clock that can jump and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.wall_ms = float(NOW_MS)
        self.mono_s = 50.0

    def allocator(self, floor_ms: int) -> Allocator:
        return Allocator(floor_ms, wall_ms=lambda: self.wall_ms, monotonic_s=lambda: self.mono_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_ms += seconds * 1000
        self.mono_s += seconds


def take(allocator: Allocator, count: int = 1) -> int:
    last_ts = allocator.take(count)
    if last_ts is None:
        allocator.limit_ms = allocator.wanted_limit_ms()
        last_ts = allocator.take(count)
    assert last_ts is not None
    return last_ts


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0, 5)),
        st.tuples(st.just("jump"), st.floats(-100_000, 100_000)),
        st.tuples(st.just("take"), st.integers(1, COUNT_MAX)),
        st.tuples(st.just("elect"), st.floats(-100_000, 100_000)),
    ),
    max_size=40,
)


@given(steps)
def test_timestamps_grow_and_never_repeat_over_jumps_and_elections(
    history: list[tuple[str, float]],
) -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    last_ts = 0
    for what, amount in history:
        if what == "pass":
            clock.pass_s(amount)
        elif what == "jump":
            clock.wall_ms += amount * 1000
        elif what == "elect":
            # All a new leader has is the saved window, and another machine's clock.
            clock.wall_ms += amount * 1000
            allocator = clock.allocator(allocator.limit_ms)
        else:
            count = int(amount)
            taken = take(allocator, count)
            assert taken - count + 1 > last_ts
            assert physical_ms(taken) == physical_ms(taken - count + 1) < allocator.limit_ms
            last_ts = taken


def test_nothing_is_handed_out_at_or_above_the_limit() -> None:
    allocator = Clock().allocator(NOW_MS + 10)
    assert allocator.take(1) is None
    allocator.limit_ms = NOW_MS + 11
    assert allocator.take(1) == compose(NOW_MS + 10, 0)
    assert allocator.take(LOGICAL_END - 1) == compose(NOW_MS + 10, LOGICAL_END - 1)
    assert allocator.take(1) is None


def test_the_wanted_limit_leaves_room_for_a_whole_window() -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    assert allocator.wanted_limit_ms() == NOW_MS + WINDOW_MS
    ahead = clock.allocator(NOW_MS + 60_000)
    assert ahead.wanted_limit_ms() == NOW_MS + 60_000 + WINDOW_MS


def test_after_a_jump_back_time_continues_at_half_speed_until_the_clock_caught_up() -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    before = physical_ms(take(allocator))
    clock.wall_ms -= 10_000
    clock.pass_s(4)
    assert physical_ms(take(allocator)) == before + 2000
    clock.pass_s(40)
    assert physical_ms(take(allocator)) == int(clock.wall_ms)


def test_after_a_jump_ahead_time_continues_at_double_speed_until_it_has_come_up() -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    take(allocator)
    clock.wall_ms += 3_600_000
    assert physical_ms(take(allocator)) == NOW_MS
    clock.pass_s(10)
    assert physical_ms(take(allocator)) == NOW_MS + 20_000
    assert allocator.ahead_s == 3590
    clock.pass_s(3600)
    assert physical_ms(take(allocator)) == int(clock.wall_ms)
    assert allocator.ahead_s == 0


def test_a_jump_beyond_belief_is_not_followed() -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    take(allocator)
    clock.wall_ms += 365 * 86_400_000
    clock.pass_s(100)
    assert physical_ms(take(allocator)) == NOW_MS + 100_000
    clock.wall_ms = NOW_MS + 100_000
    clock.pass_s(1)
    assert physical_ms(take(allocator)) == NOW_MS + 101_000


def test_a_new_leader_knows_how_much_time_has_passed_since_the_window_moved() -> None:
    clock = Clock()
    clock.wall_ms += 3_600_000  # Its own wall clock is an hour ahead.
    since_s = clock.mono_s
    clock.pass_s(7)
    allocator = Allocator(
        NOW_MS, wall_ms=lambda: clock.wall_ms, monotonic_s=lambda: clock.mono_s, since_s=since_s
    )
    assert physical_ms(take(allocator)) == NOW_MS + 14_000
    without = clock.allocator(NOW_MS)
    assert physical_ms(take(without)) == int(clock.wall_ms)


def test_time_continues_above_what_a_pump_has() -> None:
    clock = Clock()
    allocator = clock.allocator(0)
    held_ts = compose(NOW_MS + 5000, 77)
    allocator.raise_floor(held_ts)
    assert take(allocator) == held_ts + 1
    clock.pass_s(1)
    assert physical_ms(take(allocator)) == NOW_MS + 5500


class Stream:
    """A stream of answers that are what they were told to be."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def fetch(self, count: int, left_s: float) -> tuple[int, int]:
        ts = self.answers.pop(0)
        return physical_ms(ts), ts % LOGICAL_END

    def close(self) -> None:
        pass


def test_a_client_takes_no_timestamp_that_is_not_above_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As from a leader that was paused and does not know yet that it was deposed.
    monkeypatch.setattr("penstock.oracle.client._RETRY_S", 0)
    client = OracleClient(f"127.0.0.1:{free_port()}", timeout_s=5)
    newest = compose(NOW_MS, 10)
    client._stream = Stream(newest, newest - 5, newest, newest + 2)  # type: ignore[assignment]
    assert client.get_ts() == newest
    assert list(client.get_many(2)) == [newest + 1, newest + 2]


def test_a_client_without_an_oracle_fails_after_its_timeout() -> None:
    client = OracleClient(f"127.0.0.1:{free_port()}", timeout_s=0.5)
    start_s = time.monotonic()
    with pytest.raises(Retryable, match="no timestamp"):
        client.get_ts()
    # Real time, as the promise is: to try for the time-out, and not until an oracle comes.
    assert 0.3 < time.monotonic() - start_s < 60
    client.close()


def test_all_waiting_threads_of_a_closed_client_get_retryable() -> None:
    client = OracleClient(f"127.0.0.1:{free_port()}", timeout_s=30)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.get_ts()
        except Retryable as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(is_within(thread, "_wait") for thread in threads))
    client.close()
    for thread in threads:
        thread.join(5)
    assert len(errors) == 5
    with pytest.raises(Retryable):
        client.get_ts()


def test_the_memory_twin_follows_its_clock_but_never_back() -> None:
    oracle = MemoryOracle(NOW_MS)
    first = oracle.get_ts()
    assert physical_ms(first) == NOW_MS
    oracle.now_ms = NOW_MS - 5000
    taken = [first, oracle.get_ts(), *oracle.get_many(3)]
    oracle.now_ms = NOW_MS + 1
    taken.append(oracle.get_ts())
    assert all(a < b for a, b in pairwise(taken))
    assert physical_ms(taken[-1]) == NOW_MS + 1
