"""A private MySQL, unpacked from a Debian release that includes it: see `deploy/servers.sh`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock_local.process import Unpacked
from penstock_local.sql_server import SqlServer


class MysqlServer(SqlServer):
    """One MySQL with the defaults of its release, charset and collation included."""

    def __init__(
        self, home: Path, *, buffer_pool_mib: int = 128, options: tuple[str, ...] = ()
    ) -> None:
        """`options` come last on the command line and override; see `binlog_options`."""
        unpacked = Unpacked("mysql")
        root = unpacked.root
        self._program = [
            *unpacked.command("sbin/mysqld"),
            "--no-defaults",
            f"--basedir={root}",
            f"--lc-messages-dir={root}/share/mysql",
            f"--character-sets-dir={root}/share/mysql/charsets",
            f"--plugin-dir={root}/lib/mysql/plugin",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
        ]
        super().__init__(
            home, self._program, [f"--innodb-buffer-pool-size={buffer_pool_mib}M", *options]
        )

    def install(self) -> None:
        self.write_users()
        command = [*self._program, *self.as_root, "--initialize-insecure"]
        command += [f"--datadir={self.home / 'data'}", f"--tmpdir={self.home}"]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise NeedsOperator(
                f"mysqld --initialize-insecure failed: {done.stderr[-2000:]}",
                "see the lines above",
                Code.CHILD_FAILED,
            )


def binlog_options(server_id: int = 1) -> tuple[str, ...]:
    """Return the options of a server that others can replicate from, and follow by GTID."""
    return (
        "--log-bin=mysql-bin",
        f"--server-id={server_id}",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
    )
