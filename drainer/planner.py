"""Planner: cuts the merged stream into steps, which are batches of rows or stand alone.

    merged   r r r r f r r D f r r r …       r rows, D a DDL, f a fake binlog
    steps    [r r r r f r r] [D] [f r r r …
                             ^ a barrier: everything before it is a separate step

A batch ends at a DDL, at `rows_max` rows, at `bytes_max` bytes, where a table's version changes, or
when the pipeline requests the open batch because no task is busy. A transaction is never split: a
transaction larger than the limits is a batch. A transaction in a spool file, because it is too
large for memory, is a separate step, like a DDL.

A batch of which an earlier run may have left parts downstream is cut as that run cut it: at its
last `commit_ts`, whatever the limits say.

**Transactions that a source passes on are applied once**, however often it passes them on:

    place      epoch, file, position of an origin: grows strictly within a source
    seen       the last place of each source, kept in the checkpoint: it moves with the changes

A source that was killed restarts at its remembered place, which may be before the last transaction
that it brought in. It commits in the order of its places, so every transaction at or before the
last place seen is already downstream. A transaction may name its predecessor (`previous`), which
was committed before it with a smaller `commit_ts` (`pumpclient.mysql.source.sync.syncer` says why).
Everything in the stream after the last place seen has come here. If a predecessor is beyond the
last place seen, it is therefore missing: the stream has a gap, and the planner stops before it.

A source never returns to an epoch that it has left. The places where the last epochs ended are
therefore also kept. Transactions of such an epoch up to that place are repetitions. Beyond it, the
source continues an epoch that it has left, for example after a restore of etcd, and the planner
stops.

Places prove a repetition only within one history, and a new epoch repeats nothing only if the
source knew all of its earlier commits. If its checkpoint was older (etcd was restored, or the
source was killed) and its relay log is lost, neither is certain. The planner therefore stops if

* an epoch has another `history` than before, which is kept for the last and the kept epochs;
* an epoch begins `after` a place that is before the last place seen.

Why a transaction T of epoch E is then never applied twice, and never taken for a repetition of
another. If the last place seen is in E, it is of the history of T: places order them, and the
source has read, and passed on or known, everything up to it. If it is in an earlier epoch, it is
not beyond `after`. An epoch in which nothing was committed does not move `after`, so the source
committed in the epoch of `after`, in the stream before T and in the history that was checked there.
The GTIDs from which E began thus contain all that was seen.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from drainer.differences import Counts
from drainer.intake.merger import Merged
from drainer.intake.payload import Limits, Payload, Remote, RemoteRun, Spooled
from drainer.schema.ahead import AheadRow
from drainer.task.row_changes import (
    Collector,
    Lookup,
    Targets,
    ignored_counts,
    parse_merged,
    read_changes,
)
from drainer.task.row_fetch import RemoteTransactions
from drainer.task.work_unit import TableRows, TransactionStart
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.wire.binlog import BinlogType, Origin, Place
from penstock.wire.codec import origin_of

log = logging.getLogger(__name__)

_RUN_MIN = 8
"""Shorter runs cost more than their transactions one by one."""


@dataclass(frozen=True, slots=True)
class RowsStep:
    """All row changes after the step before, up to `commit_ts`; without rows only time moves.

    If a step has `remote`, its rows are still on the Pumps: their number is known once they are
    fetched.
    """

    commit_ts: int
    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    tables: list[TableRows] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list, compare=False)
    """The commit_ts of each transaction, by its number in `tables`."""
    starts: Mapping[int, TransactionStart] = field(default_factory=dict, compare=False)
    """The start of each of them, by its commit_ts."""
    origins: Mapping[str, Place] = field(default_factory=dict)
    remote: RemoteTransactions | None = None
    skipped: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class DdlStep:
    """A schema change, alone: everything before it is in earlier steps.

    If it `is_repeated`, it was downstream before: the schema is followed, and nothing is run.
    `schema_state` is a TiDB's progress with the objects that the DDL changes, 0 at other writers.
    If it `is_ahead`, it runs before its binlog; `maybe_done` says that it may have run already.
    """

    commit_ts: int
    job_id: int
    query: str
    origins: Mapping[str, Place] = field(default_factory=dict)
    is_repeated: bool = False
    schema_state: int = 0
    is_ahead: bool = False
    maybe_done: bool = False


@dataclass(frozen=True, slots=True)
class LargeStep:
    """One transaction that is in a spool file, alone; its slices stay within `limits`.

    If it `is_ignored`, it is only counted. Skipped changes are known once the step is prepared.
    """

    commit_ts: int
    payload: Spooled
    lookup: Lookup
    limits: Limits
    origins: Mapping[str, Place] = field(default_factory=dict)
    is_ignored: bool = False
    skipped: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class AheadStep:
    """Rows come that may need a DDL before its binlog; they are checked again after this step."""

    commit_ts: int
    """The last commit_ts before the rows'."""
    row: AheadRow
    origins: Mapping[str, Place] = field(default_factory=dict)


