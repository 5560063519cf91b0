"""What the index must hold for records that were stored, while the Pump runs and in a replay."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.log.frame import HEADER_SIZE
from penstock.log.segments import Place, Position
from penstock.wire.binlog import BinlogType
from pump.store.index import COMMIT, FAKE, LARGE, ROLLED_BACK, TAKEN, Batch
from pump.store.record import IN_ONE, PIECE, PieceRecord
from pump.store.replay_point import Checkpoint, OpenPrewrite
from pump.store.sorter import Sorter
from pump.store.transactions import Ledger

_PREWRITE, _COMMIT = int(BinlogType.PREWRITE), int(BinlogType.COMMIT)
_START_TS, _COMMIT_TS = operator.itemgetter(1), operator.itemgetter(2)

Entry = tuple[int, int, Position, Position]
"""Kind, timestamp, position, and for a Commit its Prewrite's position."""

Told = tuple[int, int, int, bytes, int]
"""A `Record`, or what a replay makes of millions of them more cheaply."""


def place_after(position: Position) -> Place:
    """Return the place right behind a frame."""
    return Place(position.segment, position.offset + HEADER_SIZE + position.length)


class Appended(NamedTuple):
    """What an append stored, for `Storage.index`."""

    number: int
    entries: Sequence[Entry]
    needed: dict[int, int]
    head: Place
    max_commit_ts: int
    checkpoint: Checkpoint | None
    """From where to replay once this is indexed; only where a flush is due."""
    size_bytes: int


OPEN_MAX = 10_000
"""Open transactions that a checkpoint carries along."""


def checkpoint_of(sorter: Sorter, head: Place, open_max: int = OPEN_MAX) -> Checkpoint:
    """Return from where to replay when everything before `head` is indexed.

    That is `head` itself, with a list of what is open there; the transactions that the list has no
    room for are the youngest, and the replay begins at the first of them.
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


def enter(
    ledger: Ledger, records: Iterable[Told], positions: Sequence[Position], now_ms: int
) -> tuple[list[Entry], dict[int, int], list[tuple[int, Position]]]:
    """Tell the ledger what was stored where and return what the index must hold.

    Besides, for each other segment that holds a Prewrite of theirs, or the first of its pieces, the
    largest commit_ts; and the commit_ts and position of every Commit without open Prewrite, which
    only a replay can meet. Pieces have no entry: their assembly leads to them.
    """
    entries: list[Entry] = []
    needed: dict[int, int] = {}
    orphans: list[tuple[int, Position]] = []
    for record, position in zip(records, positions, strict=True):
        tp, start_ts, commit_ts, _, first_segment = record
        if tp == _PREWRITE:
            is_open = ledger.prewritten(start_ts, position, now_ms, first_segment)
            entries.append((TAKEN if is_open else ROLLED_BACK, start_ts, position, position))
        elif tp == _COMMIT:
            prewrite = ledger.committed(start_ts, commit_ts)
            if prewrite is None:
                orphans.append((commit_ts, position))
                continue
            begin, oldest, kind = prewrite.position, prewrite.position[0], COMMIT
            if prewrite.first_segment != IN_ONE:  # The other pieces lie in it or behind it.
                oldest, kind = prewrite.first_segment, LARGE
            entries.append((kind, commit_ts, position, begin))
            if oldest != position[0]:
                needed[oldest] = max(commit_ts, needed.get(oldest, 0))
        else:
            entries += _entries_of_rare(ledger, record, position)
    return entries, needed, orphans


def _entries_of_rare(ledger: Ledger, record: Told, position: Position) -> list[Entry]:
    """Do the same for a piece, a Rollback or a fake binlog."""
    tp, start_ts, commit_ts, _, _ = record
    if tp == PIECE:
        if isinstance(record, PieceRecord):  # A replay does not care.
            record.position = position
        return []
    if start_ts == commit_ts:
        ledger.sorter.push_fake(start_ts)
        return [(FAKE, start_ts, position, position)]
    where = ledger.rolled_back(start_ts)
    return [] if where is None else [(ROLLED_BACK, start_ts, where, where)]


def largest_ts(records: Sequence[Told]) -> int:
    """Return the largest timestamp of `records`."""
    start_ts = max(map(_START_TS, records), default=0)
    return max(start_ts, max(map(_COMMIT_TS, records), default=0))


def fill(batch: Batch, entries: Iterable[Entry]) -> None:
    """Put `entries` into an index batch."""
    put_commit = batch.commit
    for kind, ts, position, prewrite in entries:
        if kind == COMMIT:
            put_commit(ts, position, prewrite)
        elif kind == LARGE:
            put_commit(ts, position, prewrite, LARGE)
        elif kind == FAKE:
            batch.fake(ts, position)
        else:
            batch.prewrite(ts, position, kind)
