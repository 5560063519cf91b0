"""Transactions: the ledger admits binlogs, the sorter tracks where the stream is complete.

The ledger deduplicates and validates binlogs before they are logged:

    arrives    the transaction is   the Pump
    ─────────  ───────────────────  ────────────────────────────────────────────────────────
    Prewrite   unknown              stores it, unless `open_max` others are open
               known                acknowledges it again if the bytes are the same, else refuses
               rolled back already  stores it as rolled back: the Rollback overtook it
    Commit     open                 stores it, if its commit_ts lies above the Prewrite's floor
               committed            acknowledges it again if the commit_ts is the same, else refuses
               rolled back          refuses: the two cannot both be true
               unknown              refuses, retryable: its Prewrite may still be on the way
    Rollback   open, unknown        stores it
               rolled back          acknowledges it again
               committed            refuses
    fake       –                    stores it, unless time is past it already

Writers repeat a binlog when its answer was lost; the repetition must neither be stored twice nor be
an error. Contradictions are never stored, so the log cannot contain them, and never acknowledged,
so no one believes that they were delivered.

A Rollback that overtook its Prewrite is remembered for the next 65,536 such Rollbacks, and over a
restart as far as the checkpoint has it. Forgetting it costs time only: its Prewrite is open when it
comes, and the resolver rolls it back. Its writer has given it up, so no Commit can come.

Recently decided transactions are kept in memory; older ones are looked up in the index. Both
together make the answers exact, whatever the age.

The sorter tracks the open transactions, and the commit_ts up to which the stream is complete. A
writer asks for its commit_ts only when its Prewrite is durable here. So every commit_ts that this
Pump has seen *before* a Prewrite was issued before the commit_ts of that Prewrite will be:

    arrival   P1 ── C0(10) ── P2 ── C3(14) ── C2(17) ── …
    floor     0               10                          P2 will commit above 10,
                                                          P1 may commit anywhere: the max is 0

The floor of a Prewrite is the largest commit_ts that arrived before it. The stream is complete up
to the floor of the oldest open Prewrite; with none open, up to the largest commit_ts seen.
Transactions that wait for an open one need no queue: memory grows with the open transactions only.

A watermark (`pump/cluster/clock.py`) counts like a commit_ts that has arrived, but no log has it: a
replay does not find it, and a checkpoint has it only as the floor of open Prewrites.

A decided transaction has its timestamps before its Prewrite is here. The Pump therefore holds the
stream before it asks for them (`hold`), as a Prewrite that arrived then would: until the group is
here, the stream is complete at most up to what had arrived by then, also if a watermark passes it.
All of that was issued before, and is the floor of the group's Prewrites, instead of their own.
Prewrite and Commit come in one group, and its last Commit ends the hold. A hold is in no log: after
a restart the timestamps of transactions that are not in the log are never used.

Invariants: `max_commit_ts` never goes down, and the ledger refuses a Commit unless it lies above
its Prewrite's floor, so nothing enters the stream below it. No clock, no I/O.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import PenstockError
from penstock.log.chunks import identity, is_special
from penstock.log.segments import Place, Position
from penstock.wire.binlog import BinlogType
from pump.store.index import COMMIT, FAKE, LARGE, ROLLED_BACK, TAKEN, Checkpoint, Entry, Index, Open
from pump.store.record import (
    CHUNK,
    IN_ONE,
    NO_DDL,
    ChunkRecord,
    Contradiction,
    Fields,
    LoggedDdl,
    NoPrewrite,
    Record,
    TooManyOpen,
)

GENERATION_MAX = 32_768
"""Decided transactions per generation; two generations are kept."""

OPEN_MAX = 200_000
"""Open transactions; each costs some 420 bytes of memory."""

CHECKPOINT_OPEN_MAX = 10_000
"""The most open transactions in a checkpoint."""

_EARLY_MAX = 65_536
_new = tuple.__new__

_PREWRITE, _COMMIT = int(BinlogType.PREWRITE), int(BinlogType.COMMIT)


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps the stream at `floor_ts` for decided transactions, until the last one's Commit."""

    floor_ts: int
    start_ts: range = range(0)


