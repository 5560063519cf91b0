"""A topic that loses messages under the sink is noticed by the offsets of the next ones."""

import re

import pytest

from drainer.sinks.kafka.checkpoint_topic import Offsets, TopicRecord
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


def recorded(offsets: Offsets, topic_id: str) -> dict[str, TopicRecord | None]:
    made = offsets.changed(lambda _: topic_id)
    offsets.committed()
    return made


def test_records_of_a_run_are_what_the_next_one_starts_with() -> None:
    one = Offsets()
    sent(one, 100, 3, PARTITION)
    sent_more = ("p.shop.item", 0)
    assert one.send(sent_more)
    one.delivered(sent_more, 7)
    assert recorded(one, "A") == {"p.shop.item": TopicRecord("A", {1: 103, 0: 8})}
    sent(one, 104, 1, PARTITION)
    made = recorded(one, "A")
    assert made == {"p.shop.item": TopicRecord("A", {1: 105, 0: 8})}
    next_one = Offsets()
    next_one.load({topic: each for topic, each in made.items() if each is not None})
    with pytest.raises(NeedsOperator, match="up to offset 104"):
        sent(next_one, 103, 1, PARTITION)


def test_a_record_before_the_delivery_reports_has_the_end_of_an_only_writer() -> None:
    offsets = Offsets()
    offsets.begin()
    offsets.send(PARTITION)
    assert not offsets.are_known
    offsets.delivered(PARTITION, 100)
    recorded(offsets, "A")
    for reported, expected in ((102, 104), (200, 107), (203, 205)):
        offsets.begin()
        assert [offsets.send(PARTITION) for _ in range(2)] == [True, False]
        assert offsets.are_known
        assert offsets.changed(lambda _: "A") == {"p.shop.item": TopicRecord("A", {1: expected})}
        offsets.delivered(PARTITION, reported)
        offsets.committed()
        assert offsets.known["p.shop.item"].ends == {1: reported + 2}


def test_a_topic_of_another_id_is_refused_whatever_its_offsets() -> None:
    offsets = Offsets()
    sent(offsets, 100, 3, PARTITION)
    recorded(offsets, "A")
    sent(offsets, 500, 1, PARTITION)
    with pytest.raises(NeedsOperator, match="its id is B, and it was A") as refused:
        offsets.changed(lambda _: "B")
    assert refused.value.code == Code.KAFKA_TOPIC


def test_a_decision_is_stored_with_the_next_commit_and_holds_until_then() -> None:
    offsets = Offsets()
    old, new = TopicRecord("A", {1: 100}), TopicRecord("B", {1: 2})
    offsets.load({"p.shop.item": old, "p.shop.gone": old})
    offsets.decide("p.shop.item", new)
    offsets.decide("p.shop.gone", None)
    offsets.load({"p.shop.item": old, "p.shop.gone": old})  # A try that failed.
    assert offsets.known == {"p.shop.item": new}
    offsets.begin()
    assert recorded(offsets, "") == {"p.shop.item": new, "p.shop.gone": None}
    offsets.begin()
    assert recorded(offsets, "") == {}
    assert offsets.known == {"p.shop.item": new}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (TopicRecord("A", {0: 9, 1: 7}), ""),
        (TopicRecord("A", {0: 90, 1: 7, 2: 0}), ""),
        (TopicRecord("", {0: 9, 1: 7}), ""),
        (None, "does not exist"),
        (TopicRecord("B", {0: 90, 1: 70}), "its id is B, and it was A"),
        (TopicRecord("A", {0: 9, 1: 6}), "partition 1 ends at offset 6, .* up to offset 6"),
        (TopicRecord("A", {0: 9}), "partition 1 ends at offset 0"),
    ],
)
def test_a_topic_differs_by_its_id_or_by_an_earlier_end(
    found: TopicRecord | None, text: str
) -> None:
    difference = TopicRecord("A", {0: 9, 1: 7}).difference(found)
    assert bool(difference) == bool(text)
    assert re.search(text, difference)


def test_a_record_is_read_as_it_was_stored() -> None:
    record = TopicRecord("Qm3pZ0p3S0u0b2b1Lw2q5g", {0: 1207, 11: 3})
    assert TopicRecord.from_json(record.to_json()) == record
    for damaged in ("", "{}", "[]", '{"id": "x"}', '{"id": "x", "ends": 3}', '{"ends": {"a": 1}}'):
        with pytest.raises(ValueError, match=r"record|JSON|Expecting|invalid"):
            TopicRecord.from_json(damaged)