Step = RowsStep | DdlStep | LargeStep


class Planner:
    """The cutter; pure: it is given binlogs and asked for the next step."""

    def __init__(
        self,
        lookup: Lookup,
        *,
        rows_max: int,
        bytes_max: int,
        ignored_ts: Set[int] = frozenset(),
        whole_ts: int = 0,
        origins: Mapping[str, Place] | None = None,
        accepted_gap_ts: Set[int] = frozenset(),
        ahead: Callable[[bytes], AheadRow | None] | None = None,
    ) -> None:
        """Start empty; `lookup` resolves table ids and is asked again after each DDL.

        Rows whose commit_ts is among `ignored_ts` are skipped, with a line in the log. Everything
        up to `whole_ts` is one batch, if possible. Transactions that are not beyond `origins`, the
        last places seen of each source, are skipped. Transactions of a source may be missing before
        those at `accepted_gap_ts`, and in the range that an earlier run applied. `ahead` is asked
        of each transaction whether its rows may need a DDL that is still to come.
        """
        self._origins = Origins(origins or {}, accepted_gap_ts)
        self._whole_ts = whole_ts
        self._ahead = ahead
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._limits = Limits(bytes_max=bytes_max, rows_max=rows_max)
        self._ignored_ts = ignored_ts
        self._waiting: deque[tuple[int, Payload] | Merged] = deque()
        """A run consists of transactions of which only Pump and size matter."""
        self._targets = Targets(lookup)
        self._start_batch()

    def _start_batch(self) -> None:
        self._collector = Collector()
        self._remote = RemoteTransactions()
        self._skipped = Counts()
        self._through_ts = 0
        self._transactions = 0

    @property
    def rows(self) -> int:
        """Number of rows in the open batch, or of transactions whose rows must be fetched."""
        return self._collector.rows or len(self._remote.commit_ts)

    @property
    def repeated(self) -> int:
        return self._origins.repeated

    def offer(self, merged: Merged) -> None:
        stamps, run = merged.commit_ts, merged.payloads
        alone = self._alone(stamps, run) if isinstance(run, RemoteRun) else None
        if alone is None or not isinstance(run, RemoteRun):
            self._waiting.extend(zip(stamps, run, strict=True))
            return
        begin = 0
        for end in (*alone, len(run)):
            if end > begin:
                self._waiting.append(Merged(stamps[begin:end], run[begin:end], 0))
            if end < len(run):
                self._waiting.append((stamps[end], run[end]))
            begin = end + 1

    def _alone(self, stamps: Sequence[int], run: RemoteRun) -> list[int] | None:
        """Return the places of binlogs that are looked at one by one; None if most of them are."""
        alone = run.has_more
        alone[: bisect_right(stamps, self._whole_ts)] = True
        if self._ignored_ts:
            alone |= np.isin(stamps, list(self._ignored_ts))
        places: list[int] = np.flatnonzero(alone).tolist()
        return places if len(places) * _RUN_MIN <= len(run) else None

    def cut_before_ddl(self) -> RowsStep | None:
        """End the open batch, if any, before a table-changing DDL that no binlog names."""
        self._targets.clear()
        return self._cut()

    def next_step(self) -> Step | AheadStep | None:
        """Return the next finished step; None if all offered binlogs are in the open batch.

        Raises `Malformed` for a payload that is not a committed binlog.
        """
        while self._waiting:
            first = self._waiting[0]
            ts = first.commit_ts[0] if isinstance(first, Merged) else first[0]
            if 0 < self._through_ts <= self._whole_ts < ts:
                # The earlier run's batch may have ended at a watermark, which is in no log.
                self._through_ts = self._whole_ts
                step: Step | AheadStep | None = self._cut()
            elif isinstance(first, Merged):
                step = self._advance_run(first)
            else:
                step = self._advance(*first)
            if step is not None:
                return step
        return None

    def cut(self) -> RowsStep | None:
        """End the open batch; None if nothing came since the last step, or it must grow."""
        return None if self._through_ts < self._whole_ts else self._cut()

    def _cut(self) -> RowsStep | None:
        if not self._through_ts:
            return None
        collected = self._collector
        step = RowsStep(
            commit_ts=self._through_ts,
            transactions=self._transactions,
            rows=collected.rows,
            bytes=collected.bytes or self._remote.bytes,
            tables=collected.tables(),
            stamps=collected.commit_ts,
            starts=collected.starts,
            origins=self._origins.now(),
            remote=self._remote if self._remote.commit_ts else None,
            skipped=self._skipped + collected.skipped,
        )
        self._start_batch()
        return step

    def _advance(self, ts: int, payload: Payload) -> Step | AheadStep | None:
        if not isinstance(payload, bytes):
            return self._advance_handle(ts, payload)
        binlog = parse_merged(ts, payload)
        if moves_only_time(binlog):
            self._waiting.popleft()
            self._through_ts = ts
            return None
        if binlog.ddl_job_id > 0:
            return self._cut() or self._advance_ddl(ts, binlog)
        origin = origin_in(binlog)
        if self._origins.is_repeated(ts, origin):
            self._pass_over(ts)
            return None
        if (before := self._check_gap(ts, origin)) is not None:
            return before
        if self._is_ignored(ts):
            self._origins.note(origin)
            self._skipped += ignored_counts(binlog.prewrite_value, self._targets.of)
            self._pass_over(ts)
            return None
        due = self._due_before(ts, binlog.prewrite_value)
        if due is not None:
            return due
        size = len(payload)
        limited = ts > self._whole_ts
        if limited and self._collector.rows and self._collector.bytes + size > self._bytes_max:
            return self._cut()
        changes = read_changes(binlog.prewrite_value, self._targets.of)
        if not self._collector.fits(changes):
            return self._cut()
        self._waiting.popleft()
        self._origins.note(origin)
        self._collector.add(changes, size, ts, TransactionStart(binlog.start_ts, origin))
        self._transactions += 1
        self._through_ts = ts
        full = self._collector.rows >= self._rows_max or self._collector.bytes >= self._bytes_max
        return self._cut() if full and limited else None

    def _advance_ddl(self, ts: int, binlog: Any) -> DdlStep:
        self._check_gap(ts, origin_in(binlog))
        self._waiting.popleft()
        self._targets.clear()
        return ddl_step(ts, binlog, self._origins)

    def _due_before(self, ts: int, prewrite_value: bytes) -> Step | AheadStep | None:
        if self._remote.commit_ts:
            return self._cut()
        row = None if self._ahead is None else self._ahead(prewrite_value)
        return None if row is None else AheadStep(ts - 1, row, self._origins.now())

    def _advance_handle(self, ts: int, payload: Spooled | Remote) -> Step | None:
        if isinstance(payload, Spooled):
            return self._advance_large(ts, payload)
        return self._advance_remote(ts, payload)

    def _advance_remote(self, ts: int, payload: Remote) -> Step | None:
        origin = origin_in(parse_merged(ts, payload.head)) if payload.head else None
        if self._origins.is_repeated(ts, origin):
            self._pass_over(ts)
            return None
        if (before := self._check_gap(ts, origin)) is not None:
            return before
        remote, size, limited = self._remote, payload.size, ts > self._whole_ts
        over = bool(remote.commit_ts) and remote.bytes + size > self._bytes_max
        if self._collector.rows or (limited and over):
            return self._cut()
        self._waiting.popleft()
        self._origins.note(origin)
        remote.add(
            ts,
            payload.pump,
            size,
            start_ts=payload.start_ts,
            origin=origin,
            is_ignored=self._is_ignored(ts),
        )
        self._transactions += 1
        self._through_ts = ts
        full = len(remote.commit_ts) >= self._rows_max or remote.bytes >= self._bytes_max
        return self._cut() if full and limited else None

    def _advance_run(self, merged: Merged) -> RowsStep | None:
        """Do what `_advance_remote` does for each transaction, up to the end of the batch."""
        if self._collector.rows:
            return self._cut()
        remote, stamps, run = self._remote, merged.commit_ts, merged.payloads
        assert isinstance(run, RemoteRun), "others wait one by one"
        ends = run.sizes.cumsum()
        fit = int(ends.searchsorted(self._bytes_max - remote.bytes, "right"))
        count = min(fit, self._rows_max - len(remote.commit_ts), len(run))
        if count <= 0:
            if remote.commit_ts:
                return self._cut()
            count = 1
        self._waiting.popleft()
        if count < len(run):
            self._waiting.appendleft(Merged(stamps[count:], run[count:], 0))
        remote.know(run.pumps)
        taken = run[:count]
        owners = taken.owners_in(remote.pumps)
        remote.extend(stamps[:count], taken.start_ts, owners, taken.sizes)
        self._transactions += count
        self._through_ts = stamps[count - 1]
        full = len(remote.commit_ts) >= self._rows_max or remote.bytes >= self._bytes_max
        return self._cut() if full else None

    def _advance_large(self, ts: int, payload: Spooled) -> Step | None:
        before = self._cut()
        if before is not None:
            return before
        self._waiting.popleft()
        origin = payload.outline.origin
        if self._origins.is_repeated(ts, origin):
            payload.release()
            self._through_ts = ts
            return None
        self._check_gap(ts, origin)
        self._origins.note(origin)
        places, is_ignored = self._origins.now(), self._is_ignored(ts)
        return LargeStep(ts, payload, self._targets.of, self._limits, places, is_ignored)

    def _check_gap(self, ts: int, origin: Origin | None) -> RowsStep | None:
        """If transactions are missing before this one, return the open batch, then raise."""
        gap = self._origins.gap(ts, origin) if ts > self._whole_ts else None
        if gap is None:
            return None
        before = self._cut()
        if before is None:
            raise gap
        return before

    def _pass_over(self, ts: int) -> None:
        self._waiting.popleft()
        self._through_ts = ts

    def _is_ignored(self, ts: int) -> bool:
        if ts not in self._ignored_ts:
            return False
        log.warning("transaction %d is in ignore-txn-commit-ts: it is skipped", ts)
        return True


