"""Index: finds the binlog of a timestamp in the log; a cache that the log can rebuild.

All in one LevelDB. Integers in keys are big-endian, so that LevelDB sorts them; those in values
little-endian. A position is segment u32, offset u64, length u32.

    key                 value
    "c" commit_ts u64   kind u8 (1 commit, 2 fake, 4 commit of a Prewrite in chunks), position, the
                        Prewrite's position (of its chunk list when in chunks; 0 for fakes)
    "p" start_ts u64    kind u8 (0 taken, 3 rolled back), position
    "s" segment u32     ts u64: the largest timestamp that still needs this segment
    "h"                 the head: all of the log before it is indexed; part of every batch
    "k"                 the checkpoint, from which a restart replays the log, see below
    "f"                 the place of a checkpoint, written before the flush that it needs
    "n"                 the same place, written after that flush, together with "k"
    "g"                 the purged range, see `Purge`
    "d"                 commit_ts u64 and job u64 of the newest DDL, see `LoggedDdl`

A Commit's entry carries its Prewrite's position. A pull looks nothing up, and does not meet the
Prewrites, because they have a separate prefix.

LevelDB is not synced batch by batch. When the machine dies, it may lose more than its last writes:
it does not sync the log of a table in memory before it starts the next table. A restart therefore
replays not from the last batch, but from the last `flush`, after which everything before it is in
synced tables.

LevelDB does not notice a MANIFEST that lost its last records: it opens an earlier state, and the
newer tables are not part of it. So "n" must not be above "f"; otherwise the flush is lost.

The checkpoint:

    offset  size  field
    0       4     format       3
    4       4     segment      all of the log before segment and offset is durably indexed
    8       8     offset
    16      8     largest_ts   the largest commit_ts before that place
    24      36n   for each transaction that is open there: start_ts u64, position, floor_ts u64,
                  first segment of its chunks u32 (all ones: it has none)

Format 2 had no first segment; format 1 no transactions: its place was that of the oldest open one.

A start deletes a damaged index and builds it from the log (`recovery.py`). Damage that only a read
finds, while the Pump runs, leaves the file `DAMAGED` in the folder for the next start.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import plyvel

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, PenstockError, Retryable
from penstock.log.segments import Place, Position
from pump.store.record import IN_ONE, NO_DDL, LoggedDdl

TAKEN, COMMIT, FAKE, ROLLED_BACK, LARGE = 0, 1, 2, 3, 4

_COMMIT_KEY = struct.Struct(">cQ")
_SEGMENT_KEY = struct.Struct(">cI")
_COMMIT = struct.Struct("<BIQIIQI")
_PREWRITE = struct.Struct("<BIQI")
_HEAD = struct.Struct("<IQ")
_PURGE = struct.Struct("<QI")
_DDL = struct.Struct("<QQ")
_TS = struct.Struct("<Q")
assert (_COMMIT.size, _PREWRITE.size, _PURGE.size, _DDL.size) == (33, 17, 12, 16)

CHECKPOINT_FORMAT = 3
_CHECKPOINT = struct.Struct("<IIQQ")
_OPEN = struct.Struct("<QIQIQI")
_OPEN_BEFORE_3 = struct.Struct("<QIQIQ")
assert (_CHECKPOINT.size, _OPEN.size, _OPEN_BEFORE_3.size) == (24, 36, 32)
_NO_SEGMENT = 0xFFFF_FFFF

_FLUSH_RECORDS, _FLUSH_BYTES = 100_000, 128 << 20
"""A restart replays little more than this: about a second's work."""

_pack_key, _pack_commit, _pack_prewrite = _COMMIT_KEY.pack, _COMMIT.pack, _PREWRITE.pack

_PREWRITES = frozenset((TAKEN, ROLLED_BACK))
_NOWHERE = (0, 0, 0)
_CHUNK_ENTRIES = 512
_TS_END = 1 << 64
_DAMAGED = "DAMAGED"
_OF_FILES = re.compile(r"Invalid argument|\.(ldb|sst): No such file")
"""LevelDB's errors for a table file that is cut or empty, or that is missing when it is read."""
_FAKES_PASSED_MAX = 1_000_000
"""Read in about two seconds."""

log = logging.getLogger(__name__)
_compacted = failpoints.point("pump.flush.compacted")
_flushed = failpoints.point("pump.flush.done")
_purge_noted = failpoints.point("pump.purge.noted")


