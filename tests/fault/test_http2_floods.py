"""The classes of attacks on HTTP/2 that are known by a CVE, each against a server's process.

Whatever a peer sends, its connection ends with a named fault or is held up; the server answers
others meanwhile, holds nothing of the attacker's afterwards, and its memory stays within `ROOM`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS, END_STREAM, ErrorCode
from tests.kit.http2 import interop_service
from tests.kit.http2.front_process import FAST, FrontProcess
from tests.kit.http2.interop_service import MESSAGES
from tests.kit.http2.raw_peer import RawPeer, message, request
from tests.kit.wait import eventually

pytestmark = pytest.mark.fault

ROOM = 48 << 20
"""What one hostile connection may add to a server's memory, in bytes."""
NOISE_MAX = 2_000
"""A fifth of what a peer may send of frames that bring nothing, where nothing else is set.

Nor are any forgiven with time: a busy machine may be no faster with them than a usual caller.
"""
TIMES = 3 * NOISE_MAX
AT_ONCE = 500
DUPLEX = f"/{interop_service.SERVICE}/FullDuplexCall"
OUTPUT = f"/{interop_service.SERVICE}/StreamingOutputCall"


def in_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    for part in parts:
        held.append(part)
        if len(held) == AT_ONCE:
            yield b"".join(held)
            held.clear()
    yield b"".join(held)


def send_all(peer: RawPeer, parts: Iterable[bytes]) -> None:
    for chunk in in_chunks(parts):
        peer.send(chunk)


def reason_for_ending(front: FrontProcess, peer: RawPeer, parts: Iterable[bytes]) -> str:
    """Send until the server ends the connection; return the line in its log."""
    before = len(front.log_text())
    with contextlib.suppress(ConnectionError):  # It may be gone before all is sent.
        send_all(peer, parts)
    peer.until_closed()
    lines = [line for line in front.log_text()[before:].splitlines() if "is ended" in line]
    assert len(lines) == 1, lines
    return lines[0]


@contextlib.contextmanager
def harmless(front: FrontProcess, *, connections: int = 1) -> Iterator[None]:
    """Check around an attack that the server's memory, calls and other callers are as before."""
    front.assert_serves()
    before = front.memory_bytes()
    yield
    front.assert_serves()
    assert front.memory_bytes() - before < connections * ROOM
    eventually(front.is_idle)
    assert front.held().tasks < 20
    assert "Traceback" not in front.log_text()


def headers_frame(peer: RawPeer, stream_id: int, path: str, *more: tuple[str, str]) -> bytes:
    return frames.frame(frames.HEADERS, END_HEADERS, stream_id, peer.block(request(path, *more)))


def ids() -> Iterator[int]:
    return iter(range(1, 2 * TIMES, 2))


def rapid_reset(peer: RawPeer) -> Iterator[bytes]:
    block = peer.block(request(DUPLEX))
    cancel = ErrorCode.CANCEL
    for stream_id in ids():
        yield frames.frame(frames.HEADERS, END_HEADERS, stream_id, block)
        yield frames.rst_stream(stream_id, cancel)


def output_of(*wanted: Any) -> bytes:
    encoded: bytes = MESSAGES["StreamingOutputCallRequest"](
        response_parameters=wanted
    ).SerializeToString()
    return encoded


A_MINUTE = output_of(MESSAGES["ResponseParameters"](size=1, interval_us=60_000_000))


def provoked_resets(
    peer: RawPeer, breaking: Callable[[int], bytes], path: str = DUPLEX
) -> Iterator[bytes]:
    block = peer.block(request(path))
    for stream_id in ids():
        yield frames.frame(frames.HEADERS, END_HEADERS, stream_id, block)
        yield breaking(stream_id)


def malformed_requests(peer: RawPeer) -> Iterator[bytes]:
    block = peer.block([(":method", "POST"), ("content-type", "application/grpc")])
    for stream_id in ids():
        yield frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def repeated(data: bytes) -> Callable[[RawPeer], Iterator[bytes]]:
    return lambda peer: (data for _ in range(TIMES))


