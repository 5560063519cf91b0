"""A private SQL server: MariaDB or TiDB with its own data, loopback only, durable commits.

A MariaDB is the machine's own, or a newer release that `deploy/servers.sh` unpacks. A TiDB, with a
PD and a TiKV beside it or alone, is from the builds of `deploy/go.sh`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pymysql

from penstock.local.process import ServerProcess, Unpacked, built, completed, free_port, program

USER = "penstock"


class SqlProcess(ServerProcess):
    """A process that speaks MySQL's protocol; its port and its password stay the same."""

    host = "127.0.0.1"
    user = USER
    port: int
    password: str
    start_s_max = 90.0

    @property
    def url(self) -> str:
        """The server as a sink URL, password included; it must not be logged."""
        return f"mysql://{self.user}:{quote(self.password, safe='')}@{self.host}:{self.port}/"

    def start(self) -> Self:
        """Start it and wait until it answers; raise `Retryable` with its log when it does not."""

        def answers() -> bool:
            try:
                self.connect().close()
            except pymysql.err.OperationalError:
                return False
            return True

        return super().start().until(answers, self.start_s_max)

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        """Open a connection, with autocommit unless `options` say otherwise."""
        options = {"autocommit": True, "charset": "utf8mb4", **options}
        return pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password, **options
        )

    def query(self, sql: str, **options: Any) -> list[tuple[Any, ...]]:
        with closing(self.connect(**options)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def run(self, *statements: str) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


class SqlServer(SqlProcess):
    """One server whose port, password and data stay the same over restarts."""

    def __init__(self, home: Path, program: list[str], options: list[str]) -> None:
        """`program` is the command with its own options; `options` come last and override."""
        self.home, self._program = home, program
        self.port = free_port()
        # Awkward on purpose: it must survive a URL.
        self.password = secrets.token_urlsafe(12) + ":/@#"
        self.as_root = ["--user=root"] if os.geteuid() == 0 else []
        super().__init__(
            [
                *program,
                *self.as_root,
                f"--datadir={home / 'data'}",
                f"--socket={home / 's'}",
                f"--pid-file={home / 'pid'}",
                # In a shared folder a starting server deletes the others' files.
                f"--tmpdir={home}",
                f"--init-file={home / 'init.sql'}",
                f"--bind-address={self.host}",
                f"--port={self.port}",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--performance-schema=OFF",
                "--innodb-flush-log-at-trx-commit=1",
                "--innodb-lock-wait-timeout=5",
                "--max-connections=100",
                *options,
            ],
            log=home / "server.log",
        )

    @property
    def url_without_password(self) -> str:
        """The server as a sink URL that names the file of its password."""
        file = quote(str(self.home / "password"))
        return f"mysql://{self.user}@{self.host}:{self.port}/?password-file={file}"

    def _write_users(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "password").write_text(f"{self.password}\n")
        who = f"'{self.user}'@'%'"
        (self.home / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS {who} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"
        )

    def _run_setup(self, *options: str, **how: Any) -> None:
        folders = [f"--datadir={self.home / 'data'}", f"--tmpdir={self.home}"]
        completed([*self._program, *self.as_root, *options, *folders], **how)

    def end(self) -> tuple[str, int]:
        """Return the newest binlog file and its size; the server must write a binlog."""
        file, position, *_ = self.query("SHOW BINARY LOGS")[-1]
        return str(file), int(position)


def unpacked_program(unpacked: Unpacked, program: str, share: str) -> list[str]:
    root = unpacked.root
    return [
        *unpacked.command(program),
        "--no-defaults",
        f"--basedir={root}",
        f"--lc-messages-dir={root}/share/{share}",
        f"--character-sets-dir={root}/share/{share}/charsets",
        f"--plugin-dir={root}/lib/mysql/plugin",
    ]


_LOG_SIZE = "--innodb-log-file-size=64M"
_SYSTEM_TABLES = (
    "mariadb_system_tables.sql",
    "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "fill_help_tables.sql",
    "mariadb_sys_schema.sql",
)


class MariadbServer(SqlServer):
    """One MariaDB; an `unpacked` server is not the machine's own."""

    def __init__(
        self,
        home: Path,
        *,
        buffer_pool_mib: int = 128,
        options: tuple[str, ...] = (),
        unpacked: Unpacked | None = None,
    ) -> None:
        """`options` come last on the command line and override; see `mariadb_binlog_options`."""
        self._unpacked = unpacked
        command = (
            [program("mariadbd", "mysqld"), "--no-defaults"]
            if unpacked is None
            else unpacked_program(unpacked, "sbin/mariadbd", "mariadb")
        )
        size = f"--innodb-buffer-pool-size={buffer_pool_mib}M"
        super().__init__(
            home, command, ["--character-set-server=utf8mb4", _LOG_SIZE, size, *options]
        )

    def install(self) -> None:
        self._write_users()
        if self._unpacked is not None:
            scripts = self._unpacked.root / "share" / "mariadb"
            (self.home / "data" / "mysql").mkdir(parents=True, exist_ok=True)
            sql = "USE mysql;\n" + "".join((scripts / name).read_text() for name in _SYSTEM_TABLES)
            self._run_setup("--bootstrap", "--skip-log-bin", _LOG_SIZE, input=sql)
            return
        command = [program("mariadb-install-db", "mysql_install_db"), "--no-defaults"]
        command += [f"--datadir={self.home / 'data'}", "--auth-root-authentication-method=normal"]
        # --force: also on a host whose own name does not resolve.
        command += ["--skip-test-db", "--skip-name-resolve", "--force", _LOG_SIZE, *self.as_root]
        # Concurrent installations must not share a folder of temporary tables.
        completed(command, env={**os.environ, "TMPDIR": str(self.home)})


# --- TiDB --------------------------------------------------------------------------------------

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


def mariadb_binlog_options(server_id: int = 1) -> tuple[str, ...]:
    """Return the options of a server that others can replicate from, and follow by GTID."""
    return (
        "--log-bin=mysql-bin",
        f"--server-id={server_id}",
        "--binlog-format=ROW",
        "--binlog-row-image=FULL",
        "--binlog-checksum=CRC32",
        "--log-slave-updates",
    )
