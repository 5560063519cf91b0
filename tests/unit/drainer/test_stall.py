"""Who is slow, who is dead, who holds the merge, and what the words for it are."""

import pytest

from drainer.intake.merge_holder import (
    Condition,
    Held,
    WatermarkWatch,
    lag_s,
    view_of,
    view_of_lost,
)
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.cluster.records import LostPump
from penstock.errors import NeedsOperator
from penstock.ts import compose

NOW_TS = compose(1_800_000_000_000, 0)


def ago(seconds: float) -> int:
    return NOW_TS - compose(int(seconds * 1000), 0)


def stream(
    *,
    problem: str = "",
    heartbeat_s: float = 1,
    mute_s: float = 0,
    received_s: float = 0.1,
    state: NodeState = NodeState.ONLINE,
) -> tuple[NodeStatus, str, int, float]:
    status = NodeStatus(node_id="p", host="h:1", state=state, update_ts=ago(heartbeat_s))
    return status, problem, ago(received_s), mute_s


@pytest.mark.parametrize(
    ("seen", "condition", "why"),
    [
        (stream(), Condition.OK, ""),
        (stream(mute_s=7), Condition.SLOW, "no message for 7 s"),
        (stream(received_s=9), Condition.SLOW, "8.9 s behind the others"),
        (stream(problem="broken"), Condition.SLOW, "broken"),
        (stream(problem="Connection refused"), Condition.DEAD, "Connection refused"),
        (stream(problem="x", heartbeat_s=30), Condition.DEAD, "no heartbeat for 30 s, x"),
        (stream(problem="x", state=NodeState.PAUSED), Condition.STOPPED, "x"),
    ],
)
def test_a_stream_is_judged_by_what_is_known_of_it(
    seen: tuple[NodeStatus, str, int, float], condition: Condition, why: str
) -> None:
    view = view_of(*seen, most_ts=ago(0.1), now_ts=NOW_TS, holds=False)
    assert (view.condition, view.why) == (condition, why)


def test_what_holds_the_low_water_is_named_with_its_condition_and_since_when() -> None:
    dead = stream(problem="Connection refused", received_s=60)
    views = [
        view_of(*dead, most_ts=ago(0), now_ts=NOW_TS, holds=True),
        view_of(*stream(), most_ts=ago(0), now_ts=NOW_TS, holds=False),
    ]
    merge = Held(watermark=7, for_s=59.6, since_s=0).facts(views, late=0)
    assert merge.held_by == "p (dead: Connection refused), since 1970-01-01T00:00:00+00:00"
    assert (merge.low_water, merge.low_water_held_s) == (7, 59.6)
    assert "60.0 s behind now, holds the low water" in views[0].describe()
    assert Held(watermark=7, for_s=1, since_s=0).facts(views, late=0).held_by is None
    none = Held(watermark=7, for_s=9, since_s=0).facts([], late=0)
    assert str(none.held_by).startswith("no Pump is registered")


def test_a_stall_is_said_after_a_while_and_again_only_now_and_then() -> None:
    watch = WatermarkWatch(0, warn_s=3, repeat_s=10)
    said = []
    for now_s in range(40):
        watch.held_s(1 if now_s < 20 else 2, now_s)
        if watch.is_due(now_s):
            said.append(now_s)
    assert said == [3, 13, 23, 33]


def test_lag_is_never_negative_and_not_shown_of_what_has_no_time() -> None:
    assert lag_s(ago(2.5), NOW_TS) == 2.5
    assert lag_s(NOW_TS, ago(2.5)) == 0
    assert lag_s(5, NOW_TS) == 0
    assert lag_s(ago(2.5), 0) == 0


def test_a_drainer_that_would_lose_more_than_was_accepted_stops() -> None:
    lost = LostPump(pump="p", after_ts=100, up_to_ts=200, made="today")
    lost.check_drainer(100)
    with pytest.raises(NeedsOperator, match=r"\(99, 200\] are gone.*--accept-loss-after 99"):
        lost.check_drainer(99)
    assert "(150, 200] is lost to this Drainer" in view_of_lost(lost, 150).describe()