def on_an_open_call(data: bytes) -> Callable[[RawPeer], Iterator[bytes]]:
    def sent(peer: RawPeer) -> Iterator[bytes]:
        yield headers_frame(peer, 1, DUPLEX)
        yield from (data for _ in range(TIMES))

    return sent


def in_a_header_block(data: bytes, times: int = TIMES) -> Callable[[RawPeer], Iterator[bytes]]:
    def sent(peer: RawPeer) -> Iterator[bytes]:
        yield frames.frame(frames.HEADERS, 0, 1, peer.block(request(FAST)))
        yield from (frames.frame(frames.CONTINUATION, 0, 1, data) for _ in range(times))

    return sent


FLOODS: dict[str, Callable[[RawPeer], Iterator[bytes]]] = {
    "CVE-2023-44487 rapid reset": rapid_reset,
    "CVE-2024-27316 CONTINUATION": in_a_header_block(b"\x00\x01a\x01b" * 200),
    "CVE-2024-27316 CONTINUATION, byte by byte": in_a_header_block(b"\x88", 40_000),
    "CVE-2019-9518 CONTINUATION, empty": in_a_header_block(b""),
    "CVE-2019-9518 DATA, empty": on_an_open_call(frames.frame(frames.DATA, 0, 1)),
    "CVE-2019-9518 DATA, only padding": on_an_open_call(
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\x00\x00\x00")
    ),
    "CVE-2019-9515 SETTINGS": repeated(frames.settings({})),
    "CVE-2019-9515 SETTINGS, many values": repeated(
        frames.frame(frames.SETTINGS, 0, 0, b"\x00\x04\x00\x00\xff\xff" * 100)
    ),
    "CVE-2019-9512 PING": repeated(frames.ping(b"12345678")),
    "CVE-2019-9513 PRIORITY": repeated(
        frames.frame(frames.PRIORITY, 0, 5, b"\x00\x00\x00\x03\x10")
    ),
    "CVE-2019-9514 resets provoked by malformed requests": malformed_requests,
    "CVE-2025-8671 resets provoked by WINDOW_UPDATE of 0": lambda peer: provoked_resets(
        peer, lambda stream_id: frames.window_update(stream_id, 0)
    ),
    "CVE-2025-8671 resets provoked by an overflow of a window": lambda peer: provoked_resets(
        peer, lambda stream_id: frames.window_update(stream_id, frames.WINDOW_MAX)
    ),
    "CVE-2025-8671 resets provoked by a dependency on itself": lambda peer: provoked_resets(
        peer, lambda i: frames.frame(frames.PRIORITY, 0, i, i.to_bytes(4, "big") + b"\x00")
    ),
    "CVE-2025-8671 resets provoked by DATA after the end": lambda peer: provoked_resets(
        peer,
        lambda i: (
            frames.frame(frames.DATA, END_STREAM, i, message(A_MINUTE))
            + frames.frame(frames.DATA, 0, i, b"x")
        ),
        OUTPUT,
    ),
    "WINDOW_UPDATE by single bytes": repeated(frames.window_update(0, 1)),
    "frames of no known kind": repeated(frames.frame(0xBE, 0, 0, b"x")),
    "GOAWAY": repeated(frames.goaway(0, ErrorCode.NO_ERROR)),
}


@pytest.fixture(scope="module")
def strict_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    log = tmp_path_factory.mktemp("strict-front") / "front.log"
    front = FrontProcess(log, noise_max=NOISE_MAX, noise_per_s=0).start()
    yield front
    front.kill()


