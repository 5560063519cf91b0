"""Draining: hands the replicas on a Pump's disk, or the Pump's own log, to other Pumps.

Before a Pump ends, its disk is listed as draining. The primary of each log sees that and adds
another disk. Once that replica is complete, the primary removes this disk from the replica set
(`protocol/primary.py`). No writer waits.

An operator moves a log to another Pump while its own Pump runs:

    a replica there ── `copies` complete replicas beside this one ── replicas here handed over ──
    no new transactions, a grace for open ones ── given away ── deposed: this process ends

Every step but the last can be undone, and is undone when the other Pump is gone; the log then
stays. The other Pump sees in etcd that its disk is the primary, and starts a process on the replica
(`failover.py`), which is a failover without the wait. A crash during a move is a failed move, or a
failover that was requested.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from penstock import failpoints
from penstock.cluster.log_entry import Copy, Disk, LogEntry, Offered
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable, coded
from pump.cluster.membership import Membership
from pump.replication.peers import Peers
from pump.replication.replicas import Replicas
from pump.replication.shipping import Shipping

log = logging.getLogger(__name__)

_TICK_S = 0.05
_SILENT_S = 2.0
"""A primary that has been silent for this long does not change its replica set."""


class Draining:
    """The drain of the replicas on this Pump's disk."""

    def __init__(self, peers: Peers, offered: Offered, followed: Replicas) -> None:
        self._peers = peers
        self._disk = peers.own.disk
        self._offered = offered
        self._followed = followed
        self.is_draining = False
        """The value that was last listed."""

    async def set_draining(self, is_draining: bool) -> None:
        """List the disk as draining, or as staying after all; `Retryable` without etcd."""
        self.is_draining = is_draining
        await asyncio.to_thread(self._offered.set_draining, is_draining)

    async def drain(self, within_s: float) -> None:
        """Return when no log has a replica here that another Pump could take, or on timeout."""
        if within_s <= 0 or not self._in_care():
            return
        try:
            await self.set_draining(True)
        except Retryable as error:
            log.warning("the copies here stay as they are, etcd does not answer: %s", error)
            return
        log.info("copies are handed over before this Pump ends: of %s", ", ".join(self._in_care()))
        end_s = time.monotonic() + within_s
        while left := self._in_care():
            if time.monotonic() > end_s:
                log.warning("no other copy yet of what is here: of %s", ", ".join(left))
                return
            await asyncio.sleep(_TICK_S)

    async def remaining(self) -> list[str]:
        """List other Pumps' logs that are still needed on this disk; `Retryable` without etcd."""
        found = []
        for node_id, entry in sorted(self._peers.logs.items()):
            is_listed = self._disk in {copy.disk for copy in entry.copies_known}
            if is_listed and node_id in self._followed.names():
                state = await asyncio.to_thread(self._peers.state, node_id)
                is_needed = state is not NodeState.OFFLINE  # OFFLINE: every Drainer has all of it.
                if is_needed and node_id in self._followed.names():
                    found.append(self._why_kept(node_id, entry))
        return found

    def _why_kept(self, node_id: str, entry: LogEntry) -> str:
        if entry.primary.disk == self._disk:
            return (
                f"the log of {node_id} was taken over here and is served until every Drainer has"
                f" all of it (to another Pump: penstock ctl move-log {node_id} --to PUMP)"
            )
        size = sum(link.end for link in self._followed.links(node_id))
        text = f"the copy of {node_id}'s log is here, {size} bytes"
        if self._peers.candidate(entry) is None and not self._is_replaced(entry):
            return f"{text}, and no other Pump can take one (start one more)"
        return f"{text}, and another Pump is given one"

    def _in_care(self) -> list[str]:
        now_s = time.monotonic()
        found = []
        for node_id in self._followed.names():
            entry, heard_s = self._peers.logs.get(node_id), self._followed.last_heard_s(node_id)
            if entry is None or heard_s is None or now_s - heard_s > _SILENT_S:
                continue
            is_listed = entry.replica(self._disk) is not None
            if is_listed and (self._peers.candidate(entry) or self._is_replaced(entry)):
                found.append(node_id)
        return found

    def _is_replaced(self, entry: LogEntry) -> bool:
        draining = {*self._peers.draining, self._disk}
        staying = [copy for copy in entry.replicas if copy.disk not in draining]
        return 1 + len(staying) >= entry.copies


_whole = failpoints.point("copies.move.whole")
_pausing = failpoints.point("copies.move.pausing")
_giving = failpoints.point("copies.move.giving")