class Sorter:
    """Receives records in the order of the log; `open` holds unmatched Prewrites by arrival."""

    def __init__(self, max_commit_ts: int = 0) -> None:
        # An OrderedDict, because its first key costs the same however many were deleted.
        self.open: OrderedDict[int, Open] = OrderedDict()
        self.largest_ts = max_commit_ts
        """The largest commit_ts in the log."""
        self._watermark_ts = self._begun_ts = 0
        self.holds: list[Hold] = []

    @property
    def max_commit_ts(self) -> int:
        """The commit_ts up to and including which nothing can be added to the stream."""
        ts = max(self.largest_ts, self._watermark_ts)
        for oldest in self.open.values():
            ts = oldest.floor_ts
            break
        return min(ts, self.holds[0].floor_ts) if self.holds else ts

    @property
    def floor_ts(self) -> int:
        """The floor of the next Prewrite."""
        return max(self.largest_ts, self._watermark_ts, self._begun_ts)

    def hold(self) -> Hold:
        """Keep the stream where it is; call it before the timestamps are asked for."""
        held = Hold(self.floor_ts)
        self.holds.append(held)
        return held

    def release(self, held: Hold) -> None:
        if held in self.holds:
            self.holds.remove(held)

    def floor_of(self, start_ts: int, floor_ts: int) -> int:
        """Return the floor of a Prewrite that arrives now, which others have at `floor_ts`."""
        return next((h.floor_ts for h in self.holds if start_ts in h.start_ts), floor_ts)

    def push_prewrite(
        self, start_ts: int, position: Position, now_ms: int, first_segment: int = IN_ONE
    ) -> None:
        """Record an open transaction, whose Prewrite must not be open already."""
        assert start_ts not in self.open, "the ledger lets no Prewrite in twice"
        # Same as `Open(…)`, at half the cost.
        self.open[start_ts] = _new(Open, (position, self.floor_ts, now_ms, first_segment))

    def push_commit(self, start_ts: int, commit_ts: int) -> Open | None:
        if commit_ts > self.largest_ts:
            self.largest_ts = commit_ts
        for held in self.holds:
            if held.start_ts and held.start_ts[-1] == start_ts:
                self.holds.remove(held)
                break
        return self.open.pop(start_ts, None)

    def push_fake(self, ts: int) -> None:
        """Advance time to `ts`, as far as open transactions allow."""
        self.largest_ts = max(self.largest_ts, ts)

    def advance(self, ts: int) -> None:
        """Advance time like a fake binlog that is in no log."""
        self._watermark_ts = max(self._watermark_ts, ts)

    def begin(self, ts: int) -> None:
        """Give Prewrites from now on a floor of at least `ts`, without advancing time."""
        self._begun_ts = max(self._begun_ts, ts)

    def segments_of_chunks(self) -> list[int]:
        return [p.first_segment for p in self.open.values() if p.first_segment != IN_ONE]

    def unmatched(self, older_than_ms: int) -> list[tuple[int, Open]]:
        found = []
        for start_ts, prewrite in self.open.items():
            if prewrite.since_ms > older_than_ms:
                break
            found.append((start_ts, prewrite))
        return found

    def checkpoint(self, head: Place, open_max: int = CHECKPOINT_OPEN_MAX) -> Checkpoint:
        """Return the place to replay from when everything before `head` is indexed.

        That is `head` itself, with a list of the transactions open there. If the list has no room
        for all of them, the youngest are left out, and the replay starts at the first of these.
        """
        known = tuple(itertools.islice(self.open.items(), open_max + 1))
        if len(known) <= open_max:
            return Checkpoint(head, self.largest_ts, known)
        first = known[open_max][1]
        place = Place(first.position.segment, first.position.offset)
        # A floor may be a watermark; the place says that the log has a timestamp.
        return Checkpoint(place, min(first.floor_ts, self.largest_ts), known[:open_max])


