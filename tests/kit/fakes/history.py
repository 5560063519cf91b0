"""The DDL history's twin in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.cluster.history import FIRST_ID, LOCK_KEY, DdlLock, Guard, History
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Origin


class MemoryHistory(History):
    """A history shared by all who hold the same object; call-backs run in the appender's thread."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._ddl = threading.Lock()
        self._jobs: dict[int, DdlJob] = {}
        self.rolled_back: set[int] = set()
        self._next_id = FIRST_ID
        self._lock_count = 0
        self._watches: list[MemoryJobWatch] = []

    def append(self, job: DdlJob, *, guards: Sequence[Guard] = ()) -> None:
        with self._mutex:
            if any(g.created_revision != self._lock_count for g in guards):
                raise Retryable("the lock was lost", code=Code.ETCD_AWAY)
            found = self._jobs.get(job.id)
            if found is not None:
                if found != job:
                    raise NeedsOperator(
                        f"DDL job id {job.id} is taken",
                        hint="a test's mistake",
                        code=Code.DDL_UNSUPPORTED,
                    )
                return
            if job.schema_version <= self.schema_version():
                raise Retryable("the version moved on", code=Code.ETCD_AWAY)
            self._jobs[job.id] = job
            for watch in list(self._watches):
                watch.on_job(job)

    def get(self, job_id: int) -> DdlJob | None:
        return self._jobs.get(job_id)

    def jobs(self, after_version: int = 0) -> list[DdlJob]:
        with self._mutex:
            later = [j for j in self._jobs.values() if j.schema_version > after_version]
        return sorted(later, key=lambda job: job.schema_version)

    def last_origin(self, source: str) -> Origin | None:
        origins = [j.origin for j in self.jobs() if j.origin and j.origin.source == source]
        return origins[-1] if origins else None

    def is_rolled_back(self, job_id: int) -> bool:
        return job_id in self.rolled_back

    def schema_version(self) -> int:
        with self._mutex:
            return max((job.schema_version for job in self._jobs.values()), default=0)

    def watch(self, on_job: Callable[[DdlJob], None], after_version: int = 0) -> MemoryJobWatch:
        with self._mutex:
            watch = MemoryJobWatch(self._watches, on_job)
            self._watches.append(watch)
            for job in self.jobs(after_version):
                on_job(job)
            return watch

    @contextmanager
    def lock(self, holder: str, ttl_s: int = 10, wait_s_max: float = 30) -> Iterator[MemoryLock]:
        if not self._ddl.acquire(timeout=wait_s_max):
            raise Retryable(f"someone holds the DDL lock, not {holder}", code=Code.ETCD_AWAY)
        try:
            with self._mutex:
                self._lock_count += 1
            yield MemoryLock(Guard(LOCK_KEY, self._lock_count))
        finally:
            self._ddl.release()

    def next_ids(self, count: int, least: int = 0) -> int:
        with self._mutex:
            first = max(self._next_id, least)
            self._next_id = first + count
            return first


class MemoryLock(DdlLock):
    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def is_held(self) -> bool:
        return True


class MemoryJobWatch:
    def __init__(self, watches: list[MemoryJobWatch], on_job: Callable[[DdlJob], None]) -> None:
        self._watches = watches
        self.on_job = on_job

    def cancel(self) -> None:
        if self in self._watches:
            self._watches.remove(self)
