"""Lag: reports which Pump blocks the merge, since when and why, in words for an operator (pure).

    ok        its stream is connected and moves
    slow      its stream is not connected, is silent, or is far behind the others
    dead      not connected, and its heartbeat is stale or nothing listens at its address
    stopped   not connected, and it reported that it has stopped
    lost      declared lost (`penstock ctl lost-pump`): the merge continues without it

Lag is measured by the cluster's time, which the oracle gave this Drainer a few seconds ago at most.
The clocks of Pumps and of readers do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from drainer.facts import MergeFacts, PumpAtMerge
from penstock.cluster.node_registry import NodeState, NodeStatus, seems_live
from penstock.cluster.records import LostPump
from penstock.ts import physical_ms, seconds_between

MUTE_S = 6.0
"""Silence that makes a Pump slow; an idle Pump that is waited for sends several times a second."""
BEHIND_S = 3.0
"""A Pump is slow if it is further behind the most advanced Pump."""
HELD_S = 3.0
"""A watermark that has not moved for longer is a stall."""


class Condition(StrEnum):
    """The condition of a Pump's stream."""

    OK = "ok"
    SLOW = "slow"
    DEAD = "dead"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpView:
    """One Pump as an operator sees it; `why` explains a condition that is not ok."""

    name: str
    state: NodeState
    condition: Condition
    why: str
    received_ts: int
    lag_s: float
    holds: bool

    @property
    def remedy(self) -> str:
        """The remediation for the wait, the harmless way first; empty where time will do."""
        if self.condition is Condition.STOPPED:
            return (
                f"start {self.name} again and it hands over what it holds; to do without it from"
                f" then on: penstock ctl offline-pump --node-id {self.name}, which also takes a"
                " stopped one of which every Drainer has everything"
            )
        if self.condition is Condition.DEAD:
            return (
                f"start {self.name} again: what it holds is on its disk, and on another one only if"
                " its log has copies, which are served by themselves; if all are gone"
                f" for good, penstock ctl lost-pump {self.name} --accept-loss-after 0 changes"
                " nothing"
                " and says what every Drainer would lose"
            )
        return ""

    def describe(self) -> str:
        about = f"{self.condition}, {self.why}" if self.why else str(self.condition)
        if self.condition is Condition.LOST:
            return about
        holds = ", holds the low water" if self.holds else ""
        return (
            f"{self.state}, {about}, received up to {self.received_ts},"
            f" {self.lag_s:.1f} s behind now{holds}"
        )

    def facts(self) -> PumpAtMerge:
        return PumpAtMerge(
            node_id=self.name,
            summary=self.describe(),
            state=str(self.state),
            condition=str(self.condition),
            why=self.why,
            holds_low_water=self.holds,
            lag_s=round(self.lag_s, 3),
            received_ts=self.received_ts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The watermark, and for how long it has not moved."""

    watermark: int
    for_s: float
    since_s: float
    """Seconds since the epoch, by the local clock."""

    def facts(self, views: Sequence[PumpView], *, late: int) -> MergeFacts:
        """Describe the merge; `late` transactions came after their place and were skipped."""
        holders = [view for view in views if view.holds and self.for_s >= HELD_S]
        who = "; ".join(f"{v.name} ({v.condition}: {v.why or v.state})" for v in holders)
        since = datetime.fromtimestamp(self.since_s, UTC).isoformat(timespec="seconds")
        held_by = f"{who or 'no Pump is registered'}, since {since}"
        remedies = dict.fromkeys(view.remedy for view in holders if view.remedy)
        return MergeFacts(
            low_water=self.watermark,
            low_water_held_s=round(self.for_s, 1),
            held_by=held_by if self.for_s >= HELD_S else None,
            held_by_remedy="; ".join(remedies) or None,
            late_transactions_left_out=late,
            pumps=tuple(view.facts() for view in views),
        )


class WatermarkWatch:
    """Measures how long the watermark has not moved, and decides when to report it."""

    def __init__(self, now_s: float, *, warn_s: float = HELD_S, repeat_s: float = 10.0) -> None:
        self.warn_s = warn_s
        self._repeat_s = repeat_s
        self.watermark = -1
        self._since_s = now_s
        self._next_warning_s = now_s + warn_s

    def held_s(self, watermark: int, now_s: float) -> float:
        """Return for how long the watermark has been unchanged."""
        if watermark != self.watermark:
            self.watermark = watermark
            self._since_s = now_s
            self._next_warning_s = now_s + self.warn_s
        return now_s - self._since_s

    def is_due(self, now_s: float) -> bool:
        """Return whether to report the stall now; then False for a while."""
        if now_s < self._next_warning_s:
            return False
        self._next_warning_s = now_s + self._repeat_s
        return True


def view_of(
    status: NodeStatus, problem: str, received_ts: int, mute_s: float, *, most_ts: int, now_ts: int,
    holds: bool,
) -> PumpView:  # fmt: skip
    """Judge a stream; `problem` is empty while it is connected.

    `mute_s` are the seconds since its last message, zero while a message waits for room in front of
    the merge; `most_ts` is of the Pump furthest ahead.
    """
    condition, why = _judged(status, problem, received_ts, mute_s, most_ts, now_ts)
    return PumpView(
        name=status.node_id,
        state=status.state,
        condition=condition,
        why=why,
        received_ts=received_ts,
        lag_s=lag_s(received_ts, now_ts),
        holds=holds,
    )


def view_of_lost(lost: LostPump, received_ts: int) -> PumpView:
    missing = f"({received_ts}, {lost.up_to_ts}]"
    return PumpView(
        name=lost.pump,
        state=NodeState.OFFLINE,
        condition=Condition.LOST,
        why=f"declared lost at {lost.made}: {missing} is lost to this Drainer",
        received_ts=received_ts,
        lag_s=0.0,
        holds=False,
    )


def _judged(
    status: NodeStatus, problem: str, received_ts: int, mute_s: float, most_ts: int, now_ts: int
) -> tuple[Condition, str]:
    if problem:
        if status.state in (NodeState.PAUSED, NodeState.OFFLINE):
            return Condition.STOPPED, problem
        if not seems_live(status, now_ts):
            silent_s = seconds_between(status.update_ts, now_ts)
            return Condition.DEAD, f"no heartbeat for {silent_s:.0f} s, {problem}"
        return Condition.DEAD if "refused" in problem.lower() else Condition.SLOW, problem
    if mute_s > MUTE_S:
        return Condition.SLOW, f"no message for {mute_s:.0f} s"
    behind_s = seconds_between(received_ts, most_ts)
    if behind_s > BEHIND_S:
        return Condition.SLOW, f"{behind_s:.1f} s behind the others"
    return Condition.OK, ""


def lag_s(ts: int, now_ts: int) -> float:
    """Return how far a timestamp is behind the present; never negative, 0 if either is unset."""
    if physical_ms(ts) == 0 or now_ts == 0:
        return 0.0
    return max(0.0, seconds_between(ts, now_ts))
