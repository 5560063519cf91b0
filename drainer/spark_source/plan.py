"""Plan: the driver's side of one query. It answers Spark's questions with offsets and pieces.

    latest(start)         the end of the next micro-batch
    pieces(start, end)    the transactions between two offsets, the same each time
    commit(end)           a named query holds nothing before it any more

An offset is {"commit_ts": …, "checkpoint": …}: the checkpoint of a reader at this commit_ts. The
feed opens at the offset of the first question, and again if a question is about a range that it has
passed.

A DDL on the query's table ends the micro-batch before it. Then the query stops, unless rows after
the DDL fit the query's columns: those of a query that restarts are the newest of the history.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import pyarrow as pa

from drainer.ddl.jobs import open_job_source
from drainer.schema.tracker import SchemaTracker
from drainer.spark_source.columns import GENERIC, concerns, is_at, is_compatible, misfit
from drainer.spark_source.options import SourceOptions
from drainer.spark_source.pieces import (
    PIECE_BYTES,
    PIECE_TRANSACTIONS,
    Barrier,
    Cuts,
    Element,
    Piece,
    PieceFeed,
    Statement,
)
from drainer.stream.decoder import Portion, Reached
from drainer.stream.feed import NOW, open_feed
from drainer.stream.reader import LoopThread
from drainer.task.change_batches import line_schema
from penstock.cluster.etcd import connect
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.client import open_oracle
from penstock.schema.model import TableInfo
from penstock.ts import seconds_between

Offset = dict[str, Any]

_LOOK_S: Final = 0.02
_GATHER_S: Final = 2.0
"""How long the next micro-batch may be gathered from a stream that always has more."""
_WAIT_S: Final = 90.0
"""How long a question waits for a stream that does not move."""
_IDLE_S: Final = 60.0
"""While nothing is committed, an offset moves this often, so that a named query holds little."""
_ALL_TS: Final = (1 << 63) - 1


def table_columns(options: SourceOptions) -> pa.Schema:
    """Return a query's columns: those of the table at the end of its range, or of its history."""
    if options.place is None:
        return GENERIC
    etcd = connect(options.etcd, tls=options.tls())
    try:
        source = open_job_source("", etcd, None)
        until_ts = _ALL_TS if options.until in (None, NOW) else options.until
        assert until_ts is not None
        tracker = SchemaTracker.from_history(source.jobs(), until_ts, rules=source.rules)
    finally:
        etcd.close()
    table = tracker.catalog.table(*options.place)
    if table is None or table.kind != "TABLE":
        raise NeedsOperator(
            f"there is no table {'.'.join(options.place)} at the end of what is to be read",
            "correct the option table",
            Code.READER_MISUSED,
        )
    return line_schema(table)


def now_ts(options: SourceOptions) -> int:
    """Return the cluster's time; may be Retryable."""
    etcd = connect(options.etcd, tls=options.tls())
    oracle = open_oracle(etcd, None, options.tls())
    try:
        return oracle.get_ts()
    finally:
        oracle.close()
        etcd.close()


def offset_of(reached: Reached) -> Offset:
    return {"commit_ts": reached.checkpoint.commit_ts, "checkpoint": reached.text}


