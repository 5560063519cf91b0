"""An output in memory: a list of messages and a checkpoint, which change together.

The list outlives its sinks, as a broker does; what a sink that dies was about to add is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainer.sinks.checkpoint import Checkpoint, OverrideChange, of_another_cluster, overridden
from drainer.sinks.protocol import EventSink, Slices
from drainer.task.events.event_unit import TIDB_BINLOG_FILE, Encoding, encoder_of
from drainer.task.events.messages import Message, Messages
from penstock.codes import Code
from penstock.errors import Retryable

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange


@dataclass
class Broker:
    """What outlives the sinks: the messages, each with its commit_ts, and each cluster's row."""

    messages: list[tuple[int, Message]] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)


class MemoryOutput(EventSink):
    """See `EventSink`."""

    encoding = Encoding(TIDB_BINLOG_FILE)

    def __init__(self, broker: Broker, cluster_id: int) -> None:
        super().__init__(cluster_id)
        self._broker = broker
        self._is_closed = False

    def load_checkpoint(self) -> Checkpoint | None:
        return self._ledger.loaded(self._own())

    def _own(self) -> str | None:
        if self._is_closed:
            raise Retryable("the sink is closed", code=Code.CLOSED)
        stored = self._broker.rows.get(self._cluster_id)
        if stored is None and self._broker.rows:
            raise of_another_cluster(self._cluster_id, list(self._broker.rows), "broker")
        return stored

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._commit([], checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        self._broker.rows[self._cluster_id] = overridden(self._own(), change)

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        self._commit([each for block in messages for each in block], checkpoint)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        with closing(slices()) as parts:
            self._commit([each for block in parts for each in block], checkpoint)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        made = encoder_of(self.encoding).ddl(checkpoint.commit_ts, change)
        self._commit([(checkpoint.commit_ts, each) for each in made], checkpoint)

    def close(self) -> None:
        self._is_closed = True

    def _commit(self, messages: list[tuple[int, Message]], checkpoint: Checkpoint) -> None:
        text, retried = self._ledger.attempt(checkpoint)
        if not self._ledger.is_written(self._own(), text, retried=retried):
            self._broker.messages += messages
            self._broker.rows[self._cluster_id] = text
        self._ledger.wrote(text)
