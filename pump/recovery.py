"""From the log to the index: entry by entry while the Pump runs, all that is missing at start.

Start-up, step by step:

    1  open the index; a damaged one is removed, since the log can rebuild it
    2  open the log; the index tells how far it was durable, the rest of its last file is checked
       frame by frame, and a torn end is cut
    3  finish a garbage collection that a crash interrupted
    4  replay the log from the checkpoint into index and ledger, batch by batch, with the same code
       that fills them while the Pump runs
    5  flush, so that the next start has nothing to replay

Without an index, step 4 begins at the oldest segment. What was purged is then known from that
segment's header, and from Commits whose Prewrites are gone.
"""

from __future__ import annotations

import logging
import operator
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from penstock.errors import Corrupt
from penstock.files import Files
from penstock.frame import HEADER_SIZE
from penstock.model import BinlogType
from penstock.pb import binlog_pb2
from penstock.segment import CutShort, segment_name
from penstock.segments import Place, Position, Segments
from pump.index import COMMIT, FAKE, ROLLED_BACK, TAKEN, Batch, Checkpoint, Index, Purge
from pump.ledger import Ledger
from pump.record import Record
from pump.sorter import Sorter

log = logging.getLogger(__name__)

_BATCH_RECORDS = 1024
_PREWRITE, _COMMIT = int(BinlogType.PREWRITE), int(BinlogType.COMMIT)
_TYPES = {int(tp): tp for tp in BinlogType}
_TIMESTAMPS = operator.itemgetter(1, 2)

Entry = tuple[int, int, Position, Position]
"""Kind, timestamp, position, and for a Commit its Prewrite's position."""


def place_after(position: Position) -> Place:
    """Return the place right behind a frame."""
    return Place(position.segment, position.offset + HEADER_SIZE + position.length)


def checkpoint_of(sorter: Sorter, head: Place) -> Checkpoint:
    """Return from where to replay when everything before `head` is indexed."""
    oldest = sorter.oldest_unmatched()
    if oldest is None:
        return Checkpoint(head, sorter.largest_ts)
    return Checkpoint(Place(oldest.position.segment, oldest.position.offset), oldest.floor_ts)


def enter(
    ledger: Ledger, records: Iterable[Record], positions: Sequence[Position], now_ms: int
) -> tuple[list[Entry], dict[int, int], list[tuple[int, Position]]]:
    """Tell the ledger what was stored where and return what the index must hold.

    Besides, for each other segment that holds a Prewrite of theirs, the largest commit_ts; and the
    commit_ts and position of every Commit without open Prewrite, which only a replay can meet.
    """
    entries: list[Entry] = []
    needed: dict[int, int] = {}
    orphans: list[tuple[int, Position]] = []
    for (tp, start_ts, commit_ts, _, _), position in zip(records, positions, strict=True):
        if tp == _PREWRITE:
            is_open = ledger.prewritten(start_ts, position, now_ms)
            entries.append((TAKEN if is_open else ROLLED_BACK, start_ts, position, position))
        elif tp == _COMMIT:
            prewrite = ledger.committed(start_ts, commit_ts)
            if prewrite is None:
                orphans.append((commit_ts, position))
                continue
            entries.append((COMMIT, commit_ts, position, prewrite))
            if prewrite[0] != position[0]:
                needed[prewrite[0]] = max(commit_ts, needed.get(prewrite[0], 0))
        elif start_ts == commit_ts:
            ledger.sorter.push_fake(start_ts)
            entries.append((FAKE, start_ts, position, position))
        else:
            prewrite = ledger.rolled_back(start_ts)
            if prewrite is not None:
                entries.append((ROLLED_BACK, start_ts, prewrite, prewrite))
    return entries, needed, orphans


def largest_ts(records: Iterable[Record]) -> int:
    """Return the largest timestamp of `records`."""
    return max(map(max, map(_TIMESTAMPS, records)), default=0)


def fill(batch: Batch, entries: Iterable[Entry]) -> None:
    """Put `entries` into an index batch."""
    put_commit = batch.commit
    for kind, ts, position, prewrite in entries:
        if kind == COMMIT:
            put_commit(ts, position, prewrite)
        elif kind == FAKE:
            batch.fake(ts, position)
        else:
            batch.prewrite(ts, position, kind)


@dataclass(slots=True)
class Recovered:
    """An open log and its index, in step with each other."""

    folder: Path
    segments: Segments
    index: Index
    ledger: Ledger
    needed: dict[int, int]
    purge: Purge
    checkpoint: Checkpoint
    replayed: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What recovery must know of the Pump's configuration."""

    segment_bytes_max: int
    may_be_short: bool
    """True without sync-log: a crash may take what the index already knows."""
    index_write_buffer_bytes: int
    index_cache_bytes: int


def recover(
    folder: Path,
    settings: Settings,
    *,
    files: Files,
    on_progress: Callable[[int, int], None],
    now_ms: int,
) -> Recovered:
    """Open log and index in `folder` and replay what the index lacks; raise `Corrupt`."""
    index, head, checkpoint = _open_index(folder / "index", settings)
    try:
        try:
            segments = _open_log(folder, settings, files, head)
        except CutShort as short:
            if not settings.may_be_short:
                raise
            log.warning("%s: lost in a crash, as sync-log is off; rebuilding the index", short)
            index.close()
            shutil.rmtree(folder / "index")
            index, head, checkpoint = _open_index(folder / "index", settings)
            segments = _open_log(folder, settings, files, head)
        try:
            return _replay(folder, index, segments, checkpoint, on_progress, now_ms)
        except BaseException:
            segments.close()
            raise
    except BaseException:
        index.close()
        raise


