"""DDL history: every DDL the cluster has run, in etcd, and the lock under which DDL is added to it.

    /penstock/v1/ddl/<job id, 20 digits>   one job as JSON (`tidb_json`), never changed
    /penstock/v1/schema_version            decimal: the version of the newest job
    /penstock/v1/next_id                   decimal: the next id for a schema, table or job
    /penstock/v1/ddl_rolled_back/<job id>  a job that a Pump rolled back or an operator gave up,
                                           and is never recorded
    /penstock/v1/ddl_lock                  who runs DDL now, on a lease
    /penstock/v1/ddl_origins/<source>      the origin of the last job that a source passed on, JSON

A job, or several, and the new schema version are one transaction. It fails unless the jobs are new,
their versions larger than the last, and the lock, if this History holds it, still the same lock. It
also fails once a Pump has rolled one of them back, just as the rollback fails once the job is
recorded.

A restored etcd has an older history, and issues schema versions again. It does not issue ids again:
they are not below the time at which they are drawn, in milliseconds of the cluster's time.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.cluster.etcd import (
    EtcdClient,
    Lease,
    Watch,
    is_any_from,
    read,
    read_at,
    read_pages,
    transact,
)
from penstock.cluster.node_registry import Cancellable
from penstock.cluster.records import decimal_in
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import job_from_json, job_to_json, origin_from_json, origin_to_json
from penstock.ts import physical_ms
from penstock.wire.binlog import Origin

log = logging.getLogger(__name__)

JOBS = "/penstock/v1/ddl/"
SCHEMA_VERSION_KEY = "/penstock/v1/schema_version"
NEXT_ID_KEY = "/penstock/v1/next_id"
ROLLED_BACK = "/penstock/v1/ddl_rolled_back/"
LOCK_KEY = "/penstock/v1/ddl_lock"
ORIGINS = "/penstock/v1/ddl_origins/"
FIRST_ID = 101
"""Smaller ids are left to system schemas, as TiDB does."""
_DRAWN_MS_MAX = 3_600_000
_TOGETHER_MAX = 50
"""A job takes two comparisons and one write of a transaction; etcd accepts 128 of each."""
_TOGETHER_BYTES_MAX = 512 << 10
"""etcd accepts requests of 1.5 MiB."""


def has_drawn(job_id: int, commit_ts: int) -> bool:
    """Return whether the id of a job that committed then was drawn here, and not by a TiDB.

    Our ids are at least the cluster's time, in milliseconds, when the DDL began; TiDB's are counted
    from 1. Ids of older versions were counted as well, and are not recognised.
    """
    return job_id > physical_ms(commit_ts) - _DRAWN_MS_MAX


@dataclass(frozen=True, slots=True)
class Guard:
    """A key that must still be the one created at that revision when a transaction runs."""

    key: str
    created_revision: int


class DdlLock:
    """The DDL lock while it is held."""

    def __init__(self, lease: Lease, guard: Guard) -> None:
        self._lease = lease
        self.guard = guard

    def is_held(self) -> bool:
        """Return whether no one else can hold the lock; for certainty, compare `guard`."""
        return self._lease.is_held()


class History:
    """The DDL history in etcd. Blocking, safe to share between threads; failures are Retryable."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self._held: DdlLock | None = None

    def append(self, *jobs: DdlJob, guards: Sequence[Guard] = ()) -> None:
        """Record jobs that are `together`, all or none, under the lock if held, and `guards`.

        Appending the same jobs again does nothing, so after Retryable it may be tried again, unless
        the lock was lost or a newer job was recorded. NeedsOperator when an id is another job's.
        """
        texts = {job.id: _text(job) for job in jobs}
        version, revision = self._read_counter(SCHEMA_VERSION_KEY)
        if version < jobs[0].schema_version and self._record(jobs, texts, revision, guards):
            return
        for job_id, text in texts.items():
            found = read(self._etcd, _key(job_id))
            if found is None:
                gone = [each for each in texts if self.is_rolled_back(each)]
                why = "the lock or the version moved on"
                raise Retryable(
                    f"DDL job {gone[0]} was rolled back by a Pump before it was recorded"
                    if gone
                    else f"DDL job {job_id} was not recorded: {why}",
                    Code.DDL_ROLLED_BACK,
                )
            if found.decode() != text:
                raise NeedsOperator(
                    f"DDL job id {job_id} is taken",
                    f"was {NEXT_ID_KEY} in etcd put back?",
                    Code.DDL_HISTORY,
                )

    def get(self, job_id: int) -> DdlJob | None:
        """Return a job, None if it does not exist; `Malformed` when it cannot be read."""
        found = read(self._etcd, _key(job_id))
        return None if found is None else _job(_key(job_id), found)

    def roll_back(self, job_id: int) -> DdlJob | None:
        """Prevent a job from ever being recorded, or return it if it is already recorded."""
        do = self._etcd.transactions
        transact(
            self._etcd,
            compare=[do.create(_key(job_id)) == 0],
            success=[do.put(_rolled_back_key(job_id), "")],
        )
        return self.get(job_id)

    def is_rolled_back(self, job_id: int) -> bool:
        return read(self._etcd, _rolled_back_key(job_id)) is not None

    def is_overtaken(self, job_id: int) -> bool:
        """Return whether a job is not recorded and never will be, because a larger id is recorded.

        Ids are drawn and jobs recorded under the lock, in one order. So the holder of the smaller
        id is done, or has lost the lock, without which nothing is recorded.
        """
        # In this order, a job that is recorded between the two reads is seen.
        return is_any_from(self._etcd, JOBS, _key(job_id + 1)) and self.get(job_id) is None

    def jobs(self, after_version: int = 0, after_id: int = 0) -> list[DdlJob]:
        """Return the jobs of later schema versions, in order of version.

        If the id of the last known job is passed as `after_id`, etcd is asked only for larger ids:
        ids are drawn and jobs recorded in one order, so the cost does not grow with the history. If
        a version is missing among them, the whole history is read.
        """
        newest = self.schema_version()
        if newest <= after_version:
            return []
        later = self._later(after_version, after_id)
        versions = [job.schema_version for job in later]
        wanted = range(after_version + 1, max([newest, *versions]) + 1)
        return later if not after_id or versions == [*wanted] else self._later(after_version)

    def _later(self, after_version: int, after_id: int = 0) -> list[DdlJob]:
        pages = read_pages(self._etcd, JOBS, first=_key(after_id + 1) if after_id else JOBS)
        jobs = (_job(key, value) for key, value, _ in pages)
        later = (job for job in jobs if job.schema_version > after_version)
        return sorted(later, key=lambda job: job.schema_version)

    def recorded(self, after_revision: int = 0) -> Iterator[tuple[DdlJob, int]]:
        """Return each job with etcd's revision of its recording, in order of id, page by page.

        Only jobs recorded after `after_revision` of the same etcd: etcd itself leaves out the
        others. A job that cannot be read raises Malformed.
        """
        for key, value, revision in read_pages(self._etcd, JOBS, after_revision=after_revision):
            yield _job(key, value), revision

    def revision_of(self, job_id: int) -> int:
        """Return the etcd revision at which a job was recorded, 0 if there is no such job."""
        return read_at(self._etcd, _key(job_id))[1]

    def last_origin(self, source: str) -> Origin | None:
        found = read(self._etcd, ORIGINS + source)
        return None if found is None else origin_from_json(_json(ORIGINS + source, found))

    def schema_version(self) -> int:
        """Return the version of the newest job, 0 before the first."""
        return self._read_counter(SCHEMA_VERSION_KEY)[0]

    def watch(self, on_job: Callable[[DdlJob], None], after_version: int = 0) -> Cancellable:
        """Call back once for each job of a later version than `after_version`, sorted by version.

        Jobs already recorded come before this returns, the others from a thread of the watch. A
        job that cannot be read blocks all that follow it, and is logged.
        """
        reached = after_version
        known: set[str] = set()

        def on_items(items: dict[str, bytes]) -> None:
            nonlocal reached
            fresh = {key: value for key, value in items.items() if key not in known}
            jobs = [_job(key, value) for key, value in fresh.items()]
            for job in sorted(jobs, key=lambda job: job.schema_version):
                if job.schema_version > reached:
                    on_job(job)
                    reached = job.schema_version
            known.update(fresh)

        return Watch(self._etcd, JOBS, on_items)

    @contextmanager
    def lock(self, holder: str, ttl_s: int = 10, wait_s_max: float = 30) -> Iterator[DdlLock]:
        """Hold the DDL lock in a block; `append` of this History then fails if the lock is lost.

        Waits `wait_s_max` for another holder, then raises Retryable. If this process stops, the
        lock is free after `ttl_s`.
        """
        lease = Lease(self._etcd, ttl_s)
        try:
            self._held = DdlLock(lease, self._create_lock(holder, lease, wait_s_max))
            try:
                yield self._held
            finally:
                self._held = None
        finally:
            lease.close()

    def next_ids(self, count: int, least: int = 0) -> int:
        """Return the first of `count` consecutive, never-used ids, none below `least`."""
        assert count > 0
        do = self._etcd.transactions
        while True:
            next_id, revision = self._read_counter(NEXT_ID_KEY)
            first = max(next_id, FIRST_ID, least)
            won, _ = transact(
                self._etcd,
                compare=[do.mod(NEXT_ID_KEY) == revision],
                success=[do.put(NEXT_ID_KEY, str(first + count))],
            )
            if won:
                return first

    def _record(
        self,
        jobs: Sequence[DdlJob],
        texts: Mapping[int, str],
        revision: int,
        guards: Sequence[Guard],
    ) -> bool:
        do = self._etcd.transactions
        held = self._held
        all_guards = [*guards, *([held.guard] if held else [])]
        last = {job.origin.source: origin_to_json(job.origin) for job in jobs if job.origin}
        done, _ = transact(
            self._etcd,
            compare=[
                *(do.create(_key(each)) == 0 for each in texts),
                *(do.create(_rolled_back_key(each)) == 0 for each in texts),
                do.mod(SCHEMA_VERSION_KEY) == revision,
                *(do.create(g.key) == g.created_revision for g in all_guards),
            ],
            success=[
                *(do.put(_key(each), text) for each, text in texts.items()),
                do.put(SCHEMA_VERSION_KEY, str(jobs[-1].schema_version)),
                *(
                    do.put(ORIGINS + source, json.dumps(origin, ensure_ascii=False))
                    for source, origin in last.items()
                ),
            ],
        )
        return bool(done)

    def _create_lock(self, holder: str, lease: Lease, wait_s_max: float) -> Guard:
        do = self._etcd.transactions
        changed = threading.Event()
        watch = Watch(self._etcd, LOCK_KEY, lambda _: changed.set())
        try:
            deadline_s = time.monotonic() + wait_s_max
            while True:
                changed.clear()
                created, answers = transact(
                    self._etcd,
                    compare=[do.create(LOCK_KEY) == 0],
                    success=[do.put(LOCK_KEY, holder, lease=lease.id), do.get(LOCK_KEY)],
                    failure=[do.get(LOCK_KEY)],
                )
                value, meta = answers[-1][0]
                if created:
                    return Guard(LOCK_KEY, meta.create_revision)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or lease.is_lost():
                    raise Retryable(f"{value.decode()} holds the DDL lock", Code.DDL_LOCKED)
                changed.wait(min(left_s, 1.0))
        finally:
            watch.cancel()

    def _read_counter(self, key: str) -> tuple[int, int]:
        value, _, revision = read_at(self._etcd, key)
        return (0, 0) if value is None else (decimal_in(key, value), revision)


def together(jobs: Iterable[DdlJob]) -> Iterator[list[DdlJob]]:
    """Divide jobs into runs that one transaction of etcd can record."""
    run: list[DdlJob] = []
    size_bytes = 0
    for job in jobs:
        size_bytes += len(_text(job).encode())
        if run and (len(run) == _TOGETHER_MAX or size_bytes > _TOGETHER_BYTES_MAX):
            yield run
            run, size_bytes = [], len(_text(job).encode())
        run.append(job)
    if run:
        yield run


def _text(job: DdlJob) -> str:
    return json.dumps(job_to_json(job), ensure_ascii=False)


def _key(job_id: int) -> str:
    return f"{JOBS}{job_id:020d}"


def _rolled_back_key(job_id: int) -> str:
    return f"{ROLLED_BACK}{job_id:020d}"


def _job(key: str, value: bytes) -> DdlJob:
    return job_from_json(_json(key, value))


def _json(key: str, value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise Malformed(
            f"{key} in etcd is not JSON: {error}", "restore it", Code.ETCD_VALUE
        ) from error
