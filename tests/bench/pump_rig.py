"""One Pump under load from another process, with the CPU time that both took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import psutil

from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.ts import compose
from penstock_local.cluster import Cluster
from tests.bench.pump_load import Load
from tests.bench.pump_write import pump_address

NODE_ID = "pump-1"
_TIMESTAMPS_PER_LOAD = 10**9
_HOUR_MS = 3_600_000
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
        """Transactions per second."""
        return self.transactions / self.seconds

    def detail(self, value_bytes: int) -> dict[str, float]:
        """Return the figures beside the rate."""
        return {
            "mb_per_s": round(self.rate * value_bytes / 1e6, 1),
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "client_cpu_us": round(self.client_us, 1),
            "server_cpu_us": round(self.server_us, 1),
            "records_per_group": round(self.records_per_group, 1),
            "machine_load": round(os.getloadavg()[0], 1),
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
        self.first_ts = self._next_ts = compose(int(time.time() * 1000) + _HOUR_MS, 0)
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
        """Return what the Pump says about itself."""
        return dict(self._status().details)

    def _status(self) -> penstock_pb2.StatusReply:
        with grpc.insecure_channel(self.address, options=_OWN_CONNECTION) as channel:
            stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(penstock_pb2.StatusRequest(), timeout=60)
        return reply

    def next_ts(self) -> int:
        """Return a timestamp after which nothing was used yet, and reserve what follows it."""
        self._next_ts += _TIMESTAMPS_PER_LOAD
        return self._next_ts

    def load(
        self,
        *,
        value_bytes: int,
        writers: int,
        seconds: float,
        client: str = "tests.bench.pump_load",
        first_ts: int = 0,
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
            first_ts=first_ts or self.next_ts(),
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