@pytest.mark.fault("CVE-2023-44487, rapid reset", "ENHANCE_YOUR_CALM", cases="1")
@pytest.mark.fault(
    "CVE-2024-27316, CONTINUATION without end, in large pieces and in bytes; CVE-2019-9518,"
    " empty ones",
    "same",
    cases="3",
)
@pytest.mark.fault("CVE-2019-9518, DATA that is empty or only padding", "same", cases="2")
@pytest.mark.fault(
    "CVE-2019-9512, PING; CVE-2019-9515, SETTINGS; CVE-2019-9513, PRIORITY", "same", cases="4"
)
@pytest.mark.fault(
    "CVE-2019-9514 and CVE-2025-8671, resets that are provoked: by malformed requests,"
    " windows of 0, overflows, dependencies on itself, DATA after the end",
    "same; the handlers are ended",
    cases="5",
)
@pytest.mark.fault(
    "WINDOW_UPDATE by single bytes, GOAWAY, frames of no known kind", "same", cases="3"
)
@pytest.mark.main_case("rapid reset")
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_its_own_connection_and_nothing_else(
    strict_front: FrontProcess, flood: Callable[[RawPeer], Iterator[bytes]]
) -> None:
    with harmless(strict_front), strict_front.peer() as peer:
        assert "ENHANCE_YOUR_CALM" in reason_for_ending(strict_front, peer, flood(peer))


def header_bomb() -> bytes:
    """Return two header blocks of 16 KB that unpack to 48 MB: a large field that is named again."""
    start = RawPeer.stateless_block(request(FAST))
    field = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000  # Goes into the dynamic table.
    return frames.frame(frames.HEADERS, END_HEADERS, 1, start + field) + (
        frames.frame(frames.HEADERS, END_HEADERS, 3, start + b"\xbe" * 12_000)
    )


@pytest.mark.thorough
@pytest.mark.fault(
    "CVE-2016-6581, a header block that unpacks to 48 MB", "same", cases="2 sizes of the table"
)
@pytest.mark.parametrize("header_table_bytes", [0, 4096])
def test_a_header_block_that_unpacks_to_much_more_ends_its_connection(
    front_factory: Callable[..., FrontProcess], header_table_bytes: int
) -> None:
    """CVE-2016-6581, the HPACK bomb; settings that were not acknowledged do not bind yet."""
    front = front_factory(header_table_bytes=header_table_bytes)
    with harmless(front), front.peer() as peer:
        reason = reason_for_ending(front, peer, [header_bomb()])
        assert "ENHANCE_YOUR_CALM" in reason


WINDOWS: dict[str, Callable[[RawPeer], bytes]] = {
    "of the connection": lambda peer: frames.window_update(0, frames.WINDOW_MAX),
    "of a stream, by settings": lambda peer: (
        headers_frame(peer, 1, DUPLEX)
        + frames.window_update(1, frames.WINDOW_MAX - frames.WINDOW_DEFAULT)
        + frames.settings({frames.INITIAL_WINDOW_SIZE: frames.WINDOW_DEFAULT + 1})
    ),
    "by settings": lambda peer: frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}),
}


@pytest.mark.thorough
@pytest.mark.fault(
    "a window that overflows; DATA beyond a window",
    "FLOW_CONTROL_ERROR, of the connection or the stream",
    cases="3 + 1",
)
@pytest.mark.parametrize("sent", WINDOWS.values(), ids=WINDOWS)
def test_a_window_that_overflows_ends_the_connection(
    front: FrontProcess, sent: Callable[[RawPeer], bytes]
) -> None:
    with harmless(front), front.peer() as peer:
        assert "FLOW_CONTROL_ERROR" in reason_for_ending(front, peer, [sent(peer)])


def test_data_beyond_the_window_of_a_stream_resets_it(
    front_factory: Callable[..., FrontProcess],
) -> None:
    front = front_factory(stream_window=100_000)
    with harmless(front), front.peer() as peer:
        stream_id = peer.open(OUTPUT)
        peer.send_frame(frames.DATA, 0, stream_id, message(bytes(110_000)))
        assert peer.answer(stream_id).reset is ErrorCode.FLOW_CONTROL_ERROR


def endless_output() -> bytes:
    """Return a request for 10 MB in messages of 50 KB."""
    return output_of(*[MESSAGES["ResponseParameters"](size=50_000)] * 200)


SLOW: dict[str, dict[str, Any]] = {
    "CVE-2019-9517 a wide window, and nothing is read": {
        "settings": {frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX},
        "receive_buffer_bytes": 4096,
    },
    "CVE-2019-9511 a window of nothing": {"settings": {frames.INITIAL_WINDOW_SIZE: 0}},
    "CVE-2019-9511 a window of one byte": {"settings": {frames.INITIAL_WINDOW_SIZE: 1}},
}


