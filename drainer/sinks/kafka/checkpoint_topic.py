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
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

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


_POLL_S = 0.2
K = TypeVar("K")
V = TypeVar("V")


def checkpoint_key(prefix: str, cluster_id: int, *topic: str) -> bytes:
    """Return the key of a cluster's checkpoint, or of its record of a topic."""
    return "/".join((prefix, str(cluster_id), *topic)).encode()


@dataclass(slots=True)
class Stored:
    """The last records of one output."""

    checkpoints: dict[int, str] = field(default_factory=dict)
    """Each cluster's checkpoint, as text."""
    topics: dict[int, dict[str, TopicRecord]] = field(default_factory=dict)
    """The topics of each cluster, by name."""


def read_checkpoints(options: dict[str, Any], topic: str, prefix: str, timeout_s: float) -> Stored:
    """Return each cluster's last records of one output.

    Raises `KafkaException` if the topic's end is not reached in time.
    """
    consumer = Consumer(
        {
            **options,
            "group.id": "penstock-checkpoint",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    found = Stored()
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
        cluster, _, topic = rest.partition("/")
        if not topic:
            _put(found.checkpoints, int(cluster), None if value is None else value.decode())
        else:
            record = None if value is None else TopicRecord.from_json(value.decode())
            _put(found.topics.setdefault(int(cluster), {}), topic, record)
    except ValueError as error:
        raise Malformed(
            f"the checkpoint topic has a record with the key {key!r}",
            "something else writes to that topic: name another one by checkpoint-topic, or"
            " remove the record by one of the same key without a value",
            Code.CHECKPOINT_DAMAGED,
        ) from error


def _put(records: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value
