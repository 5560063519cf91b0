"""A Spark query reads each change once, wherever micro-batches end and however often it starts."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.ddl.follower import DdlFollower
from drainer.intake.merger import Merged
from drainer.intake.payload import Remote
from drainer.planner import DdlStep
from drainer.schema.tracker import SchemaTracker
from drainer.spark_source import plan as plans
from drainer.spark_source import rows
from drainer.spark_source.columns import GENERIC
from drainer.spark_source.options import SourceOptions
from drainer.spark_source.pieces import Cuts, Piece, PieceDecoder, Statement
from drainer.spark_source.plan import Offset, SourcePlan
from drainer.spark_source.rows import Slice, rows_of
from drainer.stream.decoder import Portion, Reached
from drainer.task.change_batches import line_schema
from drainer.task.selection import Selection
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.schema.model import DdlJob
from penstock.wire.codec import decode_binlog
from tests.kit.workloads.bank import Bank

PUMPS = ("a", "b", "c")


class BankPlan(SourcePlan):
    """A plan whose feed is a bank's stream, merged in runs of random lengths."""

    def __init__(self, bank: Bank, options: SourceOptions, columns: Any, seed: int = 0) -> None:
        super().__init__(options, columns)
        self.bank, self._rng, self.opened = bank, random.Random(seed), 0

    def _open(self, after: int | str, borders: Sequence[int | None]) -> None:
        self.opened += 1
        start = Reached.from_text(after) if isinstance(after, str) else _beginning()
        options = self._options
        self._borders = {border for border in borders if border is not None}
        cuts = Cuts(
            place=options.place,
            bytes_max=min(4 << 20, options.bytes_max),
            transactions_max=min(5, options.transactions_max or 5),
            borders=sorted(self._borders),
        )
        self._portions = _portions(self.bank, start, cuts, self._rng)
        self._feed: Any = SimpleNamespace(start=start, acknowledged_ts=0, waits_for=str)
        self._loop: Any = SimpleNamespace(run=lambda _: None, end=lambda: None)
        self._feed.close = lambda: None
        self._through, self._base_ts = start, start.checkpoint.commit_ts

    def _more(self, timeout_s: float) -> bool:
        if not self._portions:
            return False
        portion = self._portions.pop(0)
        self._elements.extend(portion.committed)  # type: ignore[arg-type]
        self._through = portion.reached
        return True


def _beginning() -> Reached:
    return Reached.from_text('{"commitTS": 0, "schema-version": 0, "cluster": 7}')


def _portions(bank: Bank, start: Reached, cuts: Cuts, rng: random.Random) -> list[Portion]:
    jobs = {job.id: job for job in bank.jobs}

    async def fetch(step: DdlStep) -> DdlJob:
        return jobs[step.job_id]

    tracker = SchemaTracker.from_history(bank.jobs, start.checkpoint.commit_ts)
    selection = Selection(Rules(), tracker)
    follower = DdlFollower(tracker, fetch, overrides={}, route=selection.route)
    decoder = PieceDecoder(start, tracker, lookup=selection.lookup, follow=follower.follow)
    decoder.cuts = cuts
    waiting = [each for each in bank.binlogs if each[0] > start.checkpoint.commit_ts]
    made = []
    with asyncio.Runner() as runner:
        while waiting:
            run = [waiting.pop(0) for _ in range(min(rng.randint(1, 12), len(waiting)))]
            payloads = [_remote(data, rng) for _, data in run]
            merged = Merged([ts for ts, _ in run], payloads, 1)
            made.append(runner.run(decoder.decode(merged, dict.fromkeys(PUMPS, 0))))
    return made


def _remote(data: bytes, rng: random.Random) -> bytes | Remote:
    binlog = decode_binlog(data)
    is_rows = not binlog.is_fake and binlog.ddl_job_id == 0
    return Remote(rng.choice(PUMPS), len(data), binlog.start_ts) if is_rows else data


def micro_batches(plan: SourcePlan) -> list[tuple[Offset, Offset]]:
    found, start = [], plan.initial()
    while (end := plan.latest(start)) != start:
        found.append((start, end))
        start = end
    return found


def lines(pieces: Sequence[Piece | Statement], options: SourceOptions, columns: Any) -> list[Any]:
    part = Slice(7, tuple(pieces), {})
    return [line for rows in rows_of(part, options, columns) for line in rows.to_pylist()]


