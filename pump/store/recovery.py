"""Recovery: opens log and index of a data folder and replays the part that the index lacks.

Start-up, step by step:

    1  open the index; if damage is found in it now or later, it is deleted, once, and these steps
       start over: the log can rebuild it
    2  open the log; the index says how far it was durable, the rest of its last file is checked
       frame by frame, and a torn end is cut
    3  finish a garbage collection that a crash interrupted
    4  replay the log from the checkpoint into index and ledger, batch by batch, with the same code
       that fills them while the Pump runs; frames are checked and parsed in this thread, LevelDB
       writes in a separate thread

The flush that spares the next start this work is left to the running Pump.

Without an index, step 4 starts at the oldest segment. The purged range is then known from that
segment's header, and from Commits whose Prewrites are gone.

When segments are gone for good, and an operator has declared them lost:

    000000  000001  (000002)  000003  000004      000002 is missing
    └── given-up/ ──┘          └── the log from now on; all up to `up_to_ts` counts as purged

No one can pull past the gap without missing something, so the segments before it are useless to a
stream. They are set aside, not removed, for `penstock ctl dump`. The index is deleted and rebuilt
from the remaining segments. A puller from before the gap's end gets the error for purged binlogs,
with the range; a Drainer that has everything up to there continues and notices nothing.

The setting accepts one gap, by its last timestamp. It may be left in place, and the next gap is
refused again. A crash on the way leaves a gap with the same end, and the next start continues.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.log.chunks import CHUNK as CHUNK_KIND
from penstock.log.chunks import chunk_start_ts, decode_chunk_list, special_kind
from penstock.log.files import Files
from penstock.log.frame import HEADER_SIZE
from penstock.log.segment import BEGIN, CutShort, segment_name
from penstock.log.segments import SEGMENT_BYTES_MAX, MissingSegments, Place, Position, Segments
from penstock.pb import binlog_pb2
from penstock.settings.setting import out_of_range
from penstock.wire.binlog import BinlogType
from pump.store.index import Checkpoint, Index, Purge
from pump.store.record import CHUNK, IN_ONE, Fields, largest_ts
from pump.store.space import Needed, finish_purge
from pump.store.transactions import OPEN_MAX, Ledger, Sorter

log = logging.getLogger(__name__)
_index_opened = failpoints.point("pump.open.index_opened")
_log_opened = failpoints.point("pump.open.log_opened")
_batch_entered = failpoints.point("pump.open.batch_entered")
_replayed = failpoints.point("pump.open.replayed")

SET_ASIDE_FOLDER = "given-up"
INDEX_FOLDER = "index"
_BATCH_RECORDS = 4096
_PROGRESS_EVERY_S = 2.0
_PREWRITE, _COMMIT, _ROLLBACK = map(int, BinlogType)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How a Pump stores; the defaults are meant to stay."""

    sync_log: bool = True
    """False acknowledges data that a crash of the machine may lose; only for reproducible data."""
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    stop_write_at_available_bytes: int = -1
    """Refuse new transactions below this. Negative: by the volume, see space.py."""
    open_prewrites_max: int = OPEN_MAX
    """Above this number of transactions without an outcome, new transactions are refused."""
    accept_loss_up_to_ts: int = 0
    """The last timestamp of missing segments declared lost; the refusal to start names it."""
    index_write_buffer_bytes: int = 16 << 20
    index_cache_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for name in (
            "segment_bytes_max",
            "open_prewrites_max",
            "index_write_buffer_bytes",
            "index_cache_bytes",
        ):
            if getattr(self, name) < 1:
                raise out_of_range(f"storage.{name}", getattr(self, name), "it must be above zero")
        if self.accept_loss_up_to_ts < 0:
            name = "storage.accept_loss_up_to_ts"
            raise out_of_range(name, self.accept_loss_up_to_ts, "use 0 or a timestamp")


def recover(
    folder: Path, config: StorageConfig, *, files: Files, on_progress: Progress, now_ms: int
) -> Replay:
    """Open log and index in `folder` and replay the part that the index lacks; raise `Corrupt`.

    Missing segments are an error unless `config` declares them lost.
    """
    shutil.rmtree(_set_aside(folder), ignore_errors=True)  # A crash left it.
    is_rebuilt = False
    while True:
        try:
            return _recover(folder, config, files, on_progress, now_ms)
        except MissingSegments as missing:
            _abandon(folder, missing, files, accepted_ts=config.accept_loss_up_to_ts)
        except Corrupt as error:
            if error.code is not Code.INDEX_DAMAGED or is_rebuilt:
                raise
            log.warning("%s; rebuilding it from the log", error)
            _delete_index(folder, files)
            is_rebuilt = True


def _recover(
    folder: Path, config: StorageConfig, files: Files, on_progress: Progress, now_ms: int
) -> Replay:
    index = _open_index(folder, config)
    _index_opened()
    try:
        try:
            segments = _open_log(folder, config, files, _known_end(index))
        except CutShort as short:
            if config.sync_log:
                raise
            log.warning("%s: lost in a crash, as sync-log is off; rebuilding the index", short)
            index.close()
            _delete_index(folder, files)
            index = _open_index(folder, config)
            segments = _open_log(folder, config, files, None)
        _log_opened()
        try:
            _check_own(folder, index, segments)
            found = Replay(index, segments, now_ms)
            found.run(on_progress, now_ms)
            found.ledger.open_max = config.open_prewrites_max
            return found
        except BaseException:
            segments.close()
            raise
    except BaseException:
        index.close()
        raise


