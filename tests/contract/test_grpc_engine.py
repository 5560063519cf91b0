"""Both engines serve the same: what a caller sees, and what a handler sees."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.errors import NeedsOperator
from pump.config import ENGINES
from tests.kit.servers.authority import Authority
from tests.kit.servers.grpc_engine import ServedMethods, path, served, unary
from tests.kit.wait import eventually

LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
WAIT_S = 120
SMALL = [*LOCAL, ("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)]
"""A caller that takes little at a time."""


class Seen:
    """What the handlers of a server note for the test."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.peers: list[str] = []
        self.metadata: list[tuple[str, str | bytes]] = []
        self.remaining_s: float | None = None
        self.started = threading.Event()
        self.release = threading.Event()

    def methods(self) -> dict[str, Any]:
        return {
            "Echo": unary(self.echo),
            "Fail": unary(self.fail),
            "Abort": unary(self.abort),
            "SetCode": unary(self.set_code),
            "Metadata": unary(self.describe),
            "Wait": unary(self.wait),
            "Release": unary(self.released),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
            "Forever": grpc.unary_stream_rpc_method_handler(self.forever),
            "CountThenAbort": grpc.unary_stream_rpc_method_handler(self.count_then_abort),
            "Write": grpc.unary_stream_rpc_method_handler(self.write),
            "Join": grpc.stream_unary_rpc_method_handler(self.join),
            "Double": grpc.stream_stream_rpc_method_handler(self.double),
        }

    async def echo(self, data: bytes, context: Any) -> bytes:
        self.peers.append(context.peer())
        self.remaining_s = context.time_remaining()
        return data

    async def fail(self, data: bytes, context: Any) -> bytes:
        raise ValueError("boom")

    async def abort(self, data: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("reason", "full"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, data.decode())
        raise AssertionError("abort raises")

    async def set_code(self, data: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("nothing there")
        return b""

    async def describe(self, data: bytes, context: Any) -> bytes:
        self.metadata = list(context.invocation_metadata())
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("last", "2"), ("last-bin", b"\xfe\x00\n")))
        return data

    async def wait(self, data: bytes, context: Any) -> bytes:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.append("wait")
        raise AssertionError("nothing sets it")

    async def released(self, data: bytes, context: Any) -> bytes:
        self.started.set()
        await asyncio.to_thread(self.release.wait)
        return b"released"

    async def count(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        count, size = map(int, data.split())
        for number in range(count):
            yield b"%d" % number + b"." * size

    async def forever(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"." * 1000
                self.started.set()
        finally:
            self.ended.append("forever")

    async def count_then_abort(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"0"
        yield b"1"
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")

    async def write(self, data: bytes, context: Any) -> None:
        for number in range(int(data)):
            await context.write(b"%d" % number)

    async def join(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b",".join([request async for request in requests])

    async def double(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request * 2


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest, seen: Seen) -> Iterator[ServedMethods]:
    with served(request.param, seen.methods()) as running:
        yield running


@pytest.fixture
def channel(server: ServedMethods) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address, LOCAL) as opened:
        yield opened


def call(channel: grpc.Channel, name: str, data: bytes = b"", **options: Any) -> Any:
    return channel.unary_unary(path(name))(data, **{"timeout": 20, **options})


def refused(channel: grpc.Channel, name: str, data: bytes = b"", **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, name, data, **options)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 5_000_000])
def test_a_message_of_any_size_comes_back(channel: grpc.Channel, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert call(channel, "Echo", data[:size]) == data[:size]


def test_many_calls_share_a_connection(channel: grpc.Channel) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: call(channel, "Echo", b"%d" % n), range(400)))
    assert found == [b"%d" % n for n in range(400)]


