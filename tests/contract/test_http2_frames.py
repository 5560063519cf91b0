"""What RFC 9113 asks of a server for each frame that breaks a rule, on real connections.

The sequences are those that tests of conformance try (`tests/integration/test_http2_others.py`
runs h2spec with the long sweeps); here they need nothing but Python. Numbers are sections.
"""

from collections.abc import Callable

import pytest

from penstock.http2 import frames
from penstock.http2.frames import ACK, END_HEADERS, END_STREAM, HAS_PRIORITY, PADDED, ErrorCode
from tests.kit.http2 import interop_service
from tests.kit.http2.front_process import ANSWER, FAST, FrontProcess
from tests.kit.http2.raw_peer import RawPeer, message, request

DUPLEX = f"/{interop_service.SERVICE}/FullDuplexCall"
BLOCK, OPEN_BLOCK = RawPeer.stateless_block(request(FAST)), RawPeer.stateless_block(request(DUPLEX))
OPEN = frames.frame(frames.HEADERS, END_HEADERS, 1, OPEN_BLOCK)
ENDED = frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, OPEN_BLOCK)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


def fields(*more: tuple[str, str]) -> bytes:
    return frame(frames.HEADERS, END_HEADERS, 1, RawPeer.stateless_block([*request(FAST), *more]))


PROTOCOL, SIZE = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR
FLOW, CLOSED = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.STREAM_CLOSED
COMPRESSION = ErrorCode.COMPRESSION_ERROR

