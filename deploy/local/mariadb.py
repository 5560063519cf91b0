"""A private MariaDB: its own data folder, loopback only, durable at every commit."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pymysql

from deploy.local.process import ServerProcess, free_port
from penstock.errors import NeedsOperator, Retryable

START_S_MAX = 60.0
USER = "penstock"
LOG_SIZE = "--innodb-log-file-size=64M"


def program(*names: str) -> str:
    """Return the path of the first of `names` that is installed."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        if found:
            return found
    raise NeedsOperator(f"no {names[0]} here", hint="apt-get install mariadb-server-core")


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


class MariadbServer(ServerProcess):
    """One MariaDB whose port, password and data stay the same over restarts."""

    host = "127.0.0.1"
    user = USER

    def __init__(
        self, home: Path, *, buffer_pool_mib: int = 128, options: tuple[str, ...] = ()
    ) -> None:
        """`options` come last on its command line, so they overrule; see `binlog_options`."""
        self.home = home
        self.port = free_port()
        self.password = (
            secrets.token_urlsafe(12) + ":/@#"
        )  # Awkward on purpose: it must survive a URL.
        self._as_root = ["--user=root"] if os.geteuid() == 0 else []
        super().__init__(
            [
                program("mariadbd", "mysqld"),
                "--no-defaults",
                *self._as_root,
                f"--datadir={home / 'data'}",
                f"--socket={home / 's'}",
                f"--pid-file={home / 'pid'}",
                # In a shared one a server that starts clears the others' files away.
                f"--tmpdir={home}",
                f"--init-file={home / 'init.sql'}",
                f"--bind-address={self.host}",
                f"--port={self.port}",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--performance-schema=OFF",
                "--character-set-server=utf8mb4",
                "--innodb-flush-log-at-trx-commit=1",
                LOG_SIZE,
                f"--innodb-buffer-pool-size={buffer_pool_mib}M",
                "--innodb-lock-wait-timeout=5",
                "--max-connections=100",
                *options,
            ],
            log=home / "mariadb.log",
        )

    @property
    def url(self) -> str:
        """The server as a sink's URL, password included: not for logs."""
        return f"mysql://{self.user}:{quote(self.password, safe='')}@{self.host}:{self.port}/"

    def install(self) -> None:
        """Create the data folder and the one user."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = [program("mariadb-install-db", "mysql_install_db"), "--no-defaults"]
        command += [f"--datadir={self.home / 'data'}", "--auth-root-authentication-method=normal"]
        command += ["--skip-test-db", "--skip-name-resolve", LOG_SIZE, *self._as_root]
        # Two installations at once must not meet in one folder of temporary tables.
        own = {**os.environ, "TMPDIR": str(self.home)}
        done = subprocess.run(command, capture_output=True, check=False, text=True, env=own)
        if done.returncode != 0:
            raise NeedsOperator(
                f"mariadb-install-db failed: {done.stdout}{done.stderr}", hint="see the lines above"
            )
        who = f"'{self.user}'@'%'"
        (self.home / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS {who} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"
        )

    def start(self) -> Self:
        """Start it and wait until it answers; raise `Retryable` with its log when it does not."""
        super().start()
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline and self.is_running:
            try:
                self.connect().close()
                return self
            except pymysql.err.OperationalError:
                time.sleep(0.02)
        raise Retryable(f"MariaDB does not start: {self.log_tail()}")

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        """Open a connection that commits each statement by itself, unless told otherwise."""
        options = {"autocommit": True, "charset": "utf8mb4", **options}
        return pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password, **options
        )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def run(self, *statements: str) -> None:
        """Run statements on one connection."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def end(self) -> tuple[str, int]:
        """Return the newest binlog file and its size; only of a server that writes one."""
        ((file, position, *_),) = self.query("SHOW MASTER STATUS")
        return str(file), int(position)
