from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.segments import Place, Position
from pump.store.transactions import Sorter

HERE = Position(0, 32, 10)


def test_the_unmatched_are_listed_by_age() -> None:
    sorter = Sorter()
    for start_ts, now_ms in ((5, 100), (3, 200), (9, 300)):
        sorter.push_prewrite(start_ts, HERE, now_ms)
    assert [start_ts for start_ts, _ in sorter.unmatched(200)] == [5, 3]


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


@given(st.lists(st.tuples(st.sampled_from("pcrfw"), st.integers(0, 5)), max_size=60))
def test_it_moves_as_a_queue_of_everything_that_waits_would(steps: list[tuple[str, int]]) -> None:
    sorter, queue, open_ts = Sorter(), Queue(), list[int]()
    for clock, (step, choice) in enumerate(steps, start=1):
        if step == "p":
            sorter.push_prewrite(clock, HERE, 0)
            queue.push(True, clock)
            open_ts.append(clock)
        elif step in "fw":
            (sorter.push_fake if step == "f" else sorter.advance)(clock)
            queue.push(False, clock)
        elif open_ts:
            start_ts = open_ts.pop(choice % len(open_ts))
            queue.open.discard(start_ts)
            if step == "c":
                sorter.push_commit(start_ts, clock)
                queue.push(False, clock)
            else:
                del sorter.open[start_ts]
        queue.settle()
        assert sorter.max_commit_ts == queue.max_commit_ts


@given(st.lists(st.sampled_from("pcw"), max_size=40), st.integers(0, 3), st.integers(0, 40))
def test_a_checkpoint_takes_no_watermark_for_a_timestamp_of_the_log(
    steps: list[str], open_max: int, decided: int
) -> None:
    sorter, logged_ts = Sorter(), 0
    for clock, step in enumerate(steps, start=1):
        if step == "p":
            sorter.push_prewrite(clock, HERE, 0)
        elif step == "w":
            sorter.advance(clock)
        elif sorter.open:
            sorter.push_commit(list(sorter.open)[decided % len(sorter.open)], clock)
            logged_ts = clock
    found = sorter.checkpoint(Place(0, 0), open_max)
    assert found.largest_ts <= logged_ts
    again = Sorter(found.largest_ts)
    again.open.update(found.open)
    assert again.max_commit_ts <= sorter.max_commit_ts


def test_a_floor_of_a_beginning_holds_for_later_prewrites_and_moves_nothing_by_itself() -> None:
    sorter = Sorter(5)
    sorter.push_prewrite(6, HERE, 0)
    sorter.begin(10)
    assert (sorter.max_commit_ts, sorter.floor_ts) == (5, 10)
    sorter.push_prewrite(11, HERE, 0)
    sorter.push_commit(6, 12)
    assert (sorter.open[11].floor_ts, sorter.max_commit_ts) == (10, 10)
