"""When the event loop appends by itself: by the disk, and not by what a busy machine adds."""

import random

from pump.service.group_commit import AppendTimes

LIMIT_S = 0.001
FAST_S, SLOW_S = 0.0002, 0.004


def appended(times: AppendTimes, *took_s: float) -> AppendTimes:
    for each_s in took_s:
        times.note(each_s, each_s, in_loop=times.are_short or times.probe_is_due())
    return times


def test_a_fast_disk_of_a_busy_machine_is_still_a_fast_disk() -> None:
    times = AppendTimes(LIMIT_S)
    chance, in_loop = random.Random(1), 0
    for _ in range(10_000):
        # A mean of 1.9 ms: a quarter of the appends wait for a processor.
        appended(times, 0.007 if chance.random() < 0.25 else FAST_S)
        in_loop += times.are_short
    assert in_loop > 9_000


def test_a_large_group_needs_its_processor_time_in_a_thread_too() -> None:
    times = AppendTimes(LIMIT_S)
    for _ in range(200):
        times.note(10 * LIMIT_S, FAST_S, in_loop=True)
        assert times.are_short
    assert times.average_s > 9 * LIMIT_S


def test_a_slow_disk_is_left_to_a_thread_after_a_few_appends() -> None:
    times = AppendTimes(LIMIT_S)
    in_loop = 0
    for _ in range(200):
        in_loop += times.are_short
        appended(times, SLOW_S)
    assert in_loop <= 8


def test_a_disk_that_was_slow_for_a_while_is_used_from_the_event_loop_again() -> None:
    times = appended(AppendTimes(LIMIT_S), *[SLOW_S] * 20)
    assert not times.are_short
    before = times.average_s
    needed = 0
    while not times.are_short:
        in_loop = times.probe_is_due()
        took_s = FAST_S if in_loop else SLOW_S
        times.note(took_s, took_s, in_loop=in_loop)
        needed += 1
    assert needed <= 32
    assert times.average_s < before / 10


def test_a_thread_s_own_times_never_bring_the_event_loop_back_by_one() -> None:
    times = appended(AppendTimes(LIMIT_S), *[SLOW_S] * 20)
    times.note(FAST_S, FAST_S, in_loop=False)
    assert not times.are_short


def test_a_disk_of_ten_times_the_limit_is_never_tried_in_the_event_loop() -> None:
    times = AppendTimes(LIMIT_S)
    for _ in range(20):
        times.note(11 * LIMIT_S, 11 * LIMIT_S, in_loop=False)
    assert not any(times.probe_is_due() for _ in range(200))
