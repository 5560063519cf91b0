"""Storage: makes binlogs durable in `append`, and adds them to the stream in `index`.

    append    ledger ── log: one write, one fdatasync ── sorter         → the writers are answered
    index     one LevelDB batch ── max_commit_ts moves                  → the pullers are woken
    pull      index scan ── log ── Prewrite bytes + Commit bytes = the merged binlog

Threads: one appends, and calls `index` with each result, in the same order; `index` may be called
again with the same result after it raised. Everything else may be called from any thread at any
time.

Assumptions about the disk:

1. Bytes written before an `fdatasync` that returned without error survive a crash; so do names
   after an `fsync` of their folder.
2. Of the bytes written since, any subset of sectors may survive, in any order, or zeros in their
   place.
3. After an `fdatasync` that failed, nothing is known about the bytes written since the last good
   one. Asking again would succeed without writing anything.
4. Bytes can become corrupted. Checksums find that.
5. LevelDB keeps everything from before a `flush` (see `index.py`), and of later batches any part.

Why no crash loses acknowledged data (with `sync_log = false` nothing of this is promised):

Append. Writers are answered after the `fdatasync` of their group. A crash before that leaves, by 2,
any part of the group. Its first bad frame ends the log: everything from there on is cut. A frame
before it may survive unacknowledged; its writer's repetition detects that (`transactions.py`).

Is the first bad frame a torn end, or corruption? The index remembers up to where all was durable,
and every frame records up to where the file was synced when it was written. A bad frame before
either place had been acknowledged, and is reported as `Corrupt` with file and offset. Only damage
to the very last group remains undecidable, between its `fdatasync` and its index batch or with the
index gone, before anything followed it. A clean shutdown writes a mark that also closes this gap.

Chunks. Each chunk of a large transaction is a frame that goes through the same queue as all other
binlogs. Chunks alone mean nothing: no index entry, no open transaction. When the last of them is
durable, the chunk list is appended. The list is acknowledged, indexed, replayed and rolled back,
and its position is the Prewrite's position. A crash, a broken stream or a disk that fails in the
middle leaves chunks without a list, which cost space until their segment goes. A chunk list that
survives has all its chunks, because they were durable before it was written, and lie before it.
A pull reads one chunk at a time, checks its frame, its place and, before it sends the last part,
the checksum of the whole.

Replicas. With replicas on other Pumps, the statements about an `fdatasync` hold for all listed
disks (`pump/replication`). A group counts once each of them has it. Data that was not acknowledged
by all of them is in doubt, like the end of the log with one disk.

A failed sync. By 3 the file is abandoned at its last good byte. The next append creates a successor
whose header records the end of the file; nothing is written to the failed file any longer, and the
remains of the failure lie after its end. If the process dies first, the next one may find that
group intact in the page cache but not on the disk. Recovery therefore writes the last group's bytes
once more before it trusts them.

Rotate. The successor is written under another name, synced, renamed, and its folder synced before
its first group. So a segment always has a whole header, and a bad header is damage. A process that
is killed between rename and folder sync leaves a name that is not durable; opening the log syncs
the folder.

Index. A batch is written only after its group is durable, so the index never knows more than the
log; if it does, acknowledged bytes are gone and the Pump refuses to start (deleting `index/`
accepts the loss). Batches are not synced. When only the process dies nothing of them is lost. When
the machine dies, by 5 any part may be lost, so a restart always replays from the checkpoint, which
is written after a flush. Replaying puts the same entries again.

Checkpoint. It is the indexed end of the log, with a list of the transactions that are open there,
and their floors (`transactions.py`). A transaction that stays open for minutes therefore does not
lengthen the replay. If more are open than the list holds, the checkpoint is the place of the first
that it has no room for. Hence a replay knows every Commit's Prewrite, except for Commits whose
entry is in the index.

Purge. First the purged range is written and synced, then readers learn it, then segments go, oldest
first and each durably, then index entries. The next start finishes an interrupted purge. A segment
goes only if nothing in it, no Commit of a Prewrite in it, and no open Prewrite is needed. For a
large transaction that is the segment of its first chunk, even while it is still being sent. If the
index is also gone, the oldest segment's `earlier_largest_ts` gives the purged range, rather too
much than too little.

Order. `max_commit_ts` is published after the index batch that it belongs to; a watermark, which
belongs to none, when all groups are indexed. A Commit at or below its Prewrite's floor is refused:
its writer asked for the commit_ts before its Prewrite was stored. So nothing enters the stream
below a puller's place. After a restart the stream may end below a watermark that a puller had. The
puller waits until the stream is there, and Prewrites of the new run have a floor above it
(`begin`). A Prewrite that was open at the restart has the floor of the checkpoint or of the log.
"""