def _open_index(folder: Path, config: StorageConfig) -> Index:
    return Index(
        folder / INDEX_FOLDER,
        write_buffer_bytes=config.index_write_buffer_bytes,
        cache_bytes=config.index_cache_bytes,
    )


def _delete_index(folder: Path, files: Files) -> None:
    """Delete the index; a crash in between never leaves a part of it."""
    (folder / INDEX_FOLDER).rename(_set_aside(folder))
    files.sync_folder(folder)
    shutil.rmtree(_set_aside(folder), ignore_errors=True)


def _set_aside(folder: Path) -> Path:
    return folder / f"{INDEX_FOLDER}.damaged"


def _open_log(folder: Path, config: StorageConfig, files: Files, head: Place | None) -> Segments:
    return Segments.open(
        folder / "log", files=files, segment_bytes_max=config.segment_bytes_max, known_end=head
    )


def _known_end(index: Index) -> Place | None:
    """Return a place before which the log was durable; None in a new index.

    A purge may take the last indexed binlog: epochs in which nothing was written leave segments
    without binlogs after it.
    """
    head = index.head()
    return None if head is None else max(head, Place(index.purge().first_segment, BEGIN))


def _check_own(folder: Path, index: Index, segments: Segments) -> None:
    """Raise `NeedsOperator` unless the last entries of the index are binlogs of this log.

    The index of another Pump may end where a frame of this log ends. Its own purge would then
    remove segments of this log, and transactions before its end would be in no stream.
    """
    start_ts, commit_ts = index.last_ts()
    commit, prewrite = index.commit(commit_ts), index.prewrite(start_ts)
    wanted = [(2, commit_ts, commit and commit.position), (1, start_ts, prewrite and prewrite[1])]
    for field, ts, position in wanted:
        if position is None or position.segment < segments.first:
            continue
        with suppress(Corrupt):  # Its reader will report that.
            if _fields(segments, [position], [segments.read(position)])[0][field] == ts:
                continue
            raise NeedsOperator(
                f"the index in {folder} says that binlog {ts} is at {position.offset} of"
                f" {segment_name(position.segment)}, and that is another one",
                f"{INDEX_FOLDER} or log was put there from another folder, or from another"
                f" time. Put it back; or, if log is right, remove {INDEX_FOLDER}: the Pump builds"
                " it from the log",
                Code.DATA_DIR_OTHER,
            )


def _abandon(folder: Path, missing: MissingSegments, files: Files, *, accepted_ts: int) -> None:
    """Set aside the segments before a gap, and drop the index; raise `Corrupt` unless accepted.

    `folder` is the Pump's; `accepted_ts` is the gap's `up_to_ts` when it is accepted.
    """
    if accepted_ts <= 0 or accepted_ts != missing.up_to_ts:
        raise Corrupt(
            missing.path,
            missing.offset,
            f"{missing.what} (start the other Pumps that have a copy of the log, or put the files"
            f" back; only if no disk has them, abandon all binlogs up to {missing.up_to_ts} with"
            f" accept-loss-up-to-ts = {missing.up_to_ts} in [storage]: Drainers whose checkpoint is"
            " below that are then refused)",
            code=Code.SEGMENT_CUT_SHORT,
        ) from missing
    aside = folder / SET_ASIDE_FOLDER
    aside.mkdir(exist_ok=True)
    names = [n for n in files.names(folder / "log") if n.endswith(".seg")]
    gone = sorted(n for n in names if int(n[:-4]) < missing.first)
    for name in gone:
        os.rename(folder / "log" / name, aside / name)
    for changed in (aside, folder / "log", folder):
        files.sync_folder(changed)
    if (folder / INDEX_FOLDER).exists():
        _delete_index(folder, files)
    log.error(
        "%s, as accepted: the binlogs in (%d, %d] are lost, and no one who lacks any up to %d can"
        " pull from here any more; %d older segments are set aside in %s",
        *(missing, missing.after_ts, missing.up_to_ts, missing.up_to_ts, len(gone), aside),
    )


