"""Pieces: the merged stream as metadata, cut into runs of transactions that tasks fetch.

    binlog ──┬─ fake               time moves
             ├─ DDL ── tracked ──> Barrier
             ├─ rows ────────────> appended to the open Piece
             └─ large ───────────> a Piece of its own

A piece ends at each DDL, at the limits of a micro-batch, and at given borders: the ends of earlier
micro-batches, and the end of a query over the available data. Rows stay on the Pumps. Of a large
transaction the Pump sends everything, which is discarded here; a task pulls it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from drainer.intake.merger import Merged
from drainer.intake.payload import Remote, Spooled
from drainer.planner import ddl_step, moves_only_time, origin_in
from drainer.schema.snapshot import pack_for_tasks
from drainer.stream.decoder import Ddl, Decoder, Portion, Reached
from drainer.stream.feed import ReaderFeed
from drainer.task.row_changes import parse_merged
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin

PIECE_BYTES: Final = 4 << 20
PIECE_TRANSACTIONS: Final = 8192
"""A task has one piece in memory, and turns it into one record batch."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive transactions of one schema version, up to `reached`; possibly none.

    `owners` are the places in `pumps` of the Pump that has each transaction. `catalog` is the
    schema as `drainer.schema.snapshot` packs it, and `table` the query's table in it.
    """

    reached: Reached = field(repr=False)
    commit_ts: Any
    owners: Any = field(repr=False)
    pumps: tuple[str, ...]
    size: int
    catalog: bytes = field(repr=False)
    table: TableInfo | None = field(repr=False)
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """A DDL; `ddl.reached` is the position after it."""

    ddl: Ddl

    @property
    def reached(self) -> Reached:
        return self.ddl.reached

    @property
    def statement(self) -> Statement:
        ddl = self.ddl
        return Statement(ddl.commit_ts, ddl.start_ts, ddl.schema, ddl.query)


class Statement(NamedTuple):
    """A DDL as a line of a query over all tables."""

    commit_ts: int
    start_ts: int
    schema: str
    query: str


Element = Piece | Barrier


@dataclass(kw_only=True)
class Cuts:
    """Where pieces end beside DDL; `borders` are commit_ts that rise."""

    place: tuple[str, str] | None = None
    bytes_max: int = PIECE_BYTES
    transactions_max: int = PIECE_TRANSACTIONS
    borders: list[int] = field(default_factory=list)


class PieceDecoder(Decoder):
    """Follows the stream without its rows."""

    cuts: Cuts

    async def decode(self, merged: Merged, pumps: Mapping[str, int]) -> Portion:
        """Return a run's pieces and barriers; raises as `Decoder.decode`."""
        self._pumps = pumps
        self._found: list[Any] = []
        self._start_piece()
        for ts, payload in zip(merged.commit_ts, merged.payloads, strict=True):
            if self.cuts.borders and ts > self.cuts.borders[0]:
                self._cut()
                self.cuts.borders = [border for border in self.cuts.borders if border >= ts]
            if isinstance(payload, Remote):
                head = parse_merged(ts, payload.head) if payload.head else None
                if head is None or self._is_new(ts, origin_in(head)):
                    self._add(ts, payload.pump, payload.size)
            elif isinstance(payload, Spooled):
                self._cut()
                if self._is_new(ts, payload.outline.origin):
                    self._add(ts, payload.pump, payload.size)
                    self._cut(is_large=True)
                payload.release()
            else:
                await self._binlog(ts, payload)
        self._cut()
        return Portion(self._found, self._reached(merged.commit_ts[-1]))

    async def _binlog(self, ts: int, payload: bytes) -> None:
        binlog = parse_merged(ts, payload)
        if moves_only_time(binlog):
            return
        if binlog.ddl_job_id == 0:
            raise NeedsOperator(
                f"a Pump sent the rows of transaction {ts}, of which only the metadata was asked",
                "run Pumps of this version, or read the stream with penstock.stream",
                Code.PULL_REFUSED,
            )
        self._cut()
        self._check_gap(ts, origin_in(binlog))
        step = ddl_step(ts, binlog, self._origins)
        ddl = await self._ddl(step, binlog.start_ts, origin_in(binlog))
        self._catalog = None
        if ddl is not None:
            self._found.append(Barrier(ddl))

    _catalog: bytes | None = None

    def _is_new(self, ts: int, origin: Origin | None) -> bool:
        """Return whether a transaction is not a repetition; raise the error of a gap before it."""
        if self._origins.is_repeated(ts, origin):
            return False
        self._check_gap(ts, origin)
        self._origins.note(origin)
        return True

    def _start_piece(self) -> None:
        self._stamps: list[int] = []
        self._owners: list[int] = []
        self._names: dict[str, int] = {}
        self._bytes = 0

    def _add(self, ts: int, pump: str, size: int) -> None:
        cuts = self.cuts
        is_full = len(self._stamps) >= cuts.transactions_max or self._bytes + size > cuts.bytes_max
        if self._stamps and is_full:
            self._cut()
        self._stamps.append(ts)
        self._owners.append(self._names.setdefault(pump, len(self._names)))
        self._bytes += size

    def _cut(self, *, is_large: bool = False) -> None:
        if not self._stamps:
            return
        place = self.cuts.place
        table = None if place is None else self._schemas.catalog.table(*place)
        if self._catalog is None:
            self._catalog = pack_for_tasks(self._schemas)
        piece = Piece(
            reached=self._reached(self._stamps[-1]),
            commit_ts=np.array(self._stamps, np.int64),
            owners=np.array(self._owners, np.uint16),
            pumps=tuple(self._names),
            size=self._bytes,
            catalog=self._catalog,
            table=table,
            is_large=is_large,
        )
        self._found.append(piece)
        self._start_piece()


class PieceFeed(ReaderFeed):
    """A reader's source of pieces."""

    decoding = PieceDecoder
    metadata_only = True

    def __init__(self, *given: Any, cuts: Cuts, **named: Any) -> None:
        super().__init__(*given, **named)
        assert isinstance(self.decoder, PieceDecoder)
        self.decoder.cuts = cuts