class Open(NamedTuple):
    """A Prewrite without its Commit or Rollback; `since_ms` is in no checkpoint."""

    position: Position
    floor_ts: int
    since_ms: int
    first_segment: int = IN_ONE
    """The segment of its first chunk, if it was stored in chunks."""


class Checkpoint(NamedTuple):
    """The place where a restart starts to replay the log, and the facts about the log before it."""

    pointer: Place
    """All before is durably indexed."""
    largest_ts: int
    """The largest commit_ts that lies before the pointer."""
    open: tuple[tuple[int, Open], ...] = ()
    """The Prewrites before the pointer that were open there, in the order of the log."""

    @property
    def first_segment(self) -> int:
        chunks = [found.first_segment for _, found in self.open if found.first_segment != IN_ONE]
        oldest = self.open[0][1].position.segment if self.open else self.pointer.segment
        return min([oldest, *chunks])


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    parts = [_CHECKPOINT.pack(CHECKPOINT_FORMAT, *checkpoint.pointer, checkpoint.largest_ts)]
    for start_ts, (position, floor_ts, _, first) in checkpoint.open:
        first_segment = _NO_SEGMENT if first == IN_ONE else first
        parts.append(_OPEN.pack(start_ts, *position, floor_ts, first_segment))
    return b"".join(parts)


def unpack_checkpoint(value: bytes, path: str) -> Checkpoint:
    """Return the checkpoint in a stored value of the index at `path`; raise `Corrupt`."""
    form, segment, offset, largest_ts = _CHECKPOINT.unpack_from(value)
    if form not in (1, 2, CHECKPOINT_FORMAT):
        raise Corrupt(
            *(path, 0, f"this index has format {form}, not {CHECKPOINT_FORMAT}"),
            code=Code.INDEX_DAMAGED,
        )
    layout = _OPEN if form == CHECKPOINT_FORMAT else _OPEN_BEFORE_3
    opened = []
    for start_ts, s, o, n, floor_ts, *first in layout.iter_unpack(value[_CHECKPOINT.size :]):
        first_segment = IN_ONE if first in ([], [_NO_SEGMENT]) else first[0]
        opened.append((start_ts, Open(Position(s, o, n), floor_ts, 0, first_segment)))
    return Checkpoint(Place(segment, offset), largest_ts, tuple(opened))


class Purge(NamedTuple):
    """The extent of a garbage collection: all up to a ts, and all segments before a number."""

    purged_ts: int
    first_segment: int


class CommitEntry(NamedTuple):
    """The positions of the two parts of a merged binlog; a fake one has no Prewrite."""

    kind: int
    position: Position
    prewrite: Position


Entry = tuple[int, int, Position, Position]
"""Kind, timestamp, position, and for a Commit its Prewrite's position."""


class Batch:
    """Entries that are written together."""

    def __init__(self, db: plyvel.DB, path: Path) -> None:
        self._path = path
        self._batch = db.write_batch()
        self._put = self._batch.put

    def add(self, entries: Iterable[Entry]) -> None:
        put = self._put
        for kind, ts, position, prewrite in entries:
            if kind in _PREWRITES:
                put(_pack_key(b"p", ts), _pack_prewrite(kind, *position))
            else:
                before = _NOWHERE if kind == FAKE else prewrite
                put(_pack_key(b"c", ts), _pack_commit(kind, *position, *before))

    def needed(self, segment: int, ts: int) -> None:
        self._put(_SEGMENT_KEY.pack(b"s", segment), _TS.pack(ts))

    def newest_ddl(self, ddl: LoggedDdl) -> None:
        """Record the newest DDL, which remains recorded when its binlog is purged."""
        if ddl != NO_DDL:
            self._put(b"d", _DDL.pack(*ddl))

    def head(self, head: Place) -> None:
        self._put(b"h", _HEAD.pack(*head))

    def write(self) -> None:
        """Write all entries, or none; raise `Retryable` or `Corrupt`. May be called again."""
        with _errors(self._path):
            self._batch.write()


