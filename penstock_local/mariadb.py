"""A private MariaDB: the machine's own, or a newer release that is unpacked beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock_local.process import Unpacked, program
from penstock_local.sql_server import SqlServer

LOG_SIZE = "--innodb-log-file-size=64M"
_SYSTEM_TABLES = (
    "mariadb_system_tables.sql",
    "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "fill_help_tables.sql",
    "mariadb_sys_schema.sql",
)


def binlog_options(server_id: int = 1) -> tuple[str, ...]:
    """Return the options of a server that others can replicate from, and follow by GTID."""
    return (
        "--log-bin=mysql-bin",
        f"--server-id={server_id}",
        "--binlog-format=ROW",
        "--binlog-row-image=FULL",
        "--binlog-checksum=CRC32",
        "--log-slave-updates",
    )


class MariadbServer(SqlServer):
    """One MariaDB; an `unpacked` server is not the machine's own, see `deploy/servers.sh`."""

    def __init__(
        self,
        home: Path,
        *,
        buffer_pool_mib: int = 128,
        options: tuple[str, ...] = (),
        unpacked: Unpacked | None = None,
    ) -> None:
        """`options` come last on the command line and override; see `binlog_options`."""
        self._unpacked = unpacked
        super().__init__(
            home,
            self._program(),
            [
                "--character-set-server=utf8mb4",
                LOG_SIZE,
                f"--innodb-buffer-pool-size={buffer_pool_mib}M",
                *options,
            ],
        )

    def _program(self) -> list[str]:
        if self._unpacked is None:
            return [program("mariadbd", "mysqld"), "--no-defaults"]
        root = self._unpacked.root
        return [
            *self._unpacked.command("sbin/mariadbd"),
            "--no-defaults",
            f"--basedir={root}",
            f"--lc-messages-dir={root}/share/mariadb",
            f"--character-sets-dir={root}/share/mariadb/charsets",
            f"--plugin-dir={root}/lib/mysql/plugin",
        ]

    def install(self) -> None:
        self.write_users()
        if self._unpacked is not None:
            self._bootstrap(self._unpacked.root / "share" / "mariadb")
            return
        command = [program("mariadb-install-db", "mysql_install_db"), "--no-defaults"]
        command += [f"--datadir={self.home / 'data'}", "--auth-root-authentication-method=normal"]
        # --force: also on a host whose own name does not resolve.
        command += ["--skip-test-db", "--skip-name-resolve", "--force", LOG_SIZE, *self.as_root]
        # Concurrent installations must not share a folder of temporary tables.
        own = {**os.environ, "TMPDIR": str(self.home)}
        done = subprocess.run(command, capture_output=True, check=False, text=True, env=own)
        if done.returncode != 0:
            raise NeedsOperator(
                f"mariadb-install-db failed: {done.stdout}{done.stderr}",
                "see the lines above",
                Code.CHILD_FAILED,
            )

    def _bootstrap(self, scripts: Path) -> None:
        (self.home / "data" / "mysql").mkdir(parents=True, exist_ok=True)
        sql = "USE mysql;\n" + "".join((scripts / name).read_text() for name in _SYSTEM_TABLES)
        command = [*self._program(), *self.as_root, "--bootstrap", "--skip-log-bin", LOG_SIZE]
        command += [f"--datadir={self.home / 'data'}", f"--tmpdir={self.home}"]
        done = subprocess.run(command, input=sql, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise NeedsOperator(
                f"mariadbd --bootstrap failed: {done.stderr[-2000:]}",
                "see the lines above",
                Code.CHILD_FAILED,
            )
