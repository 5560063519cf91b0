"""What a Drainer does while no Spark task is connected."""

from collections.abc import Iterable

import pytest

from drainer.spark.dispatcher import LOST_S, NEVER_S, NO_TASK_REPORTED_AFTER_S, TaskWatch


def replaced_at(watch: TaskWatch, seconds: Iterable[int], tasks: int) -> list[int]:
    return [now_s for now_s in seconds if watch.look(now_s, tasks)]


def test_a_session_without_a_task_is_reported_after_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = TaskWatch(0)
    assert replaced_at(watch, range(int(NO_TASK_REPORTED_AFTER_S)), 0) == []
    assert (watch.problem, caplog.messages) == ("", [])
    assert replaced_at(watch, range(5, 31), 0) == []
    assert (
        watch.problem
        == caplog.messages[0]
        == ("no Spark task is connected for 5 s (Spark is starting, or has no room; see spark.log)")
    )
    assert len(caplog.messages) == 1
    assert not watch.look(32, 1)
    assert watch.problem == ""


def test_a_session_whose_tasks_are_all_lost_is_replaced_and_its_successor_is_given_time() -> None:
    watch = TaskWatch(0)
    assert replaced_at(watch, range(3, 100), 1) == []
    assert replaced_at(watch, range(100, 500), 0) == [100 + LOST_S]


def test_a_session_that_starts_tasks_again_after_it_lost_all_is_given_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An executor of its own, or another JVM, may start for longer than 30 s."""
    watch = TaskWatch(0)
    assert not watch.look(50, 1, 3)
    assert [now_s for now_s in range(51, 750) if watch.look(now_s, 0, 3 + (now_s > 60))] == [
        51 + NEVER_S
    ]
    assert "all tasks are lost" in caplog.messages[0]
    assert "Spark is starting" in caplog.messages[1]
    assert not watch.look(800, 1, 4)
    assert [now_s for now_s in range(801, 999) if watch.look(now_s, 0, 4)] == [801 + LOST_S]


def test_a_session_that_waits_for_room_on_the_cluster_is_replaced_late() -> None:
    assert replaced_at(TaskWatch(0), range(1500), 0) == [NEVER_S, 2 * NEVER_S]


def test_a_moment_without_tasks_replaces_nothing() -> None:
    watch = TaskWatch(0)
    for second in range(0, 1000, 40):
        assert replaced_at(watch, range(second, second + 20), 1) == []
        assert replaced_at(watch, range(second + 20, second + 40), 0) == []
