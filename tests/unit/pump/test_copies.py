"""Copies of other Pumps' logs on a real disk, asked as a primary asks."""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable, code_of_call
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits
from penstock.log.files import DRAFT, lock_folder
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Segments
from penstock.pb import penstock_pb2 as pb
from pump.cluster.identity import kept_disk_id, kept_node_id, refuse_other_cluster
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import (
    FOLLOW_METHOD,
    PREPEND_METHOD,
    Answer,
    Append,
    Ask,
    Confirmed,
    Damaged,
    Have,
    Name,
    Prepend,
    Refusal,
    ReplicaState,
    SignOfLife,
    Stretch,
    decode_answer,
    encode_request,
    link_message,
)
from pump.replication.replicas import REPLICA_SERVICE, Replicas, ReplicaService
from pump.service.grpc_server import add_service
from pump.store.record import OutOfSpace
from pump.store.space import Reserve
from tests.kit.fakes.files import MemoryFiles
from tests.kit.replicas.shipping import Upstream

CLUSTER, DISK = 77, "0123456789abcdef0123456789abcdef"
NAME = Name(CLUSTER, "pump-1", DISK)
ODD_IDS = ("host:8250", "a/b", "..", ".", "+dropped", "%2F", "pump 1", "\N{GREEK SMALL LETTER PI}")


def opened(folder: Path, clock: Callable[[], float] = lambda: 5.0, **options: Any) -> Replicas:
    return Replicas(folder, node_id="pump-9", cluster_id=CLUSTER, disk=DISK, clock=clock, **options)


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Replicas]:
    copies = opened(folder, **options)
    await copies.start()
    try:
        yield copies
    finally:
        await copies.close()


def upstream(groups: int = 3) -> Upstream:
    up = Upstream(random.Random(1))
    up.write(groups)
    return up


async def shipped(copies: Replicas, up: Upstream, name: Name = NAME, *, first: int = 0) -> None:
    standing = await copies.follow(name, Ask(up.epoch), b"")
    assert isinstance(standing, ReplicaState)
    chain = up.chain()
    for link in chain.links[first:]:
        instead_of = standing.links if link.number == first else None
        previous = chain.find(link.number - 1)
        fields = (up.epoch, link.number, link.epoch)
        for begin, end in ((0, BEGIN), (BEGIN, link.end)):
            if begin == end:
                continue
            request = Append(*fields, begin, end, previous, instead_of, 0)
            have = await copies.follow(name, request, up.data(link.number, begin, end))
            assert have == Have(up.epoch, Place(link.number, end), first)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 100):
        yield data[begin : begin + 100]


async def test_a_copy_is_found_again_after_a_restart(tmp_path: Path) -> None:
    up = upstream()

    async with running(tmp_path) as copies:
        assert copies.names() == []
        await shipped(copies, up)
    async with running(tmp_path) as copies:
        links = up.chain().links
        assert copies.names() == ["pump-1"]
        size = sum(link.end for link in links)
        (kept,) = copies.facts()
        assert (kept.bytes, kept.first_segment, kept.epoch) == (size, 0, 1)
        assert kept.summary == f"{size} bytes from segment 0 on, epoch 1"
        assert await copies.follow(NAME, Ask(1), b"") == ReplicaState(1, tuple(links))