from __future__ import annotations

import errno
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock import failpoints
from penstock.codes import Code
from penstock.log.files import Files, lock_folder
from penstock.log.segments import Place, Position, Segments, WriteFailed
from pump.store.index import Checkpoint, Entry, Flusher
from pump.store.record import (
    Contradiction,
    LoggedDdl,
    NoPrewrite,
    NotStored,
    OutOfSpace,
    PurgedRange,
    Record,
    Unmatched,
    largest_ts,
)
from pump.store.recovery import Progress, Replay, StorageConfig, recover
from pump.store.space import IncomingTransaction, Reserve, carry_out
from pump.store.stream import Pulled, Stream
from pump.store.transactions import Hold

__all__ = [
    "Appended",
    "Contradiction",
    "NoPrewrite",
    "NotStored",
    "OutOfSpace",
    "Pulled",
    "PurgedRange",
    "Record",
    "Storage",
    "StorageConfig",
    "Unmatched",
]

log = logging.getLogger(__name__)

_PAYLOAD, _LENGTH = operator.itemgetter(3), operator.itemgetter(2)
_before_append = failpoints.point("pump.before_append")
_after_write = failpoints.point("pump.after_write")
_after_sync = failpoints.point("pump.after_sync")
_after_append = failpoints.point("pump.after_append")
_after_index = failpoints.point("pump.after_index")


class Appended(NamedTuple):
    """The stored result of an append, for `Storage.index`."""

    number: int
    entries: Sequence[Entry]
    needed: dict[int, int]
    head: Place
    max_commit_ts: int
    newest_ddl: LoggedDdl
    checkpoint: Checkpoint | None
    """The checkpoint once this is indexed; None unless a flush is due."""
    size_bytes: int


class Shipped(Protocol):
    """The replicas of the log on other Pumps (`pump.replication.shipping`)."""

    @property
    def acknowledged(self) -> Place:
        """The place up to which the log is on enough disks."""

    def store(
        self, write: Callable[[], list[Position]], sync: Callable[[], None]
    ) -> list[Position]:
        """Write a group, and return once all listed disks have it."""

    def may_drop_before(self, segment: int) -> int:
        """Return the segment, at most `segment`, before which a purge may drop."""


