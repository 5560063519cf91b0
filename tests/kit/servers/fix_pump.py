"""Real Pumps: `python -m pump` processes that can be killed, stopped and started on their data."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.wire.binlog import Binlog
from penstock.wire.codec import decode_binlog
from tests.kit.servers.node import WAIT_S, NodeProcess

_SERVES = re.compile(r"pump (\S+) serves at (\S+),")
_ONLINE = re.compile(r"pump (\S+) is online at (\S+)")


class PumpProcess(NodeProcess):
    """One Pump."""

    module = "pump"

    def start(self, *, online: bool = True, timeout_s: float = WAIT_S) -> Self:
        """Start it and wait until it is online, or only until it serves."""
        self.spawn()
        self.addr = self.wait_for(_ONLINE if online else _SERVES, timeout_s)[2]
        return self

    def restart(self, *, online: bool = True) -> Self:
        """Kill it if it runs, and start it on its old data and port."""
        self.kill()
        return self.start(online=online)

    def kill_all(self) -> None:
        """Kill it, and the Pumps that it has started on copies of logs, as a machine dies.

        What it did not start itself, but an earlier run of it, is among them.
        """
        self.kill()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(f"={self.data_dir}/copies/" in part for part in process.cmdline()):
                    process.kill()
                    process.wait()

    def status(self) -> penstock_pb2.StatusReply:
        with self.channel() as channel:
            stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(
                penstock_pb2.StatusRequest(), timeout=10, wait_for_ready=True
            )
            return reply


def streamed(pump: PumpProcess, cluster_id: int, until_ts: int) -> list[Binlog]:
    """Return what the Pump streams up to `until_ts`, large binlogs put together."""
    found: list[Binlog] = []
    pieces = b""
    with pump.channel() as channel:
        stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        request = penstock_pb2.PullRequest(cluster_id=cluster_id, pieces=True)
        call = stub.Pull(request, timeout=60)
        for batch in call:
            if batch.HasField("piece"):
                pieces += batch.piece.data
                if len(pieces) == batch.piece.bytes:
                    found.append(decode_binlog(pieces))
                    pieces = b""
            found += map(decode_binlog, batch.payloads)
            if batch.commit_ts and batch.commit_ts[-1] >= until_ts:
                call.cancel()
                break
    return [b for b in found if not b.is_fake and b.commit_ts <= until_ts]


@pytest.fixture
def pump_factory(tmp_path: Path) -> Iterator[Callable[..., PumpProcess]]:
    """Make Pumps: `pump_factory(etcd_url, online=True, **settings)`; killed after the test.

    `waiting=False` returns at once, then `addr` is only known when it is among the settings.
    """
    pumps: list[PumpProcess] = []

    def make(
        etcd_url: str, *, online: bool = True, waiting: bool = True, **settings: Any
    ) -> PumpProcess:
        node_id = settings.pop("node_id", f"pump-{len(pumps) + 1}")
        data_dir = settings.pop("data_dir", tmp_path / node_id)
        pump = PumpProcess(data_dir, node_id, {"etcd_urls": etcd_url, **settings})
        pumps.append(pump)
        return pump.start(online=online) if waiting else pump.spawn()

    yield make
    for pump in pumps:
        pump.kill_all()