def moves_only_time(binlog: Any) -> bool:
    """Return whether a merged binlog has neither row changes nor an effective DDL."""
    # TiDB sends a sequence's value; values are in the rows, so none is replicated.
    is_setval: bool = binlog.ddl_query[:13].lower() == b"select setval"
    return is_setval or bool(binlog.tp == BinlogType.ROLLBACK)


def origin_in(binlog: Any) -> Origin | None:
    """Return the origin of a merged binlog's transaction, None for the writer's own."""
    return origin_of(binlog.origin) if binlog.HasField("origin") else None


def ddl_step(ts: int, binlog: Any, origins: Origins) -> DdlStep:
    origin = origin_in(binlog)
    is_repeated = origins.is_repeated(ts, origin)
    if not is_repeated:
        origins.note(origin)
    query = binlog.ddl_query.decode("utf-8", "replace")
    state = binlog.ddl_schema_state
    return DdlStep(ts, binlog.ddl_job_id, query, origins.now(), is_repeated, state)


class Origins:
    """The places seen of each source so far, in the order of the merged stream."""

    def __init__(self, seen: Mapping[str, Place], accepted_gap_ts: Set[int] = frozenset()) -> None:
        self._accepted_gap_ts = accepted_gap_ts
        self._seen = dict(seen)
        self._is_shared = False
        self._in_older_epochs: set[str] = set()
        self.repeated = 0
        """The number of transactions that came before."""

    def is_repeated(self, ts: int, origin: Origin | None) -> bool:
        """Return whether a transaction is repeated; if so, count it and sometimes log it."""
        if origin is None:
            return False
        last = self._seen.get(origin.source)
        if last is None:
            return False
        if self._contradiction(origin, last):
            if ts not in self._accepted_gap_ts:
                return False
            log.warning(
                "transactions of %s in epoch %d are skipped from transaction %d on, as"
                " accept-gap-commit-ts says",
                origin.source, origin.epoch, ts,
            )  # fmt: skip
            last = self._leave_out(origin, last)
        elif origin.place > last:
            return False
        self.repeated += 1
        if self.repeated & (self.repeated - 1) == 0:  # The 1st, 2nd, 4th, 8th … of them.
            log.warning(
                "transaction %d is from %s, %s, which was here before (the last one: %s):"
                " it is skipped, the %d. of this kind",
                ts, origin.source, origin.place, last, self.repeated,
            )  # fmt: skip
        is_known = origin.epoch == last[0] or self._end_of(origin) is not None
        if not is_known and origin.source not in self._in_older_epochs:
            self._in_older_epochs.add(origin.source)
            log.error(
                "source %s writes in epoch %d, but it has begun epoch %d: what it writes now is"
                " skipped (if it runs in that epoch, etcd was restored from before its last load:"
                " stop it and run penstock source reload --all)",
                origin.source, origin.epoch, last[0],
            )  # fmt: skip
        return True

    def _end_of(self, origin: Origin) -> Place | None:
        """Return where the epoch of an origin ended; None for the last one, or one not known."""
        return self._seen.get(_end_key(origin.source, origin.epoch))

    def _contradiction(self, origin: Origin, last: Place) -> str:
        """Return why a transaction does not continue the places seen; empty if it may."""
        if origin.history:
            known = self._seen.get(_history_key(origin.source, origin.epoch))
            if known is not None and known[1] != origin.history:
                return "in an epoch in which another server's binlog was read before"
        if origin.epoch > last[0]:
            if origin.after is not None and origin.after < last:
                return f"in an epoch that begins after {origin.after}"
        elif origin.epoch < last[0]:
            end = self._end_of(origin)
            if end is not None and origin.place > end:
                return f"in an epoch that ended at {end}"
        return ""

    def _leave_out(self, origin: Origin, last: Place) -> Place:
        """Count the whole epoch of an origin as seen; return the last place seen."""
        never = (origin.epoch, _NEVER, 0)
        if origin.epoch < last[0]:
            self._put(_end_key(origin.source, origin.epoch), never)
        else:
            self.note(replace(origin, file=_NEVER, position=0))
        if origin.history:
            self._put(*_history_of(origin))
        return max(last, never)

    def gap(self, ts: int, origin: Origin | None) -> NeedsOperator | None:
        """Return an error if transactions are missing before a transaction not seen before."""
        if origin is None:
            return None
        last = self._seen.get(origin.source)
        if last is not None and (why := self._contradiction(origin, last)):
            if ts in self._accepted_gap_ts:
                return None
            return NeedsOperator(
                f"transaction {ts} is from {origin.source}, {origin.place}, {why}; the last one"
                f" seen is {last}",
                "the source continued from an older checkpoint, as after a restore of etcd. Stop"
                " the source, run penstock source reload --all, and start it. Then start this"
                f" Drainer with accept-gap-commit-ts = [{ts}], which skips the transactions of the"
                f" source in epoch {origin.epoch}",
                Code.ORIGIN_GAP,
            )
        if origin.previous is None:
            return None
        previous = (origin.epoch, *origin.previous)
        if last is None or previous <= last:
            return None
        text = (
            f"transaction {ts} is from {origin.source}, {origin.place}, and comes after"
            f" {previous}, which is not in the stream: the last one is {last}"
        )
        if ts in self._accepted_gap_ts:
            log.warning("%s; accept-gap-commit-ts names it, so it is applied", text)
            return None
        return NeedsOperator(
            text,
            "what lies between is missing downstream. Find out what was lost, then start with"
            f" accept-gap-commit-ts = [{ts}] and repair the tables: penstock verify --repair, or"
            " penstock source reload",
            Code.ORIGIN_GAP,
        )

    def note(self, origin: Origin | None) -> None:
        if origin is None:
            return
        last = self._seen.get(origin.source)
        if last is not None and last[0] < origin.epoch:
            self._put(_end_key(origin.source, last[0]), last)
            ends = sorted(p for n, p in self._seen.items() if n.startswith(_end_key(origin.source)))
            for epoch, *_ in ends[:-_ENDS_MAX]:
                del self._seen[_end_key(origin.source, epoch)]
                self._seen.pop(_history_key(origin.source, epoch), None)
        self._put(origin.source, origin.place)
        if origin.history and _history_key(origin.source, origin.epoch) not in self._seen:
            self._put(*_history_of(origin))

    def _put(self, name: str, place: Place) -> None:
        if self._is_shared:
            self._seen, self._is_shared = dict(self._seen), False
        self._seen[name] = place

    def now(self) -> Mapping[str, Place]:
        """Return a fixed snapshot of each source's last place."""
        self._is_shared = True
        return self._seen


_ENDS_MAX = 4
_NEVER = (1 << 63) - 1


def _end_key(source: str, epoch: int | str = "") -> str:
    """Return under which name the end of an epoch is kept; no source has a / in its name."""
    return f"{source}/epoch-{epoch}"


@lru_cache(maxsize=64)
def _history_key(source: str, epoch: int) -> str:
    return f"{source}/history-{epoch}"


def _history_of(origin: Origin) -> tuple[str, Place]:
    """Return how the history of an origin's epoch is kept."""
    return _history_key(origin.source, origin.epoch), (origin.epoch, origin.history, 0)
