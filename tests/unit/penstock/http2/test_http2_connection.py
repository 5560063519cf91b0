"""One connection of a server, in memory: frames in, frames out, and a named end for what is bad."""

import itertools
import logging
from collections.abc import Callable

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http2 import frames
from penstock.http2.frames import ACK, END_HEADERS, END_STREAM, ErrorCode
from penstock.http2.server_limits import ServerLimits
from penstock.http2.server_stream import ServerStream
from penstock.http2.unary import Reply
from tests.kit.fakes.http2_client import (
    FAST,
    SLOW,
    Frame,
    Http2Client,
    answer,
    data,
    kinds,
    prefixed,
)

TIMEOUT = ("grpc-timeout", "14999000u")
STREAMS = range(1, 41, 2)


def call(client: Http2Client, stream_id: int, message: bytes = b"m", path: str = FAST) -> bytes:
    """Return the frames of a whole call, as grpc-go sends them."""
    return client.headers(stream_id, path, [TIMEOUT]) + data(stream_id, message)


def session(client: Http2Client) -> bytes:
    parts = [frames.PREFACE, frames.settings({frames.INITIAL_WINDOW_SIZE: 70_000})]
    parts.append(frames.frame(frames.SETTINGS, ACK, 0))
    for stream_id in range(1, 20, 2):
        path = SLOW if stream_id % 3 == 0 else FAST
        parts.append(call(client, stream_id, b"%d" % stream_id * 50, path))
    large = prefixed(bytes(40_000))
    parts.append(client.headers(21))
    parts += [
        frames.frame(frames.DATA, 0, 21, large[at : at + 9000]) for at in range(0, 36_000, 9000)
    ]
    parts.append(frames.frame(frames.DATA, END_STREAM, 21, large[36_000:]))
    block = client.block(FAST, [("x", "y" * 100)])
    parts.append(frames.frame(frames.HEADERS, 0, 23, block[:20]))
    parts.append(frames.frame(frames.CONTINUATION, 0, 23, block[20:40]))
    parts.append(frames.frame(frames.CONTINUATION, END_HEADERS, 23, block[40:]))
    padded = prefixed(b"padded")
    parts.append(
        frames.frame(frames.DATA, frames.PADDED | END_STREAM, 23, b"\x05" + padded + bytes(5))
    )
    parts += [frames.ping(b"12345678"), frames.window_update(0, 1000), call(client, 25)]
    parts += [client.headers(27), frames.rst_stream(27, ErrorCode.CANCEL)]
    parts += [frames.frame(0xBB, 0, 0, b"unknown kinds are ignored"), call(client, 29)]
    parts.append(client.headers(31, FAST, [TIMEOUT]))
    parts += [
        frames.frame(frames.DATA, 0, 31, large[at : at + 6000]) for at in range(0, 36_000, 6000)
    ]
    parts.append(call(client, 33))
    parts.append(frames.frame(frames.DATA, END_STREAM, 31, large[36_000:]))
    return b"".join(parts)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_a_session_is_the_same_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    whole, cut = Http2Client(begins=False), Http2Client(begins=False)
    sent = session(whole)
    whole.send(sent)
    at = 0
    for size in itertools.cycle(cuts):
        if at >= len(sent):
            break
        cut.send(sent[at : at + size])
        at += size
    assert [message for message, _ in whole.fast] == [message for message, _ in cut.fast]
    assert len(whole.fast) == 13
    assert whole.load.partial_bytes == cut.load.partial_bytes == 0
    assert [seen.messages for seen in whole.calls] == [seen.messages for seen in cut.calls]
    answer(whole)
    answer(cut)
    assert whole.take() == cut.take()


@given(st.integers(1, 3000))
def test_a_session_that_is_cut_leaves_nothing(size: int) -> None:
    client = Http2Client(begins=False)
    client.send(session(client)[:-size])
    client.server.close()
    assert (client.load.calls, client.load.partial_bytes) == (0, 0)
    assert all(seen.is_closed for seen in client.calls)
    answer(client)
    assert client.server.streams == {}


