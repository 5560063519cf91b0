"""From the log to the index: entry by entry while the Pump runs, all that is missing at start.

Start-up, step by step:

    1  open the index; a damaged one is removed, since the log can rebuild it
    2  open the log; the index tells how far it was durable, the rest of its last file is checked
       frame by frame, and a torn end is cut
    3  finish a garbage collection that a crash interrupted
    4  replay the log from the checkpoint into index and ledger, batch by batch, with the same code
       that fills them while the Pump runs

The flush that spares the next start this work is left to the running Pump.

Without an index, step 4 begins at the oldest segment. What was purged is then known from that
segment's header, and from Commits whose Prewrites are gone.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock import failpoints
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import Files
from penstock.log.segment import CutShort
from penstock.log.segment_chain import MissingSegments
from penstock.log.segments import SEGMENT_BYTES_MAX, Place, Position, Segments
from penstock.settings.setting import out_of_range
from penstock.wire.binlog import BinlogType
from pump.store.index import Index, Purge
from pump.store.index_entries import checkpoint_of
from pump.store.purging import Needed, finish_purge
from pump.store.recovery.lost_segments import give_up
from pump.store.recovery.progress import Progress
from pump.store.recovery.replay import Replay
from pump.store.replay_point import Checkpoint
from pump.store.transactions import OPEN_MAX, Ledger

log = logging.getLogger(__name__)
_index_opened = failpoints.point("pump.open.index_opened")
_log_opened = failpoints.point("pump.open.log_opened")
_replayed = failpoints.point("pump.open.replayed")

_BATCH_RECORDS = 4096
_ROLLBACK = int(BinlogType.ROLLBACK)


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
    """Holds as soon as the index is flushed."""
    flushed: Checkpoint
    replayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How a Pump stores; the defaults are meant to stay."""

    sync_log: bool = True
    """False acknowledges what a crash of the machine may lose; only for what can be made again."""
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    stop_write_at_available_bytes: int = -1
    """Refuse new transactions below this. Negative: by the volume, see space.py."""
    open_prewrites_max: int = OPEN_MAX
    """Above so many transactions without an outcome, new ones are refused."""
    accept_loss_up_to_ts: int = 0
    """The last timestamp of missing segments that are given up; the refusal to start names it."""
    index_write_buffer_bytes: int = 16 << 20
    index_cache_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Raise `NeedsOperator` for a value out of range."""
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
    folder: Path,
    config: StorageConfig,
    *,
    files: Files,
    on_progress: Progress,
    now_ms: int,
) -> Recovered:
    """Open log and index in `folder` and replay what the index lacks; raise `Corrupt`.

    Segments that are missing are an error unless `config` accepts the loss (`lost_segments.py`).
    """
    while True:
        try:
            return _recover(folder, config, files, on_progress, now_ms)
        except MissingSegments as missing:
            give_up(folder, missing, files, accepted_ts=config.accept_loss_up_to_ts)


def _recover(
    folder: Path, config: StorageConfig, files: Files, on_progress: Progress, now_ms: int
) -> Recovered:
    index, head, checkpoint = _open_index(folder / "index", config)
    _index_opened()
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
        _log_opened()
        try:
            found = _replay(folder, index, segments, checkpoint, on_progress, now_ms)
            found.ledger.open_max = config.open_prewrites_max
            return found
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


def _replay(
    folder: Path,
    index: Index,
    segments: Segments,
    checkpoint: Checkpoint | None,
    on_progress: Progress,
    now_ms: int,
) -> Recovered:
    purge = finish_purge(index, segments)
    replay = Replay(index, segments, purge, checkpoint, now_ms)
    replay.run(on_progress, now_ms)
    _replayed()
    sorter = replay.ledger.sorter
    after = checkpoint_of(sorter, segments.end)
    segments.largest_ts = max(segments.largest_ts, sorter.largest_ts, replay.needed.largest_ts())
    read = _reader(segments)
    ledger = Ledger(sorter, index, read, index.last_ts(), early=replay.ledger.early)
    return Recovered(
        folder,
        segments,
        index,
        ledger,
        replay.needed,
        replay.purge,
        after,
        replay.checkpoint,
        replay.records,
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare millions of young tuples the search for cycles: it would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reader(segments: Segments) -> Callable[[Position], bytes | None]:
    def read(position: Position) -> bytes | None:
        return segments.read(position) if position.segment >= segments.first else None

    return read


def lock_folder(folder: Path) -> int:
    """Return a descriptor that keeps other processes out of `folder`; raise `NeedsOperator`."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise NeedsOperator(
            f"another process has {folder} open", hint="two Pumps cannot share a data folder"
        ) from error
    return descriptor
