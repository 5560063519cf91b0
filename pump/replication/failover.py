"""Failover: starts a Pump on a local replica when the log's primary is silent.

    silent ── listed as complete? ── not paused ── followed no more ── a Pump starts ── online
                                                                             │
                       dropped, once all of it is with every Drainer <───────┘ closing immediately

A wrong suspicion costs a failover and loses nothing. The Pump that is started claims the log as any
Pump does at its start (`claiming.py`), and ends immediately if it must not. Among several replicas
the first of the list starts, and each of the others waits a little longer. A replica on a draining
disk does not start while another replica can.

The started Pump lives on if this Pump is killed. When this Pump is back, it finds the replica
locked and leaves it alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock import failpoints
from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.log.files import lock_folder
from pump.replication.claiming import refuse_unmarked
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Chain, Link, foreign
from pump.replication.replicas import Replicas

log = logging.getLogger(__name__)
_due = failpoints.point("copies.takeover.due")
_let_go = failpoints.point("copies.takeover.let_go")

_TICK_S = 0.2
_LATE_S = 0.5
_AGAIN_S = 2.0
_STATE_EVERY_S = 1.0
_TURN = 0.5
"""How much longer each replica waits than the previous one, a fraction of the silence."""
_END_S = 10.0
_UNNEEDED_S = 5.0
"""How long the primary of an offline log must be silent before its replica is dropped. A primary
that is not silent serves a new log of that name."""
_STOPPED = (NodeState.PAUSED, NodeState.OFFLINE)


class StandbyProcess:
    """A warm standby process: has loaded a Pump's program, and waits for a replica to run on.

    Starting Python and loading a Pump takes a second, and several on a busy machine; all writers
    would wait for that. For one event loop.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = ()) -> None:
        """`folder` holds the replicas, and tells standby processes apart in the list of processes.

        `arguments` are those of the Pump that starts it.
        """
        self._shown = f"--copies-in={folder}/"
        self._arguments = arguments
        self.process: Process | None = None
        """The waiting process, which may have died."""
        self._sent = 0

    async def keep(self, lease: int = 0) -> None:
        """Start a process, unless one waits; raise `OSError` on failure.

        `lease` is the etcd lease with which this Pump leads the oracle, or 0. If this process dies,
        the standby process revokes that lease.
        """
        if self.process is None or self.process.returncode is not None:
            command = (sys.executable, "-m", "pump.standby", self._shown)
            self.process, self._sent = await create_subprocess_exec(*command, stdin=PIPE), 0
        if lease != self._sent:
            parent = {"parent": os.getpid(), "lease": lease, "arguments": self._arguments}
            await _send(self.process, parent if lease else {})
            self._sent = lease

    async def take(self, arguments: Sequence[str]) -> Process:
        """Return a Pump's process with these arguments; raise `OSError` on failure."""
        await self.keep(self._sent)
        process, self.process = self.process, None
        assert process is not None
        assert process.stdin is not None
        await _send(process, arguments)
        process.stdin.close()
        return process

    async def close(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.stdin is not None:
            if self._sent:
                with suppress(OSError):  # The process has died.
                    await _send(process, {})
            process.stdin.close()
            await process.wait()


async def _send(process: Process, what: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what).encode() + b"\n")
    await process.stdin.drain()