async def test_any_node_id_has_a_folder_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as copies:
        for node_id in ODD_IDS:
            await shipped(copies, upstream(1), NAME._replace(node_id=node_id))
    assert os.listdir(tmp_path) == ["copies"]
    assert len(list((tmp_path / "copies").iterdir())) == len(ODD_IDS)
    async with running(tmp_path) as copies:
        assert copies.names() == sorted(ODD_IDS)
        for node_id in ODD_IDS:
            assert copies.links(node_id)[-1].epoch == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (NAME._replace(cluster_id=78), Code.CLUSTER_MISMATCH),
        (NAME._replace(disk="f" * 32), Code.COPY_OTHER_DISK),
        (NAME._replace(node_id="pump-9"), Code.COPY_OTHER_DISK),
        (NAME._replace(node_id=""), Code.COPY_MALFORMED),
    ],
)
async def test_what_is_for_another_cluster_or_disk_is_refused(
    tmp_path: Path, name: Name, code: Code
) -> None:
    async with running(tmp_path) as copies:
        prepend = copies.prepend(name, Prepend(1, Link(0, 1, 40)), pieces(b"x" * 40))
        asked = (copies.follow(name, request, b"") for request in (Ask(1), SignOfLife(1)))
        for call in (*asked, prepend):
            with pytest.raises(NeedsOperator) as refused:
                await call
            assert refused.value.code is code
    assert not (tmp_path / "copies").exists()


async def test_no_copy_is_begun_of_a_log_that_etcd_does_not_list(tmp_path: Path) -> None:
    listed: set[str] = set()

    async with running(
        tmp_path, epoch_listed=lambda node_id: 7 if node_id in listed else None
    ) as copies:
        with pytest.raises(Retryable, match="etcd lists no copies of a log of pump-1"):
            await copies.follow(NAME, Ask(1), b"")
        assert (copies.names(), (tmp_path / "copies").exists()) == ([], False)
        listed.add("pump-1")
        assert await copies.follow(NAME, Ask(1), b"") == ReplicaState(1, ())


async def test_no_epoch_is_promised_that_etcd_cannot_list_by_now(tmp_path: Path) -> None:
    async with running(tmp_path, epoch_listed=lambda node_id: 7) as copies:
        assert await copies.follow(NAME, Ask(8), b"") == ReplicaState(8, ())
        for request in (Ask(1 << 40), Ask(9), SignOfLife(9)):
            with pytest.raises(Retryable, match=r"a primary of epoch \d+ asks .* lists epoch 7"):
                await copies.follow(NAME, request, b"")
        assert await copies.follow(NAME, Ask(8), b"") == ReplicaState(8, ())


async def test_a_pump_can_take_over_on_the_folder_of_a_copy_and_leaves_it_again(
    tmp_path: Path,
) -> None:
    up, folder = upstream(), tmp_path / "copies" / "pump-1"

    async with running(tmp_path) as copies:
        await shipped(copies, up)
        with pytest.raises(NeedsOperator, match="another Pump runs in"):
            lock_folder(folder, "Pump")
        await copies.close_one("pump-1")
        for request in (Ask(1), SignOfLife(1)):
            with pytest.raises(Retryable) as refused:
                await copies.follow(NAME, request, b"")
            assert refused.value.code is Code.COPY_NOT_FOLLOWED
        lock = lock_folder(folder, "Pump")
        assert kept_node_id(folder, "", "x:1") == "pump-1"
        refuse_other_cluster(folder, CLUSTER)
        assert kept_disk_id(folder) == DISK
        run_there(folder, up)
        with pytest.raises(Retryable, match="in use"):
            await copies.open_one("pump-1")
        os.close(lock)
        await copies.open_one("pump-1")
        assert (folder / "index").exists()  # For the same Pump, if it comes back.
        standing = await copies.follow(NAME, Ask(2), b"")
        assert isinstance(standing, ReplicaState)
        assert standing.links[-1].epoch == 2
        assert not (folder / "index").exists()


def run_there(folder: Path, up: Upstream) -> None:
    """Open the log as a Pump does that takes over, and begin its epoch."""
    segments = Segments.open(folder / "log")
    assert [*segments.scan()] == [*up.segments.scan()]
    segments.begin_next(2)
    segments.close()
    (folder / "index").mkdir()
    (folder / "index" / "CURRENT").write_text("of then")


