"""Leaving: drains the replicas on a Pump's disk to other Pumps before the Pump ends.

The disk is listed as draining. The primary of each log sees that and adds another disk. Once that
replica is complete, the primary removes this disk from the replica set
(`pump/replicas/primary.py`). No writer waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from penstock.cluster.disks import Offered
from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.errors import Retryable
from pump.copies.followed_logs import Copies
from pump.copies.recruits import Recruits

log = logging.getLogger(__name__)

_TICK_S = 0.05
_SILENT_S = 2.0
"""A primary that has been silent for this long does not change its replica set."""


class Leaving:
    """The drain of the replicas on this Pump's disk."""

    def __init__(
        self,
        disk: str,
        *,
        offered: Offered,
        followed: Copies,
        recruits: Recruits,
        logs: Callable[[], Mapping[str, LogEntry]],
        state: Callable[[str], NodeState | None],
    ) -> None:
        """Prepare; `logs` returns the last seen entries of all logs.

        `state` returns the state of a Pump, asking etcd.
        """
        self._disk = disk
        self._offered = offered
        self._followed = followed
        self._recruits = recruits
        self._logs = logs
        self._state = state
        self.is_leaving = False
        """The value that was last listed."""

    async def say(self, is_leaving: bool) -> None:
        """List the disk as draining, or as staying after all; `Retryable` without etcd."""
        self.is_leaving = is_leaving
        await asyncio.to_thread(self._offered.say, is_leaving)

    async def hand_over(self, within_s: float) -> None:
        """Return when no log has a replica here that another Pump could take, or on timeout."""
        if within_s <= 0 or not self._in_care():
            return
        try:
            await self.say(True)
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
        for node_id, entry in sorted(self._logs().items()):
            if self._is_kept(node_id, entry):
                state = await asyncio.to_thread(self._state, node_id)
                is_needed = state is not NodeState.OFFLINE  # OFFLINE: every Drainer has all of it.
                if is_needed and node_id in self._followed.names():
                    found.append(self._why_kept(node_id, entry))
        return found

    def _is_kept(self, node_id: str, entry: LogEntry) -> bool:
        listed = entry.copies_known
        return node_id in self._followed.names() and self._disk in {copy.disk for copy in listed}

    def _why_kept(self, node_id: str, entry: LogEntry) -> str:
        if entry.primary.disk == self._disk:
            return (
                f"the log of {node_id} was taken over here and is served until every Drainer has"
                f" all of it (to another Pump: binlogctl move-log {node_id} --to PUMP)"
            )
        size = self._followed.standing(node_id).bytes
        text = f"the copy of {node_id}'s log is here, {size} bytes"
        if self._recruits.spare(entry) is None and not self._is_replaced(entry):
            return f"{text}, and no other Pump can take one (start one more)"
        return f"{text}, and another Pump is given one"

    def _in_care(self) -> list[str]:
        now_s = time.monotonic()
        found = []
        for node_id in self._followed.names():
            entry, heard_s = self._logs().get(node_id), self._followed.last_heard_s(node_id)
            if entry is None or heard_s is None or now_s - heard_s > _SILENT_S:
                continue
            is_listed = entry.replica(self._disk) is not None
            if is_listed and (self._recruits.spare(entry) or self._is_replaced(entry)):
                found.append(node_id)
        return found

    def _is_replaced(self, entry: LogEntry) -> bool:
        leaving = {*self._recruits.leaving(), self._disk}
        staying = [copy for copy in entry.replicas if copy.disk not in leaving]
        return 1 + len(staying) >= entry.copies
