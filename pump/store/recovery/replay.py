"""The log's records into ledger and index, as fast as one interpreter can.

A restart replays what was stored since the last flush; a lost index is rebuilt from all of the log.
Frames are checked and parsed here, LevelDB writes beside it in a thread of its own.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from penstock import failpoints
from penstock.errors import Corrupt, Malformed
from penstock.log.chunks import PIECE as PIECE_KIND
from penstock.log.chunks import decode_assembly, piece_start_ts, special_kind
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Position, Segments
from penstock.pb import binlog_pb2
from penstock.wire.binlog import BinlogType
from pump.store.index import Index, Purge
from pump.store.index_entries import Told, enter, fill, largest_ts, place_after
from pump.store.purging import Needed
from pump.store.record import IN_ONE, PIECE
from pump.store.replay_point import Checkpoint
from pump.store.sorter import Open, Sorter
from pump.store.transactions import Ledger

log = logging.getLogger(__name__)
_batch_entered = failpoints.point("pump.open.batch_entered")

_BATCH_RECORDS = 4096
_ROLLBACK = int(BinlogType.ROLLBACK)


class Replay:
    """One replay, from the checkpoint to the end of the log."""

    def __init__(
        self,
        index: Index,
        segments: Segments,
        purge: Purge,
        checkpoint: Checkpoint | None,
        now_ms: int,
    ) -> None:
        self.index = index
        self.segments = segments
        self.purge = purge
        self.needed = Needed(index.needed())
        self.records = 0
        self._thread = ThreadPoolExecutor(1, "pump-replay")
        self._writing: Future[None] | None = None
        self.checkpoint = checkpoint or Checkpoint(Place(segments.first, BEGIN), 0)
        sorter = Sorter(self.checkpoint.largest_ts)
        for start_ts, position, floor_ts, first_segment in self.checkpoint.open:
            sorter.open[start_ts] = Open(position, floor_ts, now_ms, first_segment)
        self.ledger = Ledger(sorter, index, lambda position: None, (0, 0))

    def run(self, on_progress: Callable[[int, int], None], now_ms: int) -> None:
        """Read, check and enter everything; raise `Corrupt`."""
        segments, start = self.segments, self.checkpoint.pointer
        total = segments.bytes_between(start, segments.end)
        try:
            with _no_garbage_collection():
                for positions, payloads in segments.scan_blocks(start):
                    self._block(positions, _told(segments, positions, payloads), now_ms)
                    on_progress(segments.bytes_between(start, place_after(positions[-1])), total)
                if self._writing is not None:
                    self._writing.result()
        finally:
            self._thread.shutdown()
        if self.records:
            log.info("replayed %d binlogs, %d bytes of log", self.records, total)
        on_progress(total, total)

    def _block(self, positions: list[Position], records: list[Told], now_ms: int) -> None:
        """Enter some records of one segment into ledger and index."""
        for i in range(0, len(records), _BATCH_RECORDS):
            last = i + _BATCH_RECORDS
            self._batch(records[i:last], positions[i:last], now_ms)

    def _batch(self, records: list[Told], positions: list[Position], now_ms: int) -> None:
        entries, needed, orphans = enter(self.ledger, records, positions, now_ms)
        for gone in [n for n in needed if n < self.segments.first]:
            self._lost(needed.pop(gone))
        needed[positions[0].segment] = largest_ts(records)
        for commit_ts, position in orphans:
            self._orphan(commit_ts, position)
        batch = self.index.batch()
        fill(batch, entries)
        self.needed.note(needed)
        for segment, ts in needed.items():
            batch.needed(segment, ts)
        batch.head(place_after(positions[-1]))
        if self._writing is not None:
            self._writing.result()
        self._writing = self._thread.submit(batch.write)
        self.ledger.end_group(0, 0)  # Lets go of what was decided long ago: it is in the index.
        self.records += len(records)
        _batch_entered()

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
        self._lost(commit_ts)

    def _lost(self, commit_ts: int) -> None:
        """Count a Commit as purged whose Prewrite, or the first of its pieces, was purged."""
        if commit_ts > self.purge.purged_ts:
            self.purge = Purge(commit_ts, self.purge.first_segment)
            self.index.set_purge(self.purge)


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


def _told(segments: Segments, positions: list[Position], payloads: list[bytes]) -> list[Told]:
    """Return what the ledger must know of each binlog; the bytes themselves stay out of memory."""
    told: list[Told] = []
    add, parsed = told.append, binlog_pb2.Binlog.FromString
    try:
        for payload in payloads:
            if not payload[0]:
                add(_special(payload))
                continue
            binlog = parsed(payload)
            tp = binlog.tp
            if tp > _ROLLBACK:
                raise DecodeError(f"the obsolete type {tp}")
            add((tp, binlog.start_ts, binlog.commit_ts, b"", IN_ONE))
    except (DecodeError, Malformed) as error:
        position = positions[len(told)]
        path = segments.folder / segment_name(position.segment)
        raise Corrupt(str(path), position.offset, f"not a binlog: {error}") from error
    return told


def _special(payload: bytes) -> Told:
    """Return what the ledger must know of a piece or an assembly; raise `Malformed`."""
    if special_kind(payload) == PIECE_KIND:
        return PIECE, piece_start_ts(payload), 0, b"", IN_ONE
    assembly = decode_assembly(payload)
    return int(BinlogType.PREWRITE), assembly.start_ts, 0, b"", assembly.first_segment
