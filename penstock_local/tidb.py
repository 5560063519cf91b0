"""A private TiDB with a PD and a TiKV beside it, or alone, from the builds of `deploy/go.sh`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from penstock_local.process import ServerProcess, built, free_port
from penstock_local.sql_server import SqlProcess

READY_S_MAX = 300.0
"""Ten seconds on an idle machine; the first start of a TiDB creates its system tables."""
OWNER_LEASE_S = 10
"""How long a killed TiDB's DDL ownership lasts, while DDL waits; TiDB's default is 60."""


class PdAndTikv(ServerProcess):
    """A PD with its etcd at `url`, and a TiKV of one replica; it is meant to outlive every TiDB."""

    def __init__(self, home: Path) -> None:
        self.url = f"127.0.0.1:{free_port()}"
        super().__init__(
            [
                built("tidb", "pd-tikv"),
                f"-pd={self.url}",
                f"-peer=127.0.0.1:{free_port()}",
                f"-store=127.0.0.1:{free_port()}",
                f"-data-dir={home / 'data'}",
            ],
            log=home / "pd-tikv.log",
        )

    def start(self) -> Self:
        """Start it and wait until both parts answer; raise `Retryable` with its log if not."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        super().start()
        return self.until(lambda: b"ready: PD at" in self.log.read_bytes()[begin:], READY_S_MAX)


class TidbServer(SqlProcess):
    """One TiDB; its user is root, without a password, as TiDB creates it.

    With a PD it keeps its data there. As an upstream it sends binlogs to the Pumps that are
    registered in the PD's etcd, of which at least one must exist. Without a PD it is a store on its
    own, sends none, and deletes dropped data immediately.
    """

    user = "root"
    password = ""
    start_s_max = READY_S_MAX

    def __init__(
        self,
        home: Path,
        pd: PdAndTikv | None = None,
        *,
        is_upstream: bool = True,
        settings: str = "",
    ) -> None:
        """`settings` are TOML lines that come first in the file, outside any section."""
        self.home = home
        self.port, self.status_port = free_port(), free_port()
        # No path below /tmp that another TiDB shares, and no telemetry.
        store, path = ("unistore", str(home / "data")) if pd is None else ("tikv", pd.url)
        lines = [
            f'store = "{store}"',
            f'path = "{path}"',
            'socket = ""',
            f'tmp-storage-path = "{home / "tmp"}"',
            f'temp-dir = "{home / "tmp"}"',
            "enable-telemetry = false",
            "[log]",
            'level = "warn"',
            f'slow-query-file = "{home / "slow.log"}"',
            "[tikv-client]",
            # The store answers one call at a time only.
            "max-batch-size = 0",
            "[binlog]",
            f"enable = {str(pd is not None and is_upstream).lower()}",
        ]
        self._settings = settings + "\n".join([*lines, ""])
        super().__init__(
            [
                "env",
                f"tidb_manager_ttl={OWNER_LEASE_S}",
                built("tidb", "tidb-server"),
                f"--config={home / 'tidb.toml'}",
                f"--host={self.host}",
                f"--advertise-address={self.host}",
                f"--status-host={self.host}",
                f"-P={self.port}",
                f"--status={self.status_port}",
            ],
            log=home / "tidb.log",
        )

    def start(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "tidb.toml").write_text(self._settings)
        super().start()
        # The fast path fills an index with whole files, which the store does not accept.
        self.run("SET GLOBAL tidb_ddl_enable_fast_reorg = OFF")
        return self