async def test_a_copy_of_the_own_log_is_taken_only_while_this_pump_is_displaced(
    tmp_path: Path,
) -> None:
    own = NAME._replace(node_id="pump-9")

    async with running(tmp_path) as copies:
        for takes in (None, False):
            copies.takes_own = takes
            with pytest.raises(NeedsOperator, match="asked of that Pump"):
                await copies.follow(own, Ask(1), b"")
        copies.takes_own = True
        await shipped(copies, upstream(), own)
        assert copies.names() == ["pump-9"]
    assert (tmp_path / "copies" / "pump-9" / "log").is_dir()


async def test_a_primary_counts_as_heard_of_only_in_its_own_epoch(tmp_path: Path) -> None:
    now = [5.0]

    async with running(tmp_path, clock=lambda: now[0]) as copies:
        assert await copies.follow(NAME, SignOfLife(1), b"") is None
        assert copies.names() == []
        up = upstream()
        await shipped(copies, up)
        assert copies.last_heard_s("pump-1") == 5.0
        now[0] = 7.0
        assert await copies.follow(NAME, SignOfLife(1), b"") is None
        assert copies.last_heard_s("pump-1") == 7.0
        assert isinstance(await copies.follow(NAME, Ask(4), b""), ReplicaState)
        now[0] = 9.0
        for request in (SignOfLife(3), Ask(3)):
            assert await copies.follow(NAME, request, b"") == Refusal(4)
        assert copies.last_heard_s("pump-1") == 7.0


async def test_a_copy_confirms_an_epoch_by_its_log_also_before_it_has_opened_it(
    tmp_path: Path,
) -> None:
    ask = Ask(1, confirms=3)

    async with running(tmp_path) as copies:
        await shipped(copies, upstream())
        assert await copies.follow(NAME, ask, b"") == Confirmed(1, 3)
        await copies.close_one("pump-1")
        with pytest.raises(Retryable):
            await copies.follow(NAME, ask, b"")
    async with running(tmp_path) as copies:
        assert await copies.follow(NAME, Ask(0, confirms=3), b"") == Refusal(1)


async def test_a_dropped_copy_is_gone_and_may_come_again(tmp_path: Path) -> None:
    async with running(tmp_path) as copies:
        await shipped(copies, upstream())
        await copies.drop("pump-1")
        assert copies.names() == []
        assert list((tmp_path / "copies").iterdir()) == []
        await shipped(copies, upstream())


async def test_what_a_crash_left_of_a_dropped_copy_goes_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "copies" / "pump-1+dropped"
    (left / "log").mkdir(parents=True)

    async with running(tmp_path) as copies:
        assert copies.names() == []
    assert not left.exists()


async def test_a_damaged_copy_says_so_and_leaves_the_others_alone(tmp_path: Path) -> None:
    other = NAME._replace(node_id="pump-2")

    async with running(tmp_path) as copies:
        for name in (NAME, other):
            await shipped(copies, upstream(), name)
    path = tmp_path / "copies" / "pump-1" / "log" / segment_name(1)
    data = bytearray(path.read_bytes())
    data[BEGIN + 5] ^= 1
    path.write_bytes(data)
    async with running(tmp_path) as copies:
        assert "000001.seg, offset 32" in copies.facts()[0].summary
        with pytest.raises(Corrupt):
            await copies.follow(NAME, Ask(1), b"")
        with pytest.raises(Corrupt):
            await copies.close_one("pump-1")
        assert copies.facts()[1].summary.endswith("epoch 1")
        await copies.drop("pump-1")
        await shipped(copies, upstream())