@pytest.mark.parametrize("options", [LOCAL, SMALL])
@pytest.mark.parametrize(("count", "size"), [(0, 0), (3, 0), (3000, 100), (20, 300_000)])
def test_a_stream_arrives_whole_and_in_order(
    server: ServedMethods, options: Any, count: int, size: int
) -> None:
    with grpc.insecure_channel(server.address, options) as channel:
        stream = channel.unary_stream(path("Count"))(b"%d %d" % (count, size), timeout=WAIT_S)
        numbers = [int(message.rstrip(b".")) for message in stream]
    assert numbers == list(range(count))


def test_a_handler_may_write_instead_of_yielding(channel: grpc.Channel) -> None:
    assert list(channel.unary_stream(path("Write"))(b"3", timeout=WAIT_S)) == [b"0", b"1", b"2"]


def test_the_messages_of_a_request_come_in_order(channel: grpc.Channel) -> None:
    requests = [b"%d" % number for number in range(500)]
    assert channel.stream_unary(path("Join"))(iter(requests), timeout=WAIT_S) == b",".join(requests)
    assert channel.stream_unary(path("Join"))(iter(()), timeout=WAIT_S) == b""


def test_messages_larger_than_any_window_come_through_a_stream(channel: grpc.Channel) -> None:
    requests = [bytes([number]) * 9_000_000 for number in range(4)]
    found = channel.stream_unary(path("Join"))(iter(requests), timeout=WAIT_S)
    assert found == b",".join(requests)


def test_both_sides_of_a_call_may_stream(channel: grpc.Channel) -> None:
    requests = [b"%d" % number for number in range(200)]
    found = list(channel.stream_stream(path("Double"))(iter(requests), timeout=WAIT_S))
    assert found == [request * 2 for request in requests]


def test_a_stream_waits_for_the_next_request(channel: grpc.Channel) -> None:
    """Each answer has to come before the next request is made."""
    answered = threading.Semaphore(1)

    def requests() -> Iterator[bytes]:
        for number in range(50):
            assert answered.acquire(timeout=WAIT_S)
            yield b"%d" % number

    found = []
    for message in channel.stream_stream(path("Double"))(requests(), timeout=WAIT_S):
        found.append(message)
        answered.release()
    assert found == [b"%d" % number * 2 for number in range(50)]


def test_the_caller_is_named_as_grpc_does(
    server: ServedMethods, channel: grpc.Channel, seen: Seen
) -> None:
    call(channel, "Echo")
    kind, host, port = seen.peers[0].split(":")
    assert (kind, host, port.isdecimal()) == ("ipv4", "127.0.0.1", True)


def test_a_handler_knows_how_long_the_caller_waits(channel: grpc.Channel, seen: Seen) -> None:
    call(channel, "Echo", timeout=15)
    assert seen.remaining_s is not None
    # gRPC's core sends a deadline of 10 to 100 seconds in tenths, rounded up.
    assert 0 < seen.remaining_s <= 15.1
    call(channel, "Echo", timeout=None)
    assert seen.remaining_s is None


def test_an_exception_is_an_unknown_error_with_its_text(channel: grpc.Channel) -> None:
    error = refused(channel, "Fail")
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Unexpected <class 'ValueError'>: boom"


@pytest.mark.parametrize(
    "text", ["", "plain", "größer ist 100 % mehr", "two\nlines\t\x00", "%41 %zz", "x" * 1500]
)
def test_an_abort_carries_its_status_and_any_text(channel: grpc.Channel, text: str) -> None:
    error = refused(channel, "Abort", text.encode())
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, text)
    assert ("reason", "full") in error.trailing_metadata()


def test_a_handler_that_returns_may_set_a_status(channel: grpc.Channel) -> None:
    error = refused(channel, "SetCode")
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "nothing there")


def test_a_status_comes_after_the_messages_before_it(channel: grpc.Channel) -> None:
    stream = channel.unary_stream(path("CountThenAbort"))(b"", timeout=WAIT_S)
    assert [next(stream), next(stream)] == [b"0", b"1"]
    with pytest.raises(grpc.RpcError, match="no more"):
        next(stream)
    assert stream.code() is grpc.StatusCode.OUT_OF_RANGE