_GIVEN_WITHIN_S = 30.0
_MIB = 1 << 20


class GivenUp(Retryable):
    """The move was given up, and the log stays on its Pump."""


class Moving:
    """The moves of one log, at most one at a time."""

    def __init__(
        self,
        node_id: str,
        *,
        peers: Peers,
        shipping: Shipping,
        states: Membership,
        draining: Draining | None,
        count_open: Callable[[], int],
        pause_grace_s: float,
        leave_grace_s: float,
    ) -> None:
        """`draining` is None for a Pump on a replica, which keeps no replicas.

        `count_open` returns the number of open transactions.
        """
        self._node_id = node_id
        self._peers = peers
        self._shipping = shipping
        self._states = states
        self._draining = draining
        self._count_open = count_open
        self._pause_grace_s = pause_grace_s
        self._leave_grace_s = leave_grace_s
        self._to: Disk | None = None
        self._goal = 0
        self._task: asyncio.Task[None] | None = None
        self.progress = ""
        """The progress, or the reason for giving up; empty before the first move."""

    @property
    def is_under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def served_by(self) -> str:
        """The Pump on whose disk this process serves the log: its own, or one that took over."""
        return self._shipping.entry.primary.pump

    async def begin(self, to: str) -> str:
        """Start to move the log to a Pump, and return that Pump's name.

        If `to` is empty, a Pump with a replica is chosen. A move in progress continues. Raises
        `NeedsOperator` if the log cannot move there, or is already there.
        """
        if self.is_under_way:
            assert self._to is not None
            if to not in ("", self._to.pump):
                raise self._refusal(
                    f"is being moved to {self._to.pump}: {self.progress}",
                    f"wait for that, then move it on: penstock ctl status {self._node_id}",
                )
            return self._to.pump
        self._to, self._goal = self._chosen(to)
        log.warning("the log of pump %s is moved to pump %s", self._node_id, self._to.pump)
        self.progress = "begins"
        self._task = asyncio.create_task(self._move(self._to))
        return self._to.pump

    async def stop(self) -> None:
        if self._task is not None and self.is_under_way:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await asyncio.to_thread(self._shipping.move_to, "")

    # Choosing the target.

    def _chosen(self, to: str) -> tuple[Disk, int]:
        entry, disks = self._shipping.entry, self._peers.disks
        disk = self._named(to, entry) if to else self._suggested(entry)
        there = [c for c in entry.replicas if c.disk not in self._peers.draining]
        if entry.replica(disk.id) is None:
            self._check_apart(disk, [disks[c.disk] for c in there if c.disk in disks])
            there.append(Copy(disk.pump, disk.id))
        # As if all candidates had joined, and the disk of this Pump had gone.
        candidate: Disk | None = disk
        while len(there) < entry.copies and candidate is not None:
            asked = replace(entry, replicas=tuple(there))
            candidate = self._peers.candidate(asked, moves_to=disk.id)
            there += [Copy(candidate.pump, candidate.id)] if candidate is not None else []
        if len(there) < entry.copies_min:
            raise self._refusal(
                f"would have {len(there)} of {entry.copies_min} copies on pump {disk.pump}, and"
                " nothing would be acknowledged",
                "start one more Pump that takes copies",
            )
        return disk, min(len(there), entry.copies)

    def _named(self, to: str, entry: LogEntry) -> Disk:
        if to == entry.primary.pump:
            raise self._refusal(f"is served by pump {to} already", "nothing is to be done")
        if to == self._node_id:
            raise self._refusal(
                f"was moved to pump {entry.primary.pump}, and does not go back",
                f"nothing is to be done: {to} begins again once every Drainer has all of it",
            )
        disk = next((disk for disk in self._peers.disks.values() if disk.pump == to), None)
        if disk is None:
            others = {d.pump for d in self._peers.disks.values()} - {entry.primary.pump}
            raise NeedsOperator(
                f"there is no pump {to!r} that takes copies of logs now",
                f"those that do: {', '.join(sorted(others - {self._node_id})) or 'none'}",
                Code.NODE_UNKNOWN,
            )
        if disk.is_draining:
            raise self._refusal(
                f"cannot go to pump {to}, which is being emptied itself", "name another one"
            )
        return disk

    def _suggested(self, entry: LogEntry) -> Disk:
        if entry.primary.pump != self._node_id:
            raise self._refusal(
                f"was moved already: pump {entry.primary.pump} serves it since epoch {entry.epoch}",
                f"to move it on: penstock ctl move-log {self._node_id} --to PUMP",
            )
        disks, draining = self._peers.disks, self._peers.draining
        for copy in entry.replicas:
            is_complete = copy.first <= entry.needed
            if is_complete and copy.disk in disks and copy.disk not in draining:
                return disks[copy.disk]
        found = self._peers.candidate(entry)
        if found is None:
            raise self._refusal("has nowhere to go", "start one more Pump that takes copies")
        return found

    def _check_apart(self, disk: Disk, others: list[Disk]) -> None:
        apart = self._peers.apart
        if not apart:
            return
        value = disk.labels.get(apart)
        if value is None:
            raise self._refusal(
                f"cannot go to pump {disk.pump}, which has no label {apart!r}",
                "copies-apart asks for one; name another Pump",
            )
        for other in others:
            if other.labels.get(apart) == value:
                raise self._refusal(
                    f"cannot go to pump {disk.pump}: pump {other.pump}, which has a copy, is in"
                    f" {apart} {value}, too",
                    f"name {other.pump}, or a Pump with another {apart}",
                )

    def _refusal(self, problem: str, hint: str) -> NeedsOperator:
        return NeedsOperator(f"the log of {self._node_id} {problem}", hint, Code.NODE_STATE)

    # The steps of a move.

    async def _move(self, disk: Disk) -> None:
        shipping, states, draining = self._shipping, self._states, self._draining
        before = states.state
        was_draining = draining is not None and draining.is_draining
        try:
            await asyncio.to_thread(shipping.move_to, disk.id)
            await self._until_complete(disk)
            _whole()
            if draining is not None:  # This process ends, and its supervisor restarts it.
                self.progress = "other Pumps are given the copies that are here"
                await draining.drain(self._leave_grace_s)
            if before is NodeState.ONLINE:
                await states.enter(NodeState.PAUSING)
            _pausing()
            end_s = time.monotonic() + self._pause_grace_s
            while (count := self._count_open()) > 0 and time.monotonic() < end_s:
                self.progress = f"{count} open transactions have a moment for their Commits"
                await asyncio.sleep(_TICK_S)
            _giving()
            await self._give_away(disk)
        except GivenUp as error:
            self.progress = f"given up, the log stays: {coded(error)}"
            log.error("pump %s is not moved to pump %s: %s", self._node_id, disk.pump, error)
            await asyncio.to_thread(shipping.move_to, "")
            if states.state is NodeState.PAUSING and before is NodeState.ONLINE:
                await states.enter(NodeState.ONLINE)
            if draining is not None:
                try:
                    await draining.set_draining(was_draining)
                except Retryable as late:
                    log.warning("the disk is still listed as one that leaves: %s", late)

    async def _until_complete(self, disk: Disk) -> None:
        shipping = self._shipping
        while True:
            self._check_reached(disk)
            whole = await asyncio.to_thread(lambda: shipping.staying_complete)
            if disk.id in whole and len(whole) >= self._goal:
                return
            lacking = await asyncio.to_thread(shipping.missing_bytes, disk.id)
            if disk.id in whole:
                self.progress = f"{len(whole)} of {self._goal} Pumps beside this one have all of it"
            elif lacking is None:
                self.progress = f"pump {disk.pump} is asked to take a copy"
            else:
                self.progress = f"pump {disk.pump} lacks {lacking / _MIB:.1f} MiB of it"
            await asyncio.sleep(_TICK_S)

    async def _give_away(self, disk: Disk) -> None:
        shipping = self._shipping
        self._check_reached(disk)
        self.progress = f"pump {disk.pump} becomes the one that serves it"
        await asyncio.to_thread(shipping.give_away)
        end_s = time.monotonic() + _GIVEN_WITHIN_S
        while not shipping.over:
            self._check_reached(disk)
            if disk.id not in await asyncio.to_thread(lambda: shipping.staying_complete):
                raise GivenUp(f"the copy on pump {disk.pump} was lost", code=Code.NODE_STATE)
            if time.monotonic() > end_s:
                raise GivenUp(
                    f"etcd did not take it within {_GIVEN_WITHIN_S:.0f} s", code=Code.NODE_STATE
                )
            await asyncio.sleep(_TICK_S)
        self.progress = f"pump {disk.pump} serves it"

    def _check_reached(self, disk: Disk) -> None:
        known = self._peers.disks.get(disk.id)
        if known is None or known.is_draining:
            why = "does not run any more" if known is None else "is to be emptied itself"
            raise GivenUp(f"pump {disk.pump} {why}", code=Code.NODE_STATE)