FRAMES = st.builds(
    lambda kind, flags, stream_id, payload: frames.frame(kind, flags, stream_id, payload),
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF]),
    st.sampled_from([0, 1, 2, 3, 5, 7, 0x7FFFFFFF]),
    st.one_of(
        st.binary(max_size=40),
        st.just(prefixed(b"message")),
        st.sampled_from([Http2Client().block(), Http2Client().block(SLOW, [TIMEOUT])]),
        st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "big")),
    ),
)


@settings(max_examples=300)
@given(st.lists(FRAMES, max_size=25), st.binary(max_size=30))
def test_whatever_comes_is_answered_or_ends_the_connection_by_a_named_fault(
    sent: list[bytes], noise: bytes
) -> None:
    client = Http2Client()
    for part in (*sent, noise):
        client.send(part)
    ended = [frame for frame in client.take() if frame.kind == frames.GOAWAY]
    assert bool(ended) == client.server.is_over == client.wire.is_closed
    if ended:
        assert ErrorCode(int.from_bytes(ended[0].payload[4:8], "big")) is not ErrorCode.NO_ERROR
        assert (client.load.calls, client.server.streams) == (0, {})
    else:
        answer(client)
        client.send(frames.ping(b"are you?"))
    assert client.load.partial_bytes >= 0
    assert client.load.calls == len(client.server.streams)


@given(st.binary(max_size=100))
def test_whatever_a_stranger_says_first_is_refused(noise: bytes) -> None:
    client = Http2Client(begins=False)
    client.send(noise)
    is_beginning = frames.PREFACE.startswith(noise)
    assert client.wire.is_closed is not is_beginning


@pytest.mark.parametrize(
    ("first", "answer_begins", "line"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 ", "speaks HTTP/1"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"", "speaks TLS to a port without it"),
        (b"\x00\x00\x00\x00\x00\x00\x00", b"", "does not speak HTTP/2"),
    ],
)
def test_who_speaks_something_else_is_named_in_one_line(
    first: bytes, answer_begins: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Http2Client(begins=False)
    before = len(client.wire.written)
    with caplog.at_level(logging.INFO):
        client.send(first)
        client.send(first)
    assert bytes(client.wire.written[before:]).startswith(answer_begins)
    assert [line in record.getMessage() for record in caplog.records] == [True]


def test_answers_of_one_turn_leave_in_one_write() -> None:
    client = Http2Client()
    client.send(*(call(client, stream_id) for stream_id in STREAMS))
    before = client.wire.writes
    answer(client, Reply(b""))
    found = client.take()
    assert client.wire.writes == before + 1
    headers = [frame for frame in found if frame.kind == frames.HEADERS]
    assert [f.stream_id for f in headers if f.flags & END_STREAM] == list(STREAMS)


def test_a_reply_is_headers_message_and_status() -> None:
    client = Http2Client()
    client.take()
    for stream_id in (1, 3, 5):
        client.send(call(client, stream_id, b"question"))
        assert client.fast[0][0] == b"question"
        assert client.fast[0][1].peer() == "ipv4:127.0.0.1:1"
        answer(client, Reply(b"reply"))
        first, message, last = client.take()
        assert client.fields(first) == {":status": "200", "content-type": "application/grpc"}
        assert message == Frame(frames.DATA, 0, stream_id, prefixed(b"reply"))
        assert client.fields(last) == {"grpc-status": "0"}
        assert last.flags == END_STREAM | END_HEADERS


@pytest.mark.parametrize("size", [0, 1, 100, 4095])
def test_a_peer_with_a_small_table_gets_blocks_that_need_none(size: int) -> None:
    client = Http2Client(begins=False)
    client.send(frames.PREFACE, frames.settings({frames.HEADER_TABLE_SIZE: size}))
    client._decoder.max_allowed_table_size = size
    client.take()
    for stream_id in (1, 3):
        client.send(call(client, stream_id))
        answer(client)
        first, _, last = client.take()
        assert client.fields(first)[":status"] == "200"
        assert client.fields(last) == {"grpc-status": "0"}


def test_a_call_is_answered_once_and_only_while_the_caller_waits() -> None:
    client = Http2Client()
    client.send(call(client, 1), call(client, 3))
    (_, first), (_, second) = client.fast
    assert (first.is_open(), second.is_open()) == (True, True)
    client.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert (first.is_open(), second.is_open()) == (True, False)
    client.take()
    for each in (first, second):
        each.answer(Reply(b""))
        each.answer(Reply(b""))
        each.fail(grpc.StatusCode.INTERNAL, "too late")
    assert {stream_id for _, stream_id in kinds(client.take())} == {1}
    assert client.load.calls == 0


def test_a_call_can_fail_with_a_status() -> None:
    client = Http2Client()
    client.take()
    client.send(call(client, 1))
    client.fast[0][1].fail(grpc.StatusCode.NOT_FOUND, "größer")
    (only,) = client.take()
    assert only.flags == END_STREAM | END_HEADERS
    assert client.fields(only) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "gr%C3%B6%C3%9Fer",
    }


