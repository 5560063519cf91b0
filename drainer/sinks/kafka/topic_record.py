"""Topic record: the topic's identity and committed ends, which the next run must find again.

It is stored in the checkpoint topic, in the transaction of the messages:

key      prefix, cluster id and topic, such as shop/6791641053252586769/shop.db.item
value    {"id": "Qm3pZ0p3S0u0b2b1Lw2q5g", "ends": {"0": 1207}}; none once no table has the topic

`id` is the brokers' id of the topic, empty if they have no such ids. `ends` is the offset behind
the last committed message of each partition. A topic may have more partitions and later ends; its
log may start later, because retention removes old messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.codes import Code
from penstock.errors import NeedsOperator


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
        hint="restore the topic. Or give readers the messages that they lack, for example by a new"
        f" initial load, and start the Drainer with initial-commit-ts{known} to accept the topic"
        " as it is",
        code=Code.KAFKA_TOPIC,
    )
