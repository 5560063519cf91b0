from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.segments import Place, Position
from pump.store.record import Record
from pump.store.transactions import Hold, Ledger, Sorter
from tests.kit.fakes.storage import commit, fake, prewrite, rollback

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


class Arrivals:
    """A log to which all comes late: two phases, decided groups, fake binlogs, watermarks."""

    def __init__(self) -> None:
        never: Any = None
        self.sorter = Sorter()
        self.ledger = Ledger(self.sorter, never, never)
        self.clock = self.shown_ts = self.newest_ts = 0
        self.waiting: dict[str, list[Any]] = {kind: [] for kind in "pchtwf"}

    def ts(self) -> int:
        self.clock += 1
        return self.clock

    def step(self, kind: str, choice: int) -> None:
        """Let one of that kind go on by one step; capitals begin one."""
        waiting = self.waiting
        if kind == "P":
            waiting["p"].append(start_ts := self.ts())
            self.append(prewrite(start_ts))
        elif kind == "H":
            waiting["h"].append(self.sorter.hold())
        elif kind in "WF":
            waiting[kind.lower()].append(self.ts())
        elif waiting[kind]:
            self.go_on(kind, waiting[kind].pop(choice % len(waiting[kind])), choice)
        self.check()

    def go_on(self, kind: str, each: Any, choice: int) -> None:
        if kind == "p" and choice:
            self.waiting["c"].append((each, self.ts()))
        elif kind == "p":
            self.append(rollback(each))
        elif kind == "c":
            self.append(commit(*each))
        elif kind == "h":
            each.start_ts = range(self.clock + 1, self.clock + 1 + 2 * choice, 2)
            self.clock += 2 * choice
            self.waiting["t"].append(each)
        elif kind == "t":
            self.arrive(each, fails=choice == 0)
        elif kind == "f":
            self.append(fake(each))
        else:
            self.sorter.advance(each)
            self.newest_ts = max(self.newest_ts, each)

    def arrive(self, held: Hold, *, fails: bool) -> None:
        if fails or not held.start_ts:
            self.sorter.release(held)
        else:
            self.append(*(r for ts in held.start_ts for r in (prewrite(ts), commit(ts, ts + 1))))
        assert held not in self.sorter.holds

    def append(self, *records: Record) -> None:
        stored, refused = self.ledger.admit(records)
        assert not refused
        for record in stored:
            assert not record.commit_ts or record.commit_ts > self.shown_ts
            self.newest_ts = max(self.newest_ts, record.commit_ts)
        self.ledger.enter(stored, [HERE] * len(stored), 0)

    def check(self) -> None:
        assert self.sorter.max_commit_ts >= self.shown_ts
        self.shown_ts = self.sorter.max_commit_ts


@settings(max_examples=1000)
@given(st.lists(st.tuples(st.sampled_from("PpcHhtWwFf"), st.integers(0, 3)), max_size=80))
def test_nothing_comes_at_or_below_what_was_shown_nor_is_refused(
    steps: list[tuple[str, int]],
) -> None:
    log = Arrivals()
    for kind, choice in steps:
        log.step(kind, choice)
    for kind in "pchtwf":
        while log.waiting[kind]:
            log.step(kind, 1)
    assert log.sorter.max_commit_ts == log.newest_ts
