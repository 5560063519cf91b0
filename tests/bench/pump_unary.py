"""Compatible calls on one Pump, one binlog each, as TiDB makes them: by our server and by grpcio's.

A figure is of our own engine and its baseline of `server-engine = "grpcio"`, both in the same
run with the same client. `detail` has the CPU time that both sides took for a call. The client is a
separate process, which calls WriteBinlog or PullBinlogs over bare HTTP/2 at little cost:

    python -m tests.bench.pump_unary '{"address": …}'     one JSON object on stdout

All its workers share one connection, as TiDB's client has it: each is a transaction that waits for
its answer, first to its Prewrite, then to its Commit. A thread reads what has come, and sends the
following calls of all that were answered in one write. Headers are constant and never decoded: an
answer without a message is a failure, and is shown as it came.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS, END_STREAM, MESSAGE_HEAD
from penstock.pb import pump_pb2
from tests.bench.pump_rig import ANSWER_S_MAX, Clock, Load, Measured, Rig
from tests.bench.rig import Figure, Timestamps, percentile, sized
from tests.kit.http2.raw_peer import RawPeer, request

SIZES = {"1k": 1 << 10, "10k": 10 << 10, "100k": 100 << 10}
WORKERS = (1, 16, 64, 256)
SECONDS = sized(2)
PULLED = sized(20_000, 1_000)
_CLIENT = "tests.bench.pump_unary"


def measure(home: Path) -> Iterator[Figure]:
    """Yield `pump.unary.<size>.w<workers>` and `pump.unary.pull.1k`."""
    with (
        Rig(home / "own", sync=True, engine="http2") as own,
        Rig(home / "grpcio", sync=True, engine="grpcio") as other,
    ):
        for size, value_bytes in SIZES.items():
            for workers in WORKERS:
                both = [
                    rig.load(
                        value_bytes=value_bytes, writers=workers, seconds=SECONDS, client=_CLIENT
                    )
                    for rig in (own, other)
                ]
                yield figure(f"{size}.w{workers}", *both, calls=2, value_bytes=value_bytes)
        both = [_pull(rig) for rig in (own, other)]
        yield figure("pull.1k", *both, calls=1, value_bytes=SIZES["1k"])


def _pull(rig: Rig) -> Measured:
    after_ts = next(Timestamps())
    filled = rig.load(value_bytes=SIZES["1k"], writers=256, seconds=SECONDS)
    count = min(PULLED, filled.transactions)
    return rig.load(
        value_bytes=0, writers=0, seconds=0, client=_CLIENT, after_ts=after_ts, pulled=count
    )


def figure(name: str, own: Measured, other: Measured, *, calls: int, value_bytes: int) -> Figure:
    """Return one figure; a transaction has so many calls."""
    detail = own.detail(value_bytes)
    for key in ("client_cpu_us", "server_cpu_us"):
        detail[key] = round(detail[key] / calls, 1)
    detail["grpcio_client_cpu_us"] = round(other.client_us / calls, 1)
    detail["grpcio_server_cpu_us"] = round(other.server_us / calls, 1)
    return Figure(
        f"pump.unary.{name}",
        own.rate * calls,
        "calls/s" if calls > 1 else "binlogs/s",
        other.rate * calls,
        detail,
    )


_READ_BYTES = 1 << 20
_WRITE, _PULL = "/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs"
_WIDE = frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT)


class BareConnection:
    """One connection as a client, with the peer's windows kept; its own are as wide as can be."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = {frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX, frames.MAX_FRAME_SIZE: 1 << 20}
        self._out = [frames.PREFACE + frames.settings(settings) + _WIDE]
        self._held = b""
        self._first_block = True
        self._next_id = 1
        self._window = self._stream_window = frames.WINDOW_DEFAULT
        self._frame_bytes = frames.FRAME_BYTES_DEFAULT
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._windows: dict[int, int] = {}

    def close(self) -> None:
        self._socket.close()

    def block(self, path: str) -> bytes:
        return RawPeer.stateless_block(request(path, ("grpc-timeout", "15S")))

    def call(self, block: bytes, message: bytes) -> int:
        """Queue a call for the next `flush`, and return its stream's id."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        if self._first_block:
            self._first_block, block = False, b"\x20" + block
        self._out.append(frames.frame(frames.HEADERS, END_HEADERS, stream_id, block))
        data = MESSAGE_HEAD.pack(0, len(message)) + message
        size = len(data)
        if size <= min(self._window, self._stream_window, self._frame_bytes) and not self._waiting:
            self._window -= size
            self._out.append(frames.head(size, frames.DATA, END_STREAM, stream_id))
            self._out.append(data)
        else:
            self._windows[stream_id] = self._stream_window
            self._waiting.append((stream_id, memoryview(data)))
        return stream_id

    def flush(self) -> None:
        """Send what is queued, as far as the windows allow."""
        for _ in range(len(self._waiting)):
            self._send_part(*self._waiting.popleft())
        if self._out:
            self._socket.sendall(b"".join(self._out))
            self._out.clear()

    def _send_part(self, stream_id: int, view: memoryview) -> None:
        while view:
            size = min(len(view), self._window, self._windows[stream_id], self._frame_bytes)
            if size <= 0:
                self._waiting.append((stream_id, view))
                return
            flags = END_STREAM if size == len(view) else 0
            self._out.append(frames.head(size, frames.DATA, flags, stream_id))
            self._out.append(bytes(view[:size]))
            self._window -= size
            self._windows[stream_id] -= size
            view = view[size:]
        del self._windows[stream_id]

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Read once, and yield kind, flags, stream and payload of all calls' frames in it."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the Pump has closed the connection")
        data = self._held + data
        at, end, unpack = 0, len(data), frames.HEAD.unpack_from
        while at + frames.HEAD_SIZE <= end:
            high, low, kind, flags, stream_id = unpack(data, at)
            stop = at + frames.HEAD_SIZE + (high << 8 | low)
            if stop > end:
                break
            payload = data[at + frames.HEAD_SIZE : stop]
            at = stop
            if kind in (frames.DATA, frames.HEADERS):
                yield kind, flags, stream_id, payload
            else:
                self._on_other(kind, flags, stream_id, payload)
        self._held = data[at:]

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.SETTINGS and not flags & frames.ACK:
            for name, value in frames.settings_in(payload):
                if name == frames.INITIAL_WINDOW_SIZE:
                    change, self._stream_window = value - self._stream_window, value
                    self._windows = {key: w + change for key, w in self._windows.items()}
                elif name == frames.MAX_FRAME_SIZE:
                    self._frame_bytes = value
            self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frames.ping(payload, is_answer=True))
        elif kind == frames.WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if not stream_id:
                self._window += more
            elif stream_id in self._windows:
                self._windows[stream_id] += more
        elif kind in (frames.RST_STREAM, frames.GOAWAY):
            raise RuntimeError(f"the Pump has ended a call: frame {kind}, {payload!r}")


def write(load: Load) -> tuple[array[float], float]:
    """Return how long each call took, and all of them, in seconds."""
    connection = BareConnection(load.address)
    block, clock = connection.block(_WRITE), Clock(load.value_bytes)
    took_s: array[float] = array("d")
    under_way: dict[int, tuple[float, int]] = {}
    answered: set[int] = set()

    def send(payload: bytes, start_ts: int, now_s: float) -> None:
        asked = pump_pb2.WriteBinlogReq(clusterID=load.cluster_id, payload=payload)
        stream_id = connection.call(block, asked.SerializeToString())
        under_way[stream_id] = (now_s, start_ts)

    def begin(now_s: float) -> None:
        start_ts, payload = clock.prewrite()
        send(payload, start_ts, now_s)

    begun_s = time.perf_counter()
    until_s = begun_s + load.seconds
    for _ in range(load.writers):
        begin(begun_s)
    while under_way:
        connection.flush()
        ended = []
        for kind, flags, stream_id, payload in connection.frames():
            if kind == frames.DATA:
                answered.add(stream_id)
            if flags & END_STREAM:
                if stream_id not in answered:
                    raise RuntimeError(f"a call has failed: {payload!r}")
                answered.discard(stream_id)
                ended.append(stream_id)
        now_s = time.perf_counter()
        for stream_id in ended:
            sent_s, start_ts = under_way.pop(stream_id)
            took_s.append(now_s - sent_s)
            if start_ts:
                send(clock.commit(start_ts), 0, now_s)
            elif now_s < until_s:
                begin(now_s)
    connection.close()
    return took_s, time.perf_counter() - begun_s


def pull(load: Load, count: int, after_ts: int) -> float:
    connection = BareConnection(load.address)
    after = pump_pb2.Pos(offset=after_ts)
    asked = pump_pb2.PullBinlogReq(clusterID=load.cluster_id, startFrom=after)
    connection.call(connection.block(_PULL), asked.SerializeToString())
    held, seen, begun_s = b"", 0, 0.0
    while seen < count:
        connection.flush()
        parts = [held]
        for kind, flags, _, payload in connection.frames():
            if flags & END_STREAM:
                raise RuntimeError(f"the pull has ended: {payload!r}")
            if kind == frames.DATA:
                parts.append(payload)
        data, at = b"".join(parts), 0
        while at + MESSAGE_HEAD.size <= len(data):
            _, size = MESSAGE_HEAD.unpack_from(data, at)
            if at + MESSAGE_HEAD.size + size > len(data):
                break
            at += MESSAGE_HEAD.size + size
            seen += 1
        held = data[at:]
        begun_s = begun_s or (time.perf_counter() if seen else 0.0)
    took_s = time.perf_counter() - begun_s
    connection.close()
    return took_s


def run(given: dict[str, object]) -> dict[str, float]:
    """Do what is asked for, and report how it went."""
    count, after_ts = (int(str(given.pop(name, 0))) for name in ("pulled", "after_ts"))
    load = Load(**given)  # type: ignore[arg-type]
    begun_cpu_s = time.process_time()
    if count:
        seconds = pull(load, count, after_ts)
        took_s = array("d", [seconds])
    else:
        took_s, seconds = write(load)
    return {
        "transactions": count or len(took_s) / 2,
        "seconds": seconds,
        "cpu_s": time.process_time() - begun_cpu_s,
        "p50_ms": percentile(list(took_s), 0.5) * 1000,
        "p99_ms": percentile(list(took_s), 0.99) * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