def _open_index(path: Path, settings: Settings) -> tuple[Index, Place | None, Checkpoint | None]:
    for is_new in (False, True):
        try:
            index = Index(
                path,
                write_buffer_bytes=settings.index_write_buffer_bytes,
                cache_bytes=settings.index_cache_bytes,
            )
        except Corrupt as error:
            if is_new:
                raise
            log.warning("%s; rebuilding it from the log", error)
            shutil.rmtree(path)
            continue
        try:
            return index, index.head(), index.checkpoint()
        except Corrupt as error:
            index.close()
            if is_new:
                raise
            log.warning("%s; rebuilding it from the log", error)
            shutil.rmtree(path)
    raise AssertionError("the second turn returns or raises")


def _open_log(folder: Path, settings: Settings, files: Files, head: Place | None) -> Segments:
    return Segments.open(
        folder / "log",
        files=files,
        segment_bytes_max=settings.segment_bytes_max,
        known_end=head,
    )


def _finish_purge(index: Index, segments: Segments) -> Purge:
    """Return what is purged, after dropping what a crash left of it; raise `Corrupt`."""
    purge = index.purge()
    first = segments.first
    if index.head() is None and first > 0:  # The index is new, the log is not.
        purge = Purge(segments.earlier_largest_ts(first), first)
        index.set_purge(purge)
    if first > purge.first_segment:
        path = segments.folder / segment_name(purge.first_segment)
        raise Corrupt(str(path), 0, f"this segment is missing, {segment_name(first)} is the oldest")
    if first < purge.first_segment:
        segments.drop_before(purge.first_segment)
        index.forget(purge.purged_ts, purge.first_segment)
    return purge


class _Replay:
    """The state of one replay."""

    def __init__(
        self, index: Index, segments: Segments, purge: Purge, checkpoint: Checkpoint | None
    ) -> None:
        self.index = index
        self.segments = segments
        self.purge = purge
        self.needed = index.needed()
        self.records = 0
        self.checkpoint = checkpoint or Checkpoint(segments.begin, 0)
        sorter = Sorter(self.checkpoint.max_commit_ts)
        self.ledger = Ledger(sorter, index, lambda position: None, (0, 0))

    def batch(self, records: list[Record], positions: list[Position], now_ms: int) -> None:
        """Enter one batch of one segment into ledger and index."""
        entries, needed, orphans = enter(self.ledger, records, positions, now_ms)
        needed[positions[0].segment] = largest_ts(records)
        for commit_ts, position in orphans:
            self._orphan(commit_ts, position)
        batch = self.index.batch()
        fill(batch, entries)
        for segment, ts in needed.items():
            self.needed[segment] = max(ts, self.needed.get(segment, 0))
            batch.needed(segment, self.needed[segment])
        batch.head(place_after(positions[-1]))
        batch.write()
        self.records += len(records)

    def _orphan(self, commit_ts: int, position: Position) -> None:
        """Accept a Commit whose Prewrite lies before the replay, or was purged.

        In the first case its entry is in the index already. In the second its segment outlived
        its Prewrite's, and what cannot be pulled whole must not be pulled at all.
        """
        if commit_ts <= self.purge.purged_ts or self.index.commit(commit_ts) is not None:
            return
        if self.purge.first_segment == 0:
            path = self.segments.folder / segment_name(position.segment)
            raise Corrupt(str(path), position.offset, f"Commit {commit_ts} without its Prewrite")
        self.purge = Purge(commit_ts, self.purge.first_segment)
        self.index.set_purge(self.purge)


def _replay(
    folder: Path,
    index: Index,
    segments: Segments,
    checkpoint: Checkpoint | None,
    on_progress: Callable[[int, int], None],
    now_ms: int,
) -> Recovered:
    replay = _Replay(index, segments, _finish_purge(index, segments), checkpoint)
    start = replay.checkpoint.pointer
    total = segments.bytes_between(start, segments.end)
    records: list[Record] = []
    positions: list[Position] = []
    for position, payload in segments.scan(start):
        if len(records) == _BATCH_RECORDS or (records and position[0] != positions[0][0]):
            replay.batch(records, positions, now_ms)
            on_progress(segments.bytes_between(start, place_after(positions[-1])), total)
            records, positions = [], []
        records.append(_record(segments, position, payload))
        positions.append(position)
    if records:
        replay.batch(records, positions, now_ms)
    sorter = replay.ledger.sorter
    after = checkpoint_of(sorter, segments.end)
    if replay.records:
        log.info("replayed %d binlogs, %d bytes of log", replay.records, total)
        index.flush(after)
    on_progress(total, total)
    segments.largest_ts = max(segments.largest_ts, sorter.largest_ts, *replay.needed.values(), 0)
    read = _reader(segments)
    ledger = Ledger(sorter, index, read, index.last_ts(), early=replay.ledger.early)
    return Recovered(
        folder, segments, index, ledger, replay.needed, replay.purge, after, replay.records
    )


def _reader(segments: Segments) -> Callable[[Position], bytes | None]:
    def read(position: Position) -> bytes | None:
        return segments.read(position) if position.segment >= segments.first else None

    return read


def _record(segments: Segments, position: Position, payload: bytes) -> Record:
    try:
        binlog = binlog_pb2.Binlog.FromString(payload)
        tp = _TYPES[binlog.tp]
    except (DecodeError, KeyError) as error:
        path = segments.folder / segment_name(position.segment)
        raise Corrupt(str(path), position.offset, f"not a binlog: {error}") from error
    # The payload stays out of memory: a batch of large binlogs would be large.
    return Record(tp, binlog.start_ts, binlog.commit_ts, b"", binlog.ddl_job_id > 0)