ENTRIES = SourceOptions(place=("bank", "entry"), transactions_max=7, bytes_max=3000)


def columns_of(bank: Bank, options: SourceOptions) -> Any:
    tracker = SchemaTracker.from_history(bank.jobs, 1 << 62)
    assert options.place is not None
    table = tracker.catalog.table(*options.place)
    assert table is not None
    return line_schema(table)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), restarts=st.integers(0, 1000))
def test_a_query_that_restarts_anywhere_has_the_lines_that_lead_to_the_bank_s_state(
    seed: int, restarts: int
) -> None:
    bank, rng = Bank(seed, large_each=9), random.Random(restarts)
    columns = columns_of(bank, ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        _let_fetch(patch, bank)
        plan = BankPlan(bank, ENTRIES, columns, seed)
        start, read, count = plan.initial(), list[Any](), 0
        while True:
            if rng.random() < 0.3:
                plan = BankPlan(bank, ENTRIES, columns, rng.randrange(99))
            end = plan.latest(start)
            if end == start:
                break
            if rng.random() < 0.3:  # It does not know the end of its last micro-batch any more.
                plan = BankPlan(bank, ENTRIES, columns, rng.randrange(99))
            pieces = plan.pieces(start, end)
            count = max(count, sum(len(p.commit_ts) for p in pieces if isinstance(p, Piece)))
            read += lines(pieces, ENTRIES, columns)
            plan.commit(start)
            start = end
    assert 0 < count <= 7
    stamps = [(line["_commit_ts"], line["_seq"]) for line in read]
    assert stamps == sorted(set(stamps))
    entries: Counter[tuple[Any, ...]] = Counter()
    for line in read:
        gone = line["_kind"] in ("delete", "update_preimage")
        entries[line["account"], line["amount"]] += -1 if gone else 1
    assert +entries == bank.state_at(bank.last_ts).entries


def _let_fetch(patch: pytest.MonkeyPatch, bank: Bank) -> None:
    payloads = dict(bank.binlogs)

    class Pumps:
        def __init__(self, *_: Any) -> None: ...

        def retrying(self, act: Any) -> Any:
            return act()

        def fetched(self, piece: Piece) -> list[tuple[int, bytes]]:
            return [(ts, payloads[ts]) for ts in piece.commit_ts.tolist()]

    patch.setattr(rows, "_Pumps", Pumps)


def test_a_ddl_on_the_table_ends_a_micro_batch_and_one_on_another_table_does_not() -> None:
    bank = Bank(3)
    options = SourceOptions(place=("bank", "entry"))
    plan = BankPlan(bank, options, columns_of(bank, options))
    ends = [end["commit_ts"] for _, end in micro_batches(plan)]
    altered = [job.finished_ts for job in bank.jobs if "`entry`" in job.query]
    assert len(altered) == 2  # It is created, and gets a column.
    assert len(ends) == 2
    assert max(ts for ts, _ in bank.binlogs if ts < altered[1]) >= ends[0] > altered[0]


def test_without_its_limits_a_query_takes_everything_up_to_a_target() -> None:
    bank = Bank(4)
    options = SourceOptions(transactions_max=3)
    target_ts = sorted(ts for ts, _ in bank.binlogs)[40]
    plan = BankPlan(bank, options, GENERIC)
    plan.target_ts = target_ts
    start = plan.initial()
    end = plan.latest(start, limited=False)
    assert end["commit_ts"] <= target_ts
    wanted = [
        ts for ts, data in bank.binlogs if ts <= target_ts and not decode_binlog(data).is_fake
    ]
    read = [
        ts
        for piece in plan.pieces(start, end)
        for ts in ([piece.commit_ts] if isinstance(piece, Statement) else piece.commit_ts.tolist())
    ]
    assert read == wanted
    assert plan.latest(end, limited=False) == end


def test_a_query_s_old_columns_stop_it_before_a_ddl_that_a_restart_passes() -> None:
    bank = Bank(5)
    options = SourceOptions(place=("bank", "entry"))
    newest = columns_of(bank, options)
    old = newest.remove(newest.get_field_index("day"))
    plan = BankPlan(bank, options, old)
    start = plan.initial()
    end = plan.latest(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "table_columns", lambda _: newest)
        with pytest.raises(NeedsOperator, match=r"'day'.*start the query again"):
            plan.latest(end)
    restarted = BankPlan(bank, options, newest)
    assert restarted.latest(end) != end
