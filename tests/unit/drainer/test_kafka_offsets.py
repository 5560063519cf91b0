"""A topic that loses messages under the sink is noticed by the offsets of the next ones."""

from __future__ import annotations

import pytest

from drainer.sinks.kafka.offsets import Offsets
from penstock.codes import Code
from penstock.errors import NeedsOperator

PARTITION = ("p.shop.item", 1)


def sent(offsets: Offsets, first: int | None, count: int, partition: tuple[str, int]) -> None:
    """Send messages, of which the first gets the offset, as far as the commit."""
    offsets.begin()
    assert [offsets.send(partition) for _ in range(count)] == [True] + [False] * (count - 1)
    offsets.delivered(partition, first)
    offsets.check()


def committed(
    offsets: Offsets, first: int | None, count: int, partition: tuple[str, int] = PARTITION
) -> None:
    sent(offsets, first, count, partition)
    offsets.committed()


@pytest.mark.parametrize("next_first", [0, 99, 102])
def test_a_partition_that_does_not_continue_behind_the_committed_messages_is_refused(
    next_first: int,
) -> None:
    offsets = Offsets()
    committed(offsets, 100, 3)
    with pytest.raises(NeedsOperator, match=f"offset {next_first}.*up to offset 102") as refused:
        committed(offsets, next_first, 1)
    assert refused.value.code == Code.KAFKA_TOPIC
    with pytest.raises(NeedsOperator):
        committed(offsets, 200, 1)  # Messages of attempts do not hide the ones that are lost.


def test_markers_of_transactions_and_messages_of_others_may_lie_between() -> None:
    offsets = Offsets()
    for first in (100, 103, 104, 1000):
        committed(offsets, first, 1)


def test_messages_that_were_not_committed_may_be_lost() -> None:
    offsets = Offsets()
    committed(offsets, 100, 3)
    sent(offsets, 104, 50, PARTITION)
    committed(offsets, 104, 1)


def test_an_offset_that_the_broker_does_not_say_is_no_lost_message() -> None:
    offsets = Offsets()
    for first in (100, None, -1001, 102):
        committed(offsets, first, 1)


def test_partitions_and_topics_are_apart() -> None:
    offsets = Offsets()
    committed(offsets, 100, 1)
    committed(offsets, 5, 1, ("p.shop.item", 0))
    committed(offsets, 0, 1, ("p.shop.order", 1))