class SourcePlan:
    """One query's pieces, for one thread."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        """Plan rows with `columns`; the first question connects."""
        self._options, self._columns = options, columns
        self.target_ts: int | None = None
        """The end of a query over the data that is available at its start."""
        self._loop: LoopThread | None = None
        self._base_ts = 0
        self._initial: Offset | None = None
        self._asked: Future[Portion | None] | None = None
        self._elements: deque[Element] = deque()
        self._fitting: TableInfo | None = None

    # --- questions -----------------------------------------------------------------------------

    def initial(self) -> Offset:
        """Return the offset at which a new query starts; Spark may ask more than once."""
        if self._initial is None:
            self.close()
            self._open(self._options.after, (self.target_ts,))
            self._initial = offset_of(self._feed.start)
        return self._initial

    def latest(self, start: Offset, *, limited: bool = True) -> Offset:
        """Return the end of the next micro-batch, `start` if there is nothing new.

        Raises `NeedsOperator` for a DDL that stops the query, and for purged binlogs.
        """
        self._be_at(start, self.target_ts)
        begin_ts, begin_s = start["commit_ts"], time.monotonic()
        waits_until_s = begin_s + _WAIT_S
        while True:
            end, is_full = self._ahead(begin_ts, limited=limited)
            is_long = self.target_ts is None and time.monotonic() > begin_s + _GATHER_S
            if is_full or is_long or self._is_at_target():
                break
            if self._more(_LOOK_S):
                waits_until_s = time.monotonic() + _WAIT_S
            elif self.target_ts is None:
                break
            elif time.monotonic() > waits_until_s:
                raise self._late(self.target_ts)
        if end is not None:
            return offset_of(end)
        idle = self._through
        is_idle = seconds_between(begin_ts, idle.checkpoint.commit_ts) >= _IDLE_S
        return offset_of(idle) if is_idle and self.target_ts is None else start

    def pieces(self, start: Offset, end: Offset) -> Sequence[Piece | Statement]:
        """Return the pieces after `start` up to `end`; the errors are those of `latest`."""
        end_ts = end["commit_ts"]
        self._be_at(start, end_ts)
        waits_until_s = time.monotonic() + _WAIT_S
        while self._through.checkpoint.commit_ts < end_ts:
            if self._more(_LOOK_S):
                waits_until_s = time.monotonic() + _WAIT_S
            elif time.monotonic() > waits_until_s:
                raise self._late(end_ts)
        found: list[Piece | Statement] = []
        for each, ts in self._after(start["commit_ts"]):
            if ts > end_ts:
                break
            if isinstance(each, Barrier):
                self._check_ddl(each)
                if self._options.place is None:
                    found.append(each.statement)
            elif self._has_rows(each):
                found.append(each)
        return found

    def commit(self, end: Offset) -> None:
        """Forget what Spark has processed; Pumps may purge it."""
        if self._loop is None:
            return
        self._feed.acknowledged_ts = max(self._feed.acknowledged_ts, end["commit_ts"])
        while self._elements and _end_ts(self._elements[0]) <= end["commit_ts"]:
            self._elements.popleft()
        self._base_ts = max(self._base_ts, end["commit_ts"])

    def addresses(self) -> dict[str, str]:
        return self._feed.addresses()

    @property
    def cluster_id(self) -> int:
        return self._feed.start.cluster_id

    def close(self) -> None:
        """Leave the cluster; a named query keeps its position."""
        if self._loop is not None:
            loop, self._loop, self._asked = self._loop, None, None
            self._elements.clear()
            try:
                loop.run(self._feed.close())
            finally:
                loop.end()

    # --- the feed ------------------------------------------------------------------------------

    def _be_at(self, start: Offset, border_ts: int | None) -> None:
        """Open the feed, unless it has what follows `start`, cut at the border."""
        begin_ts = start["commit_ts"]
        if self._loop is not None and begin_ts >= self._base_ts:
            reached_ts = self._through.checkpoint.commit_ts
            if begin_ts <= reached_ts and (border_ts is None or self._is_cut_at(border_ts)):
                return
        self.close()
        self._open(start["checkpoint"], (border_ts, self.target_ts))

    def _is_cut_at(self, border_ts: int) -> bool:
        for each in self._elements:
            if _end_ts(each) >= border_ts:
                if isinstance(each, Barrier) or _end_ts(each) == border_ts:
                    return True
                return int(each.commit_ts[0]) > border_ts
        return border_ts <= self._through.checkpoint.commit_ts or border_ts in self._borders

    def _open(self, after: int | str, borders: Sequence[int | None]) -> None:
        options = self._options
        self._borders = {border for border in borders if border is not None}
        cuts = Cuts(
            place=options.place,
            bytes_max=min(PIECE_BYTES, options.bytes_max),
            transactions_max=min(PIECE_TRANSACTIONS, options.transactions_max or _ALL_TS),
            borders=sorted(self._borders),
        )
        opened = open_feed(
            options.etcd,
            after=after,
            name=options.name,
            filter=None,
            tls=options.tls(),
            options=None,
            made=partial(PieceFeed, cuts=cuts),
        )
        self._loop = LoopThread()
        try:
            self._feed = self._loop.run(opened)
        except BaseException:
            self._loop.end()
            self._loop = None
            raise
        self._through = self._feed.start
        self._base_ts = self._feed.start.checkpoint.commit_ts

    def _more(self, timeout_s: float) -> bool:
        """Take what the feed has next; return whether it had something in time."""
        assert self._loop is not None
        if self._asked is None:
            self._asked = self._loop.begin(self._feed.more())
        try:
            portion = self._asked.result(timeout_s)
        except TimeoutError:
            return False
        except Exception:
            self._asked = None
            raise
        self._asked = None
        assert portion is not None, "only this object closes the feed"
        self._elements.extend(portion.committed)  # type: ignore[arg-type]
        self._through = portion.reached
        return True

    # --- the next micro-batch ------------------------------------------------------------------

    def _after(self, ts: int) -> Iterator[tuple[Element, int]]:
        for each in self._elements:
            end_ts = _end_ts(each)
            if end_ts > ts:
                yield each, end_ts

    def _ahead(self, begin_ts: int, *, limited: bool) -> tuple[Reached | None, bool]:
        """Return the end of what may follow, and whether more may not be added to it."""
        end: Reached | None = None
        size = count = 0
        for each, end_ts in self._after(begin_ts):
            if self.target_ts is not None and end_ts > self.target_ts:
                return end, True
            if isinstance(each, Barrier):
                if size and self._concerns(each):
                    return end, True
                self._check_ddl(each)
                end = each.reached
                continue
            self._has_rows(each)
            size, count = size + each.size, count + len(each.commit_ts)
            if end is not None and limited and self._is_over(size, count):
                return end, True
            end = each.reached
        return end, limited and self._is_over(size, count)

    def _is_over(self, size: int, count: int) -> bool:
        most = self._options.transactions_max
        return size > self._options.bytes_max or (most is not None and count > most)

    def _is_at_target(self) -> bool:
        target_ts = self.target_ts
        return target_ts is not None and self._through.checkpoint.commit_ts >= target_ts

    def _late(self, ts: int) -> Retryable:
        why = self._feed.waits_for() or "no Pump has moved"
        return Retryable(
            f"the stream has not come to {ts} for {_WAIT_S:.0f} s: {why}", Code.NO_PUMP
        )

    # --- the table -----------------------------------------------------------------------------

    def _concerns(self, barrier: Barrier) -> bool:
        place = self._options.place
        return place is not None and concerns(barrier.ddl.change, place)

    def _check_ddl(self, barrier: Barrier) -> None:
        """Raise `NeedsOperator` if the query must stop before this DDL."""
        place, ddl = self._options.place, barrier.ddl
        if place is None or not concerns(ddl.change, place):
            return
        name, ts = ".".join(place), ddl.commit_ts
        if not is_compatible(ddl.change, place):
            raise NeedsOperator(
                f"the DDL at {ts}, {ddl.query!r}, changes {name} so that one schema does not hold"
                " the changes before and after it; everything before it was read",
                "make the same change in what this query writes; then start a query with another"
                f' checkpoint location and .option("after", "{ts}")',
                Code.SINK_DDL,
            )
        for schema, _, after in ddl.change.altered:
            if is_at(place, schema, after) and (column := misfit(after, self._columns)):
                if misfit(after, table_columns(self._options)):
                    raise self._left(ts, after, column)
                raise NeedsOperator(
                    f"the DDL at {ts}, {ddl.query!r}, gives {name} the column {column!r}, which"
                    " this query's schema does not hold; everything before it was read",
                    "start the query again: it continues here with the new columns",
                    Code.SINK_DDL,
                )

    def _has_rows(self, piece: Piece) -> bool:
        """Return whether a piece may have rows of the query's table, which fit its columns."""
        place = self._options.place
        if place is None:
            return True
        if piece.table is None:
            return False
        if piece.table is not self._fitting:
            column = misfit(piece.table, self._columns)
            if column:
                raise self._left(int(piece.commit_ts[0]), piece.table, column)
            self._fitting = piece.table
        return True

    def _left(self, ts: int, table: TableInfo, column: str) -> NeedsOperator:
        """Return the error for changes from before a DDL that is not compatible."""
        name, by = ".".join(self._options.place or ()), self._ddl_after(ts, table)
        return NeedsOperator(
            f"{name} has at {ts} the column {column!r}, which the query's schema does not hold:"
            f" {by} has changed it since",
            "read up to that DDL, or after it",
            Code.SINK_DDL,
        )

    def _ddl_after(self, ts: int, table: TableInfo) -> str:
        """Name the first DDL after which rows do not fit the table of the time before."""
        etcd = connect(self._options.etcd, tls=self._options.tls())
        try:
            jobs = open_job_source("", etcd, None).jobs()
        finally:
            etcd.close()
        for job in sorted(jobs, key=lambda job: job.finished_ts):
            made = [job.table] if job.table is not None else [each for _, each in job.tables]
            if job.finished_ts > ts and table.id in (job.table_id, *(each.id for each in made)):
                same = [each for each in made if each.id == table.id]
                if not same or misfit(table, line_schema(same[0])):
                    return f"the DDL at {job.finished_ts}, {job.query!r},"
        return "a later DDL"


def _end_ts(each: Element) -> int:
    return each.reached.checkpoint.commit_ts