class Decided(NamedTuple):
    """How a transaction ended; commit_ts 0 is a Rollback, -1 a Commit at an unknown time."""

    commit_ts: int
    prewrite: Position


@dataclass(slots=True)
class _Generation:
    decided: dict[int, Decided] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    last_group: int = 0


@dataclass(slots=True)
class _Group:
    largest_ts: int
    prewrites: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    decided: dict[int, int] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)


class Ledger:
    """Admits records, then records where they were stored; one thread at a time."""

    def __init__(
        self,
        sorter: Sorter,
        lookup: Index,
        read: Callable[[Position], bytes | None],
        newest_ddl: LoggedDdl = NO_DDL,
    ) -> None:
        self.sorter = sorter
        self.newest_ddl = newest_ddl
        self.open_max = OPEN_MAX
        self.generation_max = GENERATION_MAX
        self.repeated = 0
        self.refused = 0
        self._lookup = lookup
        self._read = read
        # A transaction above these two that is not in memory is in no index either.
        self._start_floor_ts = self._commit_floor_ts = 0
        self._young = _Generation()
        self._old = _Generation()
        self.early = OrderedDict[int, None]()  # Rollbacks that overtook their Prewrites.

    def begin(self, last_ts: tuple[int, int]) -> None:
        """Leave all decided transactions to the index, whose last start_ts and commit_ts these are.

        Called after a replay, which has entered everything before.
        """
        self._start_floor_ts, self._commit_floor_ts = last_ts
        self._young, self._old = _Generation(), _Generation()

    def admit(self, records: Sequence[Record]) -> tuple[list[Record], dict[int, PenstockError]]:
        """Return the records to be stored and, by index, the reasons why others are refused.

        Records in neither are already stored.
        """
        group = _Group(self.sorter.floor_ts)
        stored: list[Record] = []
        refused: dict[int, PenstockError] = {}
        for i, (tp, start_ts, commit_ts, payload, _, _) in enumerate(records):
            try:
                if tp == _PREWRITE:
                    takes = self._takes_prewrite(start_ts, payload, group)
                elif tp == _COMMIT:
                    takes = self._takes_commit(start_ts, commit_ts, group)
                elif tp == CHUNK:
                    takes = True
                elif start_ts == commit_ts:
                    is_past = start_ts <= self.sorter.max_commit_ts
                    takes = not is_past and self._start_ts_at(start_ts, group) is None
                    if takes:
                        group.largest_ts = max(group.largest_ts, start_ts)
                else:
                    takes = self._takes_rollback(start_ts, group)
            except PenstockError as error:
                self.refused += 1
                refused[i] = error
                continue
            if takes:
                stored.append(records[i])
            else:
                self.repeated += 1
        return stored, refused

    def _takes_prewrite(self, start_ts: int, payload: bytes, group: _Group) -> bool:
        if start_ts <= 0:
            raise Contradiction(f"a Prewrite with start_ts {start_ts}")
        open_, prewrites = self.sorter.open, group.prewrites
        if start_ts in open_:
            stored = self._read(open_[start_ts].position)
        elif start_ts in prewrites:
            stored = prewrites[start_ts][0]
        elif (decided := self._decided(start_ts)) is not None:
            stored = self._read(decided.prewrite)  # None when it was purged long ago.
        elif (count := len(open_)) + len(prewrites) >= self.open_max:
            raise TooManyOpen(count, next(iter(open_), start_ts))
        else:
            prewrites[start_ts] = (payload, self.sorter.floor_of(start_ts, group.largest_ts))
            return True
        if stored is None:
            return False
        if is_special(stored) or is_special(payload):  # Chunks have a length and a checksum.
            is_same = identity(stored) == identity(payload)
        else:
            is_same = stored == payload
        if not is_same:
            raise Contradiction(f"two different transactions have the start_ts {start_ts}")
        return False

    def _takes_commit(self, start_ts: int, commit_ts: int, group: _Group) -> bool:
        if not 0 < start_ts < commit_ts:
            raise Contradiction(f"a Commit at {commit_ts} of a transaction begun at {start_ts}")
        floor_ts = self._open_floor_ts(start_ts, group)
        if floor_ts is None:
            return self._repeats_commit(start_ts, commit_ts, group)
        if commit_ts <= floor_ts:
            raise Contradiction(
                f"transaction {start_ts} commits at {commit_ts}, but its Prewrite came after a"
                f" commit at {floor_ts}: the commit_ts was asked for before the Prewrite was stored"
            )
        if (other := self._start_ts_at(commit_ts, group)) is not None:
            raise Contradiction(
                f"transaction {start_ts} commits at {commit_ts}, where {other} has committed"
            )
        group.decided[start_ts] = commit_ts
        group.commits[commit_ts] = start_ts
        if commit_ts > group.largest_ts:
            group.largest_ts = commit_ts
        return True

    def _open_floor_ts(self, start_ts: int, group: _Group) -> int | None:
        """Return the floor of an open transaction, None if it is decided or unknown."""
        if start_ts in group.decided:
            return None
        known = self.sorter.open.get(start_ts)
        if known is not None:
            return known.floor_ts
        own = group.prewrites.get(start_ts)
        return None if own is None or start_ts in self.early else own[1]

    def _repeats_commit(self, start_ts: int, commit_ts: int, group: _Group) -> bool:
        before_ts = self._outcome_ts(start_ts, group)
        if before_ts is None:
            raise NoPrewrite(
                f"the Prewrite of transaction {start_ts}, commit_ts {commit_ts}, is not here",
                code=Code.PREWRITE_MISSING,
            )
        if before_ts == -1:
            entry = self._lookup.commit(commit_ts)
            prewrite = self._lookup.prewrite(start_ts)
            if entry is not None and prewrite is not None and entry.prewrite == prewrite[1]:
                return False
        if before_ts != commit_ts:
            ended = f"committed at {before_ts}" if before_ts > 0 else "ended otherwise"
            ended = "was rolled back" if before_ts == 0 else ended
            raise Contradiction(f"transaction {start_ts} commits at {commit_ts}, but it {ended}")
        return False

    def _takes_rollback(self, start_ts: int, group: _Group) -> bool:
        if start_ts <= 0:
            raise Contradiction(f"a Rollback with start_ts {start_ts}")
        if self._open_floor_ts(start_ts, group) is None:
            before_ts = self._outcome_ts(start_ts, group)
            if before_ts == 0:
                return False
            if before_ts is not None:
                raise Contradiction(f"transaction {start_ts} is rolled back, but it committed")
        group.decided[start_ts] = 0
        return True

    def _outcome_ts(self, start_ts: int, group: _Group) -> int | None:
        """Return how a transaction ended (see `Decided`), None if nothing is known of it."""
        if start_ts in group.decided:
            return group.decided[start_ts]
        if start_ts in self.early:
            return 0
        decided = self._decided(start_ts)
        return None if decided is None else decided.commit_ts

    def _decided(self, start_ts: int) -> Decided | None:
        for generation in (self._young.decided, self._old.decided):
            if start_ts in generation:
                return generation[start_ts]
        if start_ts <= self._start_floor_ts:
            found = self._lookup.prewrite(start_ts)
            if found is not None:
                return Decided(0 if found[0] == ROLLED_BACK else -1, found[1])
        return None

    def _start_ts_at(self, commit_ts: int, group: _Group) -> int | str | None:
        young, old = self._young.commits, self._old.commits
        if commit_ts in young or commit_ts in group.commits or commit_ts in old:
            return group.commits.get(commit_ts) or young.get(commit_ts) or old[commit_ts]
        if commit_ts <= self._commit_floor_ts:
            entry = self._lookup.commit(commit_ts)
            if entry is not None and entry.kind != FAKE:
                return "another one"
        return None

    def enter(
        self, records: Iterable[Fields], positions: Sequence[Position], now_ms: int
    ) -> tuple[list[Entry], dict[int, int], list[tuple[int, Position]]]:
        """Record where records were stored, and return the entries that the index must hold.

        Also returns, for each other segment that holds a Prewrite of theirs, or the first of its
        chunks, the largest commit_ts; and the commit_ts and position of every Commit without open
        Prewrite, which only a replay can meet. Chunks have no entry: their chunk list leads to
        them.
        """
        entries: list[Entry] = []
        needed: dict[int, int] = {}
        orphans: list[tuple[int, Position]] = []
        add, early, push_prewrite = entries.append, self.early, self.sorter.push_prewrite
        for record, position in zip(records, positions, strict=True):
            tp, start_ts, commit_ts, _, first_segment, ddl_job_id = record
            if tp == _PREWRITE:
                kind = TAKEN
                if start_ts in early:
                    del early[start_ts]
                    self._young.decided[start_ts] = Decided(0, position)
                    kind = ROLLED_BACK
                else:
                    push_prewrite(start_ts, position, now_ms, first_segment)
                add((kind, start_ts, position, position))
            elif tp == _COMMIT:
                prewrite = self._committed(start_ts, commit_ts)
                if prewrite is None:
                    orphans.append((commit_ts, position))
                    continue
                begin, oldest, kind = prewrite.position, prewrite.position[0], COMMIT
                if prewrite.first_segment != IN_ONE:  # The other chunks lie in it or after it.
                    oldest, kind = prewrite.first_segment, LARGE
                add((kind, commit_ts, position, begin))
                if ddl_job_id and commit_ts > self.newest_ddl.commit_ts:
                    self.newest_ddl = LoggedDdl(commit_ts, ddl_job_id)
                if oldest != position[0]:
                    needed[oldest] = max(commit_ts, needed.get(oldest, 0))
            else:
                entries += self._enter_rare(record, position)
        return entries, needed, orphans

    def _enter_rare(self, record: Fields, position: Position) -> list[Entry]:
        tp, start_ts, commit_ts, *_ = record
        if tp == CHUNK:
            if isinstance(record, ChunkRecord):  # A replay ignores it.
                record.position = position
            return []
        if start_ts == commit_ts:
            self.sorter.push_fake(start_ts)
            return [(FAKE, start_ts, position, position)]
        where = self._rolled_back(start_ts)
        return [] if where is None else [(ROLLED_BACK, start_ts, where, where)]

    def _committed(self, start_ts: int, commit_ts: int) -> Open | None:
        """Note a stored Commit and return its Prewrite, None if that is not open."""
        prewrite = self.sorter.push_commit(start_ts, commit_ts)
        if prewrite is None:
            return None
        young = self._young  # Below: same as `Decided(…)`, at half the cost.
        young.decided[start_ts] = _new(Decided, (commit_ts, prewrite.position))
        young.commits[commit_ts] = start_ts
        return prewrite

    def _rolled_back(self, start_ts: int) -> Position | None:
        """Note a stored Rollback and return where its Prewrite is, None if that is not open."""
        prewrite = self.sorter.open.pop(start_ts, None)
        if prewrite is None:
            self.early[start_ts] = None
            if len(self.early) > _EARLY_MAX:
                self.early.popitem(last=False)
            return None
        self._young.decided[start_ts] = Decided(0, prewrite.position)
        return prewrite.position

    def end_group(self, number: int, indexed: int) -> None:
        """Note that group `number` is stored, and groups up to `indexed` are in the index."""
        self._young.last_group = number
        if len(self._young.decided) < self.generation_max or self._old.last_group > indexed:
            return
        # Transactions that leave memory must be in the index, where they are found from now on.
        self._start_floor_ts = max(self._start_floor_ts, *self._old.decided, 0)
        self._commit_floor_ts = max(self._commit_floor_ts, *self._old.commits, 0)
        self._old, self._young = self._young, _Generation()
