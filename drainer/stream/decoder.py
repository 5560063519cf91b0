"""Decoder: turns runs of the merged stream into transactions and DDL, by the schema at each point.

    binlog ──┬─ fake, rolled back       time moves
             ├─ DDL ── tracked always ──┬─ filtered: time moves
             │                          └─> Ddl
             └─ rows ── filters, routes ┬─ none is left: time moves
                                        └─> Transaction, its rows still as bytes

Like a Drainer, it counts skipped changes and logs them once.

Rows stay the writer's bytes until the program reads them. A large transaction's rows are in a file
and read from there slice by slice, so they exist until the program requests the next element.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import FollowedDdl
from drainer.differences import IGNORED, TRANSACTIONS, Counts, Skipped, SkippedTotals
from drainer.intake.merger import Merged
from drainer.intake.payload import Limits, Payload, Spooled, SpooledRows, release, start_ts_of
from drainer.planner import DdlStep, Origins, ddl_step, moves_only_time, origin_in
from drainer.schema.tracker import SchemaTracker
from drainer.sinks import committed
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.committed import Changes, RowForm, concerned
from drainer.task.events.messages import PerTable
from drainer.task.row_changes import (
    Lookup,
    Screened,
    TableChanges,
    Targets,
    ignored_counts,
    parse_merged,
    read_changes,
)
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.wire.binlog import Origin

_CLUSTER: Final = "cluster"
_WRITER: Final = "reader"


class Reached(NamedTuple):
    """A position in a cluster's stream: everything up to it was read."""

    cluster_id: int
    checkpoint: Checkpoint

    @property
    def text(self) -> str:
        """The position as JSON for a program to store: the checkpoint and the cluster."""
        return json.dumps(
            json.loads(self.checkpoint.to_json(_WRITER)) | {_CLUSTER: self.cluster_id}
        )

    @classmethod
    def from_text(cls, text: str) -> Reached:
        """Parse a position; raise `Malformed` for any other text."""
        try:
            stored = json.loads(text)
        except ValueError:
            stored = None
        cluster_id = stored.get(_CLUSTER) if isinstance(stored, dict) else None
        if type(cluster_id) is not int:
            raise Malformed(
                f"{text!r} is no checkpoint of a reader",
                "hand back a `checkpoint` as it was; or give a commit_ts, as a number",
                Code.READER_MISUSED,
            )
        return cls(cluster_id, Checkpoint.from_fields(stored))


class _HasCheckpoint:
    __slots__ = ()
    reached: Reached

    @property
    def checkpoint(self) -> str:
        """The checkpoint to store when all up to here is processed, and to pass as `after`."""
        return self.reached.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(committed.Transaction, _HasCheckpoint):
    """Row changes that were committed together; `size_bytes` is their size on a Pump."""

    size_bytes: int
    reached: Reached = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl(committed.Ddl, _HasCheckpoint):
    """A schema change, with the position after it."""

    reached: Reached = field(repr=False)


Committed = Transaction | Ddl


SLICES: Final = Limits(bytes_max=5 << 20, rows_max=50_000)
"""The part of a large transaction that is in memory: more than a mutation of our writers."""


class Portion(NamedTuple):
    """The elements of a run of the stream for a reader, and the run's end."""

    committed: list[Committed]
    reached: Reached


