"""A reader of all topics under a prefix, with `isolation.level=read_committed`, to their ends."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient


class Read(NamedTuple):
    """One message."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    commit_ts: int
    headers: dict[Any, Any]

    @property
    def json(self) -> Any:
        assert self.value is not None
        return json.loads(self.value)


def read_topics(
    address: str,
    prefix: str,
    *,
    isolation: str = "read_committed",
    may_repeat: bool = False,
    **options: Any,
) -> list[Read]:
    """Return all messages, by commit_ts, and in their order within a partition.

    Asserts that commit_ts never falls within a partition, unless batches may be there twice.
    """
    found = []
    for message in messages(address, prefix, isolation=isolation, **options):
        headers = dict(message.headers() or [])
        found.append(
            Read(
                str(message.topic()), int(message.partition() or 0), int(message.offset() or 0),
                message.key(), message.value(), int(headers["penstock.commit_ts"] or 0), headers,
            )
        )  # fmt: skip
    last: dict[tuple[str, int], int] = defaultdict(int)
    for each in found:
        place = (each.topic, each.partition)
        assert may_repeat or each.commit_ts >= last[place], f"commit_ts falls in {place}"
        last[place] = each.commit_ts
    return sorted(found, key=lambda each: each.commit_ts)


def messages(
    address: str, prefix: str, *, isolation: str = "read_committed", **options: Any
) -> Iterator[Message]:
    """Yield what is in all topics under a prefix, in the order of each partition, to their ends."""
    options = {"bootstrap.servers": address, "group.id": "reader", **options}
    metadata = AdminClient(
        {name: value for name, value in options.items() if name != "group.id"}
    ).list_topics(timeout=20)
    wanted = [
        TopicPartition(name, number, OFFSET_BEGINNING)
        for name, topic in metadata.topics.items()
        for number in topic.partitions
        if name.startswith(f"{prefix}.")
    ]
    consumer = Consumer(
        options | {"isolation.level": isolation, "enable.partition.eof": True,
                   "fetch.wait.max.ms": 20,
                   "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign(wanted)
    ended = 0
    while ended < len(wanted):
        message = consumer.poll(20)
        assert message is not None, "the reader reaches the ends"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
            continue
        yield message
    consumer.close()


def done(futures: dict[Any, Any]) -> None:
    """Wait for all parts of an administrator's request; raise the error of one that failed."""
    for future in futures.values():
        future.result(30)