async def test_a_copy_that_no_disk_can_mend_begins_again_and_its_files_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = upstream()
    path = tmp_path / "copies" / "pump-1" / "log" / segment_name(1)

    async with running(tmp_path) as copies:
        await shipped(copies, up)
    data = bytearray(path.read_bytes())
    data[BEGIN + 5] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr("pump.replication.replicas._REPAIR_AGAIN_S", 0.0)
    async with running(tmp_path) as copies:
        damaged = await copies.follow(NAME, Ask(1), b"")  # After the start, the second attempt.
        assert isinstance(damaged, Damaged)
        assert "000001.seg, offset 32" in copies.facts()[0].summary
        begin, head = Append(1, 0, 0, 0, BEGIN, None, None, 0), up.data(0, 0, BEGIN)
        with pytest.raises(Corrupt):
            await copies.follow(NAME, begin, head)
        again = begin._replace(damage=damaged.damage)
        assert await copies.follow(NAME, again, head) == Have(1, Place(0, BEGIN), 0)
        assert not path.exists()
        assert await copies.read(NAME, Stretch(1, 0, len(data))) == bytes(data)
        assert "set aside in" in str(copies.facts()[0].damaged)
        await shipped(copies, up)
        assert Chain(copies.links("pump-1")).end == up.segments.end


async def test_a_copy_that_was_brought_from_another_disk_is_not_followed(tmp_path: Path) -> None:
    async with running(tmp_path) as copies:
        await shipped(copies, upstream())
    (tmp_path / "copies" / "pump-1" / ".disk").write_text("f" * 32 + "\n")
    async with running(tmp_path) as copies:
        with pytest.raises(NeedsOperator, match="a copy on another disk"):
            await copies.follow(NAME, Ask(1), b"")


async def test_a_copy_leaves_half_of_the_reserve_and_a_new_one_all_of_it(tmp_path: Path) -> None:
    up, files = upstream(), MemoryFiles()

    async with running(tmp_path, reserve=Reserve(files, tmp_path, 1000)) as copies:
        files.free_bytes = 900
        with pytest.raises(OutOfSpace, match="available: 900"):
            await shipped(copies, up)
        files.free_bytes = 10_000
        await shipped(copies, up)
        end = up.chain().end
        up.write(1)
        more = up.data(end.segment, end.offset, up.chain().end.offset)
        request = Append(
            *(up.epoch, end.segment, up.epoch, end.offset, up.chain().end.offset, None, None, 0)
        )
        files.free_bytes = 500 + len(more)
        with pytest.raises(OutOfSpace):
            await copies.follow(NAME, request, more)
        files.free_bytes = 501 + len(more)
        assert isinstance(await copies.follow(NAME, request, more), Have)


async def test_an_older_segment_that_comes_while_the_pump_stops_is_refused_for_now(
    tmp_path: Path,
) -> None:
    up = upstream()
    up.segments.begin_next()
    up.write(1)
    link = up.chain().links[0]
    data = up.data(0, 0, link.end)

    async with running(tmp_path) as copies:
        await shipped(copies, up, first=1)

        async def until_it_stops() -> AsyncIterator[bytes]:
            yield data[:50]
            await copies.close()
            yield data[50:]

        with pytest.raises(Retryable, match="this Pump stops"):
            await copies.prepend(NAME, Prepend(1, link), until_it_stops())
    names = [path.name for path in (tmp_path / "copies/pump-1/log").iterdir()]
    assert not [name for name in names if name.endswith(DRAFT)]


async def test_an_older_segment_comes_while_live_groups_continue(tmp_path: Path) -> None:
    up = upstream()
    up.segments.begin_next()
    up.write(1)
    link = up.chain().links[1]
    data = up.data(1, 0, link.end)

    async with running(tmp_path) as copies:
        await shipped(copies, up, first=2)
        begin = up.segments.end
        up.write(1)
        end = up.segments.end
        assert begin.segment == end.segment

        async def with_a_live_group() -> AsyncIterator[bytes]:
            yield data[:100]
            request = Append(1, 2, 1, begin.offset, end.offset, None, None, 0)
            sent = up.data(2, begin.offset, end.offset)
            assert await copies.follow(NAME, request, sent) == Have(1, end, 2)
            yield data[100:]

        have = await copies.prepend(NAME, Prepend(1, link), with_a_live_group())
        assert have == Have(1, Place(2, 0), 1)
        damaged = up.data(0, 0, BEGIN - 1) + b"x"
        with pytest.raises(NeedsOperator):
            await copies.prepend(NAME, Prepend(1, up.chain().links[0]), pieces(damaged))
        assert await copies.follow(NAME, Ask(1), b"") == ReplicaState(
            1, tuple(up.chain().links[1:])
        )
        again = await copies.prepend(NAME, Prepend(1, link), pieces(data))
        assert again == ReplicaState(1, tuple(up.chain().links[1:]))
    assert sorted(path.name for path in (tmp_path / "copies/pump-1/log").iterdir()) == [
        segment_name(number) for number in (1, 2)
    ]


