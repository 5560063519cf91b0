"""Checkpoint topic: reads what the last committed transaction of each cluster has stored there.

key      prefix and cluster id, such as shop/6791641053252586769
value    the checkpoint as every sink has it
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.codes import Code
from penstock.errors import Malformed

_POLL_S = 0.2


def checkpoint_key(prefix: str, cluster_id: int) -> bytes:
    """Return the key of a cluster's record."""
    return f"{prefix}/{cluster_id}".encode()


def read_checkpoints(
    options: dict[str, Any], topic: str, prefix: str, timeout_s: float
) -> dict[int, str]:
    """Return the text of each cluster's last record of one output.

    Raises `KafkaException` where the topic's end is not reached in time.
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
    found: dict[int, str] = {}
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


def _take(found: dict[int, str], key: bytes | None, value: bytes | None, prefix: str) -> None:
    try:
        name, _, cluster = (key or b"").decode().rpartition("/")
        if name != prefix:
            return
        if value is None:
            found.pop(int(cluster), None)
        else:
            found[int(cluster)] = value.decode()
    except ValueError as error:
        raise Malformed(
            f"the checkpoint topic has a record with the key {key!r}",
            hint="something else writes to that topic: name another one by checkpoint-topic, or"
            " remove the record by one of the same key without a value",
            code=Code.CHECKPOINT_DAMAGED,
        ) from error
