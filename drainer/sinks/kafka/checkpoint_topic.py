"""Checkpoint topic: reads the last committed checkpoint of each cluster.

key      prefix and cluster id, such as shop/6791641053252586769
value    the checkpoint as every sink has it

The topic also holds the records of the output's topics (`drainer.sinks.kafka.topic_record`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from drainer.sinks.kafka.topic_record import TopicRecord
from penstock.codes import Code
from penstock.errors import Malformed

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
            hint="something else writes to that topic: name another one by checkpoint-topic, or"
            " remove the record by one of the same key without a value",
            code=Code.CHECKPOINT_DAMAGED,
        ) from error


def _put(records: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value
