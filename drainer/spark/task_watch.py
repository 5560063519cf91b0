"""Task watch: detects that no Spark task is connected, reports it, and replaces the session.

    a session starts ── no task for 5 s: reported, then every 30 s ── none for 600 s: replaced
    all tasks are lost ── none for 5 s: reported ─────────────────── none for 30 s: replaced

A Spark master that restarts without its executors never gives this application new ones; only a new
session registers it again. A session that never had a task may just be queued for resources, and
therefore gets more time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

REPORTED_AFTER_S, REPORTED_AGAIN_S = 5.0, 30.0
LOST_S, NEVER_S = 30.0, 600.0
_TICK_S = 1.0


class Tasks(Protocol):
    """The connected tasks: a part of `Dispatcher`."""

    waits_for: str

    @property
    def tasks(self) -> int: ...


class TaskWatch:
    """How long no task has been connected to one Drainer, and why."""

    def __init__(self, now_s: float) -> None:
        self.problem = ""
        """The reason why the Drainer has no task; empty while a task is connected."""
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._none_since_s: float | None = now_s
        self._report_at_s = now_s + REPORTED_AFTER_S
        self._had_tasks = False

    def look(self, now_s: float, tasks: int) -> bool:
        """Record the number of connected tasks; return whether the session must be replaced."""
        if tasks:
            self._none_since_s, self._had_tasks, self.problem = None, True, ""
            return False
        if self._none_since_s is None:
            self._none_since_s, self._report_at_s = now_s, now_s + REPORTED_AFTER_S
        none_s = now_s - self._none_since_s
        if none_s >= (LOST_S if self._had_tasks else NEVER_S):
            log.error("%s: starting a new Spark session", self.problem)
            self._begin(now_s)
            return True
        if now_s >= self._report_at_s:
            why = "all tasks are lost" if self._had_tasks else "Spark is starting, or has no room"
            self.problem = f"no Spark task is connected for {none_s:.0f} s ({why}; see spark.log)"
            log.warning("%s", self.problem)
            self._report_at_s = now_s + REPORTED_AGAIN_S
        return False


async def watch_tasks(tasks: Tasks, replace_session: Callable[[], None]) -> None:
    """Check the tasks every second until cancelled; keep their `waits_for` up to date."""
    watch = TaskWatch(time.monotonic())
    while True:
        await asyncio.sleep(_TICK_S)
        if watch.look(time.monotonic(), tasks.tasks):
            replace_session()
        tasks.waits_for = watch.problem
