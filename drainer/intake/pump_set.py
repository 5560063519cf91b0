"""Pump set: keeps the merge in step with the list of Pumps, and reports which Pump blocks it.

A pass publishes the Drainer's own status first and reads the list of Pumps second; points 2 to 4 of
`drainer.intake` say why. An offline Pump is released when its own final record says that all its
binlogs are here:

    its record is final, and we have all its binlogs        it is released
    its record is final, and we lack some                   the Drainer stops, with the range
    no record, and it takes part in the merge               it is waited for, whatever etcd says
    no record, not in the merge since our checkpoint        released, if we are as far as it was

Anybody can change a state in etcd, by a command or by hand, and a running Pump corrects it only at
its next heartbeat. Only the Pump itself records which binlogs it holds
(`penstock.cluster.records`). TiDB-Binlog's Pumps leave no such record; for them their last
status has to suffice.

The checkpoint lists the participants, so a Drainer that starts knows for which Pumps it must wait,
whatever etcd lists by then. For a lost Pump it stores the commit_ts up to which the Pump was
received. If such a Pump returns, it is pulled from there, and not from the position of the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

from drainer.facts import Counters, MergeFacts
from drainer.intake.merge_holder import (
    HELD_S,
    Condition,
    Held,
    PumpView,
    WatermarkWatch,
    lag_s,
    view_of,
    view_of_lost,
)
from drainer.intake.merger import PAYLOAD_OVERHEAD_BYTES, Merged, Merger
from drainer.intake.payload import Payload, is_fake, release
from drainer.intake.puller import Puller, Receiver, Who
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.cluster.records import LastWord, LostPump
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable

log = logging.getLogger(__name__)

FRESH_S = 6.0
"""Less than the 10 s after which a Pump takes a silent Drainer for dead; clocks may differ."""

ASK_AFTER_S = 0.002
"""How long a Pump may hold back the binlogs of others before it is asked to advance.

Under load each Pump's own next binlogs come sooner than that.
"""

_HELD_WARN_S = HELD_S
_SMALL_BYTES = 64
"""A fake binlog is smaller; larger payloads need not be decoded to find out."""

_UNKNOWN_HOST = "unknown:0"


def _now_s() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Neighbours(Protocol):
    """Information that the merge needs about other nodes; `Membership` implements it."""

    lost: Mapping[str, LostPump]
    """The Pumps that were declared lost at the last pass."""
    last_words: Mapping[str, LastWord]
    """The final records of stopped Pumps about the binlogs they hold, read in the last pass."""

    async def publish_and_list(self) -> Sequence[NodeStatus]:
        """Publish this Drainer's status, then return all Pumps, in this order. May be Retryable."""

    entered: Mapping[str, int]
    """Since when each Pump may hold binlogs that a Drainer lacks, found in the last pass."""

    async def list_again(self, pump: NodeStatus) -> None:
        """List a Pump again that etcd no longer knows. May be Retryable."""

    def now_ts(self) -> int: ...


