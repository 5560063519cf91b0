"""Groups of transactions: in order, and what was logged is a beginning at any moment."""

import random
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.wire.binlog import BinlogType, MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.delivery.group_commit import GroupWriter, PendingTransaction
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options
from tests.kit.fakes.pump import LOST, ROLLED_BACK, FakePump


class Journal:
    def __init__(self) -> None:
        self.open: list[tuple[str, range]] = []
        self.decided: list[range] = []

    def begin(self, node_id: str, start_ts: range) -> None:
        self.open.append((node_id, start_ts))

    def decide(self, start_ts: range, commit_ts: range) -> None:
        assert len(start_ts) == len(commit_ts)
        self.decided.append(start_ts)

    def end(self, start_ts: range) -> None:
        self.open = [each for each in self.open if each[1] != start_ts]


class World:
    """A session of fakes, and a writer."""

    def __init__(self, pump: FakePump, **options: Any) -> None:
        self.pump, self.journal = pump, Journal()
        self.rolled_back: list[int] = []
        self.reported: list[Failure | None] = []
        self.pins = self.ts = 0
        self.table: Any = SimpleNamespace(info=SimpleNamespace(id=7, name="t"), schema_name="s")
        self.current: Any = self.table
        self._lock = threading.Lock()
        self.done: list[int] = []
        self.session = self._session(Options(commit_retry_s=0.001, **options))
        self.is_ours = True
        self.writer = GroupWriter(
            self.session,
            self.journal,
            may_commit=lambda: self.is_ours,
            decides=pump.decided is not None,
        )

    def _session(self, options: Options) -> Any:
        nothing = SimpleNamespace(
            pick=lambda start_ts, retry: self.pump,
            report=lambda pump, failure: None,
            report_prewrite=lambda pump, failure: self.reported.append(failure),
        )
        return SimpleNamespace(
            oracle=SimpleNamespace(get_many=self._get_many),
            schemas=SimpleNamespace(
                catch_up=lambda version: None, table_by_id=lambda table_id: self.current
            ),
            fence=SimpleNamespace(pin=self._pin),
            pumps=nothing,
            options=options,
            roll_back=lambda pump, start_ts: self.rolled_back.append(start_ts),
        )

    def _get_many(self, count: int) -> range:
        with self._lock:
            self.ts += count
            return range(self.ts - count + 1, self.ts + 1)

    @contextmanager
    def _pin(self) -> Any:
        self.pins += 1
        try:
            yield 1
        finally:
            self.pins -= 1

    def submit(self, count: int, *, is_last_large: bool = False) -> None:
        group = []
        for _ in range(count):
            changes = ChangeSet(1 << 20, None)
            rows = changes.tables[7] = Changes(self.table)
            rows.note(MutationType.INSERT, b"row")
            group.append(
                PendingTransaction(changes, Origin(source="s", epoch=1, file=1, position=1))
            )
        if is_last_large:
            changes.spool_all()
        self.writer.submit(group, lambda: self.done.append(count))

    def commits(self) -> list[int]:
        return [ts for tp, ts in self.pump.log if tp == "COMMIT"]


def test_groups_are_committed_in_order_and_nothing_is_left_pinned_or_open() -> None:
    world = World(FakePump())
    for count in (1, 5, 3):
        world.submit(count)
    world.writer.drain()
    world.writer.close()
    assert world.done == [1, 5, 3]
    assert len(world.commits()) == 9
    assert world.commits() == sorted(world.commits())
    assert (world.pins, world.journal.open, world.rolled_back) == (0, [], [])


@pytest.mark.fault(
    "answers of a Pump are lost, Prewrites fail, the Pump has rolled back a part",
    "Commits go again in order; a failed group undoes all after it; a hole stops with a hint",
    cases="15 random runs, 6",
)
@pytest.mark.parametrize("seed", range(15))
def test_with_answers_lost_at_random_what_is_logged_is_always_a_beginning(seed: int) -> None:
    chance = random.Random(seed)

    def verdict(binlog: Any) -> Failure | None:
        lost = binlog.tp is BinlogType.COMMIT and chance.random() < 0.3
        return LOST if lost else None

    world = World(FakePump(verdict))
    for _ in range(6):
        world.submit(chance.randint(1, 6))
    world.writer.drain()
    world.writer.close()
    first = list(dict.fromkeys(world.commits()))
    assert first == sorted(first)
    assert len(first) == sum(world.done)
    assert world.journal.open == []


def test_a_prewrite_that_fails_undoes_its_group_and_all_behind_it() -> None:
    def verdict(binlog: Any) -> Failure | None:
        return LOST if binlog.tp is BinlogType.PREWRITE and binlog.start_ts == 2 else None

    world = World(FakePump(verdict))

    def submit_many() -> None:
        for _ in range(20):
            world.submit(3)
        world.writer.drain()

    with pytest.raises(Retryable, match="pump-1"):
        submit_many()
    world.writer.close()
    assert world.commits() == []
    assert (world.done, world.journal.decided) == ([], [])
    assert set(world.rolled_back) >= {1, 2, 3}
    assert world.pins == 0
    assert world.journal.open  # Until the next run has rolled them back for sure.


