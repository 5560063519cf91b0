"""One Pump under load from another process, with the CPU time that both took.

    python -m tests.bench.pump_rig '{"address": …}'     one JSON object on stdout

The load keeps a number of transactions outstanding. Up to `THREADS_MAX` writers are threads that
wait for each answer, as an application's are. Beyond, one thread writes the Commit of every
Prewrite that was answered and the next Prewrite for every Commit, so that 1000 writers do not
measure 1000 threads.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import psutil

from penstock.cluster import etcd
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.local.cluster import Cluster
from penstock.pb import binlog_pb2, penstock_pb2, penstock_pb2_grpc
from pumpclient.delivery.connection import PumpWriter, Target
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.options import Options
from tests.bench.rig import Timestamps, percentile, together

NODE_ID = "pump-1"
_POLL_S = 0.01
# Else a channel waits out the back-off that the one before it has earned.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a load went; CPU times are microseconds per transaction, of one core."""

    transactions: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_us: float
    server_us: float
    records_per_group: float

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds

    def detail(self, value_bytes: int) -> dict[str, float]:
        return {
            "mb_per_s": round(self.rate * value_bytes / 1e6, 1),
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "client_cpu_us": round(self.client_us, 1),
            "server_cpu_us": round(self.server_us, 1),
            "records_per_group": round(self.records_per_group, 1),
        }


class Rig:
    """A Pump with its etcd; a context manager that leaves nothing running."""

    def __init__(self, home: Path, *, sync: bool, engine: str = "") -> None:
        self._cluster = Cluster(home, pumps=1, with_drainer=False)
        self.pump = self._cluster.pumps[NODE_ID]
        if not sync:
            self.pump.command.append("--no-storage-sync-log")
        if engine:
            self.pump.command += ["--server-engine", engine]
        self.data = home / NODE_ID
        self.address, self.cluster_id = "", 0

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self.address, self.cluster_id = pump_address(self._cluster)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    def details(self) -> dict[str, str]:
        return dict(self._status().details)

    def _status(self) -> penstock_pb2.StatusReply:
        with grpc.insecure_channel(self.address, options=_OWN_CONNECTION) as channel:
            stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(penstock_pb2.StatusRequest(), timeout=60)
        return reply

    def load(
        self,
        *,
        value_bytes: int,
        writers: int,
        seconds: float,
        client: str = "tests.bench.pump_rig",
        **more: int,
    ) -> Measured:
        """Write from a process of its own, a module that takes a `Load` and perhaps more."""
        load = Load(
            node_id=NODE_ID,
            address=self.address,
            cluster_id=self.cluster_id,
            value_bytes=value_bytes,
            writers=writers,
            seconds=seconds,
        )
        before, before_s = self.details(), self._cpu_s()
        command = [sys.executable, "-m", client, json.dumps(asdict(load) | more)]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        after, after_s = self.details(), self._cpu_s()
        groups = int(after["groups_written"]) - int(before["groups_written"])
        records = int(after["binlogs_written"]) - int(before["binlogs_written"])
        count = answer["transactions"]
        return Measured(
            transactions=count,
            seconds=answer["seconds"],
            p50_ms=answer["p50_ms"],
            p99_ms=answer["p99_ms"],
            client_us=answer["cpu_s"] / count * 1e6,
            server_us=(after_s - before_s) / count * 1e6,
            records_per_group=records / max(1, groups),
        )

    def restart(self) -> tuple[float, float]:
        """Kill the Pump and start it again; return the seconds until it answers and is online."""
        self.pump.kill()
        begun_s = time.perf_counter()
        self.pump.start()
        answered_s = 0.0
        while True:
            try:
                state = self._status().state
            except grpc.RpcError:
                assert self.pump.is_running, self.pump.log_tail()
                time.sleep(_POLL_S)
                continue
            answered_s = answered_s or time.perf_counter() - begun_s
            if state == "online":
                return answered_s, time.perf_counter() - begun_s
            time.sleep(_POLL_S)

    def _cpu_s(self) -> float:
        times = psutil.Process(self.pump.pid).cpu_times()
        return times.user + times.system


def pump_address(cluster: Cluster, pump: str = "pump-1") -> tuple[str, int]:
    """Return the address of a Pump of the cluster, and the cluster's id."""
    client = etcd.connect(cluster.etcd.url)
    try:
        registry = Registry(client)
        (status,) = (each for each in registry.list(NodeKind.PUMP) if each.node_id == pump)
        return status.host, registry.cluster_id()
    finally:
        client.close()


_Binlog = binlog_pb2.Binlog
_PREWRITE, _COMMIT = binlog_pb2.Prewrite, binlog_pb2.Commit
THREADS_MAX = 16
ANSWER_S_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one process does."""

    node_id: str
    address: str
    cluster_id: int
    value_bytes: int
    writers: int
    seconds: float


class Clock:
    """Timestamps in the order of asking, and the payloads that carry them.

    The messages are filled without the detour by `penstock.wire.binlog`, which would be a fifth of
    all the client's time: it is the writer that is measured here, and not its application.
    """

    def __init__(self, value_bytes: int) -> None:
        self._ts = Timestamps()
        self._value = os.urandom(value_bytes)

    def prewrite(self) -> tuple[int, bytes]:
        start_ts = next(self._ts)
        binlog = _Binlog(tp=_PREWRITE, start_ts=start_ts, commit_ts=0, prewrite_value=self._value)
        return start_ts, binlog.SerializeToString()

    def commit(self, start_ts: int) -> bytes:
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
    clock = Clock(load.value_bytes)
    took_s = array("d")

    def write(payload: bytes) -> None:
        begun_s = time.perf_counter()
        pending = PendingWrite(payload)
        writer.submit([pending], ANSWER_S_MAX)
        if (failure := pending.settle(ANSWER_S_MAX)) is not None:
            raise RuntimeError(str(failure))
        took_s.append(time.perf_counter() - begun_s)

    def work() -> None:
        while time.perf_counter() < until_s:
            start_ts, payload = clock.prewrite()
            write(payload)
            write(clock.commit(start_ts))

    together([work] * load.writers)
    return took_s


def with_outstanding(writer: PumpWriter, load: Load, until_s: float) -> array[float]:
    """Return how long each write took, in seconds, `load.writers` always being under way."""
    clock = Clock(load.value_bytes)
    took_s = array("d")
    ended: queue.SimpleQueue[_Write] = queue.SimpleQueue()

    def prewrite() -> _Write:
        start_ts, payload = clock.prewrite()
        return _Write(payload, start_ts, ended)

    writer.submit([prewrite() for _ in range(load.writers)], ANSWER_S_MAX)
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
        writer.submit(following, ANSWER_S_MAX)
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