@pytest.mark.parametrize("name", ["/test.Service/None", "/other.Service/Echo", "/x"])
def test_an_unknown_method_is_unimplemented(channel: grpc.Channel, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(name)(b"", timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "Method not found!"


def test_metadata_goes_both_ways(channel: grpc.Channel, seen: Seen) -> None:
    sent = (("plain", "text"), ("twice", "1"), ("twice", "2"), ("raw-bin", b"\x00\xff\x80"))
    _, answered = channel.unary_unary(path("Metadata")).with_call(
        b"", timeout=WAIT_S, metadata=sent
    )
    names = {name for name, _ in sent}
    assert [pair for pair in seen.metadata if pair[0] in names] == [*sent]
    assert "user-agent" in dict(seen.metadata)
    assert not [name for name, _ in seen.metadata if name.startswith((":", "grpc-timeout", "te"))]
    first, last = dict(answered.initial_metadata()), dict(answered.trailing_metadata())
    assert (first["first"], first["first-bin"]) == ("1", b"\x00\xff")
    assert (last["last"], last["last-bin"]) == ("2", b"\xfe\x00\n")


def test_a_compressed_request_is_understood(channel: grpc.Channel) -> None:
    data = b"again and again " * 10_000
    assert call(channel, "Echo", data, compression=grpc.Compression.Gzip) == data


def test_a_deadline_ends_the_handler_too(channel: grpc.Channel, seen: Seen) -> None:
    error = refused(channel, "Wait", timeout=0.3)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: seen.ended == ["wait"])


def test_a_cancelled_call_ends_its_handler(channel: grpc.Channel, seen: Seen) -> None:
    waiting = channel.unary_unary(path("Wait")).future(b"")
    assert seen.started.wait(WAIT_S)
    waiting.cancel()
    eventually(lambda: seen.ended == ["wait"])
    assert call(channel, "Echo", b"still there") == b"still there"


def test_a_cancelled_stream_closes_its_generator(channel: grpc.Channel, seen: Seen) -> None:
    stream = channel.unary_stream(path("Forever"))(b"")
    next(stream)
    stream.cancel()
    eventually(lambda: seen.ended == ["forever"])


def test_a_caller_that_is_gone_ends_its_handlers(server: ServedMethods, seen: Seen) -> None:
    channel = grpc.insecure_channel(server.address, LOCAL)
    waiting = channel.unary_unary(path("Wait")).future(b"")
    assert seen.started.wait(WAIT_S)
    stream = channel.unary_stream(path("Forever"))(b"")
    next(stream)
    channel.close()
    assert waiting.done()
    eventually(lambda: sorted(seen.ended) == ["forever", "wait"])


def test_a_caller_that_reads_nothing_holds_up_only_its_own_stream(
    channel: grpc.Channel, seen: Seen
) -> None:
    stream = channel.unary_stream(path("Forever"))(b"")
    next(stream)
    assert call(channel, "Echo", b"others") == b"others"
    stream.cancel()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_that_is_too_large_is_refused(engine: str, seen: Seen) -> None:
    with (
        served(engine, seen.methods(), max_message_bytes=1) as server,
        grpc.insecure_channel(server.address, LOCAL) as channel,
    ):
        most = 1 + (16 << 20)
        assert len(call(channel, "Echo", bytes(most))) == most
        error = refused(channel, "Echo", bytes(most + 1))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"eceived message larger than max ({most + 1} vs. {most})" in error.details()
        assert call(channel, "Echo", b"more") == b"more"


def test_the_aio_client_is_served_alike(server: ServedMethods) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(server.address, LOCAL) as channel:
            echo = channel.unary_unary(path("Echo"))
            calls = [echo(b"%d" % number, timeout=WAIT_S) for number in range(100)]
            assert await asyncio.gather(*calls) == [b"%d" % number for number in range(100)]
            stream = channel.unary_stream(path("Count"))(b"1000 0", timeout=WAIT_S)
            assert len([message async for message in stream]) == 1000
            double = channel.stream_stream(path("Double"))(timeout=WAIT_S)
            for number in range(20):
                await double.write(b"%d" % number)
                assert await double.read() == b"%d" % number * 2
            await double.done_writing()
            assert await double.read() is grpc.aio.EOF

    asyncio.run(run())


def test_calls_under_way_end_within_the_grace_of_a_stop(
    server: ServedMethods, channel: grpc.Channel, seen: Seen
) -> None:
    waiting = channel.unary_unary(path("Release")).future(b"", timeout=WAIT_S)
    assert seen.started.wait(WAIT_S)
    stopping = threading.Thread(target=server.stop, args=(WAIT_S,))
    stopping.start()
    seen.release.set()
    assert waiting.result() == b"released"
    stopping.join()
    eventually(lambda: not server.tasks())


def test_a_call_that_outlasts_the_grace_is_ended_by_the_stop(
    server: ServedMethods, channel: grpc.Channel, seen: Seen
) -> None:
    waiting = channel.unary_unary(path("Wait")).future(b"", timeout=WAIT_S)
    assert seen.started.wait(WAIT_S)
    server.stop(0.1)
    assert waiting.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert seen.ended == ["wait"]
    eventually(lambda: not server.tasks())
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Else closed calls hold it.
        port.bind(("127.0.0.1", server.port))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("again", ENGINES)
def test_a_port_has_one_server(engine: str, again: str) -> None:
    taken = pytest.raises(NeedsOperator, match="cannot listen")
    with served(engine, {}) as server, taken, served(again, {}, addr=server.address):
        pass


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("addr", "target", "peer"),
    [
        ("[::1]:0", "[::1]:{}", "ipv6:%5B::1%5D:"),
        ("localhost:0", "localhost:{}", "ipv"),
        ("0.0.0.0:0", "127.0.0.1:{}", "ipv4:127.0.0.1:"),
        ("[::]:0", "127.0.0.1:{}", "ipv4:127.0.0.1:"),
    ],
)
def test_any_address_of_this_machine_can_be_listened_on(
    engine: str, addr: str, target: str, peer: str, seen: Seen
) -> None:
    with (
        served(engine, seen.methods(), addr=addr, advertise_addr="127.0.0.1:1") as server,
        grpc.insecure_channel(target.format(server.port), LOCAL) as channel,
    ):
        assert call(channel, "Echo", b"here") == b"here"
        assert seen.peers[0].startswith(peer)


