"""Large binlogs through the Pump's handlers: what is taken, what is refused and what is left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.cluster.node_registry import NodeState
from penstock.pb import penstock_pb2, pump_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.counters import Counters
from pump.penstock_service import PenstockService
from pump.service import large_transactions
from pump.service.admission import Admission
from pump.service.group_commit import GroupCommit
from pump.service.large_transactions import STREAMS_MAX, LargeWrites
from pump.service.pull_binlogs import Pulls
from pump.service.tidb_service import TidbService
from pump.store.record import Record
from pump.store.space import IncomingTransaction
from pump.store.storage import Storage, StorageConfig
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.oracle import FixedHorizon
from tests.kit.fakes.storage import commit
from tests.kit.wait import never, turn, until
from tests.kit.workloads.large import large_prewrite, messages
from tests.unit.pump.test_server import Aborted, Call

CLUSTER = 77
ROWS = bytes(range(256)) * 4
Refusal = penstock_pb2.Refusal


class Pump:
    """Both services over a storage in memory; chunks of 100 bytes, transactions up to 2000."""

    def __init__(self, folder: Path) -> None:
        self.files = MemoryFiles()
        self.storage = Storage.open(
            folder, StorageConfig(stop_write_at_available_bytes=0), files=self.files
        )
        self.state = NodeState.ONLINE
        self.counters = Counters()
        self.pulls = Pulls(self.storage, batch_bytes_max=1 << 20, message_bytes_max=1500)
        self.writer = GroupCommit(self.storage, on_indexed=self.pulls.wake, counters=self.counters)
        self.admission = Admission(
            cluster_id=CLUSTER,
            state=lambda: self.state,
            check_space=self.storage.check_space,
            payload_bytes_max=1500,
            horizon=FixedHorizon(),
            counters=self.counters,
        )
        self.large = LargeWrites(
            self.storage,
            self.writer,
            self.admission,
            bytes_max=2000,
            data_bytes=100,
            counters=self.counters,
        )
        operations: Any = None
        self.batches = PenstockService(
            self.writer, self.large, operations, self.pulls, self.admission, operations
        )
        self.compatible = TidbService(self.writer, self.pulls, self.admission, Counters())

    async def aclose(self) -> None:
        self.pulls.close()
        await self.writer.close()
        self.storage.close()

    async def write(self, sent: Sequence[bytes]) -> list[tuple[int, str]]:
        async def stream() -> AsyncIterator[bytes]:
            for message in sent:
                yield message

        data = await self.batches.write_large(stream(), Call())
        ack = penstock_pb2.WriteAck.FromString(data)
        return [(refusal.code, refusal.message) for refusal in ack.refusals]

    async def write_whole(self, start_ts: int, rows: bytes = ROWS) -> list[tuple[int, str]]:
        payload = large_prewrite(start_ts, rows)
        return await self.write(messages(payload, start_ts, cluster_id=CLUSTER))

    async def pull(self, *, pieces: bool, after_ts: int = 0) -> list[penstock_pb2.PullBatch]:
        """Return messages until one binlog is complete."""
        request = penstock_pb2.PullRequest(cluster_id=CLUSTER, after_ts=after_ts, pieces=pieces)
        found = []
        stream = self.batches.pull(request.SerializeToString(), Call())
        async for data in stream:
            found.append(penstock_pb2.PullBatch.FromString(data))
            chunk = found[-1].piece
            if not chunk.data or chunk.offset + len(chunk.data) == chunk.bytes:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        return found


@pytest.mark.parametrize("data_bytes", [1, 64, 99, 100, 101, 400, 5000])
async def test_a_binlog_in_chunks_of_any_size_is_pulled_as_it_was(
    tmp_path: Path, data_bytes: int
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        payload = large_prewrite(10, ROWS, b"key")
        sent = messages(payload, 10, cluster_id=CLUSTER, data_bytes=max(data_bytes, 40))
        if data_bytes == 1:
            sent[1:] = [
                penstock_pb2.WritePiece(data=payload[at : at + 1]).SerializeToString()
                for at in range(40, len(payload))
            ]
        assert await pump.write(sent) == []
        assert [u.start_ts for u in pump.storage.unmatched()] == [10]
        assert decode_binlog(pump.storage.unmatched()[0].payload_reader()).prewrite_key == b"key"
        await pump.writer.write([commit(10, 20)])
        found = await pump.pull(pieces=True)
        chunks = [message.piece for message in found]
        whole = b"".join(chunk.data for chunk in chunks)
        assert whole == payload + commit(10, 20).payload
        assert {(p.commit_ts, p.bytes) for p in chunks} == {(20, len(whole))}
        at = 0
        for chunk in chunks:
            assert chunk.offset == at
            at += len(chunk.data)
        assert len(chunks) == -(-len(payload) // 100) + 1
        (message,) = await pump.pull(pieces=False)
        assert list(message.payloads) == [whole]
        assert len(pump.storage.incoming) == 0


async def test_a_large_binlog_that_came_in_one_message_leaves_in_chunks(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        pump.batches.whole_bytes_max, pump.batches.chunk_bytes = 900, 400
        payload = large_prewrite(10, ROWS)
        small = large_prewrite(5, b"small")
        await pump.writer.write([Record(BinlogType.PREWRITE, 5, 0, small), commit(5, 6)])
        await pump.writer.write([Record(BinlogType.PREWRITE, 10, 0, payload), commit(10, 20)])
        found = [message.piece for message in await pump.pull(pieces=True, after_ts=6)]
        whole = payload + commit(10, 20).payload
        assert [(p.commit_ts, p.bytes, p.offset) for p in found] == [
            (20, len(whole), offset) for offset in (0, 400, 800)
        ]
        assert b"".join(p.data for p in found) == whole
        (message,) = await pump.pull(pieces=False)
        assert list(message.commit_ts) == [6, 20]
        (first,) = await pump.pull(pieces=True)
        assert list(first.commit_ts) == [6]


async def test_small_binlogs_before_and_after_a_large_one_come_in_order(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for ts in (10, 30, 50):
            small = encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=ts))
            await pump.writer.write([Record(BinlogType.PREWRITE, ts, 0, small)])
        for ts in (20, 40):
            assert await pump.write_whole(ts) == []
        await pump.writer.write([commit(ts, ts + 100) for ts in (10, 20, 30, 40, 50)])
        batches = pump.pulls.batches("test", 0)
        order = []
        async for pulled in batches:
            order += pulled.commit_ts or [pulled.last_ts]
            if len(order) == 5:
                break
        await batches.aclose()
        assert order == [110, 120, 130, 140, 150]


async def test_too_large_for_a_message_is_an_error_that_names_commit_ts_and_size(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        assert await pump.write_whole(10, bytes(1600)) == []
        await pump.writer.write([commit(10, 20)])
        size = len(large_prewrite(10, bytes(1600)) + commit(10, 20).payload)
        with pytest.raises(Aborted) as caught:
            await pump.pull(pieces=False)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert f"commit_ts 20 has {size} bytes, a message at most 1500" in caught.value.details
        request = pump_pb2.PullBinlogReq(clusterID=CLUSTER)
        with pytest.raises(Aborted):
            await anext(aiter(pump.compatible.pull_binlogs(request.SerializeToString(), Call())))
        assert (await pump.pull(pieces=True))[-1].piece.bytes == size


async def test_what_breaks_the_protocol_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    payload = large_prewrite(10, ROWS)
    size = len(payload)
    good = messages(payload, 10, cluster_id=CLUSTER)

    def of(data: bytes, **fields: Any) -> list[bytes]:
        return messages(data, **{"start_ts": 10, "cluster_id": CLUSTER, **fields})

    committed = payload.replace(b"\x18\x00", b"\x18\x05", 1)
    cases: list[tuple[list[bytes], int, str]] = [
        ([], Refusal.INVALID, "without a single chunk"),
        ([b"\xff"], Refusal.INVALID, "undecodable WritePiece"),
        (good[:-1], Refusal.INVALID, f"ended after {size - size % 64} of {size}"),
        ([*good, good[-1]], Refusal.INVALID, f"more bytes came than the announced {size}"),
        ([*good, b""], Refusal.INVALID, "a chunk of 0 bytes"),
        (of(payload, cluster_id=78), Refusal.CLUSTER_MISMATCH, "cluster ID are mismatch, 78"),
        (of(payload, start_ts=11), Refusal.INVALID, "announced with start_ts 11"),
        (of(payload, size_bytes=size + 1), Refusal.INVALID, "prewrite_value must be its last"),
        (of(payload + b"\x38\x01"), Refusal.INVALID, "prewrite_value must be its last"),
        (of(committed), Refusal.INVALID, "only a Prewrite"),
        (of(large_prewrite(10, bytes(2000))), Refusal.INVALID, "limit of 2000 (raise transaction"),
        (of(large_prewrite(10, ROWS), data_bytes=3), Refusal.INVALID, "do not begin within"),
        (
            [penstock_pb2.WritePiece(data=bytes((4 << 20) + 1)).SerializeToString()],
            Refusal.INVALID,
            "it must have 1 to 4194304",
        ),
    ]

    async with aclosing(Pump(tmp_path)) as pump:
        for sent, code, text in cases:
            ((refusal, message),) = await pump.write(sent)
            assert (refusal, text in message) == (code, True), message
            assert pump.storage.unmatched() == []
            assert len(pump.storage.incoming) == 0
        assert await pump.write(good) == []


async def test_a_repeated_large_prewrite_is_acknowledged_and_another_one_refused(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        assert await pump.write_whole(10) == []
        assert await pump.write_whole(10) == []
        ((code, message),) = await pump.write_whole(10, ROWS[::-1])
        assert (code, "two different transactions" in message) == (Refusal.INVALID, True)
        payload = large_prewrite(10, ROWS)
        await pump.writer.write([Record(BinlogType.PREWRITE, 10, 0, payload)])
        await pump.writer.write([commit(10, 20)])
        assert await pump.write_whole(10) == []
        assert pump.storage.unmatched() == []
        assert len(await pump.pull(pieces=True)) == 12


async def test_a_pump_that_is_not_online_refuses_also_in_the_middle(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        pump.state = NodeState.PAUSING
        ((code, _),) = await pump.write_whole(10)
        assert code == Refusal.NOT_ONLINE
        pump.state = NodeState.ONLINE

        async def stream() -> AsyncIterator[bytes]:
            for message in messages(large_prewrite(10, ROWS), 10, cluster_id=CLUSTER):
                yield message
            pump.state = NodeState.CLOSING

        ack = penstock_pb2.WriteAck.FromString(await pump.batches.write_large(stream(), Call()))
        assert ack.refusals[0].code == Refusal.NOT_ONLINE
        assert pump.storage.unmatched() == []


async def test_further_streams_are_refused_and_may_try_again(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for number in range(STREAMS_MAX):
            pump.storage.incoming.add(IncomingTransaction(number, 10))
        ((code, message),) = await pump.write_whole(10)
        assert (code, "4 large transactions" in message) == (Refusal.RETRYABLE, True)


async def test_what_is_announced_must_fit_on_the_volume_beside_what_others_announced(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        free, _ = pump.files.space(tmp_path)
        pump.storage.incoming.add(IncomingTransaction(9, free - 1000))
        ((code, message),) = await pump.write_whole(10)
        assert (code, "announced are " in message) == (Refusal.RESOURCE_EXHAUSTED, True)


async def test_a_disk_that_fails_in_the_middle_is_named_and_the_next_try_works(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        sent = messages(large_prewrite(10, ROWS), 10, cluster_id=CLUSTER)

        async def stream() -> AsyncIterator[bytes]:
            for number, message in enumerate(sent):
                if number == 9:
                    pump.files.fail_once("sync")
                yield message
                await turn()

        ack = penstock_pb2.WriteAck.FromString(await pump.batches.write_large(stream(), Call()))
        assert ack.refusals[0].code == Refusal.RETRYABLE
        assert await pump.write_whole(10) == []


async def test_a_stream_that_falls_silent_is_abandoned(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        pump.large.silence_s_max = 0.05

        async def stream() -> AsyncIterator[bytes]:
            yield messages(large_prewrite(10, ROWS), 10, cluster_id=CLUSTER)[0]
            await never()

        ack = penstock_pb2.WriteAck.FromString(await pump.batches.write_large(stream(), Call()))
        assert "no chunk came" in ack.refusals[0].message
        assert len(pump.storage.incoming) == 0


@pytest.mark.fault(
    "a large transaction in chunks that trickle",
    "refused once they wait for a minute beyond 64 KiB/s, the slot is free",
    cases="1",
)
async def test_a_stream_that_trickles_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_transactions, "_BYTES_PER_S_MIN", 1 << 40)
    async with aclosing(Pump(tmp_path)) as pump:
        pump.large.silence_s_max = 0.3
        payload = large_prewrite(10, ROWS)
        loop, sent = asyncio.get_running_loop(), list[int]()

        async def stream() -> AsyncIterator[bytes]:
            whole = penstock_pb2.WritePiece.FromString(messages(payload, 10, cluster_id=CLUSTER)[0])
            yield whole.SerializeToString()
            for byte in payload[len(whole.data) :]:
                next_s = loop.time() + 0.05  # Each comes in time.
                await until(lambda: loop.time() > next_s)  # noqa: B023
                sent.append(byte)
                yield penstock_pb2.WritePiece(data=bytes([byte])).SerializeToString()

        ack = penstock_pb2.WriteAck.FromString(await pump.batches.write_large(stream(), Call()))
        assert "chunks came at less than" in ack.refusals[0].message
        assert len(pump.storage.incoming) == 0
        assert 0 < len(sent) < 7


async def test_a_transaction_that_was_rolled_back_meanwhile_stays_so(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        payload = encode_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=10))
        await pump.writer.write([Record(BinlogType.ROLLBACK, 10, 0, payload)])
        assert await pump.write_whole(10) == []
        assert pump.storage.unmatched() == []
