"""The handlers of both services over a real storage, without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import Files
from penstock.outbox import new_key
from penstock.pb import penstock_pb2, pump_pb2
from penstock.wire.binlog import Binlog, BinlogType, fake_binlog
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.counters import Counters
from pump.penstock_service import PenstockService
from pump.service.admission import Admission, Refused
from pump.service.decided_writes import DecidedWrites
from pump.service.group_commit import GroupCommit
from pump.service.grpc_server import status_of
from pump.service.large_transactions import LargeWrites
from pump.service.pull_binlogs import Pulls
from pump.service.tidb_service import FastWrites, TidbService
from pump.store.record import OutOfSpace
from pump.store.storage import Storage
from tests.kit.fakes.oracle import FixedHorizon, MemoryOracle

CLUSTER = 77


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


class Call:
    """The server's end of one call."""

    takes_message_blocks = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def peer(self) -> str:
        return "test"

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def abort(self, code: grpc.StatusCode, details: str, metadata: object = ()) -> None:
        raise Aborted(code, details)


class FixedFence:
    """A fence at one schema version."""

    version = 1
    pins = 0

    @contextmanager
    def pin(self, wait_s_max: float) -> Iterator[int]:
        self.pins += 1
        try:
            yield self.version
        finally:
            self.pins -= 1

    def close(self) -> None:
        assert self.pins == 0, "a pin is left"