class Index:
    """The LevelDB of one Pump; safe to read from any thread.

    Raises `Corrupt` for an existing folder without a complete index: LevelDB itself would start a
    new database in it, and then read any old log that it finds.
    """

    def __init__(self, path: Path, *, write_buffer_bytes: int, cache_bytes: int) -> None:
        self.path = path
        self.forgotten = 0
        """Entries that purges removed, for metrics."""
        is_new = not path.exists()
        if not is_new and not (path / "CURRENT").exists():
            raise Corrupt(
                str(path), 0, "the index has lost its file CURRENT", code=Code.INDEX_DAMAGED
            )
        if (path / _DAMAGED).exists():
            raise Corrupt(
                str(path), 0, "the index was found damaged by a read", code=Code.INDEX_DAMAGED
            )
        with _errors(path):
            self._db = plyvel.DB(
                str(path),
                create_if_missing=is_new,
                paranoid_checks=True,
                write_buffer_size=write_buffer_bytes,
                lru_cache_size=cache_bytes,
                bloom_filter_bits=10,
            )

    def batch(self) -> Batch:
        return Batch(self._db, self.path)

    def head(self) -> Place | None:
        """Return the place before which everything was once indexed; None in a new index."""
        value = self._get(b"h")
        return Place(*_HEAD.unpack(value)) if value else None

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to replay from, None in a new index; raise `Corrupt`."""
        flushed, needed = self._get(b"f"), self._get(b"n")
        if needed is not None and (flushed is None or _HEAD.unpack(flushed) < _HEAD.unpack(needed)):
            raise Corrupt(
                str(self.path), 0, "the index has lost its last tables", code=Code.INDEX_DAMAGED
            )
        value = self._get(b"k")
        return None if value is None else unpack_checkpoint(value, str(self.path))

    def flush(self, checkpoint: Checkpoint) -> None:
        """Write all entries to disk, then record that `checkpoint` holds."""
        with _errors(self.path):
            place = _HEAD.pack(*checkpoint.pointer)
            self._db.put(b"f", place)
            # Compacting an empty range only writes out the tables in memory.
            self._db.compact_range(start=b"\xff\xfe", stop=b"\xff\xff")
            _compacted()
            with self._db.write_batch() as batch:
                batch.put(b"k", pack_checkpoint(checkpoint))
                batch.put(b"n", place)
            _flushed()

    def purge(self) -> Purge:
        value = self._get(b"g")
        return Purge(*_PURGE.unpack(value)) if value else Purge(0, 0)

    def newest_ddl(self) -> LoggedDdl:
        value = self._get(b"d")
        return LoggedDdl(*_DDL.unpack(value)) if value else NO_DDL

    def set_purge(self, purge: Purge) -> None:
        """Durably record a purge before it happens."""
        with _errors(self.path):
            self._db.put(b"g", _PURGE.pack(*purge), sync=True)
            _purge_noted()

    def needed(self) -> dict[int, int]:
        rows = self._rows(b"s", b"t")
        return {_SEGMENT_KEY.unpack(key)[1]: _TS.unpack(value)[0] for key, value in rows}

    def commit(self, commit_ts: int) -> CommitEntry | None:
        """Return the entry at `commit_ts`, either a Commit or a fake binlog."""
        value = self._get(_COMMIT_KEY.pack(b"c", commit_ts))
        if value is None:
            return None
        kind, s, o, n, ps, po, pn = _COMMIT.unpack(value)
        return CommitEntry(kind, Position(s, o, n), Position(ps, po, pn))

    def prewrite(self, start_ts: int) -> tuple[int, Position] | None:
        value = self._get(_COMMIT_KEY.pack(b"p", start_ts))
        if value is None:
            return None
        kind, segment, offset, length = _PREWRITE.unpack(value)
        return kind, Position(segment, offset, length)

    def commits(
        self, after_ts: int, up_to_ts: int
    ) -> Iterator[tuple[Sequence[int], list[tuple[int, ...]]]]:
        """Yield chunks of ascending timestamps in (after_ts, up_to_ts], and their entries.

        An entry is a tuple of kind, the position's three fields and the Prewrite's three.
        """
        begin = _COMMIT_KEY.pack(b"c", min(after_ts + 1, _TS_END - 1))
        end = _COMMIT_KEY.pack(b"c", min(up_to_ts + 1, _TS_END - 1))
        rows = self._rows(begin, end)
        while chunk := list(itertools.islice(rows, _CHUNK_ENTRIES)):
            keys, values = zip(*chunk, strict=True)
            timestamps = struct.unpack(">" + "xQ" * len(chunk), b"".join(keys))
            yield timestamps, list(_COMMIT.iter_unpack(b"".join(values)))

    def last_ts(self) -> tuple[int, int]:
        """Return the largest start_ts and the largest commit_ts in the index, 0 if none."""
        return self._last(b"p", b"q"), self._last(b"c", b"d")

    def last_transaction_ts(self, fakes_passed_max: int = _FAKES_PASSED_MAX) -> int:
        """Return the largest commit_ts that is not a fake binlog's, 0 without one.

        After very many fake binlogs it stops and returns the commit_ts it reached, which is above.
        """
        with (
            _errors(self.path),
            self._db.iterator(start=b"c", stop=b"d", reverse=True, verify_checksums=True) as rows,
        ):
            ts = 0
            for key, value in itertools.islice(rows, fakes_passed_max):
                ts = _COMMIT_KEY.unpack(key)[1]
                if value[0] != FAKE:
                    return int(ts)
            return 0 if next(rows, None) is None else int(ts)

    def forget(self, up_to_ts: int, before_segment: int) -> int:
        """Delete the entries up to `up_to_ts` whose binlogs lay in dropped segments."""
        deleted = 0
        for prefix in (b"c", b"p"):
            rows = self._rows(_COMMIT_KEY.pack(prefix, 0), _COMMIT_KEY.pack(prefix, up_to_ts + 1))
            stale = (key for key, value in rows if _PREWRITE.unpack_from(value)[1] < before_segment)
            while keys := list(itertools.islice(stale, 1024)):
                deleted += self._delete(keys)
        rows = self._rows(_SEGMENT_KEY.pack(b"s", 0), _SEGMENT_KEY.pack(b"s", before_segment))
        self._delete([key for key, _ in rows])
        self.forgotten += deleted
        return deleted

    def close(self) -> None:
        self._db.close()

    def _delete(self, keys: Sequence[bytes]) -> int:
        with _errors(self.path), self._db.write_batch() as batch:
            for key in keys:
                batch.delete(key)
        return len(keys)

    def _get(self, key: bytes) -> bytes | None:
        with _errors(self.path):
            value: bytes | None = self._db.get(key, verify_checksums=True)
        return value

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with (
            _errors(self.path),
            self._db.iterator(start=begin, stop=end, verify_checksums=True) as rows,
        ):
            yield from rows

    def _last(self, begin: bytes, end: bytes) -> int:
        with (
            _errors(self.path),
            self._db.iterator(
                start=begin, stop=end, include_value=False, reverse=True, verify_checksums=True
            ) as keys,
        ):
            key = next(keys, None)
        return int.from_bytes(key[1:], "big") if key else 0


class Flusher:
    """Makes the index durable periodically, in a thread that runs no longer than a flush."""

    def __init__(self, flush: Callable[[Checkpoint], None], checkpoint: Checkpoint) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._records = self._bytes = 0
        self.flushed = checkpoint
        """The checkpoint that a restart would replay from; never ahead of the durable index."""

    @property
    def is_due(self) -> bool:
        """True once much was indexed since the last flush started and that flush has ended."""
        much = self._records >= _FLUSH_RECORDS or self._bytes >= _FLUSH_BYTES
        return much and (self._thread is None or not self._thread.is_alive())

    def note(self, records: int, size_bytes: int) -> None:
        self._records += records
        self._bytes += size_bytes

    def begin(self, checkpoint: Checkpoint) -> None:
        """Make the index durable up to `checkpoint` in a thread; no flush may be running."""
        self._records = self._bytes = 0
        self._thread = threading.Thread(
            target=self.flush, args=(checkpoint,), name="pump-index-flush"
        )
        self._thread.start()

    def flush(self, checkpoint: Checkpoint) -> None:
        """Make the index durable up to `checkpoint`; a failure only lengthens the next replay."""
        with self._lock:
            if checkpoint.pointer <= self.flushed.pointer:
                return
            try:
                self._flush(checkpoint)
            except PenstockError as error:
                log.warning("the index could not be flushed: %s", error)
            else:
                self.flushed = checkpoint

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except plyvel.Error as error:
        text = str(error)
        if not isinstance(error, plyvel.CorruptionError) and not _OF_FILES.search(text):
            raise Retryable(f"the index {path}: {error}", Code.DISK_FAILING) from error
        with contextlib.suppress(OSError):
            (path / _DAMAGED).touch(mode=0o600)
        what = f"the index is damaged: {error} (restart the Pump: it builds the index from the log)"
        raise Corrupt(str(path), 0, what, code=Code.INDEX_DAMAGED) from error
