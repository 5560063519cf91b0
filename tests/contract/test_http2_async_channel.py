"""The event loop's channel against the gRPC servers that it meets: grpcio's, and our own."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.http2.client.async_channel import AsyncChannel
from penstock.http2.client.channel import CallFailed
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls
from pump.config import ENGINES
from tests.kit.servers.authority import Authority
from tests.kit.servers.grpc_engine import ServedMethods, path, served, stranger
from tests.kit.wait import turn, until

WITHIN_S = 30.0
MIB = 1 << 20


class Methods:
    """What the servers serve."""

    def __init__(self) -> None:
        self.sent: dict[bytes, int] = {}
        self.ended = threading.Event()

    def table(self) -> dict[str, Any]:
        return {
            name: grpc.unary_stream_rpc_method_handler(getattr(self, name))
            for name in ("repeat", "refuse", "wait")
        }

    async def repeat(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        times, size = map(int, request.split())
        for number in range(times):
            yield b"%08d" % number + bytes(size)
            self.sent[request] = number + 1

    async def refuse(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "schön 100 %")

    async def wait(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"here"
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.set()


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


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, WITHIN_S))


async def all_of(channel: AsyncChannel, method: str, request: bytes = b"") -> list[bytes]:
    call = channel.server_stream(path(method), request)
    messages = []
    while (message := await call.read()) is not None:
        messages.append(message)
    return messages


@pytest.mark.parametrize(("times", "size"), [(0, 0), (1, 0), (3000, 10), (30, MIB)])
def test_many_messages_come_in_order(server: ServedMethods, times: int, size: int) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            for _ in range(2):
                came = await all_of(channel, "repeat", b"%d %d" % (times, size))
                assert [int(message[:8]) for message in came] == list(range(times))
                assert {len(message) for message in came} <= {size + 8}

    run(body())


def test_what_has_come_is_taken_without_waiting(server: ServedMethods) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            call = channel.server_stream(path("repeat"), b"10 10")
            assert call.take() is None
            taken = [await call.read()]
            while len(taken) < 10:
                message = call.take()
                if message is None:
                    await turn()
                else:
                    taken.append(message)
            assert await call.read() is None

    run(body())


def test_an_error_comes_after_the_messages_before_it(server: ServedMethods) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            call = channel.server_stream(path("refuse"), b"")
            assert await call.read() == b"one"
            for _ in range(2):
                with pytest.raises(CallFailed) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
                assert caught.value.details() == "schön 100 %"
            with pytest.raises(CallFailed) as caught:
                await all_of(channel, "none")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(body())


def test_a_reader_that_pauses_makes_the_server_wait(
    server: ServedMethods, methods: Methods
) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            request = b"500 %d" % (100 << 10)
            call = channel.server_stream(path("repeat"), request)
            assert await call.read()
            await until(lambda: methods.sent.get(request, 0) > 50)
            async with AsyncChannel(server.address) as other:
                assert len(await all_of(other, "repeat", b"30 %d" % MIB)) == 30
            assert methods.sent[request] < 250
            count = 1
            while await call.read() is not None:
                count += 1
            assert count == 500

    run(body())


def test_leaving_the_channel_ends_its_calls_on_both_sides(
    server: ServedMethods, methods: Methods
) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            call = channel.server_stream(path("wait"), b"")
            assert await call.read() == b"here"
            reading = asyncio.ensure_future(call.read())
            await turn()
        with pytest.raises(CallFailed, match="UNAVAILABLE: the channel is closed"):
            await reading
        with pytest.raises(CallFailed, match="the channel is closed") as caught:
            await all_of(channel, "wait")
        assert caught.value.never_reached
        assert await asyncio.to_thread(methods.ended.wait, WITHIN_S)

    run(body())


def test_a_server_that_is_gone_ends_the_call(server: ServedMethods) -> None:
    async def body() -> None:
        async with AsyncChannel(server.address) as channel:
            call = channel.server_stream(path("wait"), b"")
            assert await call.read() == b"here"
            await asyncio.to_thread(server.stop)
            with pytest.raises(CallFailed) as caught:
                await call.read()
            codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert caught.value.code() in codes

    run(body())


def test_messages_are_the_same_through_tls(engine: str, methods: Methods, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = authority.issue("node").config("drainer")

    async def body(address: str) -> None:
        async with AsyncChannel(address, authority.issue("drainer").tls) as channel:
            assert len(await all_of(channel, "repeat", b"20 %d" % MIB)) == 20
        tls = Tls(ca=authority.file)
        with pytest.raises(CallFailed) as caught:
            async with AsyncChannel(address, tls) as channel:
                await all_of(channel, "repeat", b"1 1")
        refusal = await asyncio.to_thread(refusal_of, address, tls, caught.value)
        assert "there is none to show" in str(refusal)

    with served(engine, methods.table(), security=security) as running:
        run(body(running.address))


# Peers that are no gRPC servers.


async def connect(address: str) -> None:
    async with AsyncChannel(address, connect_s=0.5):
        raise AssertionError("there is no server")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2.*HTTP/1.1 400"),
        (b"", "timed out"),
    ],
)
def test_a_peer_that_is_no_server_is_named_as_that(answer: bytes, problem: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(answer)
        while connection.recv(65_536):
            pass

    with stranger(serve) as address, pytest.raises(CallFailed, match=problem) as caught:
        run(connect(address))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.never_reached


def test_no_one_listening_is_said_as_grpc_says_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(CallFailed, match="Connection refused"):
        run(connect(address))
