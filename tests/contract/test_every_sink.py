"""What every sink promises about its checkpoint, whether it writes tables, messages or a lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drainer.differences import Override, Skipped
from drainer.sinks.checkpoint import Checkpoint, Overridden
from drainer.sinks.protocol import Sink
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from tests.contract.test_event_sink import CLUSTER, OUTPUTS, Output, param
from tests.contract.test_lake_sink import Lake
from tests.contract.test_sink import SERVERS, table_downstream

SKIPPED = Override(commit_ts=10**9, verb="skip", made="then")


@pytest.fixture(params=["sqlite", *SERVERS, *map(param, OUTPUTS), "lake"])
def downstream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A downstream that sinks are opened for, and that shows the ids of its rows."""
    made: Any
    if request.param == "lake":
        made = Lake(tmp_path / "lake")
    elif request.param in OUTPUTS:
        made = Output(OUTPUTS[request.param](tmp_path, request))
    else:
        made = table_downstream(request.param, request, tmp_path)
    yield made
    for sink in made.sinks:
        sink.close()


def following(downstream: Any) -> tuple[Sink, Checkpoint]:
    """Return the sink of the next run, and the checkpoint that it continues from."""
    sink: Sink = downstream.open()
    found = sink.load_checkpoint()
    assert found is not None
    sink.look_at(downstream.catalog)
    return sink, found


def test_a_fresh_downstream_has_no_checkpoint_and_none_after_looking(downstream: Any) -> None:
    for _ in range(2):
        assert downstream.open().load_checkpoint() is None


def test_a_closed_sink_says_so(downstream: Any) -> None:
    sink = downstream.open()
    sink.close()
    with pytest.raises(Retryable):
        sink.load_checkpoint()


def test_a_saved_checkpoint_is_what_the_next_run_loads(downstream: Any) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    sql = 'ALTER TABLE `it\'s` ADD c TEXT COMMENT "a \\ and \\" and ü",\n ADD d INT'
    point = replace(
        Checkpoint(2**63 + 5, 7, consistent=True),
        skipped={Skipped("rows", "override", "shop.it's \\ `odd` \x7f ü"): 2**40},
        origins={"a": (1, 2, 3)},
        pumps={'p"1': 7},
        overrides={7: Override(commit_ts=7, verb="replace", sql=sql, made="then")},
    )
    sink.save_checkpoint(Checkpoint(5, 1))
    assert sink.is_new is False
    sink.save_checkpoint(point)
    sink.close()
    assert downstream.open().load_checkpoint() == point


def test_changes_and_checkpoint_arrive_together_and_the_next_run_continues(downstream: Any) -> None:
    first = downstream.begun()
    one = downstream.add(first, 1, 2)
    first.close()
    second, found = following(downstream)
    assert (found, downstream.ids()) == (one, [1, 2])
    downstream.add(second, 3)
    assert downstream.ids() == [1, 2, 3]


def test_a_second_drainer_on_the_same_downstream_stops_the_first(downstream: Any) -> None:
    first = downstream.begun()
    second, _ = following(downstream)
    downstream.add(second, 1)
    for _ in range(2):
        with pytest.raises(NeedsOperator, match="another Drainer"):
            downstream.add(first, 2)
    downstream.add(second, 3)
    assert downstream.ids() == [1, 3]


def test_two_drainers_that_reach_the_same_checkpoint_do_not_both_write(downstream: Any) -> None:
    first = downstream.begun()
    second, _ = following(downstream)
    point = downstream.add(first, 1)
    with pytest.raises(NeedsOperator):
        downstream.add(second, 2, point=point)
    assert downstream.ids() == [1]


def test_a_downstream_of_another_cluster_is_refused_and_left_alone(downstream: Any) -> None:
    one, two = downstream.begun(), downstream.open(cluster_id=2)
    before = downstream.add(one, 1)
    with pytest.raises(NeedsOperator, match=rf"that of cluster {CLUSTER} .* of cluster 2,"):
        two.load_checkpoint()
    with closing(downstream.open()) as again:
        assert again.load_checkpoint() == before
    assert downstream.ids() == [1]


def test_an_override_is_read_before_the_next_commit_of_the_run_that_writes(downstream: Any) -> None:
    sink = downstream.begun()
    operator = downstream.open()
    before = operator.load_checkpoint()
    operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
    with pytest.raises(Overridden):
        downstream.add(sink, 1)
    assert downstream.ids() == []
    found = sink.load_checkpoint()
    assert found == replace(before, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True)
    assert found.writer == sink.writer
    downstream.add(sink, 2)
    assert downstream.ids() == [2]


def test_an_override_that_comes_before_a_run_has_stored_anything_is_read_by_it_too(
    downstream: Any,
) -> None:
    sink, operator = downstream.open(), downstream.open()
    assert sink.load_checkpoint() is operator.load_checkpoint() is None
    operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
    with pytest.raises(Overridden):
        sink.save_checkpoint(downstream.point())
    found = sink.load_checkpoint()
    assert sink.is_new
    assert found == Checkpoint(0, 0, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True)
    sink.save_checkpoint(replace(found, commit_ts=5))
    assert not sink.is_new
    # The next one has loaded what the first one stored, and has not stored anything itself.
    following = downstream.open()
    following.load_checkpoint()
    operator.change_overrides(lambda now: {})
    with pytest.raises(Overridden):
        following.save_checkpoint(downstream.point())


def test_a_change_of_overrides_that_fails_leaves_the_checkpoint_as_it_is(downstream: Any) -> None:
    sink, operator = downstream.begun(), downstream.open()
    before = operator.load_checkpoint()

    def refuse(now: Checkpoint) -> dict[int, Override]:
        raise NeedsOperator("it is under way", hint="wait", code=Code.DDL_UNSUPPORTED)

    with pytest.raises(NeedsOperator, match="under way"):
        operator.change_overrides(refuse)
    assert downstream.open().load_checkpoint() == before
    downstream.add(sink, 1)