def test_a_large_transaction_in_a_group_is_never_sent_without_its_rows() -> None:
    world = World(FakePump())
    with pytest.raises(ValueError, match="unpack"):
        world.submit(2, is_last_large=True)
    world.writer.close()
    assert (world.pump.log, sorted(world.rolled_back)) == ([], [1, 2])


def test_a_refused_prewrite_needs_somebody() -> None:
    refused = Failure(Reason.INVALID, "too large", maybe_stored=False)
    world = World(FakePump(lambda binlog: refused))
    world.submit(1)
    with pytest.raises(Malformed, match="too large"):
        world.writer.drain()
    world.writer.close()


def test_a_hole_among_the_commits_is_reported_and_not_tried_again() -> None:
    def verdict(binlog: Any) -> Failure | None:
        bad = binlog.tp is BinlogType.COMMIT and binlog.start_ts == 2
        return ROLLED_BACK if bad else None

    world = World(FakePump(verdict))
    world.submit(3)
    with pytest.raises(NeedsOperator, match="a later transaction of the source is committed"):
        world.writer.drain()
    world.writer.close()


def test_all_rolled_back_by_the_pump_is_tried_again_from_the_checkpoint() -> None:
    world = World(FakePump(lambda b: ROLLED_BACK if b.tp is BinlogType.COMMIT else None))
    world.submit(3)
    with pytest.raises(Retryable, match="was rolled back"):
        world.writer.drain()
    world.writer.close()
    assert world.done == []


def test_a_group_whose_process_was_stopped_for_too_long_is_rolled_back_whole() -> None:
    world = World(FakePump(), commit_timeout_s=-1.0)
    world.submit(3)
    with pytest.raises(Retryable, match="did nothing for too long"):
        world.writer.drain()
    world.writer.close()
    assert world.commits() == []
    assert sorted(world.rolled_back) == [1, 2, 3]
    assert world.journal.decided == []


def test_nothing_is_committed_once_the_source_is_anothers() -> None:
    world = World(FakePump())
    world.is_ours = False
    world.submit(2)
    with pytest.raises(Retryable, match="another process"):
        world.writer.drain()
    world.writer.close()
    assert world.commits() == []
    assert sorted(world.rolled_back) == [1, 2]


def test_a_table_that_is_gone_ends_the_group_before_anything_is_sent() -> None:
    world = World(FakePump())
    world.current = None
    with pytest.raises(Retryable, match=r"s\.t was dropped"):
        world.submit(1)
    world.writer.close()
    assert world.pump.log == []
    assert world.pins == 0


def test_a_group_is_decided_in_one_call_and_nothing_is_remembered() -> None:
    calls: list[tuple[int, list[Any]]] = []
    world = World(FakePump(decided=lambda version, binlogs: calls.append((version, binlogs))))
    for count in (1, 5, 3):
        world.submit(count)
    world.writer.drain()
    world.writer.close()
    assert (world.done, [len(binlogs) for _, binlogs in calls]) == ([1, 5, 3], [1, 5, 3])
    assert {(b.start_ts, b.commit_ts) for _, binlogs in calls for b in binlogs} == {(0, 0)}
    assert (world.pump.log, world.journal.decided, world.ts, world.pins) == ([], [], 0, 0)


def test_a_schema_that_changes_before_the_call_only_repeats_it() -> None:
    answers = iter([Failure(Reason.SCHEMA_CHANGED, "", maybe_stored=False), None])
    world = World(FakePump(decided=lambda version, binlogs: next(answers)))
    world.submit(2)
    world.writer.drain()
    world.writer.close()
    assert (world.done, world.pins, world.reported) == ([2], 0, [None])


def test_a_decided_group_without_an_answer_ends_the_writer() -> None:
    counts: list[int] = []

    def lose(version: int, binlogs: list[Any]) -> Failure:
        counts.append(len(binlogs))
        return LOST

    world = World(FakePump(decided=lose))

    def submit_many() -> None:
        for count in range(1, 20):
            world.submit(count)
        world.writer.drain()

    with pytest.raises(Retryable, match="cut"):
        submit_many()
    world.writer.close()
    assert (counts, world.done, world.rolled_back) == ([1], [], [])
    assert world.reported == [LOST]


def test_groups_that_go_in_parts_stay_in_order() -> None:
    sizes: list[int] = []
    world = World(
        FakePump(decided=lambda v, binlogs: sizes.append(len(binlogs))), batch_bytes_max=1
    )
    world.submit(3)
    world.writer.drain()
    world.writer.close()
    assert (sizes, world.done) == ([1, 1, 1], [3])


def test_nothing_is_decided_once_the_source_is_anothers() -> None:
    world = World(FakePump(decided=lambda version, binlogs: pytest.fail("it was sent")))
    world.is_ours = False
    world.submit(2)
    with pytest.raises(Retryable, match="another process"):
        world.writer.drain()
    world.writer.close()


def test_a_pump_without_the_call_gets_two_phases_from_then_on() -> None:
    world = World(FakePump())
    world.writer._decides = True
    for count in (1, 5, 3):
        world.submit(count)
    world.writer.drain()
    world.writer.close()
    assert (world.done, len(world.commits()), world.pins) == ([1, 5, 3], 9, 0)
    assert (world.journal.open, world.rolled_back) == ([], [])
