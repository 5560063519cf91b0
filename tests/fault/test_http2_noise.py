"""Noise on the front's port: real clients' sessions with bytes changed, and frames at random.

Each is sent to a server's process on a connection of its own. Whatever it is, the server ends it
or answers, serves others, and logs no error of its own.
"""

import contextlib
import random
import socket
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS, END_STREAM
from tests.kit.http2 import interop_service
from tests.kit.http2.front_process import FAST, HELD, FrontProcess
from tests.kit.http2.interop_service import MESSAGES, Payload
from tests.kit.http2.raw_peer import RawPeer, message, request
from tests.kit.http2.recording import Recording
from tests.kit.wait import eventually

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

ROOM = 64 << 20
"""What all of this may add to the server's memory, in bytes."""
_QUICK = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
_LONG = settings(_QUICK, max_examples=20_000)


def record(front: FrontProcess) -> list[bytes]:
    """Return what grpcio sends for calls of all four kinds, and what a bare peer does."""
    with Recording(front.address) as recording:
        make_calls(recording.address)
        host, _, port = recording.address.rpartition(":")
        with RawPeer(host, int(port)) as peer:
            for _ in range(3):
                peer.call(FAST, b"x" * 50)
            peer.ping()
        return recording.sessions()


def make_calls(address: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        stubs = interop_service.stubs(channel)
        stubs["EmptyCall"](MESSAGES["Empty"](), timeout=20)
        simple = MESSAGES["SimpleRequest"](response_size=10, payload=Payload(body=bytes(300)))
        stubs["UnaryCall"](simple, timeout=20, metadata=[("x-grpc-test-echo-initial", "a")])
        wanted = [MESSAGES["ResponseParameters"](size=20)] * 3
        output = MESSAGES["StreamingOutputCallRequest"](response_parameters=wanted)
        assert len(list(stubs["StreamingOutputCall"](output, timeout=20))) == 3
        inputs = [MESSAGES["StreamingInputCallRequest"](payload=Payload(body=b"xyz"))] * 3
        stubs["StreamingInputCall"](iter(inputs), timeout=20)
        assert len(list(stubs["FullDuplexCall"](iter([output] * 2), timeout=20))) == 6
        for _ in range(3):
            channel.unary_unary(FAST)(b"some bytes", timeout=20)


@pytest.fixture(scope="module")
def sessions(front: FrontProcess) -> list[bytes]:
    return record(front)


def send(front: FrontProcess, data: bytes) -> None:
    """Send bytes and nothing after them; return once the server has closed the connection."""
    with (
        socket.create_connection(("127.0.0.1", front.port), timeout=20) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@contextlib.contextmanager
def unharmed(front: FrontProcess) -> Iterator[None]:
    front.assert_serves()
    before, logged = front.memory_bytes(), len(front.log_text())
    yield
    front.assert_serves()
    eventually(front.is_idle)
    assert front.memory_bytes() - before < ROOM
    # What asyncio logs is what no one has expected.
    assert "asyncio" not in front.log_text()[logged:]
    assert "fault of this side" not in front.log_text()[logged:]


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some of them flipped, left out, sent twice, or put elsewhere."""
    noisy = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(frames.PREFACE) if rng.random() < 0.95 else 0, len(noisy))
        size = rng.choice((1, 4, 9, 60))
        piece = noisy[at : at + size]
        match rng.randrange(5):
            case 0:
                noisy[at] ^= 1 << rng.randrange(8)
            case 1:
                del noisy[at : at + size]
            case 2:
                noisy[at:at] = piece
            case 3:
                noisy[at:at] = rng.randbytes(size)
            case 4:
                del noisy[at:]
        if len(noisy) <= len(frames.PREFACE):
            return bytes(noisy)
    return bytes(noisy)


def try_changed(front: FrontProcess, sessions: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    send(front, changed(rng.choice(sessions), rng))


BLOCKS = [
    RawPeer.stateless_block(request(path)) for path in (FAST, HELD, "/no/Method", "*", "/a b")
]
FRAME = st.tuples(
    st.integers(0, 11),
    st.sampled_from([0, END_HEADERS, END_STREAM, END_HEADERS | END_STREAM, 0x8, 0x20, 0xFF]),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, frames.STREAM_ID_BITS, 0xFFFF_FFFF]),
    st.one_of(
        st.sampled_from([*BLOCKS, *(message(bytes(size)) for size in (0, 1, 900))]),
        st.sampled_from([bytes(size) for size in range(10)]),
        st.binary(max_size=40),
    ),
)


def try_frames(front: FrontProcess, given_frames: list[tuple[int, int, int, bytes]]) -> None:
    parts = [frames.frame(*each) for each in given_frames]
    send(front, frames.PREFACE + frames.settings({}) + b"".join(parts))


@pytest.mark.fault(
    "recorded sessions with bytes changed, frames at random, sessions cut at any byte",
    "answered or ended",
    cases="500, each 7th byte / 40,500",
)
def test_real_sessions_with_bytes_changed_harm_no_one(
    front: FrontProcess, sessions: list[bytes]
) -> None:
    assert len(sessions) == 2
    with unharmed(front):
        _QUICK(given(st.integers(0, 2**32))(lambda seed: try_changed(front, sessions, seed)))()


def test_frames_at_random_harm_no_one(front: FrontProcess) -> None:
    with unharmed(front):
        _QUICK(given(st.lists(FRAME, max_size=20))(lambda sent: try_frames(front, sent)))()


@pytest.mark.slow
def test_much_noise_harms_no_one(front: FrontProcess, sessions: list[bytes]) -> None:
    with unharmed(front):
        _LONG(given(st.integers(0, 2**32))(lambda seed: try_changed(front, sessions, seed)))()
        _LONG(given(st.lists(FRAME, max_size=20))(lambda sent: try_frames(front, sent)))()


def test_a_session_that_is_cut_at_any_byte_leaves_nothing_behind(
    front: FrontProcess, sessions: list[bytes]
) -> None:
    with unharmed(front):
        for session in sessions:
            for size in range(0, len(session), 7):
                send(front, session[:size])
