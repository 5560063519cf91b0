"""Decided transactions: one group with its own timestamps, which the stream never passes early."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType, Origin, fake_binlog
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.cluster.resolver import Outcome, Question, Resolution, Resolving
from pump.replication.shipping import Deposed
from pump.store.record import Record
from pump.store.storage import Appended
from tests.kit.fakes.oracle import MemoryOracle
from tests.kit.fakes.storage import commits, die, opened, prewrite, rollback
from tests.kit.wait import until
from tests.unit.pump.test_server import CLUSTER, Call, Pump

ORIGIN = Origin(source="db-1", epoch=1, file=1, position=7)
Reply = penstock_pb2.DecidedReply
Refusal = penstock_pb2.Refusal


def decided(value: bytes, **fields: object) -> bytes:
    given: dict[str, object] = {"prewrite_value": value, "origin": ORIGIN, **fields}
    return encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=0, **given))  # type: ignore[arg-type]


async def write(
    pump: Pump, payloads: Sequence[bytes], version: int = 1, cluster: int = CLUSTER
) -> Reply:
    batch = penstock_pb2.DecidedBatch(cluster_id=cluster, schema_version=version, payloads=payloads)
    return Reply.FromString(await pump.batches.write_decided(batch.SerializeToString(), Call()))


def run(tmp_path: Path, scenario: Callable[[Pump], Awaitable[None]]) -> None:
    async def main() -> None:
        pump = Pump(tmp_path)
        try:
            await scenario(pump)
        finally:
            await pump.aclose()

    asyncio.run(main())


class SlowOracle(MemoryOracle):
    """Waits with the answer, for which the timestamps are taken already."""

    def __init__(self, now_ms: int = 1) -> None:
        super().__init__(now_ms)
        self.has_taken, self.may_answer = threading.Event(), threading.Event()

    def get_many(self, count: int) -> range:
        taken = super().get_many(count)
        if count > 1:
            self.has_taken.set()
            self.may_answer.wait(30)
        return taken


async def waiting(
    pump: Pump, *values: bytes, now_ms: int = 1
) -> tuple[SlowOracle, asyncio.Task[Reply]]:
    """Begin a call; return once its timestamps are taken, of which it does not know yet."""
    pump.decided._oracle = oracle = SlowOracle(now_ms)
    task = asyncio.create_task(write(pump, list(map(decided, values))))
    await asyncio.to_thread(oracle.has_taken.wait)
    return oracle, task


def fake_of(oracle: SlowOracle) -> Record:
    """Return a fake binlog with a later timestamp."""
    ts = oracle.get_ts()
    return Record(BinlogType.ROLLBACK, ts, ts, encode_binlog(fake_binlog(ts)))


def test_transactions_come_in_their_order_and_have_all_that_two_phases_give(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        reply = await write(pump, [decided(b"one"), decided(b"two")])
        assert not reply.HasField("refusal")
        first, second = reply.commit_ts
        assert first < second
        later = (await write(pump, [decided(b"three")])).commit_ts[0]
        assert later > second
        await until(lambda: pump.storage.max_commit_ts == later)
        found = [
            decode_binlog(each)
            for each in pump.storage.pull(0, bytes_max=1000, count_max=9).payloads
        ]
        assert [(b.tp, b.commit_ts, b.prewrite_value, b.origin) for b in found] == [
            (BinlogType.COMMIT, first, b"one", ORIGIN),
            (BinlogType.COMMIT, second, b"two", ORIGIN),
            (BinlogType.COMMIT, later, b"three", ORIGIN),
        ]
        assert all(b.start_ts < b.commit_ts for b in found)
        assert pump.writer.groups_written == 2
        assert pump.storage.unmatched() == []

    run(tmp_path, scenario)


def test_the_leader_of_the_oracle_takes_timestamps_without_a_call(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        (first,) = (await write(pump, [decided(b"one")])).commit_ts  # Joins the fence.
        pump.take_now = pump.oracle.get_many
        pump.decided._oracle = MemoryOracle()  # Nobody may ask it: it is ahead.
        (second,) = (await write(pump, [decided(b"two")])).commit_ts
        assert first < second <= pump.oracle.get_ts()
        pump.fence.version = 2
        refused = await write(pump, [decided(b"three")])
        assert refused.refusal.code == Refusal.SCHEMA_CHANGED

    run(tmp_path, scenario)


def test_nothing_with_a_larger_timestamp_moves_the_stream_past_them(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        oracle, task = await waiting(pump, b"rows")
        fake = fake_of(oracle)
        open_ts = oracle.get_ts()
        await pump.writer.write([prewrite(open_ts), fake])
        assert pump.storage.max_commit_ts == 0
        oracle.may_answer.set()
        (commit_ts,) = (await task).commit_ts
        assert commit_ts < fake.commit_ts
        # The open Prewrite came after the hold, and keeps the stream no longer than that.
        await until(lambda: pump.writer.groups_written == 2 and not pump.writer.queued_bytes)
        assert pump.storage.max_commit_ts == 0
        await pump.writer.write([rollback(open_ts)])
        await until(lambda: pump.storage.max_commit_ts == fake.commit_ts)
        assert [ts for _, ts in commits(pump.storage)] == [commit_ts]

    run(tmp_path, scenario)


def test_a_watermark_is_shown_only_when_they_are_stored(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        before_ts = pump.oracle.get_ts()
        pump.storage.advance(before_ts)
        oracle, task = await waiting(pump, b"one", b"two", now_ms=2)
        ts = oracle.get_ts()
        await pump.writer.between_groups(lambda: pump.storage.advance(ts))
        assert pump.storage.max_commit_ts == before_ts
        oracle.may_answer.set()
        first, second = (await task).commit_ts
        assert before_ts < first < second < ts
        await until(lambda: pump.storage.max_commit_ts == ts)
        assert [ts for _, ts in commits(pump.storage, before_ts)] == [first, second]

    run(tmp_path, scenario)


def test_a_deposed_pump_shows_nothing_past_a_group_that_the_next_one_may_have(
    tmp_path: Path,
) -> None:
    async def scenario(pump: Pump) -> None:
        def deposed(records: Sequence[Record]) -> Appended:
            raise Deposed("another Pump has the log", code=Code.LOG_DEPOSED)

        pump.storage.append = deposed  # type: ignore[method-assign]
        assert (await write(pump, [decided(b"rows")])).refusal.code == Refusal.RETRYABLE
        pump.storage.advance(pump.oracle.get_ts())
        assert pump.storage.max_commit_ts == 0

    run(tmp_path, scenario)


def test_a_failure_lets_the_stream_go_on(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        oracle, task = await waiting(pump, b"rows")
        fake = fake_of(oracle)
        await pump.writer.write([fake])
        await until(lambda: pump.storage._indexed_group == 1)
        pump.decided._is_closed = True
        oracle.may_answer.set()
        assert (await task).refusal.code == Refusal.RETRYABLE
        assert pump.storage.max_commit_ts == fake.commit_ts

    run(tmp_path, scenario)


def test_rows_of_another_schema_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        pump.fence.version = 2
        assert (await write(pump, [decided(b"rows")])).refusal.code == Refusal.SCHEMA_CHANGED
        assert pump.writer.groups_written == 0
        assert (await write(pump, [decided(b"rows")], version=2)).commit_ts

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "payload",
    [
        decided(b"rows", origin=None),
        encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=3, origin=ORIGIN)),
        decided(b"rows", prewrite_key=b"outbox/x"),
        decided(b"rows", ddl_job_id=4),
        encode_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=0, origin=ORIGIN)),
        b"\xff\xff",
        decided(b"x" * 2000),
    ],
)
def test_what_is_no_decided_transaction_is_refused(tmp_path: Path, payload: bytes) -> None:
    async def scenario(pump: Pump) -> None:
        reply = await write(pump, [decided(b"rows"), payload])
        assert (reply.refusal.code, list(reply.commit_ts)) == (Refusal.INVALID, [])
        assert pump.writer.groups_written == 0

    run(tmp_path, scenario)


def test_a_pump_that_is_not_online_or_of_another_cluster_refuses(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        other = await write(pump, [decided(b"rows")], cluster=CLUSTER + 1)
        assert other.refusal.code == Refusal.CLUSTER_MISMATCH
        pump.state = NodeState.PAUSING
        assert (await write(pump, [decided(b"rows")])).refusal.code == Refusal.NOT_ONLINE
        assert pump.storage._ledger.sorter.holds == []

    run(tmp_path, scenario)


def test_a_caller_that_goes_away_leaves_no_hold(tmp_path: Path) -> None:
    async def scenario(pump: Pump) -> None:
        oracle, task = await waiting(pump, b"rows")
        task.cancel()
        oracle.may_answer.set()
        await until(lambda: len(commits(pump.storage)) == 1)
        assert pump.storage._ledger.sorter.holds == []

    run(tmp_path, scenario)


@pytest.mark.fault(
    "power fails within a group of decided transactions: a Prewrite is left without its Commit",
    "the resolver rolls it back in its first turn; what came before stays",
    cases="1",
)
def test_a_torn_group_ends_with_a_transaction_that_is_rolled_back(tmp_path: Path) -> None:
    class NeverAsked:
        async def resolve(self, question: Question) -> Resolution:
            return Resolution(Outcome.UNKNOWN)

        async def close(self) -> None: ...

    async def written(pump: Pump) -> None:
        await write(pump, [decided(b"one"), decided(b"two")])

    run(tmp_path, written)
    storage = opened(tmp_path)
    segment = max((tmp_path / "log").iterdir())
    (_, last_commit) = commits(storage)
    position = storage._index.commit(last_commit[1])
    assert position is not None
    die(storage)
    data = segment.read_bytes()
    segment.write_bytes(data[: position.position.offset])

    async def repaired(pump: Pump) -> None:
        resolving = Resolving(pump.storage, pump.writer, NeverAsked())
        await until(lambda: bool(pump.storage.unmatched(older_than_s=1)))
        await resolving.ask()
        assert pump.storage.unmatched() == []
        assert len(commits(pump.storage)) == 1

    (tmp_path / "index").rename(tmp_path / "former index")
    run(tmp_path, repaired)
