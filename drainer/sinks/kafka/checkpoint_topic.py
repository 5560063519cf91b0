"""Checkpoint topic: the last committed checkpoint of each cluster, and the output's topics.

key      prefix and cluster id, such as shop/6791641053252586769
value    the checkpoint as every sink has it

A topic record has the identity and the committed ends of a topic of messages, which the next run
must find again. It is stored in the transaction of the messages:

key      prefix, cluster id and topic, such as shop/6791641053252586769/shop.db.item
value    {"id": "Qm3pZ0p3S0u0b2b1Lw2q5g", "ends": {"0": 1207}}; none once no table has the topic

`id` is the brokers' id of the topic, empty if they have no such ids. `ends` is the offset behind
the last committed message of each partition. A topic may have more partitions and later ends; its
log may start later, because retention removes old messages.

`Offsets` checks that each partition continues behind the messages committed to it. If a partition's
next message gets a smaller offset, the partition has lost messages that readers may not have read:
its topic was deleted and created again, or a broker came back with an older log. Only the first
message of a transaction needs a delivery report, because the others follow without a gap.

The messages of a transaction and their topics' records are sent together, before any is reported.
A record then has the least end that its partition can have: the known end, the marker that the
brokers wrote behind it at the last commit, and the messages of this transaction. Without another
writer it is the end. A partition without a known end is awaited first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic's recorded or current state."""

    id: str = ""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Offsets by partition."""

    def to_json(self) -> str:
        return json.dumps({"id": self.id, "ends": self.ends})

    @classmethod
    def from_json(cls, text: str) -> TopicRecord:
        """Parse a stored record; raise `ValueError` for any other text."""
        try:
            stored = json.loads(text)
            ends = {int(partition): int(end) for partition, end in stored["ends"].items()}
            return cls(str(stored["id"]), ends)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{text!r} is no record of a topic") from error

    def merged(self, topic_id: str, ends: Mapping[int, int]) -> TopicRecord:
        return TopicRecord(topic_id or self.id, {**self.ends, **ends})

    def difference(self, found: TopicRecord | None) -> str:
        """Describe how the found topic is different or shorter; empty if it is neither."""
        if found is None:
            return "it does not exist"
        if self.id and found.id and self.id != found.id:
            return f"its id is {found.id}, and it was {self.id}"
        for partition, end in sorted(self.ends.items()):
            if found.ends.get(partition, 0) < end:
                return (
                    f"partition {partition} ends at offset {found.ends.get(partition, 0)}, and"
                    f" messages were committed up to offset {end - 1}"
                )
        return ""


def lost(topic: str, difference: str, checkpoint_ts: int | None) -> NeedsOperator:
    known = f" = {checkpoint_ts}" if checkpoint_ts else ", the checkpoint's commit_ts,"
    return NeedsOperator(
        f"topic {topic}: {difference}; it was deleted and created again, or restored from a"
        " backup, or a broker lost the end of its log",
        "restore the topic. Or give readers the messages that they lack, for example by a new"
        f" initial load, and start the Drainer with initial-commit-ts{known} to accept the topic"
        " as it is",
        Code.KAFKA_TOPIC,
    )


Partition = tuple[str, int]
_NEW = TopicRecord()
_MARKER = 1
"""Offsets that the end of a transaction takes in each of its partitions."""


class Offsets:
    """The known minimum ends of partitions; kept as long as the sink, unlike its producers."""

    def __init__(self) -> None:
        self._known: dict[str, TopicRecord] = {}
        self._decided: dict[str, TopicRecord | None] = {}
        self._ids: dict[str, str] = {}
        self._sent: dict[Partition, int] = {}
        self._first: dict[Partition, int] = {}
        self._lost: NeedsOperator | None = None

    @property
    def known(self) -> Mapping[str, TopicRecord]:
        return self._known

    def load(self, stored: Mapping[str, TopicRecord]) -> None:
        self._known |= stored
        self._decide()

    def decide(self, topic: str, record: TopicRecord | None) -> None:
        """Replace a topic's record, or forget the topic if None; the next commit stores it."""
        self._decided[topic] = record
        self._decide()

    def _decide(self) -> None:
        for topic, record in self._decided.items():
            self._known.pop(topic, None)
            if record is not None:
                self._known[topic] = record

    def begin(self) -> None:
        self._sent.clear()
        self._first.clear()
        self._ids.clear()

    def send(self, partition: Partition) -> bool:
        """Count a message; return True for the first, whose offset must be reported."""
        count = self._sent.get(partition, 0)
        self._sent[partition] = count + 1
        return count == 0

    def delivered(self, partition: Partition, offset: int | None) -> None:
        """Record the first message's offset, which a broker omits for a duplicate."""
        if offset is None or offset < 0 or partition not in self._sent:
            return
        self._first[partition] = offset
        topic, number = partition
        end = self._end(partition)
        if offset < end and self._lost is None:
            text = f"the next message got offset {offset}"
            text += f", and messages were committed up to offset {end - 1}"
            self._lost = lost(f"{topic}, partition {number}", text, None)

    def check(self) -> None:
        """Raise `NeedsOperator` on every call once a partition has lost messages."""
        if self._lost is not None:
            raise self._lost

    def changed(self, id_of: Callable[[str], str]) -> dict[str, TopicRecord | None]:
        """Return the records to store with the sent messages; None removes a record.

        Raises `NeedsOperator` if messages were committed to another topic of the same name.
        """
        made = dict(self._decided)
        least = {each: end + _MARKER for each in self._sent if (end := self._end(each))}
        for topic, ends in self._open_ends(least | self._first).items():
            known = self._known.get(topic, _NEW)
            self._ids[topic] = id_of(topic)
            made[topic] = found = known.merged(self._ids[topic], ends)
            if self._lost is None and (difference := known.difference(found)):
                self._lost = lost(topic, difference, None)
        self.check()
        return made

    @property
    def are_known(self) -> bool:
        """Whether all partitions that messages were sent to have a known end."""
        return all(self._end(partition) for partition in self._sent)

    def _end(self, partition: Partition) -> int:
        topic, number = partition
        return self._known.get(topic, _NEW).ends.get(number, 0)

    def committed(self) -> None:
        for topic, ends in self._open_ends(self._first).items():
            known = self._known.get(topic, _NEW)
            self._known[topic] = known.merged(self._ids.get(topic, ""), ends)
        self._decided.clear()
        self.begin()

    def _open_ends(self, first: Mapping[Partition, int]) -> dict[str, dict[int, int]]:
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in first.items():
            topic, number = partition
            ends.setdefault(topic, {})[number] = offset + self._sent[partition]
        return ends


