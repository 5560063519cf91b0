"""WriteBinlog on the fast path answers as the handler of any gRPC server does, without a task."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from penstock.http2.unary import Reply, UnaryCall
from penstock.pb import pump_pb2
from penstock.wire.binlog import Binlog, fake_binlog
from penstock.wire.codec import encode_binlog
from pump.counters import Counters
from pump.service.group_commit import GroupCommit
from pump.service.tidb_service import FastWrites
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import prewrite as stored_prewrite
from tests.kit.wait import until
from tests.unit.pump.test_server import CLUSTER, Aborted, Call, Pump, commit, prewrite

Answer = tuple[str, str]
"""The name of a status and its text."""

OK: Answer = ("OK", "")


class Answers:
    """A connection that keeps the answers to its calls, by stream, in the order they came in."""

    def __init__(self) -> None:
        self.by_stream: dict[int, Answer] = {}

    def answer(self, stream_id: int, reply: Reply) -> None:
        assert stream_id not in self.by_stream, "answered twice"
        assert reply.message == b"", "a WriteBinlogResp without an error"
        self.by_stream[stream_id] = OK

    def fail(
        self, stream_id: int, status: grpc.StatusCode, text: str, metadata: object = ()
    ) -> None:
        assert stream_id not in self.by_stream, "answered twice"
        self.by_stream[stream_id] = (status.name, text)

    def is_open(self, stream_id: int) -> bool:
        return stream_id not in self.by_stream

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4000"

    async def all_of(self, service: FastWrites, *requests: bytes) -> list[Answer]:
        first = len(self.by_stream) + 1
        stream_ids = range(first, first + len(requests))
        for stream_id, data in zip(stream_ids, requests, strict=True):
            service.handle(data, UnaryCall(self, stream_id))
        await until(lambda: all(n in self.by_stream for n in stream_ids))
        return [self.by_stream[n] for n in stream_ids]


def request(binlog: Binlog | bytes, cluster_id: int = CLUSTER) -> bytes:
    payload = binlog if isinstance(binlog, bytes) else encode_binlog(binlog)
    return pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=payload).SerializeToString()


async def test_calls_that_come_in_together_are_one_group_and_answered_when_it_is_durable(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        answers = Answers()
        for n in range(100):
            pump.fast.handle(request(prewrite(10 + n)), UnaryCall(answers, n))
        assert answers.by_stream == {}
        await until(lambda: len(answers.by_stream) == 100)
        assert list(answers.by_stream) == list(range(100))
        assert set(answers.by_stream.values()) == {OK}
        assert (pump.writer.groups_written, pump.writer.records_written) == (1, 100)
        assert pump.storage.prewrite(109) == encode_binlog(prewrite(109))


async def test_what_is_refused_among_others_gets_its_own_status(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        found = await Answers().all_of(
            pump.fast,
            request(prewrite(10)),
            request(commit(77, 78)),  # Its Prewrite is not here: the storage refuses it.
            request(b"\xff"),
            request(prewrite(20)),
            request(prewrite(20, b"other rows")),
            request(commit(10, 30)),
        )
        assert [name for name, _ in found] == [
            "OK",
            "NOT_FOUND",
            "INVALID_ARGUMENT",
            "OK",
            "INVALID_ARGUMENT",
            "OK",
        ]
        assert "two different transactions have the start_ts 20" in found[4][1]
        assert pump.writer.records_written == 3
        await Answers().all_of(pump.fast, request(commit(20, 40)))
        assert [b.commit_ts for b in await pump.pulled(2)] == [30, 40]


@pytest.mark.parametrize(
    "data",
    [
        request(prewrite(10), cluster_id=78),
        request(b"\xff"),
        request(prewrite(10, b"x" * 1000)),
        request(b"\x08\x03\x10\x05"),
        request(prewrite(-4)),
        request(commit(10, 10)),
        request(fake_binlog(99)),
        request(commit(10, 12)),
        b"\xff\xff",
        b"",
    ],
)
async def test_both_handlers_refuse_with_the_same_status_and_text(
    tmp_path: Path, data: bytes
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        with pytest.raises(Aborted) as caught:
            await pump.compatible.write_binlog(data, Call())
        (found,) = await Answers().all_of(pump.fast, data)
        assert found == (caught.value.code.name, caught.value.details)


async def test_a_probe_waits_for_no_disk_and_learns_of_a_full_one(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        answers = Answers()
        assert await answers.all_of(pump.fast, request(b"")) == [OK]
        pump.full = True
        full = await answers.all_of(pump.fast, request(b""))
        assert full == [("UNKNOWN", "no available space [PS-3009]")]
        assert pump.writer.groups_written == 0


async def test_a_failed_append_fails_the_calls_of_its_group_and_no_others(tmp_path: Path) -> None:
    disk = MemoryFiles()

    async with aclosing(Pump(tmp_path, files=disk)) as pump:
        answers = Answers()
        before = await answers.all_of(pump.fast, request(prewrite(5)))
        disk.fail_once("sync")
        failed = await answers.all_of(pump.fast, *(request(prewrite(n)) for n in (10, 11)))
        after = await answers.all_of(pump.fast, request(prewrite(20)))
        assert before == after == [OK]
        assert {name for name, _ in failed} == {"UNAVAILABLE"}
        assert pump.counters.failed_writes == 2
        assert await answers.all_of(pump.fast, request(prewrite(10))) == [OK]


async def test_an_overloaded_pump_answers_unavailable_and_takes_more_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        counters = Counters()
        writer = GroupCommit(pump.storage, queue_bytes_max=1000, counters=counters)
        service = FastWrites(writer, pump.admission, counters)
        answers = Answers()
        service.handle(request(prewrite(20)), UnaryCall(answers, 1))
        filling = writer.submit([stored_prewrite(10, bytes(1200))])
        await until(lambda: 1 in answers.by_stream)
        status, text = answers.by_stream[1]
        assert (status, counters.refused) == ("UNAVAILABLE", {"overloaded": 1})
        assert "the Pump is overloaded: 12" in text
        assert not await filling
        assert await answers.all_of(service, request(prewrite(20))) == [OK]
        await writer.close()


async def test_every_call_is_counted_by_its_outcome(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        await Answers().all_of(
            pump.fast,
            request(prewrite(10)),
            request(prewrite(11)),
            request(b""),
            request(commit(77, 78)),
            b"\xff\xff",
        )
        counted = {key: calls.count for key, calls in pump.counters.calls.items()}
        assert counted == {("WriteBinlog", "succ"): 3, ("WriteBinlog", "fail"): 2}


async def test_no_task_and_no_future_waits_for_a_call(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        answers, tasks = Answers(), len(asyncio.all_tasks())
        for n in range(50):
            pump.fast.handle(request(prewrite(10 + n)), UnaryCall(answers, n))
        assert len(asyncio.all_tasks()) == tasks
        await until(lambda: len(answers.by_stream) == 50)