ENDS_THE_CONNECTION: dict[str, tuple[bytes, ErrorCode]] = {
    "4.2 a frame that is too large": (frame(frames.DATA, 0, 1, bytes(200_000)), SIZE),
    "4.3 a block that cannot be decoded": (
        frame(frames.HEADERS, END_HEADERS, 1, b"\xff"),
        COMPRESSION,
    ),
    "4.3 a frame within a block": (
        frame(frames.HEADERS, 0, 1, BLOCK) + frames.ping(b"12345678"),
        PROTOCOL,
    ),
    "5.1 DATA on an idle stream": (frame(frames.DATA, 0, 1, b"x"), PROTOCOL),
    "5.1 RST_STREAM on an idle stream": (frames.rst_stream(1, ErrorCode.CANCEL), PROTOCOL),
    "5.1 WINDOW_UPDATE on an idle stream": (frames.window_update(1, 5), PROTOCOL),
    "5.1.1 a stream with an even number": (frame(frames.HEADERS, END_HEADERS, 2, BLOCK), PROTOCOL),
    "5.1.1 HEADERS on a lower stream": (
        frame(frames.HEADERS, END_HEADERS, 5, OPEN_BLOCK)
        + frame(frames.HEADERS, END_HEADERS, 3, BLOCK),
        ErrorCode.STREAM_CLOSED,
    ),
    "6.1 DATA on stream 0": (frame(frames.DATA, 0, 0, b"x"), PROTOCOL),
    "6.1 more padding than DATA": (OPEN + frame(frames.DATA, PADDED, 1, b"\x05x"), PROTOCOL),
    "6.2 HEADERS on stream 0": (frame(frames.HEADERS, END_HEADERS, 0, BLOCK), PROTOCOL),
    "6.2 more padding than HEADERS": (
        frame(frames.HEADERS, END_HEADERS | PADDED, 1, b"\x09x"),
        PROTOCOL,
    ),
    "6.3 PRIORITY on stream 0": (frame(frames.PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "6.4 RST_STREAM on stream 0": (frames.rst_stream(0, ErrorCode.CANCEL), PROTOCOL),
    "6.4 RST_STREAM of 3 bytes": (OPEN + frame(frames.RST_STREAM, 0, 1, bytes(3)), SIZE),
    "6.5 SETTINGS on a stream": (frame(frames.SETTINGS, 0, 1), PROTOCOL),
    "6.5 SETTINGS of 3 bytes": (frame(frames.SETTINGS, 0, 0, bytes(3)), SIZE),
    "6.5 an acknowledgement with values": (frame(frames.SETTINGS, ACK, 0, bytes(6)), SIZE),
    "6.5.2 ENABLE_PUSH of 2": (frames.settings({frames.ENABLE_PUSH: 2}), PROTOCOL),
    "6.5.2 a window beyond the largest": (
        frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}),
        FLOW,
    ),
    "6.5.2 MAX_FRAME_SIZE too small": (frames.settings({frames.MAX_FRAME_SIZE: 16_383}), PROTOCOL),
    "6.5.2 MAX_FRAME_SIZE too large": (frames.settings({frames.MAX_FRAME_SIZE: 1 << 24}), PROTOCOL),
    "6.6 PUSH_PROMISE": (frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), PROTOCOL),
    "6.7 PING on a stream": (frame(frames.PING, 0, 1, bytes(8)), PROTOCOL),
    "6.7 PING of 7 bytes": (frame(frames.PING, 0, 0, bytes(7)), SIZE),
    "6.8 GOAWAY on a stream": (frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "6.9 WINDOW_UPDATE of 3 bytes": (frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    "6.9 WINDOW_UPDATE by 0": (frames.window_update(0, 0), PROTOCOL),
    "6.9.1 a window that overflows": (frames.window_update(0, frames.WINDOW_MAX), FLOW),
    "6.10 CONTINUATION without HEADERS": (
        frame(frames.CONTINUATION, END_HEADERS, 1, BLOCK),
        PROTOCOL,
    ),
    "6.10 CONTINUATION of another stream": (
        frame(frames.HEADERS, 0, 1, BLOCK) + frame(frames.CONTINUATION, END_HEADERS, 3),
        PROTOCOL,
    ),
}

ENDS_THE_STREAM: dict[str, tuple[bytes, ErrorCode]] = {
    "5.1 DATA after the end": (ENDED + frame(frames.DATA, 0, 1, b"x"), CLOSED),
    "5.1 HEADERS after the end": (ENDED + frame(frames.HEADERS, END_HEADERS, 1, BLOCK), CLOSED),
    "5.3.1 a dependency on itself": (
        frame(frames.HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\x00\x00\x00\x01\x10" + OPEN_BLOCK),
        PROTOCOL,
    ),
    "6.3 PRIORITY of 4 bytes": (OPEN + frame(frames.PRIORITY, 0, 1, bytes(4)), SIZE),
    "6.9 WINDOW_UPDATE of a stream by 0": (OPEN + frames.window_update(1, 0), PROTOCOL),
    "6.9.1 a stream's window that overflows": (
        OPEN + frames.window_update(1, frames.WINDOW_MAX),
        FLOW,
    ),
    "8.1 trailers without an end": (
        OPEN + frame(frames.HEADERS, END_HEADERS, 1, b"\x00\x01a\x01b"),
        PROTOCOL,
    ),
    "8.1.1 more DATA than content-length": (
        fields(("content-length", "3")) + frame(frames.DATA, END_STREAM, 1, message(b"x")),
        PROTOCOL,
    ),
    "8.2.1 a name in upper case": (fields(("X-Test", "a")), PROTOCOL),
    "8.2.2 a field of a connection": (fields(("connection", "keep-alive")), PROTOCOL),
    "8.2.2 TE other than trailers": (
        frame(
            frames.HEADERS,
            END_HEADERS,
            1,
            RawPeer.stateless_block([*request(FAST)[:-1], ("te", "gzip")]),
        ),
        PROTOCOL,
    ),
    "8.3 a pseudo-field after another field": (fields((":path", "/")), PROTOCOL),
    "8.3 a pseudo-field of answers": (
        frame(
            frames.HEADERS,
            END_HEADERS,
            1,
            RawPeer.stateless_block([(":status", "200"), *request(FAST)]),
        ),
        PROTOCOL,
    ),
    "8.3.1 no path": (
        frame(
            frames.HEADERS,
            END_HEADERS,
            1,
            RawPeer.stateless_block([f for f in request(FAST) if f[0] != ":path"]),
        ),
        PROTOCOL,
    ),
}

Case = tuple[bytes, ErrorCode]


def greeted(front: FrontProcess) -> RawPeer:
    """Return a peer that has seen the server's settings, and not acknowledged them yet."""
    peer = front.peer()
    peer.wait_for_kind(frames.SETTINGS)
    return peer


@pytest.mark.parametrize("case", ENDS_THE_CONNECTION.values(), ids=ENDS_THE_CONNECTION)
def test_a_fault_of_the_connection_ends_it_by_its_name(front: FrontProcess, case: Case) -> None:
    sent, code = case
    with greeted(front) as peer:
        peer.send(sent)
        assert peer.goaway() is code
    front.assert_serves()


@pytest.mark.parametrize("case", ENDS_THE_STREAM.values(), ids=ENDS_THE_STREAM)
def test_a_fault_of_a_stream_ends_only_that(front: FrontProcess, case: Case) -> None:
    sent, code = case
    with greeted(front) as peer:
        peer.send(sent)
        reset = peer.wait_for_kind(frames.RST_STREAM)
        assert (reset.stream_id, reset.code) == (1, code)
        peer.next_id()
        assert peer.call(FAST, b"x").messages == [ANSWER]


WITHIN_THE_RULES: dict[str, bytes] = {
    "5.5 a frame of no known kind": frame(0xF0, 0xFF, 0, b"x" * 50),
    "6.2 HEADERS with padding": frame(
        frames.HEADERS, END_HEADERS | PADDED, 1, b"\x03" + BLOCK + bytes(3)
    )
    + frame(frames.DATA, END_STREAM, 1, message(b"x")),
    "6.2 HEADERS with a priority": frame(
        frames.HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\x80\x00\x00\x00\x10" + BLOCK
    )
    + frame(frames.DATA, END_STREAM, 1, message(b"x")),
    "6.3 PRIORITY of an idle stream": frame(frames.PRIORITY, 0, 7, bytes(5)),
    "6.5.2 a setting of no known name": frames.settings({0xFF: 1}),
    "6.10 a block in many pieces": (
        frame(frames.HEADERS, 0, 1, BLOCK[:5])
        + frame(frames.CONTINUATION, 0, 1, BLOCK[5:9])
        + frame(frames.CONTINUATION, END_HEADERS, 1, BLOCK[9:])
        + frame(frames.DATA, END_STREAM, 1, message(b"x"))
    ),
    "6.1 DATA with padding": (
        frame(frames.HEADERS, END_HEADERS, 1, BLOCK)
        + frame(frames.DATA, END_STREAM | PADDED, 1, b"\x02" + message(b"x") + bytes(2))
    ),
    "8.1 trailers after the DATA": (
        frame(frames.HEADERS, END_HEADERS, 1, BLOCK)
        + frame(frames.DATA, 0, 1, message(b"x"))
        + frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01a\x01b")
    ),
}


@pytest.mark.parametrize("sent", WITHIN_THE_RULES.values(), ids=WITHIN_THE_RULES)
def test_what_is_within_the_rules_is_taken(front: FrontProcess, sent: bytes) -> None:
    with greeted(front) as peer:
        first = peer.next_id()
        peer.send(sent)
        if sent[3] == frames.HEADERS:
            assert peer.answer(first).messages == [ANSWER]
        assert peer.call(FAST, b"x").messages == [ANSWER]


def test_streams_beyond_the_limit_are_refused_and_not_the_connection(
    front_factory: Callable[..., FrontProcess],
) -> None:
    front = front_factory(streams_max=3)
    with greeted(front) as peer:
        for _ in range(4):
            last = peer.open(DUPLEX)
        reset = peer.wait_for_kind(frames.RST_STREAM)
        assert (reset.stream_id, reset.code) == (last, ErrorCode.REFUSED_STREAM)
        peer.ping()


def test_a_peer_that_keeps_its_table_after_it_was_forbidden_is_refused(front: FrontProcess) -> None:
    """RFC 9113, 4.3.1: the first block after the acknowledgement begins with the new size."""
    with greeted(front) as peer:
        peer.send_frame(frames.SETTINGS, ACK, 0)
        peer.send_frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, BLOCK)
        assert peer.goaway() is ErrorCode.COMPRESSION_ERROR
