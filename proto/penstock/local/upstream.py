"""Processes beside an upstream server: `sysbench` loads it, a `penstock source` follows it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator, Retryable
from penstock.local.process import (
    ServerProcess,
    completed,
    flags,
    free_port,
    open_local,
    program,
    python_module,
)
from penstock.local.sql_server import SqlProcess, SqlServer
from pumpclient.mysql.relay.layout import Location

WORKLOAD = "oltp_read_write"
_PREPARE_S_MAX = 600.0
_TRIED_AGAIN = "1213,1205,1020,1412,1615"
"""Deadlock, lock wait, record changed; and table changed by a DDL, for a snapshot or a statement.

On any other error a thread of sysbench ends, its transaction and its locks stay open, and DDL waits
for these locks without end.
"""
_TRANSACTIONS = re.compile(r"^\s+transactions:\s+(\d+)\s", re.MULTILINE)
_RATE = re.compile(r"tps: ([\d.]+)")
_IGNORED = re.compile(r"^\s+ignored errors:\s+(\d+)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sysbench:
    """Tables `sbtest1` … of a server's schema, and the load on them."""

    server: SqlProcess
    tables: int
    rows: int
    schema: str = "sbtest"
    workload: str = WORKLOAD
    also_again: tuple[int, ...] = ()
    """Errors after which a transaction is retried, in addition to those of any server."""

    def command(self, verb: str, *options: str) -> list[str]:
        """Return the command line of `prepare`, `run` or `cleanup`, password included."""
        server = self.server
        tried_again = ",".join([_TRIED_AGAIN, *map(str, self.also_again)])
        return [
            program("sysbench"), self.workload, "--db-driver=mysql", f"--mysql-host={server.host}",
            f"--mysql-port={server.port}", f"--mysql-user={server.user}",
            f"--mysql-password={server.password}", f"--mysql-db={self.schema}",
            f"--tables={self.tables}", f"--table-size={self.rows}",
            f"--mysql-ignore-errors={tried_again}", *options, verb,
        ]  # fmt: skip

    def prepare(self, threads: int = 1) -> None:
        self.server.run(f"CREATE DATABASE IF NOT EXISTS `{self.schema}`")
        completed(self.command("prepare", f"--threads={threads}"), timeout=_PREPARE_S_MAX)

    def running(self, log: Path, *options: str) -> SysbenchRun:
        """Return a run, not started; options such as `--threads=4`, `--time=30`, `--rate=500`."""
        return SysbenchRun(self.command("run", *options), log=log)


class SysbenchRun(ServerProcess):
    """One run; it ends after its time or its events. Its report is its log."""

    def rate_line(self) -> str:
        rates = _RATE.findall(self.log_tail(3)) if self.is_running else []
        return f"sysbench {float(rates[-1]):.0f} transactions/s" if rates else "sysbench idle"

    def ended(self, timeout_s: float) -> tuple[int, int]:
        """Wait for its end; return its transactions, and the number of retries in addition.

        Raises `NeedsOperator` with its last lines when it failed.
        """
        try:
            code = self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -1
        report = self.log.read_text(errors="replace")
        done, again = _TRANSACTIONS.search(report), _IGNORED.search(report)
        if code != 0 or done is None or again is None:
            raise NeedsOperator(
                f"sysbench failed: {self.log_tail()}", "see the lines above", Code.CHILD_FAILED
            )
        return int(done[1]), int(again[1])


ANSWER_S_MAX = 5.0


class MysqlSource(ServerProcess):
    """One source; its files are below `folder`, and stay over restarts."""

    def __init__(
        self, folder: Path, etcd_url: str, server: SqlServer, config: str = "", **settings: Any
    ) -> None:
        """`config` is TOML; `settings` are flags and override it, such as `mode="all"`."""
        self.address = f"127.0.0.1:{free_port()}"
        settings = {
            "source_id": "mysql-1",
            "etcd_urls": etcd_url,
            "data_dir": folder,
            "status_addr": self.address,
            "source_host": server.host,
            "source_port": server.port,
            "source_user": server.user,
            "lease_s": 2,
            "relay_dir": folder / "relay",
            "relay_purge_remain_space_bytes": 0,
            **settings,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "source.toml"
        path.write_text(config)
        secret = folder / "password"
        secret.write_text(server.password + "\n")
        settings["source_password_file"] = secret
        super().__init__(
            python_module("pumpclient.mysql.source", "--config", str(path), *flags(settings)),
            log=folder / "log",
        )

    def status(self) -> dict[str, Any]:
        """Return the status page, empty while it is unavailable."""
        try:
            return dict(json.loads(self.page("status")))
        except (OSError, http.client.HTTPException):
            return {}

    def sound_status(self) -> dict[str, Any]:
        """Return the status page; raise `NeedsOperator` if the source waits for a person."""
        status = self.status()
        if status.get("state") == "failed":
            raise NeedsOperator(
                f"penstock source: {status['problem']}",
                status["hint"],
                code_named(status["code"]) or Code.NODE_REFUSES,
            )
        return status

    def page(self, name: str) -> str:
        url = f"http://{self.address}/{name}"
        with open_local(url, timeout_s=ANSWER_S_MAX) as answer:
            return str(answer.read().decode())

    def has(self, server: SqlServer) -> bool:
        """Return whether all of the server's changes are committed.

        Raises `Retryable` when the process has ended, `NeedsOperator` when it waits for a person.
        """
        if not self.is_running:
            raise Retryable(f"penstock source ended:\n{self.log_tail()}", Code.CHILD_FAILED)
        status = self.sound_status()
        if not status.get("committed"):
            return False
        done = Location.parse(status["committed"])
        file, position = server.end()
        if str(done.file) != file or done.position > position:
            return False
        # After a rotation the server eventually logs a checkpoint, which is not a transaction.
        # Statements come in the bytes that they were written in, which may be in an unknown
        # charset.
        left = server.query(
            f"SHOW BINLOG EVENTS IN '{file}' FROM {done.position}", use_unicode=False
        )
        return all(event[2] == b"Binlog_checkpoint" for event in left)
