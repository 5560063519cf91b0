"""Relay log on the disk: appends and reads the merged stream, and removes binlogs once downstream.

    relay/                 relay/ddl/
    000007.seg  sealed     000000.seg   all jobs of DDL, for the schema without etcd
    000008.seg  live

A file ends where a transaction ends, once it has `file_bytes_max`. A file is removed when the
downstream has all of it; the live file stays. Everything is synced before it is applied. Bytes that
a crash tore off were therefore not applied either, and are cut. Any other damage is `Corrupt`.

`ddl/` is a separate log: one frame for each job of DDL that the stream names, JSON as in etcd, so
that the schema can be rebuilt without etcd. It has the whole history and is never cut: the schema
at any checkpoint starts with the first job. Older versions also wrote a frame for each override of
a DDL: {"decision": commit_ts} with its fields, or without fields once it is removed.

`RelayStage` writes merged binlogs to the log, and syncs it before each step is applied:

    merge ──> offer: kept briefly ──> flush, at each step: written and synced by one thread
                                          │ while the tasks write the step's SQL
                                          v
                                      the step is applied; then `trim`

A step's sync runs while its SQL is being generated, and one sync covers all binlogs merged by then.
The logs use no thread and no clock; the stage's thread makes every call but `open`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from drainer.differences import Override
from drainer.intake.merger import Merged
from drainer.intake.payload import Payload
from drainer.relay_log.records import (
    RECORD_BYTES_MAX,
    Chunk,
    ChunkSpool,
    NotARecord,
    Run,
    Start,
    chunks_of,
    decode,
    is_fake,
    is_large,
    size_of,
)
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from penstock.failpoints import point
from penstock.log.files import Files
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Position, Segments, WriteFailed
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import job_from_json, job_to_json

log = logging.getLogger(__name__)

_NEVER = 1 << 62

Entry = tuple[int, Payload]
"""A binlog's commit_ts and payload."""


