"""Offsets: checks that each partition continues behind the messages committed to it.

If a partition's next message gets a smaller offset, the partition has lost messages that readers
may not have read: its topic was deleted and created again, or a broker came back with an older log.
Only the first message of a transaction needs a delivery report, because the others follow without a
gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drainer.sinks.kafka.topic_record import TopicRecord, lost
from penstock.errors import NeedsOperator

Partition = tuple[str, int]
_NEW = TopicRecord()


class Offsets:
    """The known minimum ends of partitions; lives as long as the sink, unlike its producers."""

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
        end = self._known.get(topic, _NEW).ends.get(number, 0)
        if offset < end and self._lost is None:
            text = (
                f"the next message got offset {offset}, and messages were committed up to"
                f" offset {end - 1}"
            )
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
        for topic, ends in self._open_ends().items():
            known = self._known.get(topic, _NEW)
            self._ids[topic] = id_of(topic)
            made[topic] = found = known.merged(self._ids[topic], ends)
            if self._lost is None and (difference := known.difference(found)):
                self._lost = lost(topic, difference, None)
        self.check()
        return made

    def committed(self) -> None:
        for topic, ends in self._open_ends().items():
            known = self._known.get(topic, _NEW)
            self._known[topic] = known.merged(self._ids.get(topic, ""), ends)
        self._decided.clear()
        self.begin()

    def _open_ends(self) -> dict[str, dict[int, int]]:
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in self._first.items():
            topic, number = partition
            ends.setdefault(topic, {})[number] = offset + self._sent[partition]
        return ends
