"""Take-over: starts a Pump on the copy of a log whose primary is silent, under that log's name.

    silent ── listed as a whole copy? ── not paused ── followed no more ── python -m pump ── online
                                                                             │
                       dropped, once all of it is with every Drainer <───────┘ closing at once

It may be wrong about the silence, which costs a move and loses nothing: the Pump that it starts
claims the log as any Pump does at its start (`claiming.py`), and ends at once where it may not.
Among several copies the first one of the list begins, the others wait a little longer each.

The Pump that was started lives on if this one is killed. When this one is back, its copy is locked,
and it is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock import failpoints
from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.errors import NeedsOperator, PenstockError
from pump.copies.followed_logs import Copies
from pump.store.recovery import lock_folder

log = logging.getLogger(__name__)
_due = failpoints.point("copies.takeover.due")
_let_go = failpoints.point("copies.takeover.let_go")

_TICK_S = 0.2
_AGAIN_S = 2.0
_STATE_EVERY_S = 1.0
_TURN = 0.5
"""How much longer than the one before it the next copy waits, as a part of the silence."""
_END_S = 10.0
_UNNEEDED_S = 5.0
"""How long the primary of a log that is offline is silent before its copy goes; else a new log of
that name has begun."""
_STOPPED = (NodeState.PAUSED, NodeState.OFFLINE)


class Surroundings(NamedTuple):
    """What has to be known to take a log over."""

    disk: str
    entry: Callable[[str], LogEntry | None]
    """The entry of a log, as it was seen last."""
    state: Callable[[str], NodeState | None]
    """The state of a Pump in etcd; paused only if it stopped in order. Blocks, may be Retryable."""
    command: Callable[[str, Path], Sequence[str]]
    """How a Pump is started on the copy of a log in a folder."""


class TakeOvers:
    """Watches over the primaries of the logs that this Pump has copies of."""

    def __init__(self, copies: Copies, surroundings: Surroundings, after_s: float) -> None:
        """With `after_s` of 0 nothing is taken over, but copies that no one needs go."""
        self._copies = copies
        self._around = surroundings
        self._after_s = after_s
        self._began_s = time.monotonic()
        self._started: dict[str, asyncio.subprocess.Process] = {}
        self._not_before_s: dict[str, float] = {}
        self._states: dict[str, tuple[float, NodeState | None]] = {}

    @property
    def running(self) -> list[str]:
        """The logs that were taken over, and are served by a Pump that this one has started."""
        return sorted(self._started)

    async def run(self) -> None:
        """Watch; ends only by being cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            for node_id in self._copies.names():
                try:
                    await self._look(node_id)
                except (PenstockError, OSError) as error:
                    log.warning("the copy of pump %s: %s", node_id, error)
                    self._not_before_s[node_id] = time.monotonic() + _AGAIN_S

    async def close(self) -> None:
        """Stop the Pumps that were started; they are paused, as this one."""
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
            await self._look_after(node_id)
            return
        if time.monotonic() < self._not_before_s.get(node_id, 0.0):
            return
        entry = self._around.entry(node_id)
        if entry is None:
            return
        state = await self._state(node_id)
        is_primary = entry.primary.disk == self._around.disk
        if state is NodeState.OFFLINE:
            if self._silence_s(node_id) > _UNNEEDED_S and not self._is_locked(node_id):
                log.info("the copy of pump %s goes: every Drainer has all of it", node_id)
                await self._copies.drop(node_id)
        elif is_primary and not self._is_locked(node_id):
            await self._start(node_id, "this disk is its primary")
        elif not is_primary and self._is_due(node_id, entry) and state not in _STOPPED:
            await self._start(node_id, f"pump {entry.primary.pump} is silent")

    def _is_due(self, node_id: str, entry: LogEntry) -> bool:
        """Return whether the primary was silent for so long that it is this copy's turn."""
        if not self._after_s or not entry.may_claim(self._around.disk):
            return False
        disks = [copy.disk for copy in (*entry.replicas, *entry.eligible)]
        wait_s = self._after_s * (1 + _TURN * disks.index(self._around.disk))
        return self._silence_s(node_id) > wait_s

    def _silence_s(self, node_id: str) -> float:
        """Return since when the primary was not heard of, or this Pump has run."""
        heard_s = self._copies.last_heard_s(node_id)
        return time.monotonic() - (self._began_s if heard_s is None else heard_s)

    async def _start(self, node_id: str, why: str) -> None:
        _due()
        await self._copies.close_one(node_id)
        _let_go()
        command = self._around.command(node_id, self._copies.folder(node_id))
        log.warning("the log of pump %s is taken over: %s", node_id, why)
        self._started[node_id] = await asyncio.create_subprocess_exec(*command)

    async def _look_after(self, node_id: str) -> None:
        """Follow the log again, or drop the copy, once the Pump on it has ended."""
        code = self._started[node_id].returncode
        if code is None:
            return
        del self._started[node_id]
        self._states.pop(node_id, None)
        log.info("the Pump on the copy of pump %s has ended with code %d", node_id, code)
        self._not_before_s[node_id] = time.monotonic() + _AGAIN_S
        await self._copies.open_one(node_id)

    async def _state(self, node_id: str) -> NodeState | None:
        """Return the state of a node, at most a second old."""
        asked_s, state = self._states.get(node_id, (float("-inf"), None))
        if time.monotonic() - asked_s > _STATE_EVERY_S:
            state = await asyncio.to_thread(self._around.state, node_id)
            self._states[node_id] = (time.monotonic(), state)
        return state

    def _is_locked(self, node_id: str) -> bool:
        """Return whether a Pump runs on a copy that this one does not follow."""
        if self._copies.is_held(node_id):
            return False
        try:
            os.close(lock_folder(self._copies.folder(node_id)))
        except NeedsOperator:
            return True
        return False


def command_of(
    arguments: Sequence[str], *, pump: str, address: str, bind: str
) -> Callable[[str, Path], Sequence[str]]:
    """Return how a Pump is started on a copy: as this one was, with what must differ behind that.

    `arguments` are this Pump's own; `pump` is its name, `address` where it is reached, and `bind`
    where it listens. The port is any free one.
    """
    host, bound = address.rpartition(":")[0], bind.rpartition(":")[0]

    def command(node_id: str, folder: Path) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "pump", *arguments),
            *(f"--node-id={node_id}", f"--data-dir={folder}", f"--taken-over-by={pump}"),
            *(f"--addr={bound}:0", f"--advertise-addr={host}:0", "--status-addr="),
        ]

    return command