def test_a_handler_that_raises_fails_its_call_only() -> None:
    client = Http2Client()

    def broken(message: bytes, call: object) -> None:
        raise ValueError("boom")

    client.server._fast[FAST.encode()] = broken  # type: ignore[index]
    client.take()
    client.send(call(client, 1), call(client, 3), frames.ping(b"12345678"))
    found = client.take()
    said = [client.fields(frame) for frame in found if frame.kind == frames.HEADERS]
    assert [fields["grpc-message"] for fields in said] == [
        "Unexpected <class 'ValueError'>: boom"
    ] * 2
    assert found[-1].kind == frames.PING


def test_a_reply_waits_for_the_windows_of_the_peer() -> None:
    client = Http2Client(begins=False)
    client.send(frames.PREFACE, frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    client.send(call(client, 1))
    client.send(frames.window_update(1, 3))
    answer(client, Reply(b"reply"))
    stream = client.server.streams[1]
    assert isinstance(stream, ServerStream)
    assert stream.prepared is not None
    assert stream.send_window == 3
    assert client.calls[0].stream is stream


@given(
    st.binary(min_size=1, max_size=3000),
    st.integers(0, 400),
    st.lists(
        st.one_of(
            st.tuples(st.just("stream"), st.integers(1, 900)),
            st.tuples(st.just("connection"), st.integers(1, 900)),
            st.tuples(st.just("initial"), st.integers(0, 900)),
        ),
        max_size=20,
    ),
)
def test_no_more_is_sent_than_the_peer_allows_and_all_in_the_end(
    message: bytes, initial: int, changes: list[tuple[str, int]]
) -> None:
    client = Http2Client(begins=False)
    client.send(frames.PREFACE, frames.settings({frames.INITIAL_WINDOW_SIZE: initial}))
    client.send(client.headers(1, SLOW))
    stream, server = client.calls[0].stream, client.server
    client.take()
    server.out.send_window = 500
    view, got = memoryview(message), b""
    allowed = {"stream": initial, "connection": 500}
    changes = [*changes, ("initial", 5000), ("connection", 5000), ("stream", 5000)]
    for what, size in changes:
        if what == "initial":
            allowed["stream"] += size - server.out.peer_window
            client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: size}))
        else:
            allowed[what] += size
            client.send(frames.window_update(1 if what == "stream" else 0, size))
        room, before = min(allowed.values()) - len(got), len(got)
        view = view[server.out.push(stream, view) :]
        got += b"".join(f.payload for f in client.take() if f.kind == frames.DATA)
        assert len(got) - before <= max(0, room)
    assert got == message


def test_frames_are_no_larger_than_the_peer_takes() -> None:
    client = Http2Client()
    client.send(client.headers(1, SLOW))
    client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}))
    sizes = (16_384, 20_000)
    for size in sizes:
        client.send(frames.settings({frames.MAX_FRAME_SIZE: size}))
        client.take()
        assert client.server.out.push(client.calls[0].stream, memoryview(bytes(30_000))) == 30_000
        sent = [len(frame.payload) for frame in client.take() if frame.kind == frames.DATA]
        assert sent == [size, 30_000 - size]