class Pump:
    """Both services over one storage."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.storage = Storage.open(folder, files=files)
        self.counters = Counters()
        self.state = NodeState.ONLINE
        self.full = False
        self.horizon = FixedHorizon()
        self.pulls = Pulls(self.storage, batch_bytes_max=1 << 20)
        self.writer = GroupCommit(self.storage, on_indexed=self.pulls.wake, counters=self.counters)
        self.admission = Admission(
            cluster_id=CLUSTER,
            state=lambda: self.state,
            check_space=self._check_space,
            payload_bytes_max=1000,
            horizon=self.horizon,
        )
        self.compatible = TidbService(self.writer, self.pulls, self.admission, self.counters)
        self.fast = FastWrites(self.writer, self.admission, self.counters)
        operations: Any = None
        self.oracle = MemoryOracle(1)
        self.fence: Any = FixedFence()
        self.take_now: Callable[[int], range | None] = lambda count: None
        self.decided = DecidedWrites(
            *(self.storage, self.writer, self.admission),
            oracle=self.oracle,
            take_now=lambda count: self.take_now(count),
            open_fence=lambda: self.fence,
            on_released=self.pulls.wake,
        )
        large = LargeWrites(self.storage, self.writer, self.admission, bytes_max=1000)
        self.batches = PenstockService(
            *(self.writer, large, self.decided, self.pulls, self.admission, operations)
        )

    def _check_space(self) -> None:
        if self.full:
            raise OutOfSpace("no available space", code=Code.DISK_FULL)

    async def aclose(self) -> None:
        self.pulls.close()
        await self.decided.close()
        await self.writer.close()
        self.storage.close()

    async def write(self, binlog: Binlog | bytes, cluster_id: int = CLUSTER) -> bytes:
        payload = binlog if isinstance(binlog, bytes) else encode_binlog(binlog)
        request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=payload)
        return await self.compatible.write_binlog(request.SerializeToString(), Call())

    async def refusal(self, binlog: Binlog | bytes, cluster_id: int = CLUSTER) -> Aborted:
        with pytest.raises(Aborted) as caught:
            await self.write(binlog, cluster_id)
        return caught.value

    async def write_batches(
        self, batches: Sequence[Sequence[Binlog | bytes]], cluster_id: int = CLUSTER
    ) -> list[penstock_pb2.WriteAck]:
        async def requests() -> AsyncIterator[bytes]:
            for seq, batch in enumerate(batches):
                payloads = [b if isinstance(b, bytes) else encode_binlog(b) for b in batch]
                yield penstock_pb2.WriteBatch(
                    cluster_id=cluster_id, seq=seq, payloads=payloads
                ).SerializeToString()

        call = Call()
        await self.batches.write(requests(), call)
        return [penstock_pb2.WriteAck.FromString(data) for data in call.sent]

    async def pulled(self, count: int, after_ts: int = 0) -> list[Binlog]:
        request = penstock_pb2.PullRequest(cluster_id=CLUSTER, after_ts=after_ts)
        found: list[Binlog] = []
        stream = self.batches.pull(request.SerializeToString(), Call())
        async for data in stream:
            found += map(decode_binlog, penstock_pb2.PullBatch.FromString(data).payloads)
            if len(found) >= count:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        return found


def prewrite(start_ts: int, value: bytes = b"rows") -> Binlog:
    return Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)


def commit(start_ts: int, commit_ts: int) -> Binlog:
    return Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts)


async def test_a_written_transaction_is_pulled_merged(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        assert await pump.write(prewrite(10)) == b""
        await pump.write(commit(10, 12))
        (merged,) = await pump.pulled(1)
        assert (merged.tp, merged.start_ts, merged.commit_ts) == (BinlogType.COMMIT, 10, 12)
        assert merged.prewrite_value == b"rows"


async def test_a_waiting_puller_is_woken_by_the_write(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        pulling = asyncio.create_task(pump.pulled(1))
        await pump.pulls.puller_waits.wait()
        assert [p.after_ts for p in pump.pulls.open.values()] == [0]
        await pump.write(prewrite(10))
        await pump.write(commit(10, 12))
        assert [b.commit_ts for b in await pulling] == [12]
        assert not pump.pulls.open


async def test_a_closing_pump_ends_its_pulls_without_an_error(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        pulling = asyncio.create_task(pump.pulled(1))
        await pump.pulls.puller_waits.wait()
        pump.pulls.close()
        assert await pulling == []


async def test_the_compatible_pull_sends_one_binlog_per_message(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for i in range(1, 4):
            await pump.write(prewrite(10 * i))
            await pump.write(commit(10 * i, 10 * i + 5))
        position = pump_pb2.Pos(offset=15)
        request = pump_pb2.PullBinlogReq(clusterID=CLUSTER, startFrom=position)
        stream: Any = pump.compatible.pull_binlogs(request.SerializeToString(), Call())
        entities = [pump_pb2.PullBinlogResp.FromString(await anext(stream)).entity for _ in "12"]
        await stream.aclose()
        assert [(e.meta.startTs, e.meta.commitTs) for e in entities] == [(20, 25), (30, 35)]


async def test_a_server_that_takes_blocks_gets_the_same_messages_a_batch_at_a_time(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for i in range(1, 4):
            await pump.write(prewrite(10 * i))
            await pump.write(commit(10 * i, 10 * i + 5))
        assert len(await pump.pulled(3)) == 3  # Then the index has come so far.
        request = pump_pb2.PullBinlogReq(clusterID=CLUSTER).SerializeToString()
        call = Call()
        call.takes_message_blocks = True
        stream: Any = pump.compatible.pull_binlogs(request, call)
        single: Any = pump.compatible.pull_binlogs(request, Call())
        block = await anext(stream)
        assert list(block.messages()) == [await anext(single) for _ in range(3)]
        await stream.aclose()
        await single.aclose()


async def test_prewrites_need_online_and_commits_do_not(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        await pump.write(prewrite(10))
        for state in (NodeState.PAUSING, NodeState.CLOSING, NodeState.PAUSED):
            pump.state = state
            refusal = await pump.refusal(prewrite(20))
            assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
            assert refusal.details == f"no online: {state} [PS-3103]"
            (ack,) = await pump.write_batches([[prewrite(20)]])
            assert [r.code for r in ack.refusals] == [penstock_pb2.Refusal.NOT_ONLINE]
        await pump.write(commit(10, 12))


@pytest.mark.parametrize(
    ("binlog", "cluster_id", "code", "expected"),
    [
        (prewrite(10), 78, "PERMISSION_DENIED", "cluster ID are mismatch, 78 vs 77"),
        (b"\xff", CLUSTER, "INVALID_ARGUMENT", "undecodable binlog of 1 bytes"),
        (prewrite(10, b"x" * 1000), CLUSTER, "RESOURCE_EXHAUSTED", "larger than this Pump's limit"),
        (b"\x08\x03\x10\x05", CLUSTER, "INVALID_ARGUMENT", "obsolete type 3"),
        (prewrite(-4), CLUSTER, "INVALID_ARGUMENT", "start_ts -4"),
        (commit(10, 10), CLUSTER, "INVALID_ARGUMENT", "commit_ts 10 is not after start_ts 10"),
        (fake_binlog(99), CLUSTER, "INVALID_ARGUMENT", "a fake binlog from outside"),
        (commit(10, 12), CLUSTER, "NOT_FOUND", "Prewrite of transaction 10"),
    ],
)
async def test_what_is_refused_is_refused_with_a_reason(
    tmp_path: Path, binlog: Binlog | bytes, cluster_id: int, code: str, expected: str
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        refusal = await pump.refusal(binlog, cluster_id)
        assert refusal.code.name == code
        assert expected in refusal.details
        (ack,) = await pump.write_batches([[binlog]], cluster_id)
        assert expected in ack.refusals[0].message


async def test_what_the_oracle_cannot_have_handed_out_is_refused_for_now(tmp_path: Path) -> None:
    rollback = Binlog(tp=BinlogType.ROLLBACK, start_ts=1001)

    async with aclosing(Pump(tmp_path)) as pump:
        pump.horizon.horizon_ts = 1000
        await pump.write(prewrite(10))
        for ahead in (prewrite(1001), commit(10, 1001), rollback):
            refusal = await pump.refusal(ahead)
            assert refusal.code is grpc.StatusCode.UNAVAILABLE
            assert "timestamp 1001 is ahead of the oracle" in refusal.details
            (ack,) = await pump.write_batches([[ahead]])
            assert [r.code for r in ack.refusals] == [penstock_pb2.Refusal.RETRYABLE]
        assert [each.start_ts for each in pump.storage.unmatched()] == [10]
        pump.horizon.horizon_ts = 2000
        await pump.write(commit(10, 1001))


async def test_a_batch_stores_what_is_good_in_it(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        acks = await pump.write_batches(
            [[prewrite(10), b"\xff", prewrite(20)], [commit(10, 30), commit(99, 100)], []]
        )
        assert [ack.seq for ack in acks] == [0, 1, 2]
        assert [[r.index for r in ack.refusals] for ack in acks] == [[1], [1], []]
        await pump.write(commit(20, 40))
        assert [b.commit_ts for b in await pump.pulled(2)] == [30, 40]


async def test_an_undecodable_request_ends_the_call_clearly(tmp_path: Path) -> None:
    async def garbage() -> AsyncIterator[bytes]:
        yield b"\xff\xff"

    async with aclosing(Pump(tmp_path)) as pump:
        with pytest.raises(Aborted, match="undecodable WriteBinlogReq of 2 bytes"):
            await pump.compatible.write_binlog(b"\xff\xff", Call())
        with pytest.raises(Aborted, match="undecodable WriteBatch of 2 bytes"):
            await pump.batches.write(garbage(), Call())


async def test_a_probe_is_not_stored_and_learns_of_a_full_disk(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        await pump.write(b"")
        assert pump.writer.records_written == 0
        pump.full = True
        refusal = await pump.refusal(b"")
        assert refusal.code is grpc.StatusCode.UNKNOWN
        assert refusal.details == "no available space [PS-3009]"
        (ack,) = await pump.write_batches([[b""]])
        assert ack.refusals[0].code == penstock_pb2.Refusal.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Corrupt("f", 3, "bad", code=Code.SEGMENT_DAMAGED), grpc.StatusCode.DATA_LOSS),
        (
            NeedsOperator("x", hint="y", code=Code.DDL_UNSUPPORTED),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (OSError(5, "Input/output error"), grpc.StatusCode.UNKNOWN),
    ],
)
def test_every_failure_has_a_status(error: Exception, code: grpc.StatusCode) -> None:
    assert status_of(error) is code


@pytest.mark.parametrize(
    ("state", "is_full", "problem"),
    [
        (NodeState.ONLINE, False, ""),
        (NodeState.PAUSING, False, f"no online: pausing [{Code.PUMP_NOT_ONLINE}]"),
        (NodeState.ONLINE, True, f"no available space [{Code.DISK_FULL}]"),
    ],
)
def test_a_pump_is_ready_while_it_would_accept_a_transaction(
    state: NodeState, is_full: bool, problem: str
) -> None:
    def check_space() -> None:
        if is_full:
            raise OutOfSpace("no available space", code=Code.DISK_FULL)

    admission = Admission(
        cluster_id=1,
        state=lambda: state,
        check_space=check_space,
        payload_bytes_max=150,
        horizon=FixedHorizon(),
    )
    assert admission.problem() == problem


@given(st.binary(max_size=200))
def test_no_bytes_make_admission_fail_otherwise_than_by_refusing(payload: bytes) -> None:
    counters = Counters()
    admission = Admission(
        cluster_id=1,
        state=lambda: NodeState.ONLINE,
        check_space=lambda: None,
        payload_bytes_max=150,
        horizon=FixedHorizon(),
        counters=counters,
    )
    try:
        record = admission.admit(payload)
    except Refused:
        assert counters.refused == {"invalid": 1}
    else:
        assert record is None or record.payload is payload


@pytest.mark.parametrize("padding", [b"", bytes(70_000)], ids=["small", "above 64 KiB"])
@pytest.mark.parametrize(
    ("outboxes", "is_taken"), [((), False), (("blog",), False), (("shop",), True), (("",), True)]
)
def test_a_prewrite_of_an_outbox_is_taken_only_by_a_pump_that_can_ask_its_database(
    outboxes: tuple[str, ...], is_taken: bool, padding: bytes
) -> None:
    admission = Admission(
        cluster_id=1,
        state=lambda: NodeState.ONLINE,
        check_space=lambda: None,
        payload_bytes_max=1 << 20,
        horizon=FixedHorizon(),
        outboxes=outboxes,
    )
    key = new_key("shop")
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_key=key, prewrite_value=padding)
    payload = encode_binlog(prewrite)
    if is_taken:
        record = admission.admit(payload)
        assert record is not None
        assert record.payload == payload
    else:
        with pytest.raises(Refused, match="does not know the database of the outbox 'shop'"):
            admission.admit(payload)
    decided = encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=7, commit_ts=9, prewrite_key=key))
    assert admission.admit(decided) is not None, "an outcome is always taken"
