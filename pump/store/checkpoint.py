"""Checkpoint: the place from which a restart replays the log; the flusher keeps the replay short.

It is the index's value under the key `k`:

    offset  size  field
    0       4     format       3
    4       4     segment      all of the log before segment and offset is durably indexed
    8       8     offset
    16      8     largest_ts   the largest commit_ts before that place
    24      36n   for each transaction that is open there: start_ts u64, position (segment u32,
                  offset u64, length u32), floor_ts u64, first segment of its chunks u32 (all ones:
                  it has none)

Format 2 had no first segment; format 1 no transactions: its place was that of the oldest open one.
"""

from __future__ import annotations

import itertools
import logging
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import Corrupt, PenstockError
from penstock.log.segments import Place, Position
from pump.store.record import IN_ONE
from pump.store.sorter import Sorter

log = logging.getLogger(__name__)

FORMAT = 3

_CHECKPOINT = struct.Struct("<IIQQ")
_OPEN = struct.Struct("<QIQIQI")
_OPEN_BEFORE_3 = struct.Struct("<QIQIQ")
assert (_CHECKPOINT.size, _OPEN.size, _OPEN_BEFORE_3.size) == (24, 36, 32)
_NO_SEGMENT = 0xFFFF_FFFF

OPEN_MAX = 10_000
"""The most open transactions in a checkpoint."""

_RECORDS_MAX = 100_000
_BYTES_MAX = 128 << 20
"""A restart replays little more than this: about a second's work."""


class OpenPrewrite(NamedTuple):
    """A transaction that is open at a checkpoint."""

    start_ts: int
    position: Position
    floor_ts: int
    first_segment: int = IN_ONE


class Checkpoint(NamedTuple):
    """The place where a restart starts to replay the log, and the facts about the log before it."""

    pointer: Place
    """All before is durably indexed."""
    largest_ts: int
    """The largest commit_ts that lies before the pointer."""
    open: tuple[OpenPrewrite, ...] = ()
    """The Prewrites before the pointer that were open there, in the order of the log."""

    @property
    def first_segment(self) -> int:
        """The oldest segment that a restart from here reads, or that may be requested later."""
        chunks = [found.first_segment for found in self.open if found.first_segment != IN_ONE]
        oldest = self.open[0].position.segment if self.open else self.pointer.segment
        return min([oldest, *chunks])


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    parts = [_CHECKPOINT.pack(FORMAT, *checkpoint.pointer, checkpoint.largest_ts)]
    for start_ts, position, floor_ts, first in checkpoint.open:
        first_segment = _NO_SEGMENT if first == IN_ONE else first
        parts.append(_OPEN.pack(start_ts, *position, floor_ts, first_segment))
    return b"".join(parts)


def unpack_checkpoint(value: bytes, path: str) -> Checkpoint:
    """Return the checkpoint in a stored value of the index at `path`; raise `Corrupt`."""
    form, segment, offset, largest_ts = _CHECKPOINT.unpack_from(value)
    if form not in (1, 2, FORMAT):
        raise Corrupt(
            path, 0, f"this index has format {form}, not {FORMAT}", code=Code.INDEX_DAMAGED
        )
    layout = _OPEN if form == FORMAT else _OPEN_BEFORE_3
    opened = []
    for start_ts, s, o, n, floor_ts, *first in layout.iter_unpack(value[_CHECKPOINT.size :]):
        first_segment = IN_ONE if first in ([], [_NO_SEGMENT]) else first[0]
        opened.append(OpenPrewrite(start_ts, Position(s, o, n), floor_ts, first_segment))
    return Checkpoint(Place(segment, offset), largest_ts, tuple(opened))


def checkpoint_of(sorter: Sorter, head: Place, open_max: int = OPEN_MAX) -> Checkpoint:
    """Return the place to replay from when everything before `head` is indexed.

    That is `head` itself, with a list of the transactions open there. If the list has no room for
    all of them, the youngest are left out, and the replay starts at the first of these.
    """
    known = list(itertools.islice(sorter.open.items(), open_max + 1))
    listed = tuple(
        OpenPrewrite(ts, found.position, found.floor_ts, found.first_segment)
        for ts, found in known[:open_max]
    )
    if len(known) <= open_max:
        return Checkpoint(head, sorter.largest_ts, listed)
    first = known[open_max][1]
    return Checkpoint(Place(first.position.segment, first.position.offset), first.floor_ts, listed)


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
        much = self._records >= _RECORDS_MAX or self._bytes >= _BYTES_MAX
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