@pytest.mark.fault(
    "CVE-2019-9511, CVE-2019-9517: 500 calls whose answers are not read, or byte by byte",
    "their handlers wait; others are served",
    cases="3",
)
@pytest.mark.thorough
@pytest.mark.parametrize("options", SLOW.values(), ids=SLOW)
def test_peers_that_take_no_answers_hold_little_and_no_one_else_up(
    front: FrontProcess, options: dict[str, Any]
) -> None:
    wanted = message(endless_output())
    with harmless(front, connections=5), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(front.peer(**options)) for _ in range(5)]
        for peer in peers:
            if options["settings"][frames.INITIAL_WINDOW_SIZE] == frames.WINDOW_MAX:
                peer.send(frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT))
            for _ in range(100):
                stream_id = peer.open(OUTPUT)
                for at in range(0, len(wanted), 16_000):
                    flags = END_STREAM if at + 16_000 >= len(wanted) else 0
                    peer.send_frame(frames.DATA, flags, stream_id, wanted[at : at + 16_000])
        eventually(lambda: front.held().calls == 500, within_s=60)
        front.assert_serves()
    with front.peer() as peer:
        assert peer.call(FAST, b"x").status == 0


@pytest.mark.fault(
    "answers of the fast path are not read", "nothing more is read from that peer", cases="1"
)
def test_a_peer_that_reads_no_answer_of_the_fast_path_is_no_longer_read(
    front_factory: Callable[..., FrontProcess],
) -> None:
    front = front_factory(unsent_bytes_max=1 << 18)
    with harmless(front), front.peer(receive_buffer_bytes=4096) as peer:
        peer.send(frames.settings({frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX}))
        peer.send(frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT))
        peer.socket.settimeout(3)
        block, data = peer.block(request(FAST)), message(b"x" * 100)
        parts = (
            frames.frame(frames.HEADERS, END_HEADERS, stream_id, block)
            + frames.frame(frames.DATA, END_STREAM, stream_id, data)
            for stream_id in range(1, 4_000_000, 2)
        )
        with pytest.raises(TimeoutError):
            send_all(peer, parts)
        front.assert_serves()


@pytest.mark.fault(
    "400 calls on 4 connections whose answers no peer takes",
    "they hold 8 MiB together, all others end with RESOURCE_EXHAUSTED",
    cases="400",
)
@pytest.mark.thorough
@pytest.mark.parametrize("all_in_one_turn", [False, True])
def test_what_no_peer_takes_is_bounded_on_the_whole_server(
    front_factory: Callable[..., FrontProcess], all_in_one_turn: bool
) -> None:
    front = front_factory(waiting_bytes_max=8 << 20)
    wanted = MESSAGES["StreamingOutputCallRequest"]()
    wanted.response_parameters.add(size=1 << 20)
    takes_nothing = {frames.INITIAL_WINDOW_SIZE: 0}
    with harmless(front, connections=4), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(front.peer(settings=takes_nothing)) for _ in range(4)]
        if all_in_one_turn:
            front.freeze()
        for peer in peers:
            for _ in range(100):
                peer.send_message(peer.open(OUTPUT), wanted.SerializeToString())
        front.thaw()
        for peer in peers:
            peer.ping()
        eventually(lambda: front.held().calls <= 8)
        assert front.held().connections == 4  # Or their end would have freed it all.
        front.assert_serves()
        with front.peer() as other:
            assert len(other.call(OUTPUT, wanted.SerializeToString()).data) > 1 << 20


@pytest.mark.fault(
    "more connections than are allowed",
    "closed, with one line in the log, and one when some are taken again",
    cases="50",
)
def test_too_many_connections_are_one_line_in_the_log(
    front_factory: Callable[..., FrontProcess],
) -> None:
    front = front_factory(connections_max=5)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(front.peer()).wait_for_kind(frames.SETTINGS)
        for _ in range(50):
            with front.peer(greets=False) as late:
                assert late.until_closed() == []
    eventually(lambda: "connections are taken again: 50 were closed" in front.log_text())
    assert front.log_text().count("new connections are closed: there are 5") == 1
    front.assert_serves()
