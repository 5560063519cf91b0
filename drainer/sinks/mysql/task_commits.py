"""Task commits: a Spark task's connections to a MySQL downstream, on which it commits partitions.

The Drainer begins a batch: its transaction stores the checkpoint that announces the batch, and the
rows of the fences. Then it orders the task that made the SQL to commit the partitions, each under
its fence (`drainer.sinks.mysql.side_connections`). The Drainer may repeat the order at any time, to
any task: a partition that is committed is not run again, and no task of a replaced Drainer commits
anything.

A task that is frozen between its statements and its commit holds locks, of its fence's row too.
The server ends its transaction after `IDLE_S`, so that another task, or another Drainer, passes. A
connection that has been idle for long is therefore opened again before it is used.

These settings are part of the job's code, so they have no password. The task reads it, at each
connect, from the password file on its own host, or from the environment variable MYSQL_PSWD. On a
local master the Drainer sets the variable in the environment of Spark's JVM.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial

from drainer.settings.targets import MYSQL_PASSWORD, MysqlTarget
from drainer.sinks.mysql.session import MysqlSession
from drainer.sinks.mysql.side_connections import Fences, SideConnections
from drainer.sinks.protocol import RETRY_S_MAX, Passage
from drainer.sinks.task_orders import GONE, Order, committed, failed
from drainer.task.partitions import Partitions
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.failpoints import point

IDLE_S = 30
"""A session that is idle for so long is ended by the server, also within a transaction."""
_MARKS_PER_TASK = 1000
_partitions_ordered = point("drainer.partitions_ordered")
"""A task has the order to commit the partitions of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommits:
    """The downstream, as a task connects to it."""

    target: MysqlTarget
    """Without a password."""
    needs_password: bool
    """True if the password is in the environment of the task."""

    @classmethod
    def into(cls, target: MysqlTarget) -> TaskCommits:
        idle = (*target.params, f"wait_timeout={IDLE_S}")
        needs = bool(target.password) and not target.password_file
        return cls(target=replace(target, password="", params=idle), needs_password=needs)

    def open(self, kept: MutableMapping[str, Partitions], partition: int) -> TaskConnections:
        return TaskConnections(self, kept, partition)


def _nothing(problem: str) -> None: ...


class TaskConnections:
    """See `drainer.task.work_loop.Orders`."""

    def __init__(
        self, settings: TaskCommits, kept: MutableMapping[str, Partitions], partition: int
    ) -> None:
        self.report: Callable[[str], None] = _nothing
        self._settings = settings
        self._kept = kept
        self._mark_from = (partition + 1) * _MARKS_PER_TASK
        self._closing = threading.Event()
        self._is_checked = False
        self._used_s = 0.0
        self._side: SideConnections | None = None

    def check(self) -> None:
        if not self._is_checked:
            self._target().current_password()
            self._is_checked = True

    def _target(self) -> MysqlTarget:
        if not self._settings.needs_password:
            return self._settings.target
        if MYSQL_PASSWORD not in os.environ:
            raise NeedsOperator(
                "no password for the downstream:"
                f" {MYSQL_PASSWORD} is not set in the executor's environment",
                f"set {MYSQL_PASSWORD} there (in spark-env.sh of the workers), or use password-file"
                " with a path that exists on each executor's host, or set spark.payloads = driver",
                Code.SETTING_VALUE,
            )
        return replace(self._settings.target, password=os.environ[MYSQL_PASSWORD])

    def commit(self, order: bytes) -> bytes:
        try:
            content, passage = Order.decode(order)
            work = self._kept.get(content)
            if work is None:
                return GONE
            _partitions_ordered()
            took_s = self._connected(passage).run_partitions(work, passage.ts, passage.part)
        except Exception as error:  # The Drainer decides how to continue.
            return failed(error)
        self._used_s = time.monotonic()
        self._kept.pop(content, None)
        return committed(took_s)

    def _connected(self, passage: Passage) -> SideConnections:
        if self._side is None:
            session = partial(
                MysqlSession,
                self._target(),
                retry_s_max=RETRY_S_MAX,
                closing=self._closing,
                changed=self._changed,
                mark_from=self._mark_from,
            )
            self._side = SideConnections(session)
        elif time.monotonic() - self._used_s > IDLE_S / 2:
            for each in self._side.sessions:
                each.disconnect()
        self._side.fences = Fences(passage.table, passage.cluster_id, passage.epoch)
        return self._side

    def _changed(self) -> None:
        problems = (each.problem for each in self._side.sessions) if self._side else ()
        self.report(next(filter(None, problems), ""))

    def close(self) -> None:
        self._closing.set()
        if self._side is not None:
            self._side.close()
