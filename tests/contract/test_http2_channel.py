"""Our channel against the gRPC servers that it meets: grpcio's, and our own."""

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.http2 import frames
from penstock.http2.client.calls import PendingReply, stream_unary, unary
from penstock.http2.client.channel import CallFailed, Channel, ClientCall
from penstock.http2.client.client_connection import ClientLimits
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls
from pump.config import ENGINES
from tests.kit.servers.authority import Authority
from tests.kit.servers.grpc_engine import ServedMethods, path, served, stranger
from tests.kit.wait import eventually, present

WITHIN_S = 30.0
MIB = 1 << 20
Open = Callable[..., Channel]


class Methods:
    """What the servers serve."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.ended: list[str] = []
        self.remaining_s: float | None = None

    def table(self) -> dict[str, Any]:
        return {
            **{
                name: grpc.unary_unary_rpc_method_handler(getattr(self, name))
                for name in ("echo", "describe", "fail", "wait")
            },
            "count": grpc.stream_unary_rpc_method_handler(self.count),
            "refuse": grpc.stream_unary_rpc_method_handler(self.refuse),
            "both": grpc.stream_stream_rpc_method_handler(self.both),
        }

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.remaining_s = context.time_remaining()
        return request

    async def describe(self, request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("last-bin", b"\x00\xfe\xff"), ("last", "a b")))
        await context.abort(grpc.StatusCode.NOT_FOUND, "schön 100 %\nzwei")
        raise AssertionError("abort raises")

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise RuntimeError("bug")

    async def wait(self, request: bytes, context: Any) -> bytes:
        self.started.release()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.append("wait")
        raise AssertionError("nothing sets it")

    async def count(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return str(sum([len(request) async for request in requests])).encode()

    async def refuse(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(requests)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")
        raise AssertionError("abort raises")

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


@pytest.fixture
def methods() -> Methods:
    return Methods()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(engine: str, methods: Methods) -> Iterator[ServedMethods]:
    with served(engine, methods.table()) as running:
        yield running


@pytest.fixture
def open_channel() -> Iterator[Open]:
    with contextlib.ExitStack() as opened:

        def connected(address: str, tls: Tls | None = None, **settings: Any) -> Channel:
            is_shared = settings.pop("is_shared", True)
            channel = opened.enter_context(Channel(address, tls, **settings))
            channel.connect(WITHIN_S)
            if is_shared:
                channel.start()
            return channel

        yield connected


def echo(channel: Channel, data: bytes) -> bytes:
    return unary(channel, path("echo"), data, timeout_s=WITHIN_S)


def connect_and_call(channel: Channel) -> bytes:
    channel.connect(WITHIN_S)
    return echo(channel, b"")


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_536, 3 * MIB])
def test_a_unary_call_brings_its_answer_back(
    server: ServedMethods, open_channel: Open, size: int, is_shared: bool
) -> None:
    channel = open_channel(server.address, is_shared=is_shared)
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert echo(channel, data) == data
    assert echo(channel, b"again") == b"again"


def test_many_threads_share_one_connection(server: ServedMethods, open_channel: Open) -> None:
    channel = open_channel(server.address)
    wrong: list[bytes] = []

    def work(number: int) -> None:
        for i in range(30):
            data = b"%d %d" % (number, i) + bytes(i * 900)
            if echo(channel, data) != data:
                wrong.append(data)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    assert wrong == []


def test_status_text_and_metadata_are_the_servers(
    server: ServedMethods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, path("describe"), b"", timeout_s=WITHIN_S)
    error = caught.value
    assert isinstance(error, CallFailed)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "schön 100 %\nzwei"
    assert dict(error.trailing_metadata())["last-bin"] == b"\x00\xfe\xff"
    assert dict(error.trailing_metadata())["last"] == "a b"
    assert not error.never_reached


@pytest.mark.parametrize(
    ("method", "code"), [("none", grpc.StatusCode.UNIMPLEMENTED), ("fail", grpc.StatusCode.UNKNOWN)]
)
def test_what_the_server_cannot_do_has_its_status(
    server: ServedMethods, open_channel: Open, method: str, code: grpc.StatusCode
) -> None:
    channel = open_channel(server.address)
    for _ in range(2):
        with pytest.raises(CallFailed) as caught:
            unary(channel, path(method), b"", timeout_s=WITHIN_S)
        assert caught.value.code() is code
    assert echo(channel, b"x") == b"x"


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_deadline_ends_the_call_on_both_sides(
    server: ServedMethods, methods: Methods, open_channel: Open, is_shared: bool
) -> None:
    channel = open_channel(server.address, is_shared=is_shared)
    with pytest.raises(CallFailed) as caught:
        unary(channel, path("wait"), b"", timeout_s=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: methods.ended == ["wait"])
    assert unary(channel, path("echo"), b"", timeout_s=20) == b""
    assert methods.remaining_s is not None
    assert 0 < methods.remaining_s <= 20


def test_a_deadline_that_no_one_waits_for_is_kept_by_the_reader(
    server: ServedMethods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    pending = PendingReply.to(channel, path("wait"), b"", timeout_s=0.1)
    eventually(lambda: pending.is_over)
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        pending.result()


def test_a_cancelled_call_ends_on_both_sides(
    server: ServedMethods, methods: Methods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    pending = PendingReply.to(channel, path("wait"), b"", timeout_s=None)
    assert methods.started.acquire(timeout=WITHIN_S)
    pending.call.cancel()
    with pytest.raises(CallFailed, match="CANCELLED"):
        pending.result()
    eventually(lambda: methods.ended == ["wait"])
    pending.call.cancel()  # Once more does nothing.


def test_many_messages_go_out_and_one_comes_back(server: ServedMethods, open_channel: Open) -> None:
    channel = open_channel(server.address)
    messages = (bytes(MIB) for _ in range(40))
    total = stream_unary(channel, path("count"), messages, timeout_s=WITHIN_S)
    assert total == str(40 * MIB).encode()


def test_a_server_that_has_had_enough_stops_the_sending(
    server: ServedMethods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    taken = 0

    def messages() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield bytes(MIB)

    with pytest.raises(CallFailed, match="enough") as caught:
        stream_unary(channel, path("refuse"), messages(), timeout_s=WITHIN_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert taken < 1000


def test_what_goes_wrong_in_making_the_messages_is_raised(
    server: ServedMethods, open_channel: Open
) -> None:
    channel = open_channel(server.address)

    def messages() -> Iterator[bytes]:
        yield b"one"
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        stream_unary(channel, path("count"), messages(), timeout_s=WITHIN_S)
    assert echo(channel, b"x") == b"x"


class Conversation:
    """A call that both sides stream; iterating yields the answers."""

    def __init__(self, channel: Channel) -> None:
        came: queue.SimpleQueue[bytes | CallFailed | None] = queue.SimpleQueue()
        self.on_message: Callable[[bytes], None] = came.put
        self.on_end: Callable[[CallFailed | None], None] = came.put
        self.answers = iter(lambda: came.get(timeout=WITHIN_S), None)
        self.call = channel.call(path("both"), self)


def test_a_conversation_goes_back_and_forth(server: ServedMethods, open_channel: Open) -> None:
    channel = open_channel(server.address)
    stream = Conversation(channel)
    for number in range(200):
        stream.call.send(b"%d" % number)
        assert next(stream.answers) == b"%d" % number
    stream.call.end()
    assert list(stream.answers) == []


def test_a_message_over_the_limit_ends_its_call_only(
    server: ServedMethods, open_channel: Open
) -> None:
    channel = open_channel(server.address, limits=ClientLimits(message_bytes_max=1000))
    with pytest.raises(CallFailed, match="larger than max") as caught:
        echo(channel, bytes(1001))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert echo(channel, bytes(1000)) == bytes(1000)


def test_a_server_that_stops_lets_calls_end_and_takes_no_new_ones(
    server: ServedMethods, methods: Methods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    stream = Conversation(channel)
    stream.call.send(b"before")
    assert next(stream.answers) == b"before"
    stopping = threading.Thread(target=server.stop, args=(WITHIN_S,))
    stopping.start()
    eventually(lambda: channel.ending is not None)
    with pytest.raises(CallFailed) as caught:
        echo(channel, b"new")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.never_reached
    stream.call.send(b"after")
    assert next(stream.answers) == b"after"
    stream.call.end()
    assert list(stream.answers) == []
    stopping.join(WITHIN_S)
    assert not stopping.is_alive()


def test_a_server_that_is_gone_ends_all_calls(
    server: ServedMethods, methods: Methods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    pending = [PendingReply.to(channel, path("wait"), b"", timeout_s=None) for _ in range(5)]
    for _ in pending:
        assert methods.started.acquire(timeout=WITHIN_S)
    server.stop()
    for each in pending:
        with pytest.raises(CallFailed) as caught:
            each.result()
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert not caught.value.never_reached


def test_a_channel_closed_by_another_thread_frees_all_who_wait(
    server: ServedMethods, methods: Methods, open_channel: Open
) -> None:
    channel = open_channel(server.address)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            unary(channel, path("wait"), b"", timeout_s=None)
        except CallFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
        assert methods.started.acquire(timeout=WITHIN_S)
    channel.close()
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    assert {str(error) for error in errors} == {"UNAVAILABLE: the channel is closed"}
    assert len(errors) == 4
    with pytest.raises(CallFailed, match="the channel is closed") as caught:
        echo(channel, b"")
    assert caught.value.never_reached


def test_a_call_from_within_a_handler_is_made(server: ServedMethods, open_channel: Open) -> None:
    channel = open_channel(server.address)
    chain: list[bytes] = []
    is_done = threading.Event()

    class Again:
        def on_message(self, message: bytes) -> None:
            chain.append(message)

        def on_end(self, error: CallFailed | None) -> None:
            if error is not None or len(chain) == 50:
                is_done.set()
            else:
                begin()

    def begin() -> None:
        call: ClientCall = channel.call(path("echo"), Again())
        call.queue((b"%d" % len(chain),), is_last=True)
        call.flush()

    begin()
    assert is_done.wait(WITHIN_S)
    assert chain == [b"%d" % number for number in range(50)]


# TLS.


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("names", [(), ("writer",)])
def test_calls_are_the_same_through_tls(
    engine: str, methods: Methods, open_channel: Open, authority: Authority, names: tuple[str, ...]
) -> None:
    tls = authority.issue("writer").tls if names else Tls(ca=authority.file)
    with served(engine, methods.table(), security=authority.issue("node").config(*names)) as node:
        channel = open_channel(node.address, tls)
        assert echo(channel, b"small") == b"small"
        assert echo(channel, bytes(3 * MIB)) == bytes(3 * MIB)
        stream = Conversation(channel)
        for _ in range(20):
            stream.call.send(bytes(MIB))
        stream.call.end()
        assert list(stream.answers) == [bytes(MIB)] * 20
        local = f"localhost:{node.port}"
        assert echo(open_channel(local, tls), b"by name") == b"by name"


def _wrong_ca(authority: Authority, folder: Path) -> Tls:
    return Tls(ca=Authority(folder, "other").file)


def _no_certificate(authority: Authority, folder: Path) -> Tls:
    return Tls(ca=authority.file)


def _foreign(authority: Authority, folder: Path) -> Tls:
    pair = Authority(folder, "other").issue("writer", file="foreign")
    return Tls(ca=authority.file, cert=pair.cert, key=pair.key)


def _expired(authority: Authority, folder: Path) -> Tls:
    return authority.issue("writer", days=-1).tls


def _stranger(authority: Authority, folder: Path) -> Tls:
    return authority.issue("stranger").tls


@pytest.mark.parametrize(
    ("show", "message"),
    [
        (_wrong_ca, "is not trusted"),
        (_no_certificate, "there is none to show"),
        (_foreign, "refuses the certificate"),
        (_expired, "refuses the certificate"),
        (_stranger, "stranger"),
    ],
)
def test_a_certificate_that_is_refused_is_classified_as_with_grpcio(
    engine: str,
    methods: Methods,
    authority: Authority,
    tmp_path: Path,
    show: Callable[[Authority, Path], Tls],
    message: str,
) -> None:
    tls = show(authority, tmp_path)
    security = authority.issue("node").config("writer")
    with (
        served(engine, methods.table(), security=security) as node,
        Channel(node.address, tls) as channel,
    ):
        with pytest.raises(CallFailed) as caught:
            connect_and_call(channel)
        refusal = present(refusal_of(node.address, tls, caught.value))
        assert message in str(refusal)


def test_a_certificate_for_another_name_is_not_trusted(
    engine: str, methods: Methods, authority: Authority
) -> None:
    settings = {"addr": "127.0.0.2:0", "advertise_addr": "127.0.0.2:1"}
    security = authority.issue("node").config()
    with served(engine, methods.table(), security=security, **settings) as node:
        address = f"127.0.0.2:{node.port}"
        with Channel(address, Tls(ca=authority.file)) as channel:
            with pytest.raises(CallFailed, match="IP address mismatch") as caught:
                channel.connect(WITHIN_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_new_connections_use_new_certificates(
    engine: str, methods: Methods, open_channel: Open, authority: Authority
) -> None:
    with served(engine, methods.table(), security=authority.issue("node").config("writer")) as node:
        tls = authority.issue("writer").tls
        first = open_channel(node.address, tls)
        assert echo(first, b"x") == b"x"
        authority.issue("stranger", file="writer")  # Under the same file names.
        with pytest.raises(CallFailed, match="UNAUTHENTICATED"):
            echo(open_channel(node.address, tls), b"x")
        assert echo(first, b"x") == b"x"


# Peers that are no gRPC servers.


def drain(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def test_a_peer_that_speaks_http_1_is_named_as_that() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        drain(connection)

    with (
        stranger(serve) as address,
        Channel(address) as channel,
        pytest.raises(CallFailed, match=r"does not speak HTTP/2.*HTTP/1.1 400") as caught,
    ):
        channel.connect(WITHIN_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_tls_server_and_a_plain_client_do_not_wait_for_each_other(
    engine: str, methods: Methods, authority: Authority
) -> None:
    with (
        served(engine, methods.table(), security=authority.issue("node").config()) as node,
        Channel(node.address) as channel,
        pytest.raises(CallFailed, match=r"failed to connect.*does it want TLS\?"),
    ):
        channel.connect(WITHIN_S)


def test_a_peer_that_says_nothing_is_given_up_in_time() -> None:
    with stranger(drain) as address, Channel(address) as channel:
        with pytest.raises(CallFailed, match="timed out") as caught:
            channel.connect(0.2)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.never_reached


def test_no_one_listening_is_said_as_grpc_says_it() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    listening.close()
    with pytest.raises(CallFailed, match="Connection refused") as caught:
        Channel(address).connect(WITHIN_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_closing_ends_a_connect_that_hangs() -> None:
    with stranger(drain) as address:
        channel = Channel(address)
        errors: list[CallFailed] = []

        def connect() -> None:
            try:
                channel.connect(1000)
            except CallFailed as error:
                errors.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        eventually(lambda: channel._socket is not None)
        channel.abort()
        thread.join(WITHIN_S)
        assert len(errors) == 1


WINDOW = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX}) + frames.window_update(
    0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT
)


def test_a_server_that_never_reads_delays_no_deadline_and_no_other_thread(
    open_channel: Open,
) -> None:
    may_end = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(WINDOW)
        may_end.wait(WITHIN_S)

    with stranger(serve) as address:
        channel = open_channel(address)
        calls = [PendingReply.to(channel, "/s/m", bytes(20 * MIB), timeout_s=0.5) for _ in range(4)]
        for call in calls:
            with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
                call.result()
        messages = (bytes(MIB) for _ in range(1000))
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            stream_unary(channel, "/s/m", messages, timeout_s=0.5)
        channel.close()
        may_end.set()


def test_a_server_that_reads_late_gets_everything(open_channel: Open) -> None:
    go_on = threading.Event()
    received: list[int] = []

    def serve(connection: socket.socket) -> None:
        connection.sendall(WINDOW)
        go_on.wait(WITHIN_S)
        while data := connection.recv(MIB):
            received.append(len(data))

    with stranger(serve) as address:
        channel = open_channel(address)
        for _ in range(3):
            PendingReply.to(channel, "/s/m", bytes(20 * MIB), timeout_s=None)
        go_on.set()
        eventually(lambda: sum(received) > 60 * MIB, WITHIN_S)
        channel.close()
