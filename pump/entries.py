"""What the index must hold for records that were stored, while the Pump runs and in a replay."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.frame import HEADER_SIZE
from penstock.model import BinlogType
from penstock.segments import Place, Position
from pump.index import COMMIT, FAKE, ROLLED_BACK, TAKEN, Batch, Checkpoint
from pump.ledger import Ledger
from pump.sorter import Sorter

_PREWRITE, _COMMIT = int(BinlogType.PREWRITE), int(BinlogType.COMMIT)
_TIMESTAMPS = operator.itemgetter(1, 2)

Entry = tuple[int, int, Position, Position]
"""Kind, timestamp, position, and for a Commit its Prewrite's position."""

Told = tuple[int, int, int, bytes, bool]
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
    listed = tuple((ts, found.position, found.floor_ts) for ts, found in known[:open_max])
    if len(known) <= open_max:
        return Checkpoint(head, sorter.largest_ts, listed)
    first = known[open_max][1]
    return Checkpoint(Place(first.position.segment, first.position.offset), first.floor_ts, listed)


def enter(
    ledger: Ledger, records: Iterable[Told], positions: Sequence[Position], now_ms: int
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


def largest_ts(records: Iterable[Told]) -> int:
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