class Secured:
    """A server that asks for a certificate of `writer`."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.config = self.authority.issue("node").config("writer")

    def channel(self, server: ServedMethods, name: str) -> grpc.Channel:
        tls = self.authority.issue(name).tls
        return grpc.secure_channel(server.address, tls.channel_credentials(), LOCAL)


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_caller_is_admitted_by_the_name_in_its_certificate(
    engine: str, seen: Seen, secured: Secured
) -> None:
    with served(engine, seen.methods(), security=secured.config) as server:
        with secured.channel(server, "writer") as channel:
            assert call(channel, "Echo", bytes(300_000)) == bytes(300_000)
            assert len(list(channel.unary_stream(path("Count"))(b"100 0", timeout=WAIT_S))) == 100
        with secured.channel(server, "stranger") as channel:
            error = refused(channel, "Echo")
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "'stranger'" in error.details()


@pytest.mark.parametrize("engine", ENGINES)
def test_new_connections_use_the_certificate_that_is_on_disk_now(
    engine: str, seen: Seen, secured: Secured
) -> None:
    with (
        served(engine, seen.methods(), security=secured.config) as server,
        secured.channel(server, "writer") as before,
    ):
        assert call(before, "Echo", b"1") == b"1"
        secured.authority.issue("node", days=-1)
        assert call(before, "Echo", b"2") == b"2"
        with secured.channel(server, "writer") as after:
            assert refused(after, "Echo").code() is grpc.StatusCode.UNAVAILABLE
        secured.authority.issue("node")
        with secured.channel(server, "writer") as after:
            assert call(after, "Echo", b"3") == b"3"
