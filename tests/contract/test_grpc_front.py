"""The project's own gRPC server on real sockets: its fast path, its blocks, its bounds."""

import contextlib
import logging
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.http2 import frames
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import MessageBlock, Reply, UnaryCall
from penstock.local.process import free_port
from penstock.security.tls import ServerContexts
from tests.kit.fakes.http2_client import Http2Client, prefixed
from tests.kit.servers.authority import Authority
from tests.kit.servers.grpc_engine import ServedMethods, path, served, unary
from tests.kit.wait import eventually

LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
SMALL = [*LOCAL, ("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)]


class Fast:
    """A method on the fast path, and beside it the same one for all others."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, UnaryCall]] = []
        self.is_holding = False
        self.slow: list[bytes] = []

    def methods(self) -> dict[str, Any]:
        return {
            "Size": unary(self.size),
            "Blocks": grpc.unary_stream_rpc_method_handler(self.blocks),
            "Fill": grpc.unary_stream_rpc_method_handler(self.fill),
        }

    def handle(self, message: bytes, call: UnaryCall) -> None:
        if self.is_holding:
            self.waiting.append((message, call))
        elif message == b"fail":
            call.fail(grpc.StatusCode.NOT_FOUND, f"nothing for {call.peer()}")
        elif message.startswith(b"large"):
            call.answer(Reply(message * 1000))
        elif message == b"raise":
            raise ValueError("boom")
        else:
            call.answer(Reply(b"%d" % len(message)))

    async def size(self, data: bytes, context: Any) -> bytes:
        self.slow.append(data)
        return b"%d" % len(data)

    async def blocks(self, data: bytes, context: Any) -> AsyncIterator[bytes | MessageBlock]:
        assert context.takes_message_blocks
        count, size = map(int, data.split())
        for begin in range(0, count, 1000):
            numbers = range(begin, min(count, begin + 1000))
            yield MessageBlock.of(b"%d" % number + b"." * size for number in numbers)
        yield b"end"

    async def fill(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)


@pytest.fixture
def fast() -> Fast:
    return Fast()


@contextlib.contextmanager
def fronted(fast: Fast, **settings: Any) -> Iterator[ServedMethods]:
    with served("http2", fast.methods(), **settings) as server:
        server.server.add_fast_unary(path("Size"), fast.handle)
        yield server


@pytest.fixture
def server(fast: Fast) -> Iterator[ServedMethods]:
    with fronted(fast) as running:
        yield running


@pytest.fixture
def channel(server: ServedMethods) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address, LOCAL) as opened:
        yield opened


def size_of(channel: grpc.Channel, data: bytes, **options: Any) -> int:
    return int(channel.unary_unary(path("Size"))(data, **{"timeout": 20, **options}))


@pytest.mark.parametrize("size", [0, 1, 16_379, 200_000, 9_000_000])
def test_the_fast_path_takes_messages_of_any_size(
    channel: grpc.Channel, fast: Fast, size: int
) -> None:
    for _ in range(3):
        assert size_of(channel, bytes(size)) == size
    assert fast.slow == []


def test_the_fast_path_serves_many_at_once(channel: grpc.Channel, fast: Fast) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: size_of(channel, bytes(n)), range(600)))
    assert found == list(range(600))
    assert fast.slow == []


def test_the_fast_path_fails_with_status_and_text(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match=r"nothing for ipv4:127\.0\.0\.1:\d+") as caught:
        size_of(channel, b"fail")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError, match="Unexpected <class 'ValueError'>: boom") as caught:
        size_of(channel, b"raise")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert size_of(channel, b"next") == 4


@pytest.mark.parametrize("size", [17, 100, 20_000])
def test_the_fast_path_answers_with_messages_of_any_size(
    channel: grpc.Channel, fast: Fast, size: int
) -> None:
    message = b"large".ljust(size)
    for _ in range(3):
        assert channel.unary_unary(path("Size"))(message, timeout=20) == message * 1000
        assert size_of(channel, b"next") == 4
    assert fast.slow == []


def test_metadata_and_compression_change_nothing_for_the_caller(
    channel: grpc.Channel, fast: Fast
) -> None:
    assert size_of(channel, b"metadata", metadata=(("a", "1"), ("b-bin", b"\x00"))) == 8
    assert fast.slow == []
    data = b"again " * 1000
    assert size_of(channel, data, compression=grpc.Compression.Gzip) == len(data)
    assert fast.slow == [data]


def test_a_call_that_is_cancelled_or_late_is_not_answered(
    server: ServedMethods, channel: grpc.Channel, fast: Fast
) -> None:
    fast.is_holding = True
    waiting = channel.unary_unary(path("Size")).future(b"cancelled")
    eventually(lambda: len(fast.waiting) == 1)
    waiting.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        size_of(channel, b"late", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: not any(call.is_open() for _, call in fast.waiting))

    async def answer() -> None:
        for _, call in fast.waiting:
            call.answer(Reply(b"0"))

    server.run(answer())
    fast.is_holding = False
    assert size_of(channel, b"next") == 4


def test_a_stop_answers_every_call_of_the_fast_path(
    server: ServedMethods, channel: grpc.Channel, fast: Fast
) -> None:
    fast.is_holding = True
    calls = [channel.unary_unary(path("Size")).future(b"x", timeout=20) for _ in range(50)]
    eventually(lambda: len(fast.waiting) == 50)

    async def answer() -> None:
        for _, call in fast.waiting[:20]:
            call.answer(Reply(b"1"))

    stopping = threading.Thread(target=server.stop, args=(0.2,))
    stopping.start()
    server.run(answer())
    stopping.join()
    codes = [call.code() for call in calls]
    assert codes.count(grpc.StatusCode.OK) == 20
    assert codes.count(grpc.StatusCode.UNAVAILABLE) == 30
    assert not server.tasks()
    assert (server.server.calls, server.server.connections) == (0, 0)


@pytest.mark.parametrize("options", [LOCAL, SMALL])
@pytest.mark.parametrize(("count", "size"), [(1, 0), (25_000, 10), (2_500, 1000), (30, 200_000)])
def test_blocks_of_messages_arrive_as_messages(
    server: ServedMethods, options: Any, count: int, size: int
) -> None:
    with grpc.insecure_channel(server.address, options) as channel:
        stream = channel.unary_stream(path("Blocks"))(b"%d %d" % (count, size), timeout=60)
        *messages, last = stream
    assert [int(message.rstrip(b".")) for message in messages] == list(range(count))
    assert last == b"end"


def test_only_callers_with_the_right_name_use_the_fast_path(fast: Fast, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = authority.issue("node").config("writer")
    with fronted(fast, security=security) as server:
        credentials = authority.issue("writer").tls.channel_credentials()
        with grpc.secure_channel(server.address, credentials, LOCAL) as channel:
            for size in (3, 300_000):
                assert size_of(channel, bytes(size)) == size
            assert fast.slow == []
        credentials = authority.issue("stranger").tls.channel_credentials()
        with grpc.secure_channel(server.address, credentials, LOCAL) as channel:
            with pytest.raises(grpc.RpcError, match="'stranger'") as caught:
                size_of(channel, b"no")
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert fast.slow == []


class Raw:
    """A client of bare frames on a real socket."""

    def __init__(self, address: tuple[str, int], *parts: bytes) -> None:
        self.socket = socket.create_connection(address, timeout=20)
        self.socket.sendall(b"".join((frames.PREFACE, frames.settings({}), *parts)))

    def until_closed(self) -> bytes:
        """Read until the other side closes."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 16):
                found += data
        self.socket.close()
        return found

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def limited(
    fast: Fast, context: Callable[[], ssl.SSLContext] | None = None, **limits: Any
) -> Iterator[tuple[ServedMethods, tuple[str, int]]]:
    with served("http2", fast.methods()) as server:
        front = GrpcFront(ServerLimits(**limits))
        handlers = grpc.method_handlers_generic_handler("test.Service", fast.methods())
        front.add_generic_rpc_handlers((handlers,))

        async def start() -> int:
            # A port of the system's may be one at which a client of another test tries again.
            address = f"127.0.0.1:{free_port()}"
            if context is None:
                port = front.add_insecure_port(address)
            else:
                port = front.add_tls_port(address, context)
            await front.start()
            return port

        port = server.run(start())
        before, server.server = server.server, front
        try:
            yield server, ("127.0.0.1", port)
        finally:
            server.run(front.stop(0))
            server.server = before


def test_who_does_not_begin_is_let_go(fast: Fast) -> None:
    with (
        limited(fast, begin_s=0.1) as (server, address),
        socket.create_connection(address, timeout=20) as silent,
    ):
        silent.sendall(frames.PREFACE[:10])
        while silent.recv(1000):
            pass
        eventually(lambda: server.server.connections == 0)


def test_who_is_silent_is_asked_and_let_go_without_an_answer(fast: Fast) -> None:
    with limited(fast, ping_after_s=0.1, ping_answer_s=0.1) as (server, address):
        found = Raw(address).until_closed()
        assert frames.ping(b"penstock") in found
        eventually(lambda: server.server.connections == 0)


def test_a_peer_that_never_reads_is_bounded_and_let_go(fast: Fast) -> None:
    with limited(fast, ping_after_s=0.3, ping_answer_s=0.3) as (server, address):
        client = Http2Client()
        windows = frames.window_update(0, 1 << 30), frames.settings({4: 1 << 30})
        stream = client.headers(1, path("Fill")) + frames.frame(0, 1, 1, prefixed(b""))
        raw = Raw(address, *windows, stream)
        eventually(lambda: server.server.calls == 1)
        eventually(lambda: server.server.connections == 0)
        assert server.server.calls == 0
        eventually(lambda: not [task for task in server.tasks() if "ServerCall" in task])
        raw.close()


def test_connections_beyond_the_limit_are_closed(fast: Fast) -> None:
    with limited(fast, connections_max=2) as (server, address):
        kept = [Raw(address), Raw(address)]
        eventually(lambda: server.server.connections == 2)
        assert Raw(address).until_closed() == b""
        for raw in kept:
            raw.close()
        eventually(lambda: server.server.connections == 0)


def test_a_connection_that_breaks_off_anywhere_leaves_nothing(fast: Fast) -> None:
    client = Http2Client()
    session = client.headers(1, path("Size")) + frames.frame(0, 1, 1, prefixed(bytes(50)))
    with limited(fast) as (server, address):
        for size in range(0, len(session), 7):
            Raw(address, session[:size]).close()
        eventually(lambda: server.server.connections == 0)
        assert server.server.calls == 0
        eventually(lambda: not [task for task in server.tasks() if "ServerCall" in task])
        with grpc.insecure_channel(f"127.0.0.1:{address[1]}", LOCAL) as channel:
            assert size_of(channel, b"still") == 5


def test_hundreds_of_connections_at_once_are_served(fast: Fast) -> None:
    client = Http2Client()
    call = client.headers(1, path("Size")) + frames.frame(0, 1, 1, prefixed(b"abc"))
    with limited(fast) as (server, address), contextlib.ExitStack() as stack:
        raws = [stack.enter_context(contextlib.closing(Raw(address, call))) for _ in range(400)]
        answer = frames.frame(frames.DATA, 0, 1, prefixed(b"3"))
        for raw in raws:
            found = b""
            while answer not in found:
                data = raw.socket.recv(1 << 16)
                assert data
                found += data
        assert server.server.connections == 400


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP_REQUEST"),
        (frames.PREFACE, "(HTTP_REQUEST|WRONG_VERSION_NUMBER|HTTPS_PROXY_REQUEST)"),
        (struct.pack(">BHH", 22, 0x0301, 5) + b"\x09bad!", "."),
    ],
)
def test_a_caller_without_tls_on_a_port_with_it_is_named_in_the_log(
    fast: Fast, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes, reason: str
) -> None:
    tls = Authority(tmp_path).issue("node").tls
    contexts = ServerContexts(tls, with_client_certificate=False, protocols=("h2",))
    with (
        caplog.at_level(logging.INFO),
        limited(fast, contexts.current) as (_, address),
        socket.create_connection(address, timeout=20) as caller,
    ):
        caller.sendall(first)
        with contextlib.suppress(ConnectionResetError):
            while caller.recv(1000):
                pass
        eventually(lambda: "the TLS handshake of a caller failed: " in caplog.text)
    assert re.search(f"caller failed: {reason}", caplog.text)


def test_a_handshake_that_is_not_finished_is_given_up(
    fast: Fast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Authority(tmp_path).issue("node").tls
    contexts = ServerContexts(tls, with_client_certificate=False, protocols=("h2",))
    with (
        caplog.at_level(logging.INFO),
        limited(fast, contexts.current, begin_s=0.1) as (_, address),
        socket.create_connection(address, timeout=20) as caller,
    ):
        caller.sendall(b"\x16\x03\x01")
        assert caller.recv(1000) == b""
        eventually(lambda: "handshake" in caplog.text)
