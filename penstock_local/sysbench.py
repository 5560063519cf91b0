"""Debian's `sysbench` against a server: its tables, and its transactions as a child process."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock_local.process import ServerProcess, completed, program
from penstock_local.sql_server import SqlProcess

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