class RelayLog:
    """An open relay log; all failures to write raise `NeedsOperator` or `Retryable`."""

    def __init__(self, binlogs: Segments, ddl: DdlLog, file_bytes_max: int) -> None:
        self.folder = binlogs.folder
        self.cluster_id: int | None = None
        """The cluster of this stream; None for an empty log."""
        self.after_ts = 0
        """The log has all binlogs merged after this …"""
        self.last_ts = 0
        """… up to this."""
        self._binlogs = binlogs
        self.ddl = ddl
        self._file_bytes_max = file_bytes_max
        self._begin = Place(binlogs.first, BEGIN)
        self._last_ts_of: dict[int, int] = {}
        self._has_start = False  # Whether the live file has one.
        self._scan()

    @classmethod
    def open(cls, folder: Path, *, file_bytes_max: int, files: Files | None = None) -> RelayLog:
        """Open or create the log in `folder`; cut off a torn end, raise `Corrupt`."""
        files = files or Files()
        binlogs = Segments.open(folder, files=files, segment_bytes_max=_NEVER)
        return cls(binlogs, DdlLog(folder / "ddl", files), file_bytes_max)

    # --- reading ---------------------------------------------------------------------------

    def _scan(self) -> None:
        """Read everything once: damage must be known before anything is applied."""
        for place, record in self._records(self._begin):
            number = place.segment
            if isinstance(record, Start):
                self._found_start(place, record)
            else:
                stamps = [record.commit_ts] if isinstance(record, Chunk) else record.commit_ts
                if self.cluster_id is None or stamps[0] <= self.last_ts:
                    raise self._damage(place, f"commit_ts {stamps[0]} follows {self.last_ts}")
                if isinstance(record, Run) or record.is_last:
                    self.last_ts = stamps[-1]
            self._last_ts_of[number] = self.last_ts
        self._has_start = self._binlogs.end.segment in self._last_ts_of

    def _found_start(self, place: Place, start: Start) -> None:
        if self.cluster_id not in (None, start.cluster_id):
            raise self._damage(place, f"{start} within the log of cluster {self.cluster_id}")
        if self.cluster_id is None or not start.continues:
            self._begin, self.after_ts = place, start.after_ts
            self.cluster_id, self.last_ts = start.cluster_id, start.after_ts
        self.last_ts = max(self.last_ts, start.after_ts)

    def _records(self, begin: Place) -> Iterator[tuple[Place, Start | Run | Chunk]]:
        for position, payload in self._binlogs.scan(begin):
            place = Place(position.segment, position.offset)
            try:
                record = decode(payload)
            except NotARecord as error:
                raise self._damage(place, str(error)) from error
            if record is not None:
                yield place, record

    def _damage(self, place: Place, what: str) -> Corrupt:
        return Corrupt(
            str(self.folder / segment_name(place.segment)),
            place.offset,
            what,
            code=Code.DRAINER_FILE_DAMAGED,
        )

    def runs(self, after_ts: int, spool: ChunkSpool | None = None) -> Iterator[Run]:
        """Yield all binlogs after `after_ts` by commit_ts; a large binlog is a separate run."""
        spool = spool or ChunkSpool()
        for place, record in self._records(self._begin):
            if isinstance(record, Chunk):
                try:
                    whole = spool.add(record)
                except NotARecord as error:
                    raise self._damage(place, str(error)) from error
                if whole is None:
                    continue
                record = Run([record.commit_ts], [whole])
            if isinstance(record, Run):
                first = bisect_right(record.commit_ts, after_ts)
                if first < len(record.commit_ts):
                    yield Run(record.commit_ts[first:], record.payloads[first:])

    def check_range(self, checkpoint_ts: int, applied_ts: int = 0) -> None:
        """Raise `NeedsOperator` unless all binlogs applied after a checkpoint are in the log.

        `applied_ts` is the end of the applied binlogs, as far as the checkpoint knows.
        """
        reaches = self.after_ts <= checkpoint_ts <= self.last_ts and applied_ts <= self.last_ts
        if reaches and self.cluster_id is not None:
            return
        if self.cluster_id is None:
            lacking = f"is empty, so all that was applied after {checkpoint_ts} is missing"
        elif checkpoint_ts < self.after_ts:
            lacking = f"begins after {self.after_ts}: ({checkpoint_ts}, {self.after_ts}] is missing"
        elif checkpoint_ts <= self.last_ts:
            lacking = f"ends at {self.last_ts}: ({self.last_ts}, {applied_ts}] is missing"
        else:
            lacking = f"ends at {self.last_ts}: all after the checkpoint {checkpoint_ts} is missing"
        raise NeedsOperator(
            f"the relay log in {self.folder} {lacking}",
            "bring the upstream back; was the relay log switched off, moved or emptied?",
            Code.CHECKPOINT_INCONSISTENT,
        )

    # --- writing ---------------------------------------------------------------------------

    def start(self, cluster_id: int, checkpoint_ts: int, jobs: Iterable[DdlJob]) -> None:
        """Continue a cluster's stream after a checkpoint; start there if the log lacks it."""
        if self.cluster_id not in (None, cluster_id):
            raise NeedsOperator(
                f"the relay log in {self.folder} is of cluster {self.cluster_id}, not {cluster_id}",
                "give this Drainer another relay log-dir",
                Code.CLUSTER_MISMATCH,
            )
        self.note_jobs(jobs)
        connected = self.cluster_id is not None and self.after_ts <= checkpoint_ts <= self.last_ts
        if not connected:
            if self.cluster_id is not None:
                log.warning(
                    "the relay log has (%d, %d], which does not reach the checkpoint %d: "
                    "it begins again there", self.after_ts, self.last_ts, checkpoint_ts,
                )  # fmt: skip
            self.cluster_id, self.after_ts = cluster_id, checkpoint_ts
            self.last_ts = checkpoint_ts
            self._write_start(continues=False)
        elif not self._has_start:
            self._write_start(continues=True)
        self.sync()
        self.trim(checkpoint_ts)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add binlogs in stream order; skip binlogs that the log already has.

        Of consecutive fake binlogs only the last is stored: it records the stream's position.
        """
        last_ts = self.last_ts
        kept = [entry for entry in entries if entry[0] > last_ts and not is_fake(entry[1])]
        if entries and entries[-1][0] > last_ts and (not kept or kept[-1] is not entries[-1]):
            kept.append(entries[-1])
        while kept:
            if self._binlogs.end.offset >= self._file_bytes_max:
                with _writing():
                    self._binlogs.begin_next()
                self._write_start(continues=True)
                self.sync()  # Or a crash after `trim` would leave a log without its position.
            count = self._fitting(kept)
            if count == 0:
                self._append_large(*kept[0])
                count = 1
            else:
                stamps, payloads = zip(*kept[:count], strict=True)
                self._write(Run(stamps, payloads).encode())
                self._reached(stamps[-1])
            del kept[:count]

    def note_jobs(self, jobs: Iterable[DdlJob]) -> None:
        """Store DDL jobs, each once, before such a DDL is applied."""
        with _writing():
            self.ddl.note(jobs)

    def sync(self) -> None:
        with _writing():
            self.ddl.sync()
            self._binlogs.sync()

    def trim(self, checkpoint_ts: int) -> None:
        """Remove files with nothing after `checkpoint_ts`, but never the live file."""
        live = self._binlogs.end.segment
        keep = next((n for n, ts in sorted(self._last_ts_of.items()) if ts > checkpoint_ts), live)
        if min(keep, live) > self._binlogs.first:
            self._binlogs.drop_before(min(keep, live))
            first = self._binlogs.first
            gone = (ts for n, ts in self._last_ts_of.items() if n < first)
            self.after_ts = max(self.after_ts, *gone)
            self._last_ts_of = {n: ts for n, ts in self._last_ts_of.items() if n >= first}
            self._begin = max(self._begin, Place(first, BEGIN))

    def close(self) -> None:
        self._binlogs.close()
        self.ddl.close()

    def size(self) -> tuple[int, int]:
        """Return the number of files with binlogs, and their total bytes."""
        return self._binlogs.size()

    def _fitting(self, entries: Sequence[Entry]) -> int:
        room = min(RECORD_BYTES_MAX, self._file_bytes_max - self._binlogs.end.offset)
        size = 0
        for count, (_, payload) in enumerate(entries):
            if size >= room or is_large(payload):
                return count
            size += len(payload) + 12
        return len(entries)

    def _append_large(self, commit_ts: int, payload: Payload) -> None:
        offset, size_bytes = 0, size_of(payload)
        for data in chunks_of(payload):
            self._write(Chunk(commit_ts, size_bytes, offset, data).encode())
            offset += len(data)
        assert offset == size_bytes, f"{offset} of {size_bytes} bytes of commit {commit_ts} came"
        self._reached(commit_ts)

    def _write_start(self, *, continues: bool) -> None:
        assert self.cluster_id is not None
        place = self._binlogs.end
        self._write(Start(self.cluster_id, self.last_ts, continues).encode())
        self._has_start = True
        self._reached(self.last_ts)
        if not continues:
            self._begin = place

    def _write(self, payload: bytes) -> None:
        with _writing():
            self._binlogs.append([payload], largest_ts=self.last_ts)

    def _reached(self, commit_ts: int) -> None:
        self.last_ts = commit_ts
        self._last_ts_of[self._binlogs.end.segment] = commit_ts


@contextmanager
def _writing() -> Iterator[None]:
    """Raise `NeedsOperator` for a full disk; other errors may pass."""
    try:
        yield
    except WriteFailed as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NeedsOperator(
            f"no space for the relay log: {error}",
            "make room on its disk, or give it another log-dir; nothing was applied "
            "that is not in it",
            Code.PATH_UNUSABLE,
        ) from error


class DdlLog:
    """The open log; writes raise `WriteFailed`."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Open or create the log and read it once; raise `Corrupt`."""
        self._segments = Segments.open(folder, files=files)
        self._jobs: dict[int, DdlJob] = {}
        self._overrides: dict[int, Override] = {}
        for position, payload in self._segments.scan():
            if payload:  # An empty payload is the mark of a clean shutdown.
                self._found(position, payload)

    def _found(self, position: Position, payload: bytes) -> None:
        try:
            fields = json.loads(payload)
            if "decision" in fields:
                commit_ts = fields["decision"]
                self._overrides.pop(commit_ts, None)
                if "made" in fields:
                    self._overrides[commit_ts] = Override.from_json(commit_ts, fields)
            else:
                job = job_from_json(fields)
                self._jobs[job.id] = job
        except (ValueError, KeyError, TypeError, NeedsOperator) as error:
            path = str(self._segments.folder / segment_name(position.segment))
            raise Corrupt(
                path, position.offset, f"no job of DDL: {error}", code=Code.DRAINER_FILE_DAMAGED
            ) from error

    def jobs(self) -> list[DdlJob]:
        """Return all stored jobs in order of their schema version."""
        return sorted(self._jobs.values(), key=lambda job: job.schema_version)

    def overrides(self) -> dict[int, Override]:
        """Return the overrides that an older version wrote, by the DDL's commit_ts."""
        return dict(self._overrides)

    def note(self, jobs: Iterable[DdlJob]) -> None:
        """Store jobs, each once; `sync` makes them durable."""
        fresh = [job for job in jobs if job.id not in self._jobs]
        if fresh:
            records = [json.dumps(job_to_json(job), ensure_ascii=False) for job in fresh]
            self._segments.append([record.encode() for record in records])
        self._jobs.update((job.id, job) for job in fresh)

    def sync(self) -> None:
        self._segments.sync()

    def close(self) -> None:
        self._segments.close()


_WAITING_BYTES_MAX = 1 << 20

_written = point("drainer.relay_written")
_synced = point("drainer.relay_synced")


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