class Pumps:
    """All Pumps of the cluster as one merge sees them; belongs to one event loop."""

    def __init__(
        self,
        merger: Merger,
        membership: Neighbours,
        who: Who,
        room_bytes: int,
        participants: Mapping[str, int] | None = None,
        *,
        clock: Callable[[], float] = _now_s,
    ) -> None:
        """Prepare; all Pumps together may have `room_bytes` waiting for the merge.

        `participants` is the checkpoint's. `clock` counts seconds and includes the machine's sleep.
        """
        self.open_puller: Callable[[str, str, Who, Receiver], Puller] = Puller
        self._now_s = clock
        self.arrived = asyncio.Event()
        self.counters = Counters()
        self._lost: dict[str, tuple[LostPump, int]] = {}
        listed_before = participants or {}
        self._expected = {name for name, left_ts in listed_before.items() if not left_ts}
        # Binlogs received but not downstream by then were only in the memory of an earlier run.
        self._left_ts = {
            name: min(left_ts, merger.emitted_ts)
            for name, left_ts in listed_before.items()
            if left_ts
        }
        self._heard_s: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._merger = merger
        self._membership = membership
        self._who = who
        self._room_bytes = room_bytes
        self._freed = asyncio.Event()
        self._pullers: dict[str, tuple[Puller, asyncio.Task[None]]] = {}
        self._statuses: dict[str, NodeStatus] = {}
        self._passing = asyncio.Lock()
        self._passed = asyncio.Event()
        self._fresh_until_s = 0.0
        self._doubted: set[str] = set()
        self._knows_all = bool(listed_before)
        self.watch = WatermarkWatch(clock(), warn_s=_HELD_WARN_S)
        self._last_ts = 0  # The last real transaction; fake binlogs are not counted.
        self._asking: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def refresh(self) -> None:
        """Make one pass; every Pump listed now takes part when this returns. May be Retryable."""
        async with self._passing:
            started_s = self._now_s()
            statuses = await self._membership.publish_and_list()
            if self._is_closed:
                return  # A batch is still in progress, and this Drainer shows that it runs.
            lost = self._membership.lost
            for status in statuses:
                if status.node_id in lost:
                    self._statuses[status.node_id] = status
                    self._pass_over_lost(lost[status.node_id])
                else:
                    self._follow(status)
            await self._look_for_expected({status.node_id for status in statuses})
            self._knows_all = True
            self._fresh_until_s = started_s + FRESH_S
            self._passed.set()
            self._passed = asyncio.Event()

    async def run(self, interval_s: float) -> None:
        """Make passes indefinitely; an etcd outage is logged and waited out."""
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
        """Stop pulling from all Pumps for good; passes continue, but no Pump enters the merge."""
        self._is_closed = True
        tasks = [task for _, task in self._pullers.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._pullers.clear()

    def received_ts(self, pump: str) -> int:
        return self._merger.received_ts(pump)

    async def receive(
        self, pump: str, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> None:
        """Pass a run on to the merge; return when this Pump has room for the next.

        Each Pump has its share of the room. A fast Pump therefore cannot take the room that the
        slow Pump, for which everyone waits, needs to catch up.
        """
        self._waiting.add(pump)
        try:
            try:
                while self._now_s() > self._fresh_until_s:
                    await self._passed.wait()
            except asyncio.CancelledError:
                for payload in payloads:
                    release(payload)
                raise
            before_bytes = self._merger.bytes_of(pump)
            self._merger.push(pump, commit_ts, payloads)
            if commit_ts:
                weight_bytes = self._merger.bytes_of(pump) - before_bytes
                size = weight_bytes - PAYLOAD_OVERHEAD_BYTES * len(commit_ts)
                delay_s = lag_s(commit_ts[-1], self._membership.now_ts())
                self.counters.arrived(pump, len(commit_ts), size, delay_s)
            self.arrived.set()
            pairs = zip(reversed(commit_ts), reversed(payloads), strict=True)
            last_ts = next((ts for ts, payload in pairs if _is_transaction(payload)), 0)
            self._last_ts = max(self._last_ts, last_ts)
            while self._merger.bytes_of(pump) > self._room_bytes // max(len(self._pullers), 1):
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._waiting.discard(pump)
            self._heard_s[pump] = self._now_s()

    def hurry(self) -> None:
        """Ask the Pumps that hold back an awaited transaction to advance."""
        if self._asking is None and self._last_ts > self._merger.watermark:
            self._asking = asyncio.get_running_loop().call_later(ASK_AFTER_S, self._ask)

    def _ask(self) -> None:
        self._asking = None
        for name, (puller, _) in self._pullers.items():
            if self._merger.received_ts(name) < self._last_ts:
                puller.ask(self._last_ts)

    def take(self, up_to_ts: int | None = None) -> Merged | None:
        """Return the merge's next run, as `Merger.take`; there may be room again afterwards."""
        merged = self._merger.take(up_to_ts)
        if merged is not None:
            self._freed.set()
        return merged

    @property
    def ids(self) -> tuple[int, str]:
        """Return the cluster's id and the Drainer's id, as sent to the Pumps."""
        return self._who.cluster_id, self._who.drainer_id

    def addresses(self) -> dict[str, str]:
        return {name: status.host for name, status in self._statuses.items()}

    def positions(self) -> dict[str, int]:
        """Return the commit_ts up to which each Pump's stream was received."""
        return {name: self._merger.received_ts(name) for name in self._pullers}

    def participants(self) -> dict[str, int]:
        """Return the participants for the checkpoint, each with 0 or a timestamp.

        The timestamp is the commit_ts up to which the Pump was received. It is stored for a Pump
        that was declared lost, and for a Pump that returned and has not caught up. It is also
        stored for a Pump that was released by its final record, so that it does not return from
        where it entered, even from a restored etcd. TiDB-Binlog's Pumps are not among the released:
        they leave no record when they go, but never vanish from etcd, and their last status tells
        what they held.
        """
        stands = {name: left_ts for name, (_, left_ts) in self._lost.items()}
        known = self._membership.entered.keys() | self._membership.last_words.keys()
        stands |= {name: ts for name, ts in self._left_ts.items() if ts and name in known}
        for name, (puller, _) in self._pullers.items():
            received_ts = self._merger.received_ts(name)
            is_behind = received_ts < self._merger.emitted_ts
            if is_behind or not puller.is_original:
                stands[name] = received_ts if is_behind else 0
        return stands | dict.fromkeys(self._expected, 0)

    def views(self) -> list[PumpView]:
        now_ts, now_s, views = self._membership.now_ts(), self._now_s(), []
        holders = self._merger.holders
        most_ts = max(self.positions().values(), default=0)
        for name, (puller, _) in self._pullers.items():
            view = view_of(
                self._statuses[name], puller.problem, self._merger.received_ts(name),
                0.0 if name in self._waiting else now_s - self._heard_s[name],
                most_ts=most_ts, now_ts=now_ts, holds=name in holders,
            )  # fmt: skip
            views.append(view)
        return views + [view_of_lost(*each) for each in self._lost.values()]

    def held(self) -> Held:
        for_s = self.watch.held_s(self._merger.watermark, self._now_s())
        return Held(watermark=self.watch.watermark, for_s=for_s, since_s=time.time() - for_s)

    @property
    def is_held(self) -> bool:
        """Whether the watermark stands because a Pump's stream does not move."""
        holders = [view for view in self.views() if view.holds]
        is_ok = bool(holders) and all(view.condition is Condition.OK for view in holders)
        return self.held().for_s >= HELD_S and not is_ok

    @property
    def is_fresh(self) -> bool:
        """Whether etcd has listed the Pumps a moment ago; otherwise, the merge waits."""
        return self._now_s() <= self._fresh_until_s

    @property
    def late(self) -> int:
        return self._merger.late

    @property
    def binlogs_waiting(self) -> int:
        return self._merger.binlogs

    def facts(self) -> MergeFacts:
        return self.held().facts(self.views(), late=self.late)

    def _follow(self, status: NodeStatus) -> None:
        name = status.node_id
        self._statuses[name] = status
        known = self._pullers.get(name)
        if status.state is NodeState.OFFLINE and self._may_part(status):
            self._expected.discard(name)
            if known is not None:
                self._leave(status, known[1])
        elif known is not None:
            known[0].address = status.host
        else:
            self._join(status)

    def _may_part(self, status: NodeStatus) -> bool:
        """Return whether an offline Pump may leave; `NeedsOperator` if binlogs are missing."""
        name, known = status.node_id, self._pullers.get(status.node_id)
        word = self._membership.last_words.get(name)
        if known is None:
            has_entered = name in self._membership.entered
            if word is None and name in self._left_ts and not has_entered:
                return True  # It withdraws its final record when it starts again.
            received_ts = self._left_ts.get(name, self._merger.emitted_ts)
            # The binlogs of a Pump that entered and did not leave are unknown, whatever its state.
            takes_part = name in self._expected or has_entered
            return may_part(status, word, received_ts, takes_part=takes_part)
        received_ts, is_ours = self._merger.received_ts(name), not known[0].is_original
        parts = may_part(status, word, received_ts, takes_part=is_ours)
        if not parts and name not in self._doubted:
            self._doubted.add(name)
            log.warning(
                "Pump %s is offline in etcd, but has not said itself that it hands over nothing"
                " more: it stays in the merge, at %d (was its state changed by hand? If it does"
                " not run, start it)",
                name, received_ts,
            )  # fmt: skip
        return parts

    def _join(self, status: NodeStatus) -> None:
        name = status.node_id
        after_ts = self._merger.add(name, self._begin_ts(name))
        self._left_ts.pop(name, None)
        self._expected.discard(name)
        self._lost.pop(name, None)
        log.info("Pump %s at %s joins the merge after %d", name, status.host, after_ts)
        puller = self.open_puller(name, status.host, self._who, self)
        puller.on_break = self.counters.broke
        self._heard_s[name] = self._now_s()
        task = asyncio.create_task(puller.run(), name=f"pull {name}")
        task.add_done_callback(self._puller_ended)
        self._pullers[name] = (puller, task)

    def _begin_ts(self, name: str) -> int | None:
        """Return the timestamp after which a Pump must be pulled; None: from the merge's position.

        A Pump in the checkpoint is pulled from its place there, a Pump that we left from where we
        left it. Any other Pump may have taken binlogs ever since it entered the cluster. A Pump
        that notified us has taken none. If no notice came in time, the Pump's binlogs show what we
        have missed. A Drainer that does not know the earlier participants accepts the Pumps of its
        first pass as they are.
        """
        if name in self._expected:
            return None
        if name in self._left_ts:
            return self._left_ts[name]
        return self._membership.entered.get(name) if self._knows_all else None

    async def _look_for_expected(self, listed: Set[str]) -> None:
        """List Pumps again that took part at the checkpoint and that etcd no longer knows.

        They are then waited for and shown like other absent Pumps; a running Pump lists itself.
        """
        for name in self._expected - listed:
            lost, word = self._membership.lost.get(name), self._membership.last_words.get(name)
            if lost is not None:
                self._pass_over_lost(lost)
                continue
            status = NodeStatus(node_id=name, host=_UNKNOWN_HOST, state=NodeState.PAUSED)
            if word is not None and may_part(
                status, word, self._merger.emitted_ts, takes_part=True
            ):
                self._expected.discard(name)
                continue
            log.error(
                "Pump %s took part up to the checkpoint, and etcd does not list it: it is listed"
                " again as paused, and waited for (start it; it lists itself)",
                name,
            )
            await self._membership.list_again(status)
            self._follow(status)

    def _leave(self, status: NodeStatus, task: asyncio.Task[None]) -> None:
        name = status.node_id
        received_ts = self._merger.received_ts(name)
        log.info("Pump %s is offline and leaves the merge, drained at %d", name, received_ts)
        self._doubted.discard(name)
        self._left_ts[name] = received_ts
        self._part(name, task)

    def _pass_over_lost(self, lost: LostPump) -> None:
        """Skip a lost Pump; `NeedsOperator` if this Drainer loses more than was accepted."""
        name = lost.pump
        self._expected.discard(name)
        if name in self._lost:
            return
        known = self._pullers.get(name)
        received_ts = self._left_ts.get(name, self._merger.emitted_ts)
        if known is not None:
            received_ts = self._merger.received_ts(name)
        lost.check_drainer(received_ts)
        if received_ts >= lost.up_to_ts:
            return  # Nothing of it was missed.
        log.error(
            "Pump %s was declared lost at %s, the merge continues without it: what it held of"
            " (%d, %d] is lost to this Drainer for good",
            name, lost.made, received_ts, lost.up_to_ts,
        )  # fmt: skip
        self._lost[name] = (lost, received_ts)
        self._left_ts[name] = received_ts
        if known is not None:
            self._part(name, known[1])

    def _part(self, name: str, task: asyncio.Task[None]) -> None:
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
        held = self.held()
        if not self.watch.is_due(self._now_s()):
            return
        if not self._pullers:
            log.warning("no Pump is registered; waiting at commit_ts %d", held.watermark)
        for view in self.views():
            if view.holds:
                remedy = view.remedy
                log.warning(
                    "the merge has waited %.0f s for Pump %s (%s, %s) at low water %d; "
                    "%d bytes of other Pumps wait with it%s",
                    held.for_s, view.name, view.state, view.why or "connected", held.watermark,
                    self._merger.bytes, f" ({remedy})" if remedy else "",
                )  # fmt: skip


def _is_transaction(payload: Payload) -> bool:
    try:
        return len(payload) > _SMALL_BYTES or not is_fake(payload)
    except Malformed:
        return True  # Its reader reports the error.


def may_part(
    status: NodeStatus, word: LastWord | None, received_ts: int, *, takes_part: bool
) -> bool:
    """Return whether an offline Pump may be released; if not, it is waited for.

    It was received up to `received_ts`. `takes_part` is true for a Pump of ours that is in the
    merge, or was at the checkpoint. Raises `NeedsOperator` if binlogs are known to be missing here.
    """
    up_to_ts = status.max_commit_ts
    if word is not None and word.is_final:
        up_to_ts = word.up_to_ts
    elif takes_part:
        return False
    if received_ts >= up_to_ts:
        return True
    raise NeedsOperator(
        f"Pump {status.node_id} is offline and holds binlogs up to {up_to_ts}, this Drainer has"
        f" them up to {received_ts}: those in ({received_ts}, {up_to_ts}] are missing here",
        f"start {status.node_id} again with its data-dir, and then this Drainer, which"
        " continues from there; or restore the downstream from a newer backup",
        Code.LOST_BINLOGS_NEEDED,
    )
