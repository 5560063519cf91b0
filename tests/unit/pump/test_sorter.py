from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.segments import Position
from pump.store.sorter import Sorter

HERE = Position(0, 32, 10)


def test_nothing_moves_past_an_open_prewrite() -> None:
    sorter = Sorter()
    sorter.push_prewrite(1, HERE, 0)
    sorter.push_prewrite(2, HERE, 0)
    sorter.push_commit(2, 10)
    assert sorter.max_commit_ts == 0
    sorter.push_commit(1, 12)
    assert sorter.max_commit_ts == 12


def test_what_came_before_an_open_prewrite_is_free() -> None:
    sorter = Sorter()
    sorter.push_prewrite(1, HERE, 0)
    sorter.push_commit(1, 10)
    sorter.push_prewrite(2, HERE, 0)
    sorter.push_prewrite(3, HERE, 0)
    sorter.push_commit(3, 14)
    assert sorter.max_commit_ts == 10
    sorter.push_rollback(2)
    assert sorter.max_commit_ts == 14


def test_a_fake_binlog_moves_an_idle_pump_only() -> None:
    sorter = Sorter(5)
    sorter.push_fake(9)
    assert sorter.max_commit_ts == 9
    sorter.push_prewrite(10, HERE, 0)
    sorter.push_fake(20)
    assert sorter.max_commit_ts == 9
    sorter.push_fake(15)
    sorter.push_rollback(10)
    assert sorter.max_commit_ts == 20


def test_the_unmatched_are_listed_by_age() -> None:
    sorter = Sorter()
    for start_ts, now_ms in ((5, 100), (3, 200), (9, 300)):
        sorter.push_prewrite(start_ts, HERE, now_ms)
    assert [start_ts for start_ts, _ in sorter.unmatched(200)] == [5, 3]
    sorter.push_rollback(5)
    oldest = sorter.oldest_unmatched()
    assert oldest is not None
    assert oldest.since_ms == 200


class Queue:
    """TiDB-Binlog's sorter: a queue in order of arrival, stopped by its first open Prewrite."""

    def __init__(self) -> None:
        self.items: deque[tuple[bool, int]] = deque()
        self.open: set[int] = set()
        self.max_commit_ts = 0

    def push(self, is_prewrite: bool, ts: int) -> None:
        self.items.append((is_prewrite, ts))
        if is_prewrite:
            self.open.add(ts)

    def settle(self) -> None:
        while self.items and not (self.items[0][0] and self.items[0][1] in self.open):
            is_prewrite, ts = self.items.popleft()
            if not is_prewrite:
                self.max_commit_ts = max(self.max_commit_ts, ts)


@given(st.lists(st.tuples(st.sampled_from("pcrf"), st.integers(0, 5)), max_size=60))
def test_it_moves_as_a_queue_of_everything_that_waits_would(steps: list[tuple[str, int]]) -> None:
    sorter, queue, open_ts = Sorter(), Queue(), list[int]()
    for clock, (step, choice) in enumerate(steps, start=1):
        if step == "p":
            sorter.push_prewrite(clock, HERE, 0)
            queue.push(True, clock)
            open_ts.append(clock)
        elif step == "f":
            sorter.push_fake(clock)
            queue.push(False, clock)
        elif open_ts:
            start_ts = open_ts.pop(choice % len(open_ts))
            queue.open.discard(start_ts)
            if step == "c":
                sorter.push_commit(start_ts, clock)
                queue.push(False, clock)
            else:
                sorter.push_rollback(start_ts)
        queue.settle()
        assert sorter.max_commit_ts == queue.max_commit_ts
