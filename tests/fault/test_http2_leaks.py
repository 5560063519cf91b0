"""What ended calls, connections and handshakes leave behind in a server whose collector sleeps.

A Pump freezes the garbage collector's objects and lets it run rarely, so an object in a reference
cycle stays for as long as the process. These tests turn the collector off.
"""

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.http2 import frames
from penstock.http2.client.async_channel import AsyncChannel
from penstock.http2.client.calls import PendingReply, unary
from penstock.http2.client.channel import CallFailed, Channel
from penstock.http2.frames import END_STREAM, ErrorCode
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import Reply, UnaryCall
from penstock.node.http_status import Answer, HttpStatus
from penstock.security.tls import Security, SecurityConfig, Tls
from tests.kit.http2 import interop_service
from tests.kit.http2.front_process import FrontProcess
from tests.kit.http2.raw_peer import RawPeer, message
from tests.kit.servers.authority import Authority, Pair
from tests.kit.wait import until

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

TIMES = 8
BODY = bytes(60_000)
UNARY = f"/{interop_service.SERVICE}/UnaryCall"
UPLOAD = f"/{interop_service.SERVICE}/StreamingInputCall"
DUPLEX = f"/{interop_service.SERVICE}/FullDuplexCall"
DOWNLOAD = f"/{interop_service.SERVICE}/StreamingOutputCall"
FAST = "/penstock.testing.Front/Answer"
UNKNOWN = "/penstock.testing.Front/Unknown"


