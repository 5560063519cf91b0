"""A connection to a Pump that is cut at any byte: no acknowledged write is lost, none doubled."""

import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from penstock.http2 import frames
from penstock.http2.header_blocks import encode
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from pumpclient.delivery.connection import PumpWriter, Target
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure
from pumpclient.options import Options
from tests.unit.pumpclient.scripted_pump import ScriptedPump

pytestmark = pytest.mark.fault

WITHIN_S = 30.0
UNLIMITED = 1 << 60


class CuttingRelay:
    """Passes connections on to a Pump; the first one after `cut` ends after so many bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._budgets = (UNLIMITED, UNLIMITED)
        self.passed = [0, 0]
        self.script: Callable[[socket.socket], None] | None = None
        """Who serves the next connection in the Pump's place."""
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self, up: int, down: int) -> None:
        """Let the next connection pass so many bytes to the Pump, and so many back."""
        self._budgets = (up, down)
        self.passed = [0, 0]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join(WITHIN_S)
        self._listening.close()
        for thread in self._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                script, self.script = self.script, None
                if script is not None:
                    with near:
                        script(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                budgets, self._budgets = self._budgets, (UNLIMITED, UNLIMITED)
                ends = ((near, far), (far, near))
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                for way, (source, target) in enumerate(ends):
                    arguments = (source, target, budgets[way], way)
                    thread = threading.Thread(target=self._pass, args=arguments)
                    thread.start()
                    self._threads.append(thread)

    def _pass(self, source: socket.socket, target: socket.socket, budget: int, way: int) -> None:
        with contextlib.suppress(OSError):
            while budget and (data := source.recv(min(budget, 1 << 16))):
                budget -= len(data)
                self.passed[way] += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


@pytest.fixture
def pump() -> Iterator[ScriptedPump]:
    pump = ScriptedPump()
    yield pump
    pump.stop()


@pytest.fixture
def relay(pump: ScriptedPump) -> Iterator[CuttingRelay]:
    relay = CuttingRelay(pump.port)
    yield relay
    relay.close()


def session(address: str, stamps: Iterator[int]) -> dict[int, Failure | None]:
    """Write alone, then several at once, then alone again; return how each write ended."""
    target = Target(node_id="pump-1", address=address, cluster_id=7)
    writer = PumpWriter(target, Options())
    ended: dict[int, Failure | None] = {}
    try:
        for count in (1, 5, 1):
            pendings = {}
            for start_ts in itertools.islice(stamps, count):
                binlog = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=b"x" * 9)
                pendings[start_ts] = PendingWrite(encode_binlog(binlog))
            writer.submit(list(pendings.values()), WITHIN_S)
            for start_ts, pending in pendings.items():
                ended[start_ts] = pending.settle(WITHIN_S)
    finally:
        writer.close(WITHIN_S)
    return ended


def check(pump: ScriptedPump, ended: dict[int, Failure | None]) -> None:
    stored = Counter(decode_binlog(data).start_ts for batch in pump.batches for data in batch)
    for start_ts, failure in ended.items():
        if failure is None:
            assert stored[start_ts] == 1, f"{start_ts} was acknowledged"
        elif not failure.maybe_stored:
            assert stored[start_ts] == 0, f"{start_ts} was not sent: {failure}"
        assert stored[start_ts] <= 1


@pytest.mark.fault(
    "a connection of a writer to a Pump is cut at any byte, in either direction",
    "no acknowledged write is missing, none is stored twice",
    cases="each 7th byte / each byte",
)
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_session_cut_at_any_byte_loses_nothing_acknowledged_and_stores_nothing_twice(
    pump: ScriptedPump, relay: CuttingRelay, way: str, step: int
) -> None:
    stamps = itertools.count(1)
    assert set(session(relay.address, stamps).values()) == {None}
    length = relay.passed[way == "down"]
    assert length > 200
    failures = 0
    for cut in range(0, length, step):
        relay.cut(cut if way == "up" else UNLIMITED, cut if way == "down" else UNLIMITED)
        ended = session(relay.address, stamps)
        check(pump, ended)
        failures += any(ended.values())
    assert failures > length // step // 2, "it was hardly ever cut"


def await_data(connection: socket.socket, flags: int, stream_id: int) -> None:
    """Read until a DATA frame of that stream has come."""
    received, wanted = b"", frames.head(0, frames.DATA, flags, stream_id)[3:]
    while wanted not in received:
        data = connection.recv(65_536)
        assert data
        received += data


def status_then_goaway(connection: socket.socket) -> None:
    """Say who is there, and then that the call which follows was never looked at."""
    reply = penstock_pb2.StatusReply(node_id="pump-1").SerializeToString()
    first = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
    message = frames.MESSAGE_HEAD.pack(0, len(reply)) + reply
    end = frames.END_HEADERS | frames.END_STREAM
    answer = (
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, first)
        + frames.frame(frames.DATA, 0, 1, message)
        + frames.frame(frames.HEADERS, end, 1, encode([(b"grpc-status", b"0")]))
    )
    connection.sendall(frames.settings({}))
    await_data(connection, frames.END_STREAM, 1)
    connection.sendall(answer)
    await_data(connection, 0, 3)
    connection.sendall(frames.goaway(1, frames.ErrorCode.NO_ERROR, "going"))
    connection.recv(65_536)


def test_what_a_goaway_says_was_never_looked_at_goes_out_again_by_itself(
    pump: ScriptedPump, relay: CuttingRelay
) -> None:
    relay.script = status_then_goaway
    ended = session(relay.address, itertools.count(1))
    assert set(ended.values()) == {None}
    assert relay.script is None
    check(pump, ended)