class Storage:
    """The log and the index of one Pump; create with `Storage.open`."""

    def __init__(
        self,
        path: Path,
        recovered: Replay,
        config: StorageConfig,
        lock_file: int,
        files: Files,
        clock: Callable[[], float],
    ) -> None:
        self._segments = recovered.segments
        self._index = recovered.index
        self._ledger = recovered.ledger
        self._needed = recovered.needed
        self.stream = Stream(recovered.index, recovered.segments, recovered.purge)
        self._flusher = Flusher(recovered.index.flush, recovered.checkpoint)
        self._reserve = Reserve(files, path, config.stop_write_at_available_bytes)
        self._replayed = recovered.records
        self.incoming: set[IncomingTransaction] = set()
        """Large transactions on their way into the log."""
        self._config = config
        self._lock_file = lock_file
        self._clock = clock
        # Guards the ledger. Held during I/O only to compare a repeated Prewrite.
        self._state_lock = threading.Lock()
        self._gc_lock = threading.Lock()
        self._max_commit_ts = self._ledger.sorter.max_commit_ts
        self._indexed_ts = self._segments.largest_ts
        """No binlog in the index is above."""
        self.newest_ddl = self._ledger.newest_ddl
        """The DDL with the largest commit_ts of all that were ever indexed."""
        self._groups = self._indexed_group = 0
        self._stored_head = self._indexed_head = self._segments.end
        self._indexed_checkpoint = self._ledger.sorter.checkpoint(self._segments.end)
        if self._replayed:
            self._flusher.begin(self._indexed_checkpoint)
        self._appended_records = self._appended_bytes = 0
        self._copies: Shipped | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        config: StorageConfig | None = None,
        *,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Storage:
        """Open the storage in `path`, creating it if necessary; replay all that the index lacks.

        Raises `Corrupt` for damage, `NeedsOperator` while another process has it open.
        """
        config, files = config or StorageConfig(), files or Files()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_file = lock_folder(path, "Pump")
        try:
            now_ms = int(clock() * 1000)
            recovered = recover(path, config, files=files, on_progress=Progress(), now_ms=now_ms)
        except BaseException:
            os.close(lock_file)
            raise
        return cls(path, recovered, config, lock_file, files, clock)

    @property
    def log(self) -> Segments:
        return self._segments

    def ship_with(self, copies: Shipped) -> None:
        """Replicate each group before it counts; must be called before the first append."""
        assert self._groups == 0, "what was appended before is on this disk alone"
        self._copies = copies

    @property
    def max_commit_ts(self) -> int:
        """The commit_ts up to which the stream is complete and can be pulled."""
        return self._max_commit_ts

    @property
    def logged_ts(self) -> int:
        """The part of `max_commit_ts` that the log itself shows after a restart."""
        return min(self._max_commit_ts, self._indexed_ts)

    @property
    def newest_ts(self) -> int:
        """The largest timestamp in the log, even if an open transaction holds it back."""
        return max(self._max_commit_ts, self._segments.largest_ts)

    @property
    def purged_ts(self) -> int:
        """The commit_ts up to which the stream is purged; a pull must start at or above it."""
        return self.stream.purge.purged_ts

    def holds_up_to_ts(self) -> int:
        """Return a commit_ts above which no transaction is indexed, nor was before a purge.

        It is the last transaction's, unless very many fake binlogs came after that.
        """
        return max(self._index.last_transaction_ts(), self.purged_ts)

    def append(self, records: Sequence[Record]) -> Appended:
        """Store `records` with one write and one fdatasync; durable when it returns.

        Records that are already stored are not stored again, without an error. Raises `NotStored`
        when any record is refused, `OutOfSpace` or another `Retryable` when the disk fails; then
        none of the group is stored.
        """
        assert not self._closed, "a closed storage takes nothing"
        with self._state_lock:
            stored, refused = self._ledger.admit(records)
        refused |= self._reserve.refused(records)
        if refused:
            raise NotStored(refused)
        most_ts = largest_ts(stored)
        _before_append()
        positions: list[Position] = []
        if stored:
            positions = self._store(stored, most_ts)
            # Not read where nothing is stored: a group that failed when this Pump was deposed is in
            # the log, and a replay must find it there.
            self._stored_head = self._segments.end
        now_ms, head = int(self._clock() * 1000), self._stored_head
        self._groups += 1
        with self._state_lock:
            entries, needed, orphans = self._ledger.enter(stored, positions, now_ms)
            assert not orphans, "the ledger admits no Commit without its Prewrite"
            self._ledger.end_group(self._groups, self._indexed_group)
            sorter = self._ledger.sorter
            checkpoint = sorter.checkpoint(head) if self._flusher.is_due else None
            max_commit_ts, newest_ddl = sorter.max_commit_ts, self._ledger.newest_ddl
            if positions:  # The log may be in another segment by now (`pump/replication`).
                needed[positions[0].segment] = most_ts
            self._needed.note(needed)  # Before a purge sees that a Prewrite is no longer open.
        size_bytes = sum(map(_LENGTH, positions))
        self._appended_records += len(stored)
        self._appended_bytes += size_bytes
        _after_append()
        return Appended(
            *(self._groups, entries, needed, head, max_commit_ts, newest_ddl, checkpoint),
            size_bytes,
        )

    def begin(self, ts: int) -> None:
        """Refuse the Commit at or below `ts` of a Prewrite that is appended from now on."""
        with self._state_lock:
            self._ledger.sorter.begin(ts)

    def advance(self, ts: int) -> None:
        """Let the stream be complete up to `ts`, as far as open transactions allow, in memory only.

        `pump/cluster/clock.py` says of which timestamps that is true. Call it between two groups.
        """
        with self._state_lock:
            assert self._groups == self._indexed_group, "a group that is not indexed may lie below"
            self._ledger.sorter.advance(ts)
            self._max_commit_ts = self._ledger.sorter.max_commit_ts

    def hold(self) -> Hold:
        """Keep the stream where it is, for decided transactions whose timestamps come next."""
        with self._state_lock:
            return self._ledger.sorter.hold()

    def release(self, held: Hold) -> None:
        """End a hold, unless the last Commit of its transactions has ended it."""
        with self._state_lock:
            self._ledger.sorter.release(held)
            if self._groups == self._indexed_group:
                self._max_commit_ts = self._ledger.sorter.max_commit_ts

    def index(self, appended: Appended) -> None:
        """Put appended records into the index and the stream; raise `Retryable` or `Corrupt`."""
        batch = self._index.batch()
        batch.add(appended.entries)
        indexed_ts = self._indexed_ts
        for segment, ts in appended.needed.items():
            batch.needed(segment, ts)
            indexed_ts = max(indexed_ts, ts)
        batch.head(appended.head)
        if appended.newest_ddl != self.newest_ddl:
            batch.newest_ddl(appended.newest_ddl)
        batch.write()
        _after_index()
        with self._state_lock:
            self._indexed_group, self._indexed_head = appended.number, appended.head
            self._indexed_ts = indexed_ts  # Before `max_commit_ts`, see `pull_watermark`.
            # A hold may have ended since the append; of a later append nothing may be shown.
            is_last = self._groups == appended.number
            shown_ts = self._ledger.sorter.max_commit_ts if is_last else appended.max_commit_ts
            self._max_commit_ts, self.newest_ddl = shown_ts, appended.newest_ddl
        self._flusher.note(len(appended.entries), appended.size_bytes)
        if appended.checkpoint is not None:
            self._indexed_checkpoint = appended.checkpoint
            if self._flusher.is_due:
                self._flusher.begin(appended.checkpoint)

    def pull(self, after_ts: int, *, bytes_max: int, count_max: int) -> Pulled:
        """Return merged and fake binlogs in (after_ts, max_commit_ts], by commit_ts.

        At least one if any exists, otherwise as many as the bounds allow; `last_ts` is where to
        continue. A watermark comes last, as a fake binlog. Raises `PurgedRange`, `Corrupt`, and
        `Retryable` when the disk cannot be read.
        """
        return self.stream.pull(after_ts, self._max_commit_ts, bytes_max, count_max)

    def pull_watermark(self, after_ts: int) -> Pulled | None:
        """Return what `pull` does if the index has nothing after `after_ts`; else None."""
        up_to_ts = self._max_commit_ts
        if not self._indexed_ts <= after_ts < up_to_ts:
            return None
        return Pulled([], [], [], after_ts).completed(up_to_ts)

    def prewrite(self, start_ts: int) -> bytes | None:
        return self.stream.prewrite(start_ts)

    def get(self, ts: int) -> bytes | None:
        return self.stream.get(ts)

    def unmatched(self, older_than_s: float = 0.0) -> list[Unmatched]:
        """Return the open Prewrites that arrived at least that long ago, oldest first.

        A restart resets their age.
        """
        older_than_ms = int((self._clock() - older_than_s) * 1000)
        with self._state_lock:
            found = self._ledger.sorter.unmatched(older_than_ms)
        read = self.stream.short
        return [
            Unmatched(start_ts, partial(read, known.position), known.floor_ts)
            for start_ts, known in found
        ]

    def gc(self, before_ts: int) -> int:
        """Drop the oldest segments in which nothing is at or after `before_ts`; return how many.

        Only whole, sealed segments go, and none from the oldest open Prewrite on. A Prewrite
        counts as old as its Commit, and nothing beyond `max_commit_ts` goes. Raises `Retryable`.
        """
        with self._gc_lock:
            self.flush()
            before = self.stream.purge
            limit = self._kept_from()
            purge = self._needed.droppable(before, limit, min(before_ts, self._max_commit_ts))
            if self._copies is not None:  # They must know first.
                limit = self._copies.may_drop_before(purge.first_segment)
                purge = self._needed.droppable(before, limit, min(before_ts, self._max_commit_ts))
            if purge.first_segment > before.first_segment:
                self._index.set_purge(purge)
                self.stream.purge = purge
                self._needed.forget(purge.first_segment)
            if self._segments.first < purge.first_segment:  # Or left over from a failed attempt.
                carry_out(self._index, self._segments, purge)
        return purge.first_segment - before.first_segment

    def needed_from(self, ts: int) -> int:
        """Return the first segment with anything at or after `ts`, or with anything still open."""
        before_ts = min(ts, self._max_commit_ts)
        return self._needed.droppable(self.stream.purge, self._kept_from(), before_ts).first_segment

    def flush(self) -> None:
        """Make the index durable, so that a restart has nothing, or only a little, to replay."""
        with self._state_lock:
            if self._groups == self._indexed_group:  # Then the ledger is as far as the index.
                # Not the log's end, which may already have moved on.
                self._indexed_checkpoint = self._ledger.sorter.checkpoint(self._indexed_head)
        self._flusher.flush(self._indexed_checkpoint)

    def check_space(self, wanted_bytes: int = 0) -> None:
        self._reserve.check(wanted_bytes)

    def stats(self) -> dict[str, int]:
        """Return metrics for operators; sizes are in bytes."""
        count, size_bytes = self._segments.size()
        return {
            "max_commit_ts": self._max_commit_ts,
            "purged_ts": self.purged_ts,
            "unmatched": len(self._ledger.sorter.open),
            "segments": count,
            "log_bytes": size_bytes,
            **self._reserve.stats(),
            "appended_records": self._appended_records,
            "appended_bytes": self._appended_bytes,
            "repeated_records": self._ledger.repeated,
            "refused_records": self._ledger.refused,
            "replayed_records": self._replayed,
            "purged_entries": self._index.forgotten,
        }

    def close(self) -> None:
        """Flush, mark the clean stop and close; nothing may be appended or pulled afterwards."""
        if self._closed:
            return
        self._closed = True
        self._flusher.join()
        self.flush()
        # A mark where not everything is acknowledged would tell a replica that all before it was.
        is_settled = self._copies is None or self._copies.acknowledged == self._segments.end
        self._segments.close(with_mark=is_settled)
        self._index.close()
        os.close(self._lock_file)

    def _kept_from(self) -> int:
        """Return the first segment that a replay or a transaction open here needs."""
        flushed = self._flusher.flushed.first_segment
        # First, because some become open Prewrites; `list` copies a set in a single step.
        firsts = [each.first for each in list(self.incoming)]
        chunks = [f.position.segment for f in firsts if f is not None and f.position is not None]
        with self._state_lock:  # Chunks may lie before the start of a replay.
            return min([flushed, *chunks, *self._ledger.sorter.segments_of_chunks()])

    def _store(self, records: Sequence[Record], most_ts: int) -> list[Position]:
        payloads = list(map(_PAYLOAD, records))

        def write() -> list[Position]:
            positions = self._segments.append(payloads, largest_ts=most_ts)
            _after_write()
            return positions

        try:
            if self._copies is not None:
                return self._copies.store(write, self._sync)
            positions = write()
            if self._config.sync_log:
                self._sync()
        except WriteFailed as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfSpace(str(error), code=Code.DISK_FULL) from error
            raise
        return positions

    def _sync(self) -> None:
        self._segments.sync()
        _after_sync()