_POLL_S = 0.2


def checkpoint_key(prefix: str, cluster_id: int, *topic: str) -> bytes:
    """Return the key of a cluster's checkpoint, or of its record of a topic."""
    return "/".join((prefix, str(cluster_id), *topic)).encode()


Stored = tuple[dict[int, str], dict[int, dict[str, TopicRecord]]]
"""The last checkpoint of each cluster, as text; and the records of its topics, by name."""


GROUP = "penstock-checkpoint"
"""The consumer group of readers of checkpoints, in which no offset is stored."""


def read_checkpoints(options: dict[str, Any], topic: str, prefix: str, timeout_s: float) -> Stored:
    """Return each cluster's last records of one output.

    Raises `KafkaException` if the topic's end is not reached in time.
    """
    consumer = Consumer(
        {
            **options,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    found: Stored = {}, {}
    deadline_s = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while time.monotonic() < deadline_s:
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                _take(found, message.key(), message.value(), prefix)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic} is not read to its end"))


def _take(found: Stored, key: bytes | None, value: bytes | None, prefix: str) -> None:
    try:
        name, _, rest = (key or b"").decode().partition("/")
        if name != prefix:
            return
        checkpoints, topics = found
        cluster, _, topic = rest.partition("/")
        records = topics.setdefault(int(cluster), {})
        if value is None:
            _ = records.pop(topic, None) if topic else checkpoints.pop(int(cluster), None)
        elif topic:
            records[topic] = TopicRecord.from_json(value.decode())
        else:
            checkpoints[int(cluster)] = value.decode()
    except ValueError as error:
        raise Malformed(
            f"the checkpoint topic has a record with the key {key!r}",
            "something else writes to that topic: name another one by checkpoint-topic, or"
            " remove the record by one of the same key without a value",
            Code.CHECKPOINT_DAMAGED,
        ) from error
