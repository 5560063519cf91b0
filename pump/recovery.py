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
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from penstock.errors import Corrupt
from penstock.files import Files
from penstock.model import BinlogType
from penstock.pb import binlog_pb2
from penstock.segment import BEGIN, CutShort, segment_name
from penstock.segments import SEGMENT_BYTES_MAX, Place, Position, Segments
from pump.entries import checkpoint_of, enter, fill, largest_ts, place_after
from pump.index import Checkpoint, Index, Purge
from pump.ledger import Ledger
from pump.purging import Needed, finish_purge
from pump.record import Record
from pump.sorter import Sorter

log = logging.getLogger(__name__)

_BATCH_RECORDS = 1024
_TYPES = {int(tp): tp for tp in BinlogType}


@dataclass(slots=True)
class Recovered:
    """An open log and its index, in step with each other."""

    folder: Path
    segments: Segments
    index: Index
    ledger: Ledger
    needed: Needed
    purge: Purge
    checkpoint: Checkpoint
    replayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How a Pump stores; the defaults are meant to stay."""

    sync_log: bool = True
    """False acknowledges what a crash of the machine may lose; only for what can be made again."""
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    stop_write_at_available_bytes: int = -1
    """Refuse new transactions below this. Negative: a fiftieth of the volume, at most 10 GiB."""
    index_write_buffer_bytes: int = 16 << 20
    index_cache_bytes: int = 32 << 20


def recover(
    folder: Path,
    config: StorageConfig,
    *,
    files: Files,
    on_progress: Callable[[int, int], None],
    now_ms: int,
) -> Recovered:
    """Open log and index in `folder` and replay what the index lacks; raise `Corrupt`."""
    index, head, checkpoint = _open_index(folder / "index", config)
    try:
        try:
            segments = _open_log(folder, config, files, head)
        except CutShort as short:
            if config.sync_log:
                raise
            log.warning("%s: lost in a crash, as sync-log is off; rebuilding the index", short)
            index.close()
            shutil.rmtree(folder / "index")
            index, head, checkpoint = _open_index(folder / "index", config)
            segments = _open_log(folder, config, files, head)
        try:
            return _replay(folder, index, segments, checkpoint, on_progress, now_ms)
        except BaseException:
            segments.close()
            raise
    except BaseException:
        index.close()
        raise


def _open_index(path: Path, config: StorageConfig) -> tuple[Index, Place | None, Checkpoint | None]:
    for is_new in (False, True):
        try:
            index = Index(
                path,
                write_buffer_bytes=config.index_write_buffer_bytes,
                cache_bytes=config.index_cache_bytes,
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


def _open_log(folder: Path, config: StorageConfig, files: Files, head: Place | None) -> Segments:
    return Segments.open(
        folder / "log",
        files=files,
        segment_bytes_max=config.segment_bytes_max,
        known_end=head,
    )


class _Replay:
    """The state of one replay."""

    def __init__(
        self, index: Index, segments: Segments, purge: Purge, checkpoint: Checkpoint | None
    ) -> None:
        self.index = index
        self.segments = segments
        self.purge = purge
        self.needed = Needed(index.needed())
        self.records = 0
        self.checkpoint = checkpoint or Checkpoint(Place(segments.first, BEGIN), 0)
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
        self.needed.note(needed)
        for segment, ts in needed.items():
            batch.needed(segment, ts)
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
    replay = _Replay(index, segments, finish_purge(index, segments), checkpoint)
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
    segments.largest_ts = max(segments.largest_ts, sorter.largest_ts, replay.needed.largest_ts())
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