def test_what_a_handler_has_not_taken_is_not_given_back() -> None:
    limits = ServerLimits(stream_window=100_000, connection_window=1_000_000)
    client = Http2Client(limits)
    client.send(client.headers(1, SLOW))
    client.take()
    seen = client.calls[0]
    seen.is_taking = False
    message = frames.frame(frames.DATA, 0, 1, prefixed(bytes(9_995)))
    client.send(*[message] * 10)
    assert [f for f in client.take() if f.kind == frames.WINDOW_UPDATE] == []
    seen.is_taking = True
    seen.wake()
    given = [f for f in client.take() if f.kind == frames.WINDOW_UPDATE and f.stream_id == 1]
    assert sum(int.from_bytes(frame.payload, "big") for frame in given) >= 50_000
    assert len(seen.messages) == 10


def test_a_peer_that_sends_beyond_a_window_is_stopped() -> None:
    client = Http2Client(ServerLimits(stream_window=20_000, connection_window=1_000_000))
    client.send(client.headers(1, SLOW))
    client.calls[0].is_taking = False
    message = frames.frame(frames.DATA, 0, 1, prefixed(bytes(9_995)))
    client.send(message, message)
    client.take()
    client.send(message)
    (reset,) = [frame for frame in client.take() if frame.kind == frames.RST_STREAM]
    assert reset.payload == ErrorCode.FLOW_CONTROL_ERROR.to_bytes(4, "big")
    assert client.calls[0].is_closed
    assert not client.server.is_over

    client = Http2Client(ServerLimits(stream_window=90_000, connection_window=70_000))
    client.send(client.headers(1, SLOW))
    client.calls[0].is_taking = False
    client.send(*[message] * 8)
    assert client.goaway() is ErrorCode.FLOW_CONTROL_ERROR


def test_a_message_may_be_larger_than_every_window() -> None:
    limits = ServerLimits(stream_window=70_000, connection_window=70_000)
    client = Http2Client(limits)
    for path, stream_id in ((FAST, 1), (SLOW, 3)):
        message = bytes([stream_id]) * 500_000
        client.send(client.headers(stream_id, path))
        body = prefixed(message)
        for at in range(0, len(body), 10_000):
            flags = END_STREAM if at + 10_000 >= len(body) else 0
            client.send(frames.frame(frames.DATA, flags, stream_id, body[at : at + 10_000]))
        assert not client.server.is_over
    assert client.fast[0][0] == b"\x01" * 500_000
    assert client.calls[0].messages == [b"\x03" * 500_000]
    assert client.load.partial_bytes == 0


def test_unfinished_messages_are_bounded_on_the_whole_server() -> None:
    client = Http2Client(ServerLimits(message_bytes_max=50_000, partial_bytes_max=50_000))
    part = frames.MESSAGE_HEAD.pack(0, 40_000) + bytes(30_000)
    client.send(client.headers(1), frames.frame(frames.DATA, 0, 1, part))
    client.take()
    client.send(client.headers(3), frames.frame(frames.DATA, 0, 3, part))
    found = client.take()
    said = client.fields(next(f for f in found if f.kind == frames.HEADERS))
    assert (said["grpc-status"], "unfinished" in said["grpc-message"]) == ("8", True)
    assert client.load.partial_bytes == 30_000
    client.send(frames.frame(frames.DATA, END_STREAM, 1, bytes(10_000)))
    assert len(client.fast[0][0]) == 40_000
    assert client.load.partial_bytes == 0


def test_a_whole_message_counts_as_unfinished_until_its_request_ends() -> None:
    client = Http2Client()
    client.send(client.headers(1), data(1, bytes(9_000), flags=0))
    assert client.load.partial_bytes >= 9_000
    assert client.fast == []
    client.send(frames.frame(frames.DATA, END_STREAM, 1))
    assert [message for message, _ in client.fast] == [bytes(9_000)]
    assert client.load.partial_bytes == 0


