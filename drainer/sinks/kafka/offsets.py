"""Offsets: each partition continues behind the messages that this run has committed to it.

A partition whose next message gets a smaller offset has lost messages that readers may not have
read: its topic was deleted and created again, or a broker came back with an older log. Only the
first message of a transaction needs a delivery report, as those behind it follow without a gap.
"""

from __future__ import annotations

from penstock.codes import Code
from penstock.errors import NeedsOperator

Partition = tuple[str, int]


class Offsets:
    """Where the partitions end at least; lives as long as the sink, not as its producers."""

    def __init__(self) -> None:
        """Know of no partition yet."""
        self._ends: dict[Partition, int] = {}
        self._sent: dict[Partition, int] = {}
        self._first: dict[Partition, int] = {}
        self._lost: NeedsOperator | None = None

    def begin(self) -> None:
        """Forget what was sent and is not committed."""
        self._sent.clear()
        self._first.clear()

    def send(self, partition: Partition) -> bool:
        """Count a message; return whether it is the first, whose offset is to be reported."""
        count = self._sent.get(partition, 0)
        self._sent[partition] = count + 1
        return count == 0

    def delivered(self, partition: Partition, offset: int | None) -> None:
        """Take the offset of the first message; a broker that saw it twice does not say it."""
        if offset is None or offset < 0 or partition not in self._sent:
            return
        self._first[partition] = offset
        end = self._ends.get(partition, 0)
        if offset < end and self._lost is None:
            topic, number = partition
            self._lost = NeedsOperator(
                f"topic {topic}, partition {number}: the next message got offset {offset}, and"
                f" this run has committed messages up to offset {end - 1}; the topic was deleted"
                " and created again, or a broker lost the end of its log",
                hint="restore the messages that readers lack, for example by a new initial load;"
                " then start the Drainer again, which continues at its checkpoint",
                code=Code.KAFKA_TOPIC,
            )

    def check(self) -> None:
        """Raise `NeedsOperator` once a partition has lost messages, from then on each time."""
        if self._lost is not None:
            raise self._lost

    def committed(self) -> None:
        """Remember where the messages end that are committed now."""
        for partition, offset in self._first.items():
            self._ends[partition] = offset + self._sent[partition]
        self.begin()
