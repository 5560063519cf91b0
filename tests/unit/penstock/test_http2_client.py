import struct
from collections.abc import Sequence

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http2 import frames
from penstock.http2.client.client_connection import (
    ClientConnection,
    ClientLimits,
    ClientStream,
    Event,
    Outcome,
)
from penstock.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
)
from penstock.http2.header_blocks import (
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    encode_request,
    encode_timeout,
)

BLOCK = encode_request("/s/m", "host:1", scheme="http", user_agent="test")
READY = frames.settings({}) + frame(SETTINGS, ACK, 0)
Frame = tuple[int, int, int, bytes]


def pack(*fields: tuple[str, str]) -> bytes:
    """Return header fields as any server packs them that uses no dynamic table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    packed: bytes = encoder.encode(fields)
    return packed


FIRST = pack((":status", "200"), ("content-type", "application/grpc"))
DONE = pack(("grpc-status", "0"))


def message(data: bytes) -> bytes:
    return frames.MESSAGE_HEAD.pack(0, len(data)) + data


def head(stream_id: int = 1) -> bytes:
    return frame(HEADERS, END_HEADERS, stream_id, FIRST)


def trailers(stream_id: int = 1, *fields: tuple[str, str]) -> bytes:
    block = pack(*fields) if fields else DONE
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def connected(limits: ClientLimits | None = None, settings: bytes = READY) -> ClientConnection:
    connection = ClientConnection(limits)
    assert connection.receive(settings) == []
    connection.take()
    return connection


def sent(connection: ClientConnection) -> list[Frame]:
    data = b"".join(bytes(piece) for piece in connection.take())
    data = data.removeprefix(frames.PREFACE)
    found = []
    while data:
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data)
        end = frames.HEAD_SIZE + (high << 8 | low)
        found.append((kind, flags, stream_id, data[frames.HEAD_SIZE : end]))
        data = data[end:]
    return found


def call(connection: ClientConnection, *messages: bytes) -> ClientStream:
    stream = connection.open(BLOCK)
    for data in messages:
        connection.send(stream, [data])
    return stream


def outcomes(events: Sequence[Event]) -> list[Outcome]:
    return [what for _, what in events if isinstance(what, Outcome)]


def test_a_connection_begins_with_the_preface_and_settings_that_forbid_the_table() -> None:
    connection = ClientConnection()
    out = b"".join(bytes(piece) for piece in connection.take())
    assert out.startswith(frames.PREFACE)
    rest = out[len(frames.PREFACE) :]
    size = rest[0] << 16 | rest[1] << 8 | rest[2]
    settings = dict(frames.settings_in(rest[9 : 9 + size]))
    assert settings[frames.HEADER_TABLE_SIZE] == 0
    assert settings[frames.ENABLE_PUSH] == 0


def test_a_request_is_what_every_hpack_decoder_reads() -> None:
    connection = connected()
    stream = connection.open(BLOCK, timeout_s=2.5)
    connection.send(stream, [b"he", b"llo"], is_last=True)
    (kind, flags, stream_id, block), data = sent(connection)
    assert (kind, flags, stream_id) == (HEADERS, END_HEADERS, 1)
    assert data == (DATA, END_STREAM, 1, message(b"hello"))
    assert [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/s/m"),
        (":authority", "host:1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "test"),
        ("grpc-timeout", "2500000u"),
    ]


@pytest.mark.parametrize(
    ("timeout_s", "text"),
    [(0.0, b"1u"), (1e-6, b"1u"), (99.0, b"99000000u"), (570.0, b"570000m"), (1e9, b"99999999S")],
)
def test_a_timeout_has_eight_digits_at_most(timeout_s: float, text: bytes) -> None:
    assert encode_timeout(timeout_s).endswith(bytes((len(text),)) + text)


def session() -> tuple[bytes, list[object]]:
    """Return what a server sends in a session with all that may come, and what it amounts to."""
    large = bytes(range(256)) * 200
    long_block = pack(
        ("grpc-status", "5"), ("grpc-message", "n%C3%B6 %25"), ("a", "b"), ("c-bin", "AAE")
    )
    whole = message(b"second") + message(b"") + message(large)
    received = b"".join([
        READY,
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        frame(PING, 0, 0, b"12345678"),
        frame(HEADERS, END_HEADERS, 1, pack((":status", "103"))),
        head(1),
        frame(DATA, 0, 1, message(b"first")),
        frame(77, 3, 1, b"of a later standard"),
        head(3),
        frame(DATA, PADDED, 1, b"\x03" + whole[:8] + bytes(3)),
        frame(DATA, 0, 1, b""),
        frame(DATA, 0, 1, whole[8:9]),
        frame(DATA, 0, 1, whole[9:20_000]),
        frame(DATA, 0, 3, message(b"other")),
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 1 << 20)),
        frame(DATA, 0, 1, whole[20_000:]),
        frame(HEADERS, END_STREAM, 1, long_block[:3]),
        frame(CONTINUATION, 0, 1, long_block[3:9]),
        frame(CONTINUATION, END_HEADERS, 1, long_block[9:]),
        trailers(3),
        frame(RST_STREAM, 0, 5, struct.pack(">L", ErrorCode.REFUSED_STREAM)),
        frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 5)),
        frame(GOAWAY, 0, 0, struct.pack(">LL", 7, 0) + b"bye"),
        head(7),
        trailers(7),
    ])  # fmt: skip
    metadata = ((b"a", b"b"), (b"c-bin", b"AAE"))
    expected: list[object] = [
        (1, b"first"), (1, b"second"), (1, b""), (3, b"other"), (1, large),
        (1, Outcome(5, "nö %", metadata)),
        (3, Outcome(OK)),
        (5, Outcome(UNAVAILABLE, "the server ended the stream: REFUSED_STREAM", (), True)),
        (9, Outcome(UNAVAILABLE, "the server takes no more calls: NO_ERROR, bye", (), True)),
        (7, Outcome(OK)),
    ]  # fmt: skip
    return received, expected


def play(chunks: Sequence[bytes]) -> tuple[list[object], list[Frame]]:
    connection = ClientConnection()
    for _ in range(5):
        connection.end(call(connection, b"x"))
    events: list[object] = []
    for chunk in chunks:
        events += [(stream.id, what) for stream, what in connection.receive(chunk)]
    return events, sent(connection)


@given(cuts=st.lists(st.integers(0, len(session()[0])), max_size=20).map(sorted))
def test_however_the_bytes_come_they_mean_the_same(cuts: list[int]) -> None:
    received, expected = session()
    chunks = [received[a:b] for a, b in zip([0, *cuts], [*cuts, len(received)], strict=True)]
    events, _ = play(chunks)
    assert events == expected


def test_a_session_that_comes_byte_by_byte_means_the_same() -> None:
    received, expected = session()
    events, answers = play([received[i : i + 1] for i in range(len(received))])
    assert events == expected
    assert (PING, ACK, 0, b"12345678") in answers


def test_a_session_cut_off_anywhere_ends_each_call_exactly_once() -> None:
    received, _ = session()
    for cut in range(0, len(received), 97):
        connection = ClientConnection()
        streams = [call(connection, b"x") for _ in range(5)]
        events = connection.receive(received[:cut])
        events += connection.lost("cut")
        ended = [stream for stream, what in events if isinstance(what, Outcome)]
        assert len(ended) == 5
        assert set(ended) == set(streams)
        assert connection.lost("again") == []
        assert connection.fault is None


SETTINGS_ONLY = frames.settings({})


@pytest.mark.parametrize(
    ("received", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (b"\x15\x03\x01\x00\x02\x02\x50\x00\x00", ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, ACK, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.settings({frames.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (READY + frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frames.head(1 << 20, DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frame(DATA, 0, 0, b""), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(DATA, 0, 2, b""), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(DATA, 0, 99, b""), ErrorCode.PROTOCOL_ERROR),
        (READY + head() + frame(DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (READY + head() + frame(DATA, PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(HEADERS, END_HEADERS, 2, FIRST), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(HEADERS, 0, 1, FIRST) + head(), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(CONTINUATION, END_HEADERS, 1, FIRST), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(HEADERS, END_HEADERS, 1, b"\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (READY + frame(HEADERS, END_HEADERS, 1, b"\xbe"), ErrorCode.COMPRESSION_ERROR),
        (READY + frame(HEADERS, 0x24, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frame(RST_STREAM, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frame(RST_STREAM, 0, 99, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(PING, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(GOAWAY, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (READY + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (READY + frame(WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (
            READY + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", (1 << 31) - 1)),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (READY + frame(PING, 0, 0, bytes(8)) * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (READY + SETTINGS_ONLY * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (
            READY + frame(HEADERS, 0, 1, FIRST) + frame(CONTINUATION, 0, 1, bytes(60_000)) * 2,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (
            READY + frame(HEADERS, 0, 1, FIRST) + frame(CONTINUATION, 0, 1) * 1_001,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
    ],
)
def test_a_server_that_breaks_a_rule_ends_the_connection_with_the_errors_name(
    received: bytes, code: ErrorCode
) -> None:
    connection = ClientConnection()
    call(connection, b"x")
    connection.take()
    connection.receive(received)
    assert connection.fault is not None
    assert connection.fault.code is code
    assert str(connection.fault)
    kind, _, _, payload = sent(connection)[-1]
    assert (kind, struct.unpack(">LL", payload[:8])) == (GOAWAY, (0, code))
    (outcome,) = outcomes(connection.lost("gone"))
    assert outcome.status == UNAVAILABLE


@given(data=st.binary(max_size=400))
def test_no_bytes_at_all_do_more_than_end_the_connection(data: bytes) -> None:
    connection = connected()
    call(connection, b"x")
    events = connection.receive(data) + connection.lost("gone")
    assert len(outcomes(events)) == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10),
            st.integers(0, 255),
            st.integers(0, 6),
            st.binary(max_size=30) | st.sampled_from([FIRST, DONE, message(b"x")]),
        ),
        max_size=12,
    )
)
def test_no_frames_at_all_do_more_than_end_the_connection(found: list[Frame]) -> None:
    connection = connected()
    streams = {call(connection, b"x") for _ in range(3)}
    events: list[Event] = []
    for each in found:
        if connection.fault is None:
            events += connection.receive(frame(*each))
    events += connection.lost("gone")
    ended = [stream for stream, what in events if isinstance(what, Outcome)]
    assert len(ended) == 3
    assert set(ended) == streams


def test_what_came_before_a_broken_rule_in_the_same_bytes_still_counts() -> None:
    connection = connected()
    stream = call(connection, b"x")
    data = head() + frame(DATA, 0, 1, message(b"ack")) + frame(PING, 0, 0, b"")
    assert connection.receive(data) == [(stream, b"ack")]
    assert connection.fault is not None


@pytest.mark.parametrize(
    ("received", "status", "text"),
    [
        (frame(DATA, 0, 1, b""), INTERNAL, "DATA before HEADERS"),
        (head() + head(), INTERNAL, "trailers without an end"),
        (frame(HEADERS, END_HEADERS, 1, DONE), INTERNAL, "no :status"),
        (head() + frame(DATA, END_STREAM, 1, b""), INTERNAL, "without a status"),
        (head() + frame(DATA, 0, 1, b"\x01" + bytes(4)), INTERNAL, "ompress"),
        (head() + frame(DATA, 0, 1, b"\x00" + b"\x7f" * 4), RESOURCE_EXHAUSTED, "larger than max"),
        (head() + frame(DATA, 0, 1, b"\x00") + trailers(), INTERNAL, "within a message"),
        (frame(WINDOW_UPDATE, 0, 1, bytes(4)), INTERNAL, "WINDOW_UPDATE of 0"),
        (
            frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", (1 << 31) - 1)),
            INTERNAL,
            "the window overflows",
        ),
        (frame(RST_STREAM, 0, 1, struct.pack(">L", 77)), INTERNAL, "INTERNAL_ERROR"),
        (head() + trailers(1, ("x", "y")), UNKNOWN, "no grpc-status"),
        (head() + trailers(1, ("grpc-status", "99")), UNKNOWN, ""),
        (trailers(1, (":status", "404")), UNIMPLEMENTED, "HTTP status 404"),
        (trailers(1, (":status", "503"), ("content-type", "text/html")), UNAVAILABLE, "503"),
        (trailers(1, (":status", "200"), ("grpc-status", "12")), UNIMPLEMENTED, ""),
    ],
)
def test_a_call_that_goes_wrong_leaves_the_others_alone(
    received: bytes, status: int, text: str
) -> None:
    connection = connected(ClientLimits(message_bytes_max=1 << 20))
    first, second = call(connection, b"x"), call(connection, b"y")
    events = connection.receive(received)
    assert [stream for stream, what in events if isinstance(what, Outcome)] == [first]
    (outcome,) = outcomes(events)
    assert outcome.status == status
    assert text in outcome.text
    assert connection.receive(head(3) + trailers(3)) == [(second, Outcome(OK))]


def test_what_is_sent_waits_for_both_windows_and_continues_as_they_open() -> None:
    connection = connected(settings=frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
    first, second = connection.open(BLOCK), connection.open(BLOCK)
    connection.send(first, [b"a" * 20], is_last=True)
    connection.send(second, [b"b" * 4], is_last=True)
    data = [f for f in sent(connection) if f[0] == DATA]
    assert data == [(DATA, 0, 1, message(b"a" * 20)[:10]), (DATA, 1, 3, message(b"b" * 4))]
    connection.receive(frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 7)))
    assert sent(connection) == [(DATA, 0, 1, b"a" * 7)]
    # Open streams, too, get what the server allows from now on.
    connection.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 11}))
    assert [f for f in sent(connection) if f[0] == DATA] == [(DATA, 0, 1, b"a")]
    connection.receive(frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 100)))
    assert sent(connection) == [(DATA, END_STREAM, 1, b"a" * 7)]


def test_streams_share_the_connections_window_frame_by_frame() -> None:
    settings = {frames.INITIAL_WINDOW_SIZE: 1 << 20, frames.MAX_FRAME_SIZE: 16_384}
    connection = connected(settings=frames.settings(settings))
    big = bytes(100_000)
    for _ in range(2):
        connection.send(connection.open(BLOCK), [big], is_last=True)
    assert sum(len(f[3]) for f in sent(connection) if f[0] == DATA) == frames.WINDOW_DEFAULT
    connection.receive(frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 200_000)))
    assert [f[2] for f in sent(connection)][:4] == [1, 3, 1, 3]


def test_a_windowful_that_shrinks_below_zero_must_be_earned_again() -> None:
    connection = connected(settings=frames.settings({frames.INITIAL_WINDOW_SIZE: 100}))
    stream = connection.open(BLOCK)
    connection.send(stream, [bytes(200)])
    connection.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    sent(connection)
    connection.receive(frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 100)))
    assert sent(connection) == []
    connection.receive(frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 3)))
    assert sent(connection) == [(DATA, 0, 1, bytes(3))]


def test_calls_beyond_what_the_server_allows_wait_for_their_turn() -> None:
    connection = connected(settings=frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}))
    first, second, third = (call(connection, b"x") for _ in range(3))
    assert [f[2] for f in sent(connection)] == [1, 1]
    assert connection.cancel(second)
    connection.receive(head() + trailers())
    assert first.is_over
    assert (third.id, [f[0] for f in sent(connection)]) == (3, [RST_STREAM, HEADERS, DATA])


def test_what_the_server_answers_early_is_an_answer_and_the_rest_is_not_sent() -> None:
    connection = connected(settings=frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
    stream = connection.open(BLOCK)
    connection.send(stream, [bytes(100)])
    sent(connection)
    events = connection.receive(trailers(1, (":status", "200"), ("grpc-status", "8")))
    assert outcomes(events) == [Outcome(RESOURCE_EXHAUSTED)]
    assert sent(connection) == [(RST_STREAM, 0, 1, struct.pack(">L", ErrorCode.CANCEL))]
    connection.send(stream, [b"more"])
    connection.end(stream)
    assert not connection.has_output


def test_the_window_of_a_stream_is_given_back_as_messages_are_consumed() -> None:
    connection = connected(ClientLimits(stream_window_bytes=100))
    stream = call(connection, b"x")
    stream.is_held = True
    sent(connection)
    data = bytes(45)
    connection.receive(head() + frame(DATA, 0, 1, message(data)) * 2)
    assert sent(connection) == []
    connection.consumed(stream, data)
    assert sent(connection) == [(WINDOW_UPDATE, 0, 1, struct.pack(">L", 50))]
    events = connection.receive(frame(DATA, 0, 1, message(bytes(60))))
    assert outcomes(events) == [Outcome(INTERNAL, "more than the window")]


def test_a_message_larger_than_the_window_gets_through() -> None:
    connection = connected(ClientLimits(stream_window_bytes=100))
    stream = call(connection, b"x")
    stream.is_held = True
    sent(connection)
    whole = message(bytes(1000))
    allowed, at, events = 100, 0, connection.receive(head())
    while at < len(whole):
        assert allowed > 0, "the server may not continue"
        events += connection.receive(frame(DATA, 0, 1, whole[at : at + allowed]))
        at, allowed = at + allowed, 0
        for kind, _, _, payload in sent(connection):
            assert kind == WINDOW_UPDATE
            allowed += int.from_bytes(payload)
    assert [what for _, what in events] == [bytes(1000)]


def test_after_a_goaway_no_call_can_be_begun_and_those_below_it_end_well() -> None:
    connection = connected()
    first, second = call(connection, b"x"), call(connection, b"y")
    events = connection.receive(frame(GOAWAY, 0, 0, struct.pack(">LL", 1, 0)))
    assert [(stream, what.never_reached) for stream, what in events if isinstance(what, Outcome)]
    assert events[0][0] is second
    assert connection.ending is not None
    assert connection.receive(head() + trailers()) == [(first, Outcome(OK))]


def test_a_block_is_decoded_once_but_one_with_a_table_never_is_remembered() -> None:
    connection = connected(settings=frames.settings({}))  # It has not confirmed our settings.
    streams = [call(connection, b"x") for _ in range(4)]
    encoder = hpack.Encoder()
    blocks = [encoder.encode([(":status", "200"), ("grpc-status", "5"), ("k", f"v{i}")])
              for i in (1, 1)]  # fmt: skip
    assert blocks[0] != blocks[1], "the second one refers to the table"
    for stream_id, block in zip((1, 3), blocks, strict=True):
        connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block))
    connection.receive(frame(SETTINGS, ACK, 0))
    connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, blocks[1]))
    assert connection.fault is not None
    assert connection.fault.code is ErrorCode.COMPRESSION_ERROR
    assert [stream.is_over for stream in streams] == [True, True, False, False]