def unfinished(peer: RawPeer, path: str) -> int:
    stream_id = peer.open(path)
    peer.send_frame(frames.DATA, 0, stream_id, message(BODY)[: len(BODY) // 2])
    return stream_id


def left_by_closing(path: str) -> Callable[[RawPeer], None]:
    def act(peer: RawPeer) -> None:
        unfinished(peer, path)

    return act


def reset(path: str) -> Callable[[RawPeer], None]:
    def act(peer: RawPeer) -> None:
        code = ErrorCode.CANCEL.to_bytes(4, "big")
        peer.send_frame(frames.RST_STREAM, 0, unfinished(peer, path), code)
        peer.call(FAST, b"x")

    return act


def answered(path: str, data: bytes) -> Callable[[RawPeer], None]:
    def act(peer: RawPeer) -> None:
        peer.call(path, data)

    return act


def late(peer: RawPeer) -> None:
    """A call whose deadline passes while its message is not whole."""
    stream_id = peer.open(UNARY, ("grpc-timeout", "1m"))
    peer.send_frame(frames.DATA, 0, stream_id, message(BODY)[: len(BODY) // 2])
    peer.answer(stream_id)


def cut_within_a_message(peer: RawPeer) -> None:
    """A request that ends before its message does."""
    peer.send_frame(frames.DATA, END_STREAM, unfinished(peer, UNARY), b"")
    peer.call(FAST, b"x")


def breaks_a_rule(peer: RawPeer) -> None:
    unfinished(peer, UPLOAD)
    peer.send_frame(frames.DATA, 0, 0, b"x")
    peer.until_closed()


def reads_nothing(peer: RawPeer) -> None:
    wanted = interop_service.MESSAGES["StreamingOutputCallRequest"]()
    for _ in range(20):
        wanted.response_parameters.add(size=10_000)
    stream_id = peer.open(DOWNLOAD)
    body = message(wanted.SerializeToString())
    peer.send_frame(frames.DATA, END_STREAM, stream_id, body)
    peer.call(FAST, b"x")


CALLS: dict[str, Callable[[RawPeer], None]] = {
    "answered on the fast path": answered(FAST, b"x"),
    "answered": answered(UNARY, b""),
    "refused": answered(UNKNOWN, b""),
    "undecodable": answered(UNARY, b"\xff\xff"),
    "unfinished, closed": left_by_closing(UNARY),
    "unfinished on the fast path, closed": left_by_closing(FAST),
    "unfinished upload, closed": left_by_closing(UPLOAD),
    "unfinished duplex, closed": left_by_closing(DUPLEX),
    "reset": reset(UNARY),
    "reset on the fast path": reset(FAST),
    "reset upload": reset(UPLOAD),
    "late": late,
    "cut within a message": cut_within_a_message,
    "breaks a rule": breaks_a_rule,
    "reads nothing": reads_nothing,
}


def silent(port: int) -> None:
    """Connect as a TCP health probe does, and leave."""
    RawPeer("127.0.0.1", port, greets=False).close()


def speaks_plain_text(port: int) -> None:
    with RawPeer("127.0.0.1", port, greets=False) as peer:
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        peer.until_closed()


def stays_silent(port: int) -> None:
    """Connect, and wait until the server has had enough."""
    with RawPeer("127.0.0.1", port, greets=False) as peer:
        peer.until_closed()


def refuses_the_certificate(port: int) -> None:
    with pytest.raises(ssl.SSLError):
        RawPeer("127.0.0.1", port, tls=ssl.create_default_context())


def leaves_within_the_handshake(port: int) -> None:
    with RawPeer("127.0.0.1", port, greets=False) as peer:
        peer.send(b"\x16\x03\x01\x02\x00\x01\x00")


STRANGERS = {
    "silent": silent,
    "speaks plain text": speaks_plain_text,
    "stays silent": stays_silent,
    "refuses the certificate": refuses_the_certificate,
    "leaves within the handshake": leaves_within_the_handshake,
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    logging.disable()  # What captures log records keeps their exceptions, with all frames.
    tracemalloc.start()
    yield
    logging.disable(logging.NOTSET)
    tracemalloc.stop()
    gc.enable()
    gc.collect()


def objects() -> Counter[str]:
    modules = ("penstock.http2.", "penstock.node.", "asyncio.sslproto", "asyncio.streams", "ssl")
    kinds = (type(each) for each in gc.get_objects())
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return Counter(name for name in names if name.startswith(modules))


def secured(pair: Pair) -> Security:
    files = {"ssl_ca": pair.ca, "ssl_cert": pair.cert, "ssl_key": pair.key}
    settings: dict[str, Any] = {name: str(path) for name, path in files.items()}
    return Security(SecurityConfig(**settings))


def many(left: Counter[str]) -> dict[str, int]:
    """Return what every call left; the last header of all may be kept for the next call."""
    return {name: count for name, count in left.items() if count >= TIMES // 2}


CLIENT_CALLS: dict[str, tuple[str, bytes, float | None]] = {
    "answered": (UNARY, b"", None),
    "refused": (UNKNOWN, b"", None),
    "late": (UPLOAD, b"", 0.05),
}


@pytest.mark.parametrize("name", CLIENT_CALLS)
def test_a_call_leaves_nothing_in_its_client(name: str, front: FrontProcess) -> None:
    path, data, timeout_s = CLIENT_CALLS[name]
    channel = Channel(front.address)
    channel.connect(20)

    def act() -> None:
        pending = PendingReply(channel, path, timeout_s=timeout_s)
        pending.call.queue((data,), is_last=timeout_s is None)
        pending.call.flush()
        with contextlib.suppress(CallFailed):
            pending.result()
        cancelled = PendingReply(channel, path, timeout_s=timeout_s)
        cancelled.call.send(data)
        cancelled.call.cancel()

    with channel:
        act()
        before = objects()
        for _ in range(TIMES):
            act()
        assert many(objects() - before) == {}


def test_a_connection_leaves_nothing_in_its_client(
    tls_front: tuple[FrontProcess, Pair], tmp_path: Path
) -> None:
    front, pair = tls_front
    stranger = Authority(tmp_path, "other").issue("stranger")
    ways = {f"127.0.0.1:{front.tls_port}": (pair, stranger), "127.0.0.1:1": (pair,)}

    def act_blocking(address: str, tls: Tls) -> None:
        channel = Channel(address, tls)
        with contextlib.suppress(CallFailed), channel:
            channel.connect(20)
            unary(channel, UNARY, b"", timeout_s=20)

    async def act(address: str, tls: Tls) -> None:
        with contextlib.suppress(CallFailed):
            async with AsyncChannel(address, tls) as channel:
                stream = channel.server_stream(DOWNLOAD, b"")
                while await stream.read() is not None:
                    pass
        await asyncio.to_thread(act_blocking, address, tls)

    async def run() -> None:
        for address, pairs in ways.items():
            for each in pairs:
                for _ in range(2):
                    await act(address, each.tls)
                await asyncio.sleep(0)
                before = objects()
                for _ in range(TIMES):
                    await act(address, each.tls)
                assert many(objects() - before) == {}

    asyncio.run(run())


def assert_nothing_stays(
    act: Callable[[int, int], None], security: Security | None = None, begin_s: float = 60
) -> None:
    """Act eight times, after once to warm up; `act` takes the plain and the TLS port.

    The server closes a connection that does not begin within `begin_s`.
    """

    async def run() -> None:
        front = GrpcFront(ServerLimits(begin_s=begin_s))
        reply = Reply(b"answered")

        def answer(message: bytes, call: UnaryCall) -> None:
            call.answer(reply)

        front.add_fast_unary(FAST, answer)
        interop_service.add_to(front)
        plain = front.add_insecure_port("127.0.0.1:0")
        tls = security.add_port(front, "127.0.0.1:0") if security is not None else 0
        await front.start()

        async def settled() -> tuple[Counter[str], int]:
            await until(lambda: (front.calls, front.connections) == (0, 0))
            await until(lambda: len(asyncio.all_tasks()) == 2)
            for _ in range(10):
                await asyncio.sleep(0)
            return objects(), tracemalloc.get_traced_memory()[0]

        for _ in range(2):
            await asyncio.to_thread(act, plain, tls)
        before, bytes_before = await settled()
        for _ in range(TIMES):
            await asyncio.to_thread(act, plain, tls)
        await settled()
        await until(lambda: many(objects() - before) == {})
        bytes_max = bytes_before + TIMES * len(BODY) // 8
        await until(lambda: tracemalloc.get_traced_memory()[0] < bytes_max)
        await front.stop(0)

    asyncio.run(run())


@pytest.mark.fault(
    "calls and connections end in any way, with the garbage collector off: answered, refused,"
    " late, reset, closed within a message; silent or foreign callers of a TLS port; failed"
    " connections of a client",
    "no object of ours or of TLS is left, and less than an eighth of the bytes",
    cases="15 calls, 4 over TLS, 5 strangers, 6 of a client, 12 requests to pages",
)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_nothing(name: str) -> None:
    def act(plain: int, tls: int) -> None:
        with RawPeer("127.0.0.1", plain) as peer:
            CALLS[name](peer)

    assert_nothing_stays(act)


@pytest.mark.parametrize("name", ["answered", "unfinished, closed", "late", "reads nothing"])
def test_a_call_over_tls_leaves_nothing(name: str, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")

    def act(plain: int, tls: int) -> None:
        trust = ssl.create_default_context(cafile=pair.ca)
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trust.set_alpn_protocols(["h2"])
        with RawPeer("127.0.0.1", tls, tls=trust) as peer:
            CALLS[name](peer)

    assert_nothing_stays(act, secured(pair))


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_leaves_nothing(name: str, tmp_path: Path) -> None:
    security = secured(Authority(tmp_path).issue("server"))

    def act(plain: int, tls: int) -> None:
        STRANGERS[name](tls)

    assert_nothing_stays(act, security, begin_s=0.2)


PAGE_REQUESTS = {
    "answered": b"GET /hello HTTP/1.1\r\n\r\n",
    "refused": b"GET /nothing HTTP/1.1\r\n\r\n",
    "broken": b"GET /broken HTTP/1.1\r\n\r\n",
    "cut": b"GET /hel",
    "silent": b"",
    "no request": b"what is this\r\n\r\n",
}


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("name", PAGE_REQUESTS)
def test_a_request_to_a_page_leaves_nothing(name: str, is_tls: bool, tmp_path: Path) -> None:
    security = secured(Authority(tmp_path).issue("server"))
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

    async def hello(names: Any) -> Answer:
        return Answer("hello")

    async def broken(names: Any) -> Answer:
        raise RuntimeError("a defect")

    def ask(port: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        # These two do not even begin with TLS.
        if is_tls and name not in ("silent", "no request"):
            connection = trust.wrap_socket(connection)
        with connection:
            if PAGE_REQUESTS[name]:
                connection.sendall(PAGE_REQUESTS[name])
            if name not in ("cut", "silent"):
                with contextlib.suppress(ConnectionError):
                    connection.recv(4096)

    async def run() -> None:
        pages = HttpStatus("a node")
        pages.add("GET", "/hello", hello, "greets")
        pages.add("GET", "/broken", broken, "is broken")
        host = "0.0.0.0" if is_tls else "127.0.0.1"
        await pages.start(f"{host}:0", 0, security)
        port = int(pages.url.rpartition(":")[2].strip("/"))
        taken = []
        for times in (2, TIMES):
            for _ in range(times):
                await asyncio.to_thread(ask, port)
            await until(lambda: not pages._open and len(asyncio.all_tasks()) == 1)
            for _ in range(10):
                await asyncio.sleep(0)
            taken.append(objects())
        assert many(taken[1] - taken[0]) == {}
        await pages.close()

    asyncio.run(run())
