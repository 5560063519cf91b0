"""A process that keeps a number of transactions outstanding on one Pump, and measures them.

    python -m tests.bench.pump_load '{"address": …}'     one JSON object on stdout

Up to `THREADS_MAX` writers are threads that wait for each answer, as an application's are. Beyond,
one thread writes the Commit of every Prewrite that was answered and the next Prewrite for every
Commit, so that 1000 writers do not measure 1000 threads.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
import time
from array import array
from dataclasses import dataclass
from typing import Any

from penstock.pb import binlog_pb2
from pumpclient.delivery.connection import PumpWriter, Target
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.options import Options
from tests.bench.figure import percentile

_Binlog = binlog_pb2.Binlog
_PREWRITE, _COMMIT = binlog_pb2.Prewrite, binlog_pb2.Commit
THREADS_MAX = 16
ANSWER_S_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one process does; its timestamps begin at `first_ts`."""

    node_id: str
    address: str
    cluster_id: int
    value_bytes: int
    writers: int
    seconds: float
    first_ts: int


class Clock:
    """Timestamps in the order of asking, and the payloads that carry them.

    The messages are filled without the detour by `penstock.wire.binlog`, which would be a fifth of
    all the client's time: it is the writer that is measured here, and not its application.
    """

    def __init__(self, *, first_ts: int, value_bytes: int) -> None:
        self._ts = itertools.count(first_ts)
        self._value = os.urandom(value_bytes)

    def prewrite(self) -> tuple[int, bytes]:
        """Return the start_ts of a new transaction and its Prewrite."""
        start_ts = next(self._ts)
        binlog = _Binlog(tp=_PREWRITE, start_ts=start_ts, commit_ts=0, prewrite_value=self._value)
        return start_ts, binlog.SerializeToString()

    def commit(self, start_ts: int) -> bytes:
        """Return the Commit of a transaction, at the next timestamp."""
        binlog = _Binlog(tp=_COMMIT, start_ts=start_ts, commit_ts=next(self._ts))
        return binlog.SerializeToString()


class _Write(PendingWrite):
    """A write that knows which transaction it is of; `start_ts` is 0 for a Commit."""

    __slots__ = ("begun_s", "start_ts")

    def __init__(self, payload: bytes, start_ts: int, ended: queue.SimpleQueue[Any]) -> None:
        super().__init__(payload, on_end=ended.put)
        self.start_ts = start_ts
        self.begun_s = time.perf_counter()


def with_threads(writer: PumpWriter, load: Load, until_s: float) -> array[float]:
    """Return how long each write took, in seconds, by one thread per writer."""
    clock = Clock(first_ts=load.first_ts, value_bytes=load.value_bytes)
    took_s = array("d")
    failures: list[BaseException] = []

    def write(payload: bytes) -> None:
        begun_s = time.perf_counter()
        pending = PendingWrite(payload)
        writer.submit(pending, ANSWER_S_MAX)
        if (failure := pending.settle(ANSWER_S_MAX)) is not None:
            raise RuntimeError(str(failure))
        took_s.append(time.perf_counter() - begun_s)

    def work() -> None:
        try:
            while time.perf_counter() < until_s:
                start_ts, payload = clock.prewrite()
                write(payload)
                write(clock.commit(start_ts))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(load.writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return took_s


def with_outstanding(writer: PumpWriter, load: Load, until_s: float) -> array[float]:
    """Return how long each write took, in seconds, `load.writers` always being under way."""
    clock = Clock(first_ts=load.first_ts, value_bytes=load.value_bytes)
    took_s = array("d")
    ended: queue.SimpleQueue[_Write] = queue.SimpleQueue()

    def prewrite() -> _Write:
        start_ts, payload = clock.prewrite()
        return _Write(payload, start_ts, ended)

    writer.submit_all([prewrite() for _ in range(load.writers)], ANSWER_S_MAX)
    left = load.writers
    while left:
        done = [ended.get(timeout=ANSWER_S_MAX)]
        while not ended.empty():
            done.append(ended.get())
        now_s = time.perf_counter()
        following = []
        for write in done:
            if write.failure is not None:
                raise RuntimeError(str(write.failure))
            took_s.append(now_s - write.begun_s)
            if write.start_ts:
                following.append(_Write(clock.commit(write.start_ts), 0, ended))
            elif now_s < until_s:
                following.append(prewrite())
            else:
                left -= 1
        writer.submit_all(following, ANSWER_S_MAX)
    return took_s


def run(load: Load) -> dict[str, float]:
    """Write for as long as asked for, and report how it went."""
    target = Target(node_id=load.node_id, address=load.address, cluster_id=load.cluster_id)
    writer = PumpWriter(target, Options())
    try:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        write = with_threads if load.writers <= THREADS_MAX else with_outstanding
        took_s = write(writer, load, begun_s + load.seconds)
        return {
            "transactions": len(took_s) // 2,
            "seconds": time.perf_counter() - begun_s,
            "cpu_s": time.process_time() - begun_cpu_s,
            "p50_ms": percentile(list(took_s), 0.5) * 1000,
            "p99_ms": percentile(list(took_s), 0.99) * 1000,
        }
    finally:
        writer.close(ANSWER_S_MAX)


if __name__ == "__main__":
    print(json.dumps(run(Load(**json.loads(sys.argv[1])))))
