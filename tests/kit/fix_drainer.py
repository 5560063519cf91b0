"""A real Drainer: a `python -m drainer` process with Spark, killed, stopped and started at will."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from penstock.etcd import EtcdClient, connect
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.registry import NodeKind, Registry

ROOT = Path(__file__).resolve().parents[2]
_SERVES = re.compile(r"drainer (\S+) serves at (\S+)")

DrainerFactory = Callable[..., "DrainerProcess"]


class DrainerProcess:
    """One Drainer; it keeps its port, its name and its data directory through restarts."""

    def __init__(
        self, etcd: EtcdClient, data_dir: Path, node_id: str, settings: dict[str, Any]
    ) -> None:
        self.node_id = node_id
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self.addr = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._registry = Registry(etcd)
        self._settings = {"node_id": node_id, "data_dir": data_dir, **settings}
        self._log_begin = 0

    def start(self, *, timeout_s: float = 60) -> DrainerProcess:
        """Start it and wait until it serves."""
        self.launch()
        self.addr = self.wait_for(_SERVES, timeout_s)[2]
        return self

    def launch(self) -> DrainerProcess:
        """Start it and wait for nothing: it may be about to refuse."""
        assert self.process is None
        self.log_path.touch()
        self._log_begin = self.log_path.stat().st_size
        addr = {"addr": self.addr or self._settings.get("addr", "127.0.0.1:0")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "drainer", *_flags({**self._settings, **addr})],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = 30) -> re.Match[str]:
        """Return the first match in the log since the last start; fail the test without one."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = re.search(pattern, self.log_text())
            if found:
                return found
            running = self.process is not None and self.process.poll() is None
            if not running or time.monotonic() > deadline_s:
                pytest.fail(
                    f"{self.node_id}: no {pattern!r} in its log:\n{self.log_text()[-5000:]}"
                )
            time.sleep(0.02)

    def wait_until(self, commit_ts: int, timeout_s: float = 60) -> None:
        """Return once everything up to `commit_ts` is downstream, as its entry in etcd says."""
        deadline_s = time.monotonic() + timeout_s
        while self.checkpoint_ts() < commit_ts:
            if self.process is None or self.process.poll() is not None:
                pytest.fail(f"{self.node_id} has ended:\n{self.log_text()[-5000:]}")
            if time.monotonic() > deadline_s:
                pytest.fail(
                    f"{self.node_id} is at {self.checkpoint_ts()}, not at {commit_ts}:\n"
                    f"{self.log_text()[-5000:]}"
                )
            time.sleep(0.05)

    def checkpoint_ts(self) -> int:
        """Return the checkpoint that it has published."""
        status = self._registry.get(NodeKind.DRAINER, self.node_id)
        return status.max_commit_ts if status else 0

    def state(self) -> str:
        """Return the state that it has published."""
        status = self._registry.get(NodeKind.DRAINER, self.node_id)
        return str(status.state) if status else ""

    def log_text(self) -> str:
        """Return the log since the last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    def kill9(self) -> None:
        """Kill it on the spot; does nothing when it is not running."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 40) -> int:
        """Ask it to stop and return its exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def wait(self, timeout_s: float = 40) -> int:
        """Return the exit code once it has ended by itself."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def restart(self) -> DrainerProcess:
        """Kill it if it runs, and start it again where its checkpoint stands."""
        self.kill9()
        return self.start()

    def freeze(self) -> None:
        """Keep its process from running, its connections staying open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def children(self) -> list[psutil.Process]:
        """Return the JVM and the Python processes below it."""
        assert self.process is not None
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def rss_bytes(self) -> int:
        """Return the memory that the process itself holds, the JVM and the tasks apart."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def status(self) -> penstock_pb2.StatusReply:
        """Return what it says about itself."""
        with self.channel() as channel:
            stub = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(
                penstock_pb2.StatusRequest(), timeout=10, wait_for_ready=True
            )
            return reply

    def channel(self) -> grpc.Channel:
        """Return a new connection; to be closed, or used in a `with`."""
        return grpc.insecure_channel(self.addr)

    def _end(self, how: signal.Signals, timeout_s: float = 40) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        return self.wait(timeout_s)


def _flags(settings: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that runs a Drainer: it brings Spark with it."""
    for item in items:
        if "drainer_factory" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


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
        try:
            drainer.stop()
        except subprocess.TimeoutExpired:
            drainer.kill9()
    for client in clients:
        client.close()
