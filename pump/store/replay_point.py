"""From where a restart replays the log: the index's value under the key `k`.

    offset  size  field
    0       4     format       3
    4       4     segment      all of the log before segment and offset is durably indexed
    8       8     offset
    16      8     largest_ts   the largest commit_ts before that place
    24      36n   for each transaction that is open there: start_ts u64, position (segment u32,
                  offset u64, length u32), floor_ts u64, first segment of its pieces u32 (all ones:
                  it has none)

Format 2 had no first segment; format 1 no transactions: its place was that of the oldest open one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import Corrupt
from penstock.log.segments import Place, Position
from pump.store.record import IN_ONE

FORMAT = 3

_CHECKPOINT = struct.Struct("<IIQQ")
_OPEN = struct.Struct("<QIQIQI")
_OPEN_BEFORE_3 = struct.Struct("<QIQIQ")
assert (_CHECKPOINT.size, _OPEN.size, _OPEN_BEFORE_3.size) == (24, 36, 32)
_NO_SEGMENT = 0xFFFF_FFFF


class OpenPrewrite(NamedTuple):
    """A transaction that is open at a checkpoint."""

    start_ts: int
    position: Position
    floor_ts: int
    first_segment: int = IN_ONE


class Checkpoint(NamedTuple):
    """From where a restart replays the log, and what it must know of all before."""

    pointer: Place
    """All before is durably indexed."""
    largest_ts: int
    """The largest commit_ts that lies before the pointer."""
    open: tuple[OpenPrewrite, ...] = ()
    """The Prewrites before the pointer that were open there, in the order of the log."""

    @property
    def first_segment(self) -> int:
        """The oldest segment that a restart from here reads, or may be asked for later."""
        pieces = [found.first_segment for found in self.open if found.first_segment != IN_ONE]
        oldest = self.open[0].position.segment if self.open else self.pointer.segment
        return min([oldest, *pieces])


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the value to be stored."""
    parts = [_CHECKPOINT.pack(FORMAT, *checkpoint.pointer, checkpoint.largest_ts)]
    for start_ts, position, floor_ts, first in checkpoint.open:
        first_segment = _NO_SEGMENT if first == IN_ONE else first
        parts.append(_OPEN.pack(start_ts, *position, floor_ts, first_segment))
    return b"".join(parts)


def unpack_checkpoint(value: bytes, path: str) -> Checkpoint:
    """Return the checkpoint in a stored value of the index at `path`; raise `Corrupt`."""
    form, segment, offset, largest_ts = _CHECKPOINT.unpack_from(value)
    if form not in (1, 2, FORMAT):
        raise Corrupt(path, 0, f"this index has format {form}, not {FORMAT}")
    layout = _OPEN if form == FORMAT else _OPEN_BEFORE_3
    opened = []
    for start_ts, s, o, n, floor_ts, *first in layout.iter_unpack(value[_CHECKPOINT.size :]):
        first_segment = IN_ONE if first in ([], [_NO_SEGMENT]) else first[0]
        opened.append(OpenPrewrite(start_ts, Position(s, o, n), floor_ts, first_segment))
    return Checkpoint(Place(segment, offset), largest_ts, tuple(opened))
