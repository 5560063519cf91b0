"""Keep the merge in step with the list of Pumps: who takes part, where they are, who holds it up.

A pass publishes the Drainer's own status first and reads the list of Pumps second. A Pump that is
about to come online does the same the other way round: it lists itself first and then notifies
every Drainer whose status is fresh. So whichever comes second sees the other, and no Pump takes a
write that the merge does not wait for. That argument needs the Drainer's status to be fresh:
what arrives more than `FRESH_S` after the last pass waits for the next one to succeed. (A Drainer
that was frozen, or cut off from etcd, may have been taken for dead by a Pump that then joined.)

Every Pump that is not offline takes part. One that is paused, restarting or dead holds the merge;
it is named in the log, never skipped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from drainer.merger import Merger
from drainer.payload import Payload, release
from drainer.puller import Puller, Who
from penstock.errors import Retryable
from penstock.registry import NodeState, NodeStatus

log = logging.getLogger(__name__)

FRESH_S = 6.0
"""Less than the 10 s after which a Pump takes a silent Drainer for dead, clocks being apart."""

_HELD_WARN_S = 3.0
_HELD_REPEAT_S = 10.0

Pass = Callable[[], Awaitable[Sequence[NodeStatus]]]


class Pumps:
    """All Pumps of the cluster as one merge sees them; lives in one event loop."""

    def __init__(self, merger: Merger, publish_and_list: Pass, who: Who, room_bytes: int) -> None:
        """Prepare; all Pumps together may have `room_bytes` waiting for the merge."""
        self.arrived = asyncio.Event()
        self._merger = merger
        self._publish_and_list = publish_and_list
        self._who = who
        self._room_bytes = room_bytes
        self._freed = asyncio.Event()
        self._pullers: dict[str, tuple[Puller, asyncio.Task[None]]] = {}
        self._statuses: dict[str, NodeStatus] = {}
        self._passing = asyncio.Lock()
        self._passed = asyncio.Event()
        self._fresh_until_s = 0.0
        self._held_since_s = _now_s()
        self._held_ts = -1
        self._next_warning_s = 0.0
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def refresh(self) -> None:
        """Make one pass; every Pump listed now takes part when this returns. May be Retryable."""
        async with self._passing:
            started_s = _now_s()
            statuses = await self._publish_and_list()
            for status in statuses:
                self._follow(status)
            self._fresh_until_s = started_s + FRESH_S
            self._passed.set()
            self._passed = asyncio.Event()

    async def run(self, interval_s: float) -> None:
        """Make passes for ever; an outage of etcd is logged and waited out."""
        failures = 0
        while True:
            if self._failure.done():
                self._failure.result()
            try:
                await self.refresh()
                failures = 0
            except Retryable as error:
                if failures % 10 == 0:
                    log.error("cannot refresh the list of Pumps, the merge will wait: %s", error)
                failures += 1
            self._watch_holders()
            await asyncio.wait((self._failure,), timeout=interval_s)

    async def close(self) -> None:
        """Stop pulling from everyone."""
        tasks = [task for _, task in self._pullers.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._pullers.clear()

    def received_ts(self, pump: str) -> int:
        """Return the largest `commit_ts` received from a Pump."""
        return self._merger.received_ts(pump)

    async def receive(
        self, pump: str, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> None:
        """Pass a run on to the merge; return when this Pump has room for the next.

        Each Pump has its share of the room, so that a fast one cannot take what the slow one,
        for which everyone waits, needs to catch up.
        """
        try:
            while _now_s() > self._fresh_until_s:
                await self._passed.wait()
        except asyncio.CancelledError:
            for payload in payloads:
                release(payload)
            raise
        self._merger.push(pump, commit_ts, payloads)
        self.arrived.set()
        while self._merger.bytes_of(pump) > self._room_bytes // max(len(self._pullers), 1):
            self._freed.clear()
            await self._freed.wait()

    def taken(self) -> None:
        """Note that the merge was taken from: there may be room again."""
        self._freed.set()

    def positions(self) -> dict[str, int]:
        """Return up to which commit_ts each Pump's stream was received."""
        return {name: self._merger.received_ts(name) for name in self._pullers}

    def describe(self) -> dict[str, str]:
        """Return one line per Pump for an operator."""
        lines = {}
        for name, (puller, _) in self._pullers.items():
            state = self._statuses[name].state
            received_ts = self._merger.received_ts(name)
            about = puller.problem or "connected"
            lines[f"pump {name}"] = f"{state}, {about}, received up to {received_ts}"
        return lines

    def _follow(self, status: NodeStatus) -> None:
        name = status.node_id
        self._statuses[name] = status
        known = self._pullers.get(name)
        if status.state is NodeState.OFFLINE:
            if known is not None:
                self._leave(status, *known)
        elif known is not None:
            known[0].address = status.host
        else:
            self._join(status)

    def _join(self, status: NodeStatus) -> None:
        name = status.node_id
        after_ts = self._merger.add(name)
        log.info("Pump %s at %s joins the merge after %d", name, status.host, after_ts)
        puller = Puller(name, status.host, self._who, self)
        task = asyncio.create_task(puller.run(), name=f"pull {name}")
        task.add_done_callback(self._puller_ended)
        self._pullers[name] = (puller, task)

    def _leave(self, status: NodeStatus, puller: Puller, task: asyncio.Task[None]) -> None:
        """Let a Pump go that has said it is drained; say so when it was declared gone instead."""
        name = status.node_id
        received_ts = self._merger.received_ts(name)
        if received_ts < status.max_commit_ts:
            log.error(
                "Pump %s was set offline at commit_ts %d, this Drainer has received it up to %d: "
                "what lies between is lost to it",
                name, status.max_commit_ts, received_ts,
            )  # fmt: skip
        else:
            log.info("Pump %s is offline and leaves the merge, drained at %d", name, received_ts)
        del self._pullers[name]
        task.cancel()
        self._merger.finish(name)
        self.arrived.set()
        self._freed.set()

    def _puller_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._failure.done():
            error = task.exception()
            assert error is not None, "a puller never ends on its own"
            self._failure.set_exception(error)

    def _watch_holders(self) -> None:
        """Name whoever has kept the low water where it is for too long."""
        now_s = _now_s()
        low_water = self._merger.low_water
        if low_water != self._held_ts:
            self._held_ts = low_water
            self._held_since_s = now_s
            self._next_warning_s = now_s + _HELD_WARN_S
            return
        if now_s < self._next_warning_s:
            return
        self._next_warning_s = now_s + _HELD_REPEAT_S
        held_s = now_s - self._held_since_s
        if not self._pullers:
            log.warning("no Pump is registered; waiting at commit_ts %d", low_water)
        for name in self._merger.holders:
            puller, _ = self._pullers[name]
            log.warning(
                "the merge has waited %.0f s for Pump %s (%s, %s) at low water %d; "
                "%d bytes of other Pumps wait with it",
                held_s, name, self._statuses[name].state, puller.problem or "connected",
                low_water, self._merger.bytes,
            )  # fmt: skip


def _now_s() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
