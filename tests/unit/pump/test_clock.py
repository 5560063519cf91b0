"""A Pump's view of the cluster's time, and what is ahead of it."""

from types import SimpleNamespace
from typing import Any

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.ts import LOGICAL_BITS
from pump.cluster.clock import AHEAD_S_MAX, ClusterClock

DAY_MS = 24 * 3600 * 1000
T0_MS = 1_700_000_000_000


class Oracle:
    def __init__(self) -> None:
        self.ms = T0_MS
        self.asked = 0
        self.is_away = False

    def get_ts(self) -> int:
        self.asked += 1
        if self.is_away:
            raise Retryable("away", code=Code.ORACLE_AWAY)
        return self.ms << LOGICAL_BITS

    def get_many(self, count: int) -> range:
        raise NotImplementedError

    def close(self) -> None:
        pass


def at(ms: float) -> int:
    return int(ms) << LOGICAL_BITS


async def settled(clock: ClusterClock) -> None:
    assert clock._asking is not None
    await clock._asking


def test_nothing_is_ahead_before_the_oracle_has_answered() -> None:
    assert not ClusterClock(Oracle()).is_ahead(at(T0_MS + DAY_MS))


async def test_what_is_beyond_the_present_is_ahead_and_time_goes_on_without_the_oracle() -> None:
    now = [0.0]
    oracle = Oracle()

    clock = ClusterClock(oracle, monotonic_s=lambda: now[0])
    await clock.next_ts()
    assert not clock.is_ahead(at(T0_MS + AHEAD_S_MAX * 1000))
    assert clock.is_ahead(at(T0_MS + AHEAD_S_MAX * 1000 + 1))
    now[0] = 1.0
    assert not clock.is_ahead(at(T0_MS + AHEAD_S_MAX * 1000 + 1))
    assert clock.is_ahead(at(T0_MS + 365 * DAY_MS))
    await settled(clock)


async def test_an_oracle_that_has_come_that_far_is_believed() -> None:
    oracle = Oracle()

    clock = ClusterClock(oracle)
    await clock.next_ts()
    oracle.ms += DAY_MS
    far = at(oracle.ms)
    assert clock.is_ahead(far)
    assert clock.is_ahead(far)
    await settled(clock)
    assert oracle.asked == 2
    assert not clock.is_ahead(far)
    oracle.is_away = True
    assert clock.is_ahead(at(oracle.ms + DAY_MS))
    await settled(clock)


async def test_an_oracle_that_leads_in_this_process_is_asked_first() -> None:
    oracle, own = Oracle(), SimpleNamespace(take_now=lambda count: None)
    leader: Any = own
    clock = ClusterClock(oracle, leader)
    assert await clock.next_ts() == at(T0_MS)
    own_ts = at(T0_MS + DAY_MS)
    leader.take_now = lambda count: range(own_ts, own_ts + count)
    clock = ClusterClock(oracle, leader)
    assert await clock.next_ts() == own_ts
    assert oracle.asked == 1
    assert not clock.is_ahead(own_ts)
