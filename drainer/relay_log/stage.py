"""Relay stage: writes merged binlogs to the relay log, and syncs it before each step is applied.

    merge ──> offer: kept briefly ──> flush, at each step: written and synced by one thread
                                          │ while the tasks write the step's SQL
                                          v
                                      the step is applied; then `trim`

A step's sync runs while its SQL is being generated, and one sync covers all binlogs merged by then.
`NoRelay` replaces the stage without a relay log, and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from drainer.intake.merger import Merged
from drainer.relay_log.log import Entry, RelayLog
from penstock.failpoints import point
from penstock.schema.model import DdlJob

_WAITING_BYTES_MAX = 1 << 20

_written = point("drainer.relay_written")
_synced = point("drainer.relay_synced")


class Relay(Protocol):
    """The pipeline's interface to a relay log, whether one is configured or not."""

    def offer(self, merged: Merged) -> None:
        """Take the next run of the merged stream; it is not on disk yet."""

    def note_job(self, job: DdlJob) -> None: ...

    def flush(self) -> asyncio.Future[None] | None:
        """Start to write and sync all data taken; None if there is nothing to wait for."""

    def trim(self, checkpoint_ts: int) -> None:
        """Remove files whose binlogs are all downstream."""


class NoRelay:
    """The stage without a relay log."""

    def offer(self, merged: Merged) -> None: ...

    def note_job(self, job: DdlJob) -> None: ...

    def flush(self) -> asyncio.Future[None] | None:
        return None

    def trim(self, checkpoint_ts: int) -> None: ...


class RelayStage:
    """The stage with a relay log; belongs to one event loop, and writes in a dedicated thread."""

    def __init__(self, log: RelayLog) -> None:
        """Take ownership of `log`, which must be open and started."""
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="relay")
        self._entries: list[Entry] = []
        self._jobs: list[DdlJob] = []
        self._waiting_bytes = 0
        self._is_clean = True
        self._failure: BaseException | None = None
        self._trimmed_ts = 0

    def offer(self, merged: Merged) -> None:
        """Take the next run; a large amount is written immediately, but not synced."""
        self._entries += zip(merged.commit_ts, merged.payloads, strict=True)
        self._waiting_bytes += merged.bytes
        self._is_clean = False
        if self._waiting_bytes > _WAITING_BYTES_MAX:
            entries = self._taken()
            self._thread.submit(self._guarded, lambda: self._log.append(entries))

    def note_job(self, job: DdlJob) -> None:
        self._jobs.append(job)
        self._is_clean = False

    def flush(self) -> asyncio.Future[None] | None:
        """Start to write and sync; the future raises the error of any write since the last sync."""
        if self._is_clean:
            return None
        entries, jobs, self._jobs = self._taken(), self._jobs, []
        self._is_clean = True

        def write() -> None:
            self._log.note_jobs(jobs)
            self._log.append(entries)
            _written()
            self._log.sync()
            _synced()

        return asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, write)

    def trim(self, checkpoint_ts: int) -> None:
        self._thread.submit(self._guarded, lambda: self._log.trim(checkpoint_ts))

    async def close(self) -> None:
        """End the thread after its remaining work; the log stays open."""
        await asyncio.to_thread(self._thread.shutdown)

    def _taken(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        self._waiting_bytes = 0
        return entries

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work unless earlier work failed, which leaves the log incomplete for good."""
        if self._failure is not None:
            raise self._failure
        try:
            work()
        except BaseException as error:
            self._failure = error
            raise
