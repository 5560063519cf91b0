"""Connections to Kafka that end leave nothing behind: no brokers are needed for that."""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.producing import Producing
from tests.kit.sink_target import sink_target


@pytest.fixture
def threads_before() -> Iterator[int]:
    """How many threads there are; the garbage collector, which would hide a circle, is off."""
    gc.collect()
    gc.disable()
    yield threads()
    gc.enable()


def threads() -> int:
    """Return how many threads of librdkafka there are; others end when they like."""
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            count += path.read_text().startswith("rdk:")
    return count


@pytest.mark.parametrize("transactional_id", ["", "penstock-1"])
def test_a_connection_that_is_let_go_of_leaves_no_thread(
    transactional_id: str, threads_before: int
) -> None:
    for _ in range(3):
        made = Producing(
            sink_target(KafkaTarget, "kafka://127.0.0.1:1/"), transactional_id, lambda: False
        )
        assert threads() > threads_before
        made.abandon()
        assert threads() <= threads_before
