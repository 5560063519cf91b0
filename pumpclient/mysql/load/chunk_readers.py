"""Reader threads: they read chunks of many tables and hand the rows over in bounded groups.

planner session ── ranges, on demand ──> reader threads ── queue ──> one writer
                                           └─ a session of the sink each, if a sink
                                              is used: then the queue has counts
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pumpclient.mysql.load.sessions import SnapshotSession
from pumpclient.mysql.load.sink import SinkSession
from pumpclient.mysql.load.tables import Range, SourceTable, chunks_of, packed, select
from pumpclient.mysql.load.text_rows import SqlRows, TextRows

_QUEUED_PER_READER = 3
_POLL_S = 0.2


@dataclass(slots=True)
class TableJob:
    """A table to read. `is_planned` when `chunks_begun` is final."""

    table: SourceTable
    reader: TextRows
    inserts: SqlRows | None = None
    """For writing into the sink; None means through the Pumps."""
    chunks_begun: int = 0
    chunks_ended: int = 0
    is_planned: bool = False
    is_done: bool = False
    """The whole table has been read and written."""
    rows_written: int = 0


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one table; without rows it marks the end of a chunk or of the planning."""

    job: TableJob
    rows: list[bytes] = field(default_factory=list)
    written_rows: int = 0
    written_bytes: int = 0
    """Bytes of the rows that are already in the sink."""
    ends_chunk: bool = False


class Readers:
    """Reads all jobs, one table after the other, with a thread for each session."""

    def __init__(
        self,
        jobs: Sequence[TableJob],
        planner: SnapshotSession,
        sessions: Sequence[SnapshotSession],
        writers: Sequence[SinkSession] = (),
        *,
        rows_per_chunk: int,
        group_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._planner = planner
        self._sessions = sessions
        self._writers = writers
        self._rows_per_chunk = rows_per_chunk
        self._group_bytes = group_bytes
        self._queue: queue.Queue[RowGroup | BaseException | None] = queue.Queue(
            _QUEUED_PER_READER * len(sessions)
        )
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._plan = self._planned()

    def _planned(self) -> Iterator[tuple[TableJob, Range]]:
        for job in self._jobs:
            for range_ in chunks_of(self._planner, job.table, self._rows_per_chunk):
                job.chunks_begun += 1
                yield job, range_
            job.is_planned = True
            self._put(RowGroup(job))

    @contextmanager
    def groups(self) -> Iterator[Iterator[RowGroup]]:
        """Run the threads during the `with`; the iterator raises an error of any thread."""
        threads = [
            threading.Thread(target=self._read_all, args=(s, n), name=f"load-{n}", daemon=True)
            for n, s in enumerate(self._sessions)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self._arriving(len(threads))
        finally:
            self._stop.set()
            for session in (self._planner, *self._sessions):
                session.interrupt()
            for writer in self._writers:
                writer.interrupt()
            for thread in threads:
                thread.join()

    def _arriving(self, running: int) -> Iterator[RowGroup]:
        while running:
            item = self._queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def _read_all(self, session: SnapshotSession, number: int) -> None:
        try:
            while True:
                with self._lock:
                    found = next(self._plan, None)
                if found is None or self._stop.is_set():
                    break
                self._read(session, number, *found)
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _read(self, session: SnapshotSession, number: int, job: TableJob, range_: Range) -> None:
        sql, parameters = select(job.table, job.reader.columns, range_)
        rows = session.rows(sql, parameters, job.reader)
        for group in packed(rows, self._group_bytes):
            if self._stop.is_set():
                return
            if job.inserts is None:
                self._put(RowGroup(job, group))
                continue
            self._writers[number].insert(job.inserts, group)
            size_bytes = sum(map(len, group))
            self._put(RowGroup(job, written_rows=len(group), written_bytes=size_bytes))
        self._put(RowGroup(job, ends_chunk=True))

    def _put(self, item: RowGroup | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