class Failovers:
    """Watches the primaries of the logs that this Pump has replicas of."""

    def __init__(
        self,
        copies: Replicas,
        peers: Peers,
        start: Callable[[str, Path], Awaitable[Process]],
        *,
        after_s: float,
    ) -> None:
        """`start` starts a Pump on the replica of a log in a folder; it may raise `OSError`.

        If `after_s` is 0, no log is taken over, but unneeded replicas are deleted.
        """
        self._copies = copies
        self._peers = peers
        self._start_pump = start
        self._after_s = after_s
        self._heeds_s = time.monotonic()
        """Since when this process can hear primaries: its start, or the end of its last pause."""
        self._started: dict[str, Process] = {}
        self._followed_s: dict[str, float] = {}
        """When a log was last followed again."""
        self._not_before_s: dict[str, float] = {}
        self._states: dict[str, tuple[float, NodeState | None]] = {}
        self._reported_foreign: dict[str, Link] = {}

    @property
    def running(self) -> list[str]:
        return sorted(self._started)

    async def run(self) -> None:
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            if time.monotonic() - slept_s > _TICK_S + _LATE_S:
                self._heeds_s = time.monotonic()  # Requests are still unread.
            for node_id in self._copies.names():
                try:
                    await self._look(node_id)
                except (PenstockError, OSError) as error:
                    log.warning("the copy of pump %s: %s", node_id, error)
                    self._not_before_s[node_id] = time.monotonic() + _AGAIN_S
                except Exception:
                    log.exception("the copy of pump %s is not watched as it should be", node_id)
                    self._not_before_s[node_id] = time.monotonic() + _AGAIN_S

    async def close(self) -> None:
        """Stop the Pumps that were started; like this Pump, they become paused."""
        for process in self._started.values():
            if process.returncode is None:
                process.terminate()
        for node_id, process in self._started.items():
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                log.warning("the Pump on the copy of pump %s does not end, killed", node_id)
                process.kill()
                await process.wait()

    async def _look(self, node_id: str) -> None:
        if node_id in self._started:
            if (code := self._started[node_id].returncode) is not None:
                del self._started[node_id]
                self._states.pop(node_id, None)
                log.info("the Pump on the copy of pump %s has ended with code %d", node_id, code)
                self._not_before_s[node_id] = time.monotonic() + _AGAIN_S
                await self._copies.open_one(node_id)
                self._followed_s[node_id] = time.monotonic()
            return
        if time.monotonic() < self._not_before_s.get(node_id, 0.0):
            return
        entry = self._peers.logs.get(node_id)
        is_taken = self._copies.is_taken(node_id)
        if entry is None or is_taken is None or self._is_locked(node_id):
            return
        if not is_taken:
            log.info("the copy of pump %s goes: this Pump has its own log again", node_id)
            await self._copies.drop(node_id)
        elif any(self._reasons(node_id, entry)):
            await self._act(node_id, entry)

    async def _act(self, node_id: str, entry: LogEntry) -> None:
        asked_s, state = self._states.get(node_id, (float("-inf"), None))
        if time.monotonic() - asked_s > _STATE_EVERY_S:
            state = await asyncio.to_thread(self._peers.state, node_id)
            self._states[node_id] = (time.monotonic(), state)
        if self._peers.logs.get(node_id) != entry:
            return
        is_primary, is_due, is_long_silent = self._reasons(node_id, entry)
        if is_due and self._is_newer(node_id, entry):
            # A state that was restored with the entry predates this replica.
            await self._start(node_id, entry, "its list was put back, and this copy is newer")
        elif state is NodeState.OFFLINE:
            if is_long_silent and not self._is_foreign(node_id, entry):
                log.info("the copy of pump %s goes: every Drainer has all of it", node_id)
                await self._copies.drop(node_id)
        elif is_primary:
            await self._start(node_id, entry, "this disk is its primary")
        elif is_due and state not in _STOPPED:
            await self._start(node_id, entry, f"pump {entry.primary.pump} is silent")

    def _is_foreign(self, node_id: str, entry: LogEntry) -> bool:
        strange = foreign(entry, self._copies.links(node_id))
        if strange is not None and self._reported_foreign.get(node_id) != strange:
            self._reported_foreign[node_id] = strange
            log.error(
                "the copy of pump %s has segment %d of epoch %d (id %06x), which is of another"
                " history than epoch %d (id %06x) in etcd; was etcd restored? The copy stays [%s]",
                *(node_id, strange.number, strange.epoch, strange.epoch_id),
                *(entry.epoch, entry.id, Code.LOG_PUT_BACK),
            )
        return strange is not None

    def _reasons(self, node_id: str, entry: LogEntry) -> tuple[bool, bool, bool]:
        is_primary = entry.primary.disk == self._peers.own.disk
        is_due = not is_primary and self._is_due(node_id, entry)
        return is_primary, is_due, self._silence_s(node_id) > _UNNEEDED_S

    def _is_due(self, node_id: str, entry: LogEntry) -> bool:
        if not self._after_s or self._silence_s(node_id) <= self._after_s:
            return False
        if not (self._is_newer(node_id, entry) or entry.may_claim(self._peers.own.disk)):
            return False
        draining = self._peers.draining
        disks = [copy.disk for copy in (*entry.replicas, *entry.eligible)]
        others = [disk for disk in disks if entry.may_claim(disk) and disk not in draining]
        if self._peers.own.disk in draining and others:
            return False
        disks.sort(key=lambda disk: disk in draining)
        turn = disks.index(self._peers.own.disk) if self._peers.own.disk in disks else len(disks)
        wait_s = self._after_s * (1 + _TURN * turn)
        return self._silence_s(node_id) > wait_s

    def _is_newer(self, node_id: str, entry: LogEntry) -> bool:
        newest = max((link.epoch for link in self._copies.links(node_id)), default=0)
        return self._is_foreign(node_id, entry) and newest > entry.epoch

    def _silence_s(self, node_id: str) -> float:
        heard_s = self._copies.last_heard_s(node_id) or self._heeds_s
        followed_s = self._followed_s.get(node_id, heard_s)
        return time.monotonic() - max(heard_s, followed_s, self._heeds_s)

    async def _start(self, node_id: str, entry: LogEntry, why: str) -> None:
        _due()
        try:
            chain, disk = Chain(self._copies.links(node_id)), self._peers.own.disk
            own = next((copy for copy in entry.copies_known if copy.disk == disk), None)
            if own is not None and chain.links:
                refuse_unmarked(node_id, own, chain, entry)
            self._check_complete(node_id, entry, await self._copies.close_one(node_id))
            _let_go()
            log.warning("the log of pump %s is taken over: %s", node_id, why)
            folder = self._copies.folder(node_id)
            self._started[node_id] = await self._start_pump(node_id, folder)
        except (PenstockError, OSError):
            await self._copies.open_one(node_id)
            raise

    def _check_complete(self, node_id: str, entry: LogEntry, links: Sequence[Link]) -> None:
        """Raise `NeedsOperator` if the disk has less than the list says: files were deleted.

        A replica with a later epoch than the entry is accepted: the entry was restored, and the
        started Pump detects that.
        """
        if links and links[-1].epoch > entry.epoch:
            return
        if not links or links[0].number > entry.needed:
            has = f"it from segment {links[0].number} on" if links else "nothing"
            raise NeedsOperator(
                f"it cannot take over: {self._copies.folder(node_id)} has {has}, and segment"
                f" {entry.needed} is needed",
                "put back what was deleted there; or start another Pump that etcd lists for"
                f" the log, or {node_id} itself: if no disk has all of it, {node_id} names the"
                " disks that can continue the log",
                Code.LOG_OLDER,
            )

    def _is_locked(self, node_id: str) -> bool:
        if self._copies.is_held(node_id):
            return False
        try:
            os.close(lock_folder(self._copies.folder(node_id), "Pump"))
        except NeedsOperator:
            return True
        return False


def arguments_for(
    arguments: Sequence[str], *, pump: str, address: str, bind: str
) -> Callable[[str, Path], Sequence[str]]:
    """Return the arguments of a Pump on a replica: this Pump's own, followed by the differing ones.

    `arguments` are this Pump's own; `pump` is its name, `address` where it is reached, and `bind`
    where it listens. The port is any free one.
    """
    host, bound = address.rpartition(":")[0], bind.rpartition(":")[0]

    def differing(node_id: str, folder: Path) -> Sequence[str]:
        return [
            *arguments,
            *(f"--node-id={node_id}", f"--data-dir={folder}", f"--taken-over-by={pump}"),
            *(f"--addr={bound}:0", f"--advertise-addr={host}:0", "--status-addr="),
        ]

    return differing