class Aborted(Exception):
    def __init__(self, status: grpc.StatusCode, metadata: object) -> None:
        super().__init__(status, metadata)
        self.status = status
        self.metadata = metadata


class Call:
    async def abort(self, status: grpc.StatusCode, text: str, metadata: object) -> None:
        raise Aborted(status, metadata)


async def sent(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def prepended(up: Upstream, link: Link, name: Name = NAME) -> list[bytes]:
    data = up.data(link.number, 0, link.end)
    first = pb.PrependPiece(
        log=name.message(), epoch=up.epoch, link=link_message(link), data=data[:50]
    )
    return [piece.SerializeToString() for piece in (first, pb.PrependPiece(data=data[50:]))]


@pytest.mark.parametrize("engine", ["http2", "http2 for a caller off the fast path", "grpcio"])
async def test_a_primary_reaches_its_copy_through_either_server(
    tmp_path: Path, engine: str
) -> None:
    up = upstream()
    link = up.chain().links[0]

    async with running(tmp_path) as copies:
        server: Any = grpc.aio.server() if engine == "grpcio" else GrpcFront(ServerLimits())
        service = ReplicaService(copies)
        if engine == "http2":
            service.add_to(server)
        else:
            add_service(server, REPLICA_SERVICE, service.methods())
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            follow, prepend = (
                channel.unary_unary(FOLLOW_METHOD),
                channel.stream_unary(PREPEND_METHOD),
            )

            async def asked(request: Ask | SignOfLife) -> Answer | None:
                return decode_answer(await follow(encode_request(NAME, request)))

            assert await asked(SignOfLife(1)) is None
            assert await asked(Ask(1)) == ReplicaState(1, ())
            await shipped(copies, up, first=1)
            answer = decode_answer(await prepend(sent(*prepended(up, link))))
            assert answer == Have(1, Place(1, 0), 0)
            assert await asked(Ask(1)) == ReplicaState(1, tuple(up.chain().links))
            await copies.close_one("pump-1")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asked(Ask(1))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert code_of_call(refused.value) is Code.COPY_NOT_FOLLOWED
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await follow(b"\xff")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await server.stop(0)


async def test_the_service_refuses_with_a_status_and_a_code(tmp_path: Path) -> None:
    up = upstream()
    link = up.chain().links[0]
    stranger = NAME._replace(disk="f" * 32)
    precondition, invalid = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT

    async with running(tmp_path) as copies:
        service = ReplicaService(copies)
        calls: list[tuple[Awaitable[bytes], grpc.StatusCode, Code]] = [
            (service.follow(b"\xff", Call()), invalid, Code.BINLOG_INVALID),
            (service.prepend(sent(b"\xff"), Call()), invalid, Code.BINLOG_INVALID),
            (service.prepend(sent(), Call()), invalid, Code.BINLOG_INVALID),
            (
                service.follow(encode_request(stranger, Ask(1)), Call()),
                precondition,
                Code.COPY_OTHER_DISK,
            ),
            (
                service.prepend(sent(*prepended(up, link, stranger)), Call()),
                precondition,
                Code.COPY_OTHER_DISK,
            ),
        ]
        for call, status, code in calls:
            with pytest.raises(Aborted) as refused:
                await call
            assert refused.value.status is status
            assert refused.value.metadata == (("penstock-code", str(code)),)
