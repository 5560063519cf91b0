"""A real Drainer: a `python -m drainer` process with Spark, killed, stopped and started at will."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from penstock.cluster.etcd import EtcdClient, connect
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from tests.kit.servers.node import NodeProcess
from tests.kit.wait import deadline

SERVES = re.compile(r"drainer (\S+) serves at (\S+)")
START_S = 120.0
_STOP_S = 40.0
_SHOWN = 3000

DrainerFactory = Callable[..., "DrainerProcess"]


class DrainerProcess(NodeProcess):
    """One Drainer."""

    module = "drainer"

    def __init__(
        self, etcd: EtcdClient, data_dir: Path, node_id: str, settings: dict[str, Any]
    ) -> None:
        super().__init__(data_dir, node_id, settings)
        self._registry = Registry(etcd)

    def start(self, *, timeout_s: float = START_S) -> Self:
        """Start it and wait until it serves."""
        self.spawn()
        self.addr = self.wait_for(SERVES, timeout_s)[2]
        return self

    def stop(self, timeout_s: float = _STOP_S) -> int | None:
        """Ask it to stop, which ends Spark too, and return its exit code."""
        return super().stop(timeout_s)

    def wait_until(self, commit_ts: int, timeout_s: float = 180) -> None:
        """Return once everything up to `commit_ts` is downstream, as its entry in etcd says."""
        deadline_s = deadline(timeout_s)
        while self.checkpoint_ts() < commit_ts:
            if not self.is_running:
                self.fail("it has ended")
            if time.monotonic() > deadline_s:
                self.fail(f"it is at {self.checkpoint_ts()}, not at {commit_ts}")
            time.sleep(0.05)

    def checkpoint_ts(self) -> int:
        status = self._registry.get(NodeKind.DRAINER, self.node_id)
        return status.max_commit_ts if status else 0

    def state(self) -> str:
        status = self._registry.get(NodeKind.DRAINER, self.node_id)
        return str(status.state) if status else ""

    def children(self) -> list[psutil.Process]:
        """Return the JVM and the Python processes below it, those apart that are ending."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def status(self) -> penstock_pb2.StatusReply:
        with self.channel() as channel:
            stub = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(
                penstock_pb2.StatusRequest(), timeout=10, wait_for_ready=True
            )
            return reply


@pytest.fixture
def drainer_factory(tmp_path: Path) -> Iterator[DrainerFactory]:
    """Start Drainers: `drainer_factory(etcd_url, sink_url, **settings) -> DrainerProcess`.

    `started=False` returns one that is still to be started.
    """
    drainers: list[DrainerProcess] = []
    clients: list[EtcdClient] = []

    def make(
        etcd_url: str, sink_url: str, *, started: bool = True, **settings: Any
    ) -> DrainerProcess:
        node_id = settings.pop("node_id", f"drainer-{len(drainers) + 1}")
        etcd = connect(etcd_url)
        clients.append(etcd)
        settings = {"etcd_urls": etcd_url, "sink": sink_url, **settings}
        drainer = DrainerProcess(etcd, tmp_path / node_id, node_id, settings)
        drainers.append(drainer)
        return drainer.start() if started else drainer

    yield make
    for drainer in drainers:
        drainer.stop()
        if drainer.log.exists():
            # pytest shows it if the test has failed.
            print(drainer.log_text()[-_SHOWN:])  # noqa: T201
    for client in clients:
        client.close()
