"""Operator: carries out an operator's requests: status, pause, go offline, move the log, purge.

    online ── Pause ──> pausing ──────────────────────────────────────────────> paused
    online ── Close ──> closing ── every Drainer's checkpoint passed our end ──> offline
    online ── MoveLog ──> another Pump serves the log, and this process ends

Paused means "will be back with the binlogs it holds", so the Drainers wait for it. Offline means
"everything here was applied, forget me". If everything a paused Pump holds was applied, its last
word allows it to go offline without a start (`penstock.cluster.records`).

A Drainer that is dead but not offline will need its binlogs when it restarts. It blocks `Close`,
and log and status name it. With `empty_disk`, replicas of other Pumps' logs on this disk also block
`Close` until other disks have them. `Close` may be repeated while closing, to name Drainers that
must not be waited for as long as they are dead; binlogs that such a Drainer loses are an error in
the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, coded
from penstock.pb import penstock_pb2 as pb
from penstock.ts import seconds_between
from penstock.wire.codec import decode_binlog

if TYPE_CHECKING:
    from penstock.cluster.node_registry import NodeStatus
    from pump.cluster.clock import FakeBinlogs
    from pump.cluster.membership import Membership
    from pump.cluster.retention import Retention
    from pump.replication.draining import Draining, Moving
    from pump.store.storage import Storage
from penstock.node.output import reply_of

log = logging.getLogger(__name__)

_CLOSE_TICK_S = 0.5
_PROGRESS_EVERY_S = 5.0


class Operator:
    """The commands of `penstock.Pump`, and the events that end the process."""

    def __init__(
        self,
        *,
        node_id: str,
        storage: Storage,
        membership: Membership,
        fake_binlogs: FakeBinlogs,
        retention: Retention,
        facts: Callable[..., object],
        scrub: Callable[[], str] = lambda: "there is nothing to be read",
        moving: Moving | None = None,
        draining: Draining | None = None,
    ) -> None:
        """`moving` moves the log, None for a log with one copy.

        `draining` drains the replicas of other Pumps' logs, None for a Pump that keeps none.
        """
        self.close_tick_s = _CLOSE_TICK_S
        self.node_id = node_id
        self._storage = storage
        self._membership = membership
        self._fake_binlogs = fake_binlogs
        self._retention = retention
        self._begin_scrub = scrub
        self._facts = facts
        self._closing: asyncio.Task[None] | None = None
        self._skipped: set[str] = set()
        self._empties_disk = False
        self._progress = ""
        self._moving = moving
        self._draining = draining
        self.ended = asyncio.Event()
        self.drained = False

    def status(self) -> pb.StatusReply:
        moving = "" if self._moving is None else self._moving.progress
        commit_ts, job_id = self._storage.newest_ddl
        return reply_of(
            self._facts(closing=self._progress, moving=moving),
            node_id=self.node_id,
            state=str(self._membership.state),
            max_commit_ts=self._storage.max_commit_ts,
            newest_ddl=pb.NewestDdl(job_id=job_id, commit_ts=commit_ts),
        )

    def query_of(self, commit_ts: int) -> str:
        try:
            payload = self._storage.get(commit_ts)
            return decode_binlog(payload).ddl_query.decode(errors="replace") if payload else ""
        except (PenstockError, OSError) as error:
            log.info("the DDL at %d cannot be read: %s", commit_ts, error)
            return ""

    async def pause(self, node_id: str) -> None:
        """Refuse Prewrites from now on and end the process; `NeedsOperator` unless online."""
        self._check(node_id, NodeState.ONLINE)
        await self._membership.enter(NodeState.PAUSING)
        self.ended.set()

    async def close(
        self, node_id: str, skip_drainers: Collection[str] = (), *, empty_disk: bool = False
    ) -> None:
        """Refuse Prewrites from now on, and end when every Drainer has everything.

        Drainers in `skip_drainers` are not waited for while they are dead; a second call may add
        some. With `empty_disk`, other disks must also have the replicas that are here. Raises
        `NeedsOperator` unless online or closing, and for a Drainer to skip that is unknown or
        runs; `Retryable` when etcd cannot be asked about those Drainers.
        """
        self._check(node_id, NodeState.ONLINE, NodeState.CLOSING)
        if skip_drainers:
            self._check_skipped(skip_drainers, await self._membership.drainers())
            self._skipped |= set(skip_drainers)
            log.warning("drainers not waited for while they are dead: %s", sorted(self._skipped))
        if empty_disk and self._moving is not None and self._moving.served_by != node_id:
            raise NeedsOperator(
                f"the log of {node_id} is served by pump {self._moving.served_by} now, which cannot"
                f" empty the disk of {node_id}",
                f"stop {node_id} by SIGTERM: it hands over the copies that are on its disk",
                Code.NODE_OTHER,
            )
        if empty_disk and self._draining is not None:
            await self._draining.set_draining(True)
            self._empties_disk = True
        if self._closing is None:
            self._progress = "begins"
            self._closing = asyncio.create_task(self._drain())
            await self._membership.enter(NodeState.CLOSING)

    async def move_log(self, node_id: str, to: str) -> str:
        """Start to move the log to Pump `to`, or to a Pump with a replica; return its name.

        Raises `NeedsOperator` unless online or closing, and if the log cannot move there or is
        already there.
        """
        states = [NodeState.ONLINE, NodeState.CLOSING]
        if self._moving is not None and self._moving.is_under_way:
            states.append(NodeState.PAUSING)
        self._check(node_id, *states)
        if self._moving is None:
            raise NeedsOperator(
                f"the log of {node_id} has one copy only, so it cannot be served by another Pump",
                "set copies = 2 (docs/copies.md); or let the Drainers have all of it:"
                f" penstock ctl offline-pump {node_id}",
                Code.NODE_STATE,
            )
        return await self._moving.begin(to)

    async def trigger_gc(self) -> str:
        return await self._retention.purge()

    def scrub(self, node_id: str) -> str:
        self._check(node_id, *NodeState)
        return self._begin_scrub()

    async def stop(self) -> None:
        """Stop waiting for Drainers: a Pump stopped while closing is paused, not offline."""
        if self._moving is not None:
            await self._moving.stop()
        if self._closing is not None and not self._closing.done():
            log.warning("stopped before every Drainer had everything: paused, not offline")
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)

    def _check(self, node_id: str, *states: NodeState) -> None:
        if node_id != self.node_id:
            raise NeedsOperator(
                f"this is pump {self.node_id}, not {node_id}",
                "its address changed hands; list the Pumps again",
                Code.NODE_OTHER,
            )
        if self._membership.state not in states:
            raise NeedsOperator(
                f"pump {node_id} is {self._membership.state}",
                "only an online Pump can do that",
                Code.NODE_STATE,
            )

    def _check_skipped(self, wanted: Collection[str], drainers: Sequence[NodeStatus]) -> None:
        known = {drainer.node_id: drainer for drainer in drainers}
        for node_id in wanted:
            if node_id not in known:
                raise NeedsOperator(
                    f"no one waits for a drainer {node_id!r}",
                    f"those waited for: {', '.join(known) or 'none'}",
                    Code.NODE_UNKNOWN,
                )
            if self._membership.is_live(known[node_id]):
                raise NeedsOperator(
                    f"drainer {node_id} is {known[node_id].state} and runs, it would lose binlogs",
                    "only a dead Drainer can be skipped; let it catch up, or take it offline",
                    Code.NODE_STATE,
                )

    async def _drain(self) -> None:
        """Set `ended` once every Drainer's checkpoint has passed everything this Pump holds."""
        end_ts = 0
        reported_s = float("-inf")
        while True:
            abandoned: Sequence[NodeStatus] = ()
            try:
                # Every transaction here commits before this, because Prewrites are no longer
                # accepted.
                end_ts = end_ts or await self._fake_binlogs.write()
                late, abandoned = await self._look(end_ts)
                kept: list[str] = []
                if self._empties_disk and self._draining is not None:
                    kept = await self._draining.remaining()
                self._progress = "; ".join([*filter(None, [late]), *kept])
                if not self._progress:
                    await self._membership.note_gaps(abandoned, end_ts)
            except (PenstockError, OSError) as error:
                self._progress = f"trying again: {coded(error)}"
            if not self._progress:
                break
            if time.monotonic() - reported_s >= _PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                log.info("not offline yet: %s", self._progress)
            await asyncio.sleep(self.close_tick_s)
        for drainer in abandoned:
            log.error(
                "drainer %s at checkpoint %d is abandoned: it never gets this Pump's binlogs in"
                " (%d, %d] (start it only with a downstream restored from a newer backup)",
                *(drainer.node_id, drainer.max_commit_ts, drainer.max_commit_ts, end_ts),
            )
        self.drained = True
        others = " other" if abandoned else ""
        log.info("every%s Drainer has everything up to %d", others, end_ts)
        self.ended.set()

    async def _look(self, end_ts: int) -> tuple[str, Sequence[NodeStatus]]:
        """Return the remaining obstacle, and the late Drainers that are not waited for."""
        if self._storage.max_commit_ts < end_ts:
            return f"transactions before {end_ts} are open here, the resolver asks about them", ()
        drainers = await self._membership.drainers()
        late = [d for d in drainers if d.max_commit_ts < end_ts]
        abandoned = [
            d for d in late if d.node_id in self._skipped and not self._membership.is_live(d)
        ]
        behind = []
        for each in late:
            if each not in abandoned:
                behind_s = seconds_between(each.max_commit_ts, end_ts)
                text = f"drainer {each.node_id} ({each.state}) is {behind_s:.1f} s behind"
                if not self._membership.is_live(each):
                    text += (
                        ", and not running (start it; without it, named with --skip-drainer, it"
                        " never gets what it lacks)"
                    )
                behind.append(text)
        if not behind:
            return "", abandoned
        done = f"{len(drainers) - len(late)} of {len(drainers)} Drainers have all up to {end_ts}"
        return "; ".join([*behind, done]), abandoned