class Decoder:
    """Follows the stream from one place on; for one event loop."""

    def __init__(
        self,
        start: Reached,
        schemas: SchemaTracker,
        *,
        lookup: Lookup,
        follow: Callable[[DdlStep], Awaitable[FollowedDdl]],
        ignored_ts: Set[int] = frozenset(),
        accepted_gap_ts: Set[int] = frozenset(),
        catch_up: CatchUp | None = None,
    ) -> None:
        """Start at `schemas`; `lookup`, `follow` and `catch_up` are those of a Drainer."""
        self._catch_up = catch_up
        self._cluster_id = start.cluster_id
        self._schemas = schemas
        self._follow = follow
        self._ignored_ts = ignored_ts
        self._origins = Origins(start.checkpoint.origins, accepted_gap_ts)
        self._targets = Targets(lookup)
        self._forms = PerTable(RowForm)
        self._pumps: Mapping[str, int] = {}
        self.skipped = SkippedTotals({})

    async def decode(self, merged: Merged, pumps: Mapping[str, int]) -> Portion:
        """Return a run's elements; `pumps` are the participants, for the checkpoints.

        Raises `Malformed` for data that is not a binlog, and `NeedsOperator` for a DDL or rows that
        cannot be followed.
        """
        self._pumps = pumps
        found: list[Committed] = []
        for ts, payload in zip(merged.commit_ts, merged.payloads, strict=True):
            found += await self._before(ts, payload)
            one = await self._one(ts, payload)
            if one is not None:
                found.append(one)
        return Portion(found, self._reached(merged.commit_ts[-1]))

    async def _before(self, ts: int, payload: Payload) -> list[Ddl]:
        """Return the DDL that a transaction's rows need before the DDL's own binlog arrives."""
        if self._catch_up is None or ts in self._ignored_ts:
            return []
        assert isinstance(payload, bytes | Spooled), "no one asked for metadata only"
        steps = await self._catch_up.before(ts, payload, self._targets.of, SLICES)
        made = [await self._ddl(step, step.commit_ts, None) for step in steps]
        return [ddl for ddl in made if ddl is not None]

    async def _one(self, ts: int, payload: Payload) -> Committed | None:
        if isinstance(payload, Spooled):
            origin, value = payload.outline.origin, b""
        else:
            assert isinstance(payload, bytes), "no one asked for metadata only"
            binlog = parse_merged(ts, payload)
            if moves_only_time(binlog):
                return None
            origin, value = origin_in(binlog), binlog.prewrite_value
            if binlog.ddl_job_id > 0:
                self._check_gap(ts, origin)
                return await self._ddl(ddl_step(ts, binlog, self._origins), binlog.start_ts, origin)
        if self._origins.is_repeated(ts, origin):
            release(payload)
            return None
        self._check_gap(ts, origin)
        self._origins.note(origin)
        tables, changes = await self._changes(ts, payload, value)
        if not tables:
            release(payload)
            return None
        return Transaction(
            commit_ts=ts,
            start_ts=start_ts_of(payload),
            origin=origin,
            tables=tables,
            reached=self._reached(ts),
            size_bytes=payload.size if isinstance(payload, Spooled) else len(payload),
            changes=changes,
        )

    def _check_gap(self, ts: int, origin: Origin | None) -> None:
        gap = self._origins.gap(ts, origin)
        if gap is not None:
            raise gap

    async def _changes(
        self, ts: int, payload: bytes | Spooled, value: bytes
    ) -> tuple[tuple[str, ...], Changes]:
        """Return a transaction's tables and its changes; count what is skipped."""
        if ts in self._ignored_ts:
            large = Counts([Skipped(TRANSACTIONS, IGNORED)])
            is_large = isinstance(payload, Spooled)
            self._count(large if is_large else ignored_counts(value, self._targets.of))
            return (), Changes(tuple, self._forms)
        if isinstance(payload, Spooled):
            rows = await asyncio.to_thread(SpooledRows, payload, self._targets.of, SLICES)
            tables, skipped = await asyncio.to_thread(_passing, rows)
            self._count(skipped)
            return tables, Changes(rows.changes, self._forms, payload)
        changes = read_changes(value, self._targets.of)
        for each in changes:
            self._count(each.skipped)
        changes = [each for each in changes if each.rows]
        return _names(changes), Changes(lambda: (changes,), self._forms)

    async def _ddl(self, step: DdlStep, start_ts: int, origin: Origin | None) -> Ddl | None:
        self._targets.clear()
        self._forms = PerTable(RowForm)
        followed = await self._follow(step)
        if step.is_repeated:
            return None
        self._count(followed.skipped)
        change = followed.run
        if change is None:
            return None
        return Ddl(
            commit_ts=step.commit_ts,
            start_ts=start_ts,
            origin=origin,
            tables=concerned(change),
            reached=self._reached(step.commit_ts),
            schema=change.job.schema_name,
            query=change.job.query,
            change=change,
        )

    def _reached(self, ts: int) -> Reached:
        return Reached(
            self._cluster_id,
            Checkpoint(
                ts,
                self._schemas.version,
                origins=self._origins.now(),
                pumps=self._pumps,
                ahead=dict(self._schemas.ahead),
            ),
        )

    def _count(self, counts: Counts | None) -> None:
        if counts:
            self.skipped.reached(self.skipped.after(counts))


def _names(changes: list[TableChanges]) -> tuple[str, ...]:
    names = (f"{each.target[0]}.{each.target[1].name}" for each in changes)
    return tuple(dict.fromkeys(names))


def _passing(rows: SpooledRows) -> tuple[tuple[str, ...], Counts]:
    """Return the tables of which rows pass, and the counts of skipped rows; blocking.

    The file is read only if that depends on the rows.
    """
    targets = rows.targets.values()
    if not any(isinstance(target, Screened) for target in targets):
        return tuple(f"{schema}.{table.name}" for schema, table in targets), Counts()
    found: dict[str, None] = {}
    skipped = Counts()
    for part in rows.changes():
        found.update(dict.fromkeys(_names([each for each in part if each.rows])))
        for each in part:
            skipped.update(each.skipped or {})
    return tuple(found), skipped