def test_a_second_message_of_a_fast_call_is_refused_before_the_request_ends() -> None:
    client = Http2Client()
    client.take()
    client.send(client.headers(1), data(1, b"a", flags=0), data(1, b"b", flags=0))
    first = client.take()[0]
    assert client.fields(first)["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
    assert (client.load.calls, client.load.partial_bytes) == (0, 0)


def test_messages_that_wait_for_their_handler_are_given_back_one_by_one() -> None:
    limits = ServerLimits(stream_window=100_000, connection_window=100_000)
    client = Http2Client(limits)
    client.send(client.headers(1, SLOW))
    seen = client.calls[0]
    seen.is_taking = False
    client.send(*[frames.frame(frames.DATA, 0, 1, prefixed(bytes(9_995)))] * 10)
    client.take()
    for count in range(1, 11):
        assert client.server.next_message(seen.stream) == bytes(9_995)
        given = sum(
            int.from_bytes(frame.payload, "big")
            for frame in client.take()
            if frame.kind == frames.WINDOW_UPDATE and frame.stream_id == 1
        )
        assert given in ((50_000,) if count in (5, 10) else (0,))
    assert client.server.next_message(seen.stream) is None


def test_streams_and_calls_are_bounded() -> None:
    client = Http2Client(ServerLimits(streams_max=3, calls_max=2))
    client.send(*(call(client, stream_id) for stream_id in (1, 3, 5)))
    found = client.take()
    assert len(client.fast) == 2
    said = client.fields(next(f for f in found if f.kind == frames.HEADERS and f.stream_id == 5))
    assert said["grpc-status"] == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    client.send(client.headers(7, SLOW), client.headers(9, SLOW))
    client.load.calls -= 2
    client.send(client.headers(11, SLOW), client.headers(13, SLOW))
    resets = [frame for frame in client.take() if frame.kind == frames.RST_STREAM]
    assert resets[-1] == Frame(
        frames.RST_STREAM, 0, 13, ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
    )


FLOODS: dict[str, Callable[[Http2Client, int], bytes]] = {
    "PING": lambda client, n: frames.ping(b"12345678"),
    "SETTINGS": lambda client, n: frames.settings({}),
    "RST_STREAM": lambda client, n: (
        client.headers(2 * n + 1) + frames.rst_stream(2 * n + 1, ErrorCode.CANCEL)
    ),
    "PRIORITY": lambda client, n: frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": lambda client, n: frames.window_update(0, 1),
    "DATA": lambda client, n: (
        (client.headers(1, SLOW) if not n else b"") + frames.frame(frames.DATA, 0, 1)
    ),
    "CONTINUATION": lambda client, n: (
        frames.frame(frames.HEADERS, 0, 1, b"")
        if not n
        else frames.frame(frames.CONTINUATION, 0, 1, b"")
    ),
    "header block": lambda client, n: (
        frames.frame(frames.HEADERS, 0, 1, b"")
        if not n
        else frames.frame(frames.CONTINUATION, 0, 1, b"\x00\x01x\x01y")
    ),
    "unknown": lambda client, n: frames.frame(0x42, 0, 0),
    "bad streams": lambda client, n: frames.frame(
        frames.HEADERS, END_HEADERS, 2 * n + 1, client.encoded([("x", "1")])
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_that_brings_nothing_ends_the_connection(name: str) -> None:
    client = Http2Client(ServerLimits(noise_max=1000, header_bytes_max=5000))
    for number in range(2000):
        client.send(FLOODS[name](client, number))
        if client.server.is_over:
            break
    assert client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
    assert client.wire.is_closed
    assert client.load.calls == 0


def test_calls_and_resets_at_a_usual_rate_go_on_for_days() -> None:
    client = Http2Client(ServerLimits(noise_max=100, noise_per_s=100))
    for number in range(2000):
        client.loop.now_s += 0.02
        client.send(
            client.headers(2 * number + 1), frames.rst_stream(2 * number + 1, ErrorCode.CANCEL)
        )
    assert not client.server.is_over


def test_pings_beside_answers_are_no_flood() -> None:
    client = Http2Client(ServerLimits(noise_max=100))
    for number in range(2000):
        client.send(call(client, 2 * number + 1), frames.ping(b"12345678"))
        answer(client)
        client.take()
    assert not client.server.is_over


def test_nothing_more_is_read_from_a_peer_that_does_not_read() -> None:
    client = Http2Client(ServerLimits(unsent_bytes_max=1000))
    client.server.block()
    client.wire.unread = 999
    client.send(frames.ping(b"12345678"))
    assert client.wire.is_reading()
    client.wire.unread = 1001
    client.send(frames.ping(b"12345678"))
    assert not client.wire.is_reading()
    client.server.unblock()
    assert client.wire.is_reading()


def test_a_connection_that_leaves_says_which_call_was_its_last() -> None:
    client = Http2Client()
    client.send(call(client, 1), call(client, 3))
    client.take()
    client.server.leave()
    idle: list[bool] = []
    client.server.on_idle = lambda: idle.append(True)
    client.send(call(client, 5))
    (goaway,) = client.take()
    assert goaway.kind == frames.GOAWAY
    assert int.from_bytes(goaway.payload[:4], "big") == 3
    assert len(client.fast) == 2
    assert not idle
    answer(client)
    assert idle
    assert [frame.stream_id for frame in client.take() if frame.flags & END_STREAM] == [1, 3]


def test_calls_that_outlast_a_stop_get_an_answer() -> None:
    client = Http2Client()
    client.send(call(client, 1), client.headers(3), client.headers(5, SLOW))
    client.take()
    client.server.leave()
    client.server.refuse_all(grpc.StatusCode.UNAVAILABLE, "stopping")
    found = client.take()
    ended = {frame.stream_id for frame in found if frame.kind == frames.HEADERS}
    assert ended == {1, 3}
    assert client.calls[0].is_closed
    assert client.load.calls == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([("content-type", "text/html"), (":method", "POST")], "415"),
        ([("content-type", "application/grpcx"), (":method", "POST")], "415"),
        ([(":method", "POST")], "415"),
        ([("content-type", "application/grpc"), (":method", "GET")], "405"),
    ],
)
def test_what_is_not_grpc_is_refused_as_http_does(
    fields: list[tuple[str, str]], status: str
) -> None:
    client = Http2Client()
    client.take()
    fields = [*sorted(fields), (":scheme", "http"), (":path", FAST)]
    block = client.encoded(sorted(fields, key=lambda field: not field[0].startswith(":")))
    client.send(frames.frame(frames.HEADERS, END_HEADERS, 1, block))
    client.send(frames.frame(frames.DATA, END_STREAM, 1, b"no message at all"))
    (call,) = client.calls
    assert call.stream.refusal is not None
    assert call.stream.refusal[0] == status.encode()
    assert (client.take(), call.stream.is_request_over) == ([], True)


def test_an_unknown_compression_is_unimplemented() -> None:
    client = Http2Client()
    client.take()
    client.send(client.headers(1, SLOW, [("grpc-encoding", "br")]))
    said = client.fields(client.take()[0])
    assert (said["grpc-status"], said["grpc-accept-encoding"]) == ("12", "identity,gzip")


@pytest.mark.parametrize(
    ("body", "status"), [(b"", "12"), (prefixed(b"a") * 2, "12"), (prefixed(b"abc")[:-1], "13")]
)
def test_a_fast_call_has_one_whole_message(body: bytes, status: str) -> None:
    client = Http2Client()
    client.take()
    client.send(client.headers(1), frames.frame(frames.DATA, END_STREAM, 1, body))
    assert client.fields(client.take()[0])["grpc-status"] == status
    assert client.fast == []
    assert client.load.calls == 0


def test_a_connection_begins_with_settings() -> None:
    client = Http2Client(begins=False)
    client.send(frames.PREFACE, frames.ping(b"12345678"))
    assert client.goaway() is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("is_large", [False, True])
def test_a_call_within_a_block_and_a_frame_that_is_too_large_end_the_connection(
    is_large: bool,
) -> None:
    """`tests/contract/test_http2_frames.py` has the other faults."""
    client = Http2Client()
    client.send(call(client, 1) + client.headers(3, flags=0) + call(client, 5)
                if not is_large else frames.head(1 << 20, frames.DATA, 0, 1))  # fmt: skip
    assert client.goaway() is (ErrorCode.FRAME_SIZE_ERROR if is_large else ErrorCode.PROTOCOL_ERROR)
    assert client.wire.is_closed


def test_frames_that_were_on_their_way_to_an_ended_stream_are_ignored() -> None:
    client = Http2Client()
    client.send(client.headers(1, SLOW, [("grpc-encoding", "br")]))
    client.send(frames.frame(frames.DATA, 0, 1, prefixed(b"late")), data(1, b"last"))
    client.send(call(client, 3))
    assert len(client.fast) == 1
    assert not client.server.is_over
