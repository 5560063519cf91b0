import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.ts import compose, seconds_between
from pump.cluster.retention import Plan, Retention, plan
from pump.store.record import PurgedRange
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import commit, opened, prewrite, write

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
NOW_TS = compose(NOW_MS, 0)


def ago(hours: float) -> int:
    return compose(NOW_MS - int(hours * HOUR_MS), 0)


def drainer(node_id: str, hours_late: float, state: NodeState = NodeState.ONLINE) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="h:1", state=state, max_commit_ts=ago(hours_late))


def planned(*drainers: NodeStatus, gc_days: float = 7, force_after_days: float = 0) -> Plan:
    return plan(NOW_TS, drainers, gc_days=gc_days, force_after_days=force_after_days)


def test_without_drainers_age_alone_decides() -> None:
    assert planned() == Plan(ago(7 * 24))


def test_a_drainer_that_keeps_up_changes_nothing() -> None:
    assert planned(drainer("a", 0.1)) == Plan(ago(7 * 24))


def test_the_drainer_furthest_behind_holds_the_purge_dead_or_paused_as_it_may_be() -> None:
    late = drainer("late", 200, NodeState.PAUSED)
    found = planned(drainer("well", 0), drainer("slow", 180), late)
    assert found.before_ts == late.max_commit_ts
    assert [d.node_id for d in found.holding] == ["late", "slow"]
    assert not found.forced


def test_force_passes_a_checkpoint_and_says_so_but_never_what_is_younger() -> None:
    late = drainer("late", 15 * 24)
    assert planned(late, force_after_days=14).before_ts == ago(14 * 24)
    assert planned(late, force_after_days=14).forced
    within = planned(drainer("late", 10 * 24), force_after_days=14)
    assert (within.before_ts, within.forced) == (ago(10 * 24), False)


@pytest.mark.parametrize(
    ("hours_late", "force_after_days", "expected"),
    [
        (7 * 24 - 21, 0, ""),
        (7 * 24 - 19, 0, "in 19.0 h holds up the purge"),
        (7 * 24 + 1, 0, "from now on holds up the purge"),
        (7 * 24 + 1, 14, ""),
        (14 * 24 - 5, 14, "in 5.0 h loses the binlogs after it"),
        (14 * 24 + 5, 14, "from now on loses the binlogs after it"),
    ],
)
def test_a_drainer_is_named_twenty_hours_before_its_checkpoint_is_reached(
    hours_late: float, force_after_days: float, expected: str
) -> None:
    warnings = planned(drainer("d", hours_late), force_after_days=force_after_days).warnings
    assert bool(warnings) == bool(expected)
    assert all(expected in w and "drainer d (online) is at checkpoint" in w for w in warnings)


def test_a_short_age_warns_in_its_second_half_only() -> None:
    assert not planned(drainer("d", 3.9), gc_days=8 / 24).warnings
    assert planned(drainer("d", 4.1), gc_days=8 / 24).warnings


@given(st.lists(st.floats(0, 1000), max_size=4), st.floats(0.1, 20), st.floats(0, 20))
def test_nothing_young_goes_and_nothing_needed_unless_forced(
    hours_late: list[float], gc_days: float, extra_days: float
) -> None:
    force_days = gc_days + extra_days if extra_days else 0
    drainers = [drainer(str(i), hours) for i, hours in enumerate(hours_late)]
    found = planned(*drainers, gc_days=gc_days, force_after_days=force_days)
    assert seconds_between(found.before_ts, NOW_TS) >= gc_days * 86400 - 0.002
    lost = [d for d in drainers if d.max_commit_ts < found.before_ts]
    assert bool(lost) == found.forced
    if lost:
        assert seconds_between(found.before_ts, NOW_TS) >= force_days * 86400 - 0.002


class Neighbours:
    """The cluster as `Retention` asks for it: Drainers, and the time."""

    def __init__(self, *drainers: NodeStatus) -> None:
        self.listed = list(drainers)

    async def drainers(self) -> list[NodeStatus]:
        return self.listed

    def now_ts(self) -> int:
        return NOW_TS


@pytest.fixture
def ten_days(tmp_path: Path) -> Any:
    """A storage with one transaction for each of the last ten days, each in its own segment."""
    storage = opened(tmp_path, MemoryFiles())
    for day in range(10, 0, -1):
        ts = ago(day * 24 - 1)
        write(storage, prewrite(ts, bytes(2500)), commit(ts, ts + 1))
    yield storage
    storage.close()


def retention(storage: Any, near: Neighbours, force_after_days: float = 0) -> Retention:
    parts: Any = near
    return Retention(storage, parts, parts, gc_days=7, force_after_days=force_after_days)


def test_a_purge_says_what_it_took_and_what_holds_the_next_one(ten_days: Any) -> None:
    near = Neighbours(drainer("d", 0))
    keeper = retention(ten_days, near)
    report = asyncio.run(keeper.purge())
    assert report == keeper.report
    assert f"purged (0, {ten_days.purged_ts}]: 3 segments" in report
    assert ago(8 * 24) < ten_days.purged_ts < ago(7 * 24)
    again = asyncio.run(keeper.purge())
    assert f"0 segments went, all up to {ten_days.purged_ts} is gone" in again


def test_a_forced_purge_is_an_error_that_names_drainer_checkpoint_and_range(
    ten_days: Any, caplog: pytest.LogCaptureFixture
) -> None:
    late = drainer("late", 9.5 * 24)
    near = Neighbours(late, drainer("well", 0))
    held = asyncio.run(retention(ten_days, near).purge())
    assert "drainer late (online) still needs binlogs after" in held
    assert ten_days.purged_ts < late.max_commit_ts
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]

    caplog.clear()
    report = asyncio.run(retention(ten_days, near, force_after_days=8).purge())
    assert "those older than 8 days went all the same" in report
    purged_ts = ten_days.purged_ts
    assert late.max_commit_ts < purged_ts < ago(8 * 24)
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert any(
        f"drainer late at checkpoint {late.max_commit_ts} lost binlogs: those in"
        f" ({late.max_commit_ts}, {purged_ts}] were purged" in error
        for error in errors
    )
    assert not any("well" in error for error in errors)
    with pytest.raises(PurgedRange, match=f"binlogs in \\({late.max_commit_ts}, {purged_ts}\\]"):
        ten_days.pull(late.max_commit_ts, bytes_max=1, count_max=1)


@pytest.mark.fault(
    "wall clocks jump and machines are paused: one clock, ahead by a year, and gc that is"
    " forced (the cluster's, the machine's)",
    "nothing is older than before",
    cases="2",
)
@pytest.mark.parametrize(("cluster_days", "wall_days"), [(365, 0), (0, 365)])
def test_one_clock_that_jumped_ahead_makes_nothing_old(
    ten_days: Any, cluster_days: int, wall_days: int
) -> None:
    class Jumped(Neighbours):
        def now_ts(self) -> int:
            return compose(NOW_MS + cluster_days * 24 * HOUR_MS, 0)

    parts: Any = Jumped(drainer("d", 9 * 24))
    wall_s = NOW_MS / 1000 + wall_days * 86400
    keeper = Retention(
        ten_days, parts, parts, gc_days=7, force_after_days=9.5, wall_s=lambda: wall_s
    )
    asyncio.run(keeper.purge())
    assert ten_days.purged_ts < ago(9 * 24)