class Replay:
    """One replay, from the checkpoint to the end of the log; log and index are then in step."""

    def __init__(self, index: Index, segments: Segments, now_ms: int) -> None:
        self.index = index
        self.segments = segments
        self.purge = finish_purge(index, segments)
        self.needed = Needed(index.needed())
        self.records = 0
        self._thread = ThreadPoolExecutor(1, "pump-replay")
        self._writing: Future[None] | None = None
        self.checkpoint = index.checkpoint() or Checkpoint(Place(segments.first, BEGIN), 0)
        sorter = Sorter(self.checkpoint.largest_ts)
        for start_ts, known in self.checkpoint.open:
            sorter.open[start_ts] = known._replace(since_ms=now_ms)
        self.ledger = Ledger(sorter, index, self._read, index.newest_ddl())

    def _read(self, position: Position) -> bytes | None:
        segments = self.segments
        return segments.read(position) if position.segment >= segments.first else None

    def run(self, on_progress: Progress, now_ms: int) -> None:
        segments, start = self.segments, self.checkpoint.pointer
        total = segments.bytes_between(start, segments.end)
        try:
            with _no_garbage_collection():
                for positions, payloads in segments.scan_blocks(start):
                    records = _fields(segments, positions, payloads)
                    for i in range(0, len(records), _BATCH_RECORDS):
                        last = i + _BATCH_RECORDS
                        self._batch(records[i:last], positions[i:last], now_ms)
                    on_progress(segments.bytes_between(start, _place_after(positions[-1])), total)
                if self._writing is not None:
                    self._writing.result()
        finally:
            self._thread.shutdown()
        if self.records:
            log.info("replayed %d binlogs, %d bytes of log", self.records, total)
        _replayed()
        largest = (self.ledger.sorter.largest_ts, self.needed.largest_ts())
        segments.largest_ts = max(segments.largest_ts, *largest)
        self.ledger.begin(self.index.last_ts())

    def _batch(self, records: list[Fields], positions: list[Position], now_ms: int) -> None:
        entries, needed, orphans = self.ledger.enter(records, positions, now_ms)
        for gone in [n for n in needed if n < self.segments.first]:
            self._lost(needed.pop(gone))
        needed[positions[0].segment] = largest_ts(records)
        for commit_ts, position in orphans:
            self._orphan(commit_ts, position)
        batch = self.index.batch()
        batch.add(entries)
        batch.newest_ddl(self.ledger.newest_ddl)
        self.needed.note(needed)
        for segment, ts in needed.items():
            batch.needed(segment, ts)
        batch.head(_place_after(positions[-1]))
        if self._writing is not None:
            self._writing.result()
        self._writing = self._thread.submit(batch.write)
        self.ledger.end_group(0, 0)  # Forgets old decided transactions: they are in the index.
        self.records += len(records)
        _batch_entered()

    def _orphan(self, commit_ts: int, position: Position) -> None:
        """Accept a Commit whose Prewrite lies before the replay, or was purged.

        In the first case its entry is in the index already. In the second its segment outlived its
        Prewrite's, and a transaction that cannot be pulled whole must not be pulled at all.
        """
        if commit_ts <= self.purge.purged_ts or self.index.commit(commit_ts) is not None:
            return
        if self.purge.first_segment == 0:
            path = self.segments.folder / segment_name(position.segment)
            raise Corrupt(
                str(path),
                position.offset,
                f"Commit {commit_ts} without its Prewrite",
                code=Code.SEGMENT_DAMAGED,
            )
        self._lost(commit_ts)

    def _lost(self, commit_ts: int) -> None:
        """Count a Commit as purged whose Prewrite, or its first chunk, was purged."""
        if commit_ts > self.purge.purged_ts:
            self.purge = Purge(commit_ts, self.purge.first_segment)
            self.index.set_purge(self.purge)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable cycle collection, which would take a third of the time for young tuples."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _fields(segments: Segments, positions: list[Position], payloads: list[bytes]) -> list[Fields]:
    """Return the facts that the ledger needs of each binlog; the bytes stay out of memory."""
    found: list[Fields] = []
    add, parsed = found.append, binlog_pb2.Binlog.FromString
    try:
        for payload in payloads:
            if not payload[0]:
                if special_kind(payload) == CHUNK_KIND:
                    add((CHUNK, chunk_start_ts(payload), 0, b"", IN_ONE, 0))
                else:
                    chunks = decode_chunk_list(payload)
                    add((_PREWRITE, chunks.start_ts, 0, b"", chunks.first_segment, 0))
                continue
            binlog = parsed(payload)
            tp = binlog.tp
            if tp > _ROLLBACK:
                raise DecodeError(f"the obsolete type {tp}")
            job_id = binlog.ddl_job_id if tp == _COMMIT else 0
            add((tp, binlog.start_ts, binlog.commit_ts, b"", IN_ONE, job_id))
    except (DecodeError, Malformed) as error:
        position = positions[len(found)]
        path = segments.folder / segment_name(position.segment)
        raise Corrupt(
            str(path), position.offset, f"not a binlog: {error}", code=Code.SEGMENT_DAMAGED
        ) from error
    return found


def _place_after(position: Position) -> Place:
    return Place(position.segment, position.offset + HEADER_SIZE + position.length)


class Progress:
    """Reports the bytes done and to do in the log, every two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s = self._reported_s = clock()

    def __call__(self, done: int, total: int) -> None:
        now_s = self._clock()
        if now_s - self._reported_s < _PROGRESS_EVERY_S or not 0 < done < total:
            return
        self._reported_s = now_s
        rate = done / (now_s - self._begun_s)
        log.info(
            "replaying the log into the index: %d %% of %d MB, %.0f MB/s, about %.0f s left",
            *(100 * done // total, total // 1_000_000, rate / 1e6, (total - done) / rate),
        )
