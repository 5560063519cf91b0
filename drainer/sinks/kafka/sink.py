"""Kafka sink: each batch and its checkpoint are one Kafka transaction (`drainer.sinks.kafka`).

    begin to write   init_transactions ─ read the checkpoint topic to its end ─ is it still ours?
    a batch          begin ─ messages ─ checkpoint ─ flush ─ commit
    any failure      the producer is dropped, and the next try begins to write again

So each try knows what is there before it sends a message. A producer that works on is not asked
again: the brokers fence it as soon as another one begins to write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

from drainer.sinks.checkpoint import (
    Checkpoint,
    Ledger,
    OverrideChange,
    Standing,
    of_another_cluster,
    overridden,
)
from drainer.sinks.kafka.checkpoint_topic import checkpoint_key, read_checkpoints
from drainer.sinks.kafka.kafka_url import parse_kafka_url
from drainer.sinks.kafka.producing import Producing
from drainer.sinks.kafka.refusals import REPLACED, refusal
from drainer.sinks.kafka.topics import Topics
from drainer.sinks.protocol import (
    Refused,
    checkpoint_stored,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.task.events.encoding import stream_encoder_of
from drainer.task.events.messages import Message, Messages
from drainer.task.events.topics.destination import parse_to
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import Retryable

if TYPE_CHECKING:
    from drainer.sinks.protocol import Slices
    from penstock.ddl import SchemaChange

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_TRY_S = 30.0
"""How long one try waits for the brokers."""
_KEY_SHOWN = 200
T = TypeVar("T")


class KafkaSink:
    """See `EventSink`; usable from any one thread at a time."""

    batch_bytes_max = 0

    def __init__(self, url: str, *, cluster_id: int, retry_s_max: float) -> None:
        self._target = parse_kafka_url(url)
        self._cluster_id = cluster_id
        self._retry_s_max = retry_s_max
        self._ledger = Ledger()
        self._topics = Topics(self._target)
        self._producing: Producing | None = None
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._problem = ""
        self._watermark_s = 0.0
        self.encoding = self._target.encoding

    # --- the promise -----------------------------------------------------------------------

    @property
    def writer(self) -> str:
        """The name of this run in the checkpoint."""
        return self._ledger.writer

    @property
    def is_new(self) -> bool:
        """True while the topic has no checkpoint of this cluster."""
        return self._ledger.is_new

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue; nothing is written, and no one who writes is disturbed."""
        self._ledger.loaded(self._retrying(lambda _: self._stored()))
        return self._ledger.last

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store `checkpoint` alone."""
        self._commit(lambda producing: None, checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        """Change the overrides in the checkpoint; the run that writes is fenced, and reads it."""

        def attempt(_: bool) -> None:
            producing = self._begin_writing()
            text = overridden(self._stored(), change)
            self._topics.ensure([self._target.checkpoint_topic], producing.admin)
            producing.begin()
            self._send_checkpoint(producing, text)
            producing.flush(_TRY_S)
            producing.commit(_TRY_S)

        self._retrying(attempt)
        self._drop()

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        """Send a batch's messages and `checkpoint` in one transaction."""

        def work(producing: Producing) -> None:
            for each in messages:
                self._send(producing, each)

        self._commit(work, checkpoint)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        """Send the messages of a large transaction and `checkpoint` in one transaction."""

        def work(producing: Producing) -> None:
            with closing(slices()) as parts:
                for each in parts:
                    self._send(producing, each)

        self._commit(work, checkpoint)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Send the message of a DDL and `checkpoint`; `maybe_done` changes nothing."""
        made = stream_encoder_of(self.encoding).ddl(checkpoint.commit_ts, change)
        messages = Messages.of((checkpoint.commit_ts, message) for message in made)

        def work(producing: Producing) -> None:
            self._send(producing, messages)
            ddl_run()

        self._commit(work, checkpoint)

    def look_at(self, catalog: Catalog) -> None:
        """Do nothing: a topic is looked at when there is a message for it."""

    def stand_ins(self) -> Mapping[str, str]:
        """Return nothing: there are no collations that could be lacking."""
        return {}

    def waits_for(self) -> str:
        """Return what keeps the brokers from taking messages; empty when nothing does."""
        return self._problem

    def close(self) -> None:
        """Let go of the brokers; a call that waits in another thread ends with `Retryable`."""
        self._closing.set()
        with self._using:
            self._drop()

    # --- a transaction ---------------------------------------------------------------------

    def _commit(self, work: Callable[[Producing], None], checkpoint: Checkpoint) -> None:
        text, is_doubtful = self._ledger.attempt(checkpoint)

        def attempt(is_retried: bool) -> None:
            producing = self._producing
            if producing is None or not self._target.is_transactional:
                producing = self._begin_writing()
                retried = is_doubtful or is_retried
                standing = self._ledger.standing(self._stored(), text, retried=retried)
                if standing is Standing.ALREADY_WRITTEN:
                    return
            self._topics.ensure([self._target.checkpoint_topic], producing.admin)
            producing.begin()
            transaction_begun()
            work(producing)
            self._send_watermark(producing, checkpoint)
            rows_changed()
            if not self._target.is_transactional:
                producing.flush(_TRY_S)
            self._send_checkpoint(producing, text)
            checkpoint_stored()
            producing.flush(_TRY_S)
            producing.commit(_TRY_S)
            transaction_committed()

        self._retrying(attempt)
        self._ledger.wrote(text)

    def _begin_writing(self) -> Producing:
        if self._producing is None:
            transactional_id = ""
            if self._target.is_transactional:
                transactional_id = f"penstock-{self._target.prefix}-{self._cluster_id}"
            self._producing = Producing(self._target, transactional_id, self._closing.is_set)
            self._producing.begin_writing(_TRY_S)
        return self._producing

    def _send(self, producing: Producing, messages: Messages) -> None:
        made = list(messages)
        places = {message.to: parse_to(message.to) for _, message in made}
        self._topics.ensure((topic for topic, _ in places.values()), producing.admin)
        chosen = {
            to: (topic, self._topics.partition(topic, number))
            for to, (topic, number) in places.items()
        }
        bytes_max = self._target.message_bytes_max
        for commit_ts, message in made:
            topic, partition = chosen[message.to]
            value, key = message.value, message.key
            if len(value or b"") + len(key or b"") > bytes_max:
                raise _oversize(topic, message, bytes_max)
            producing.produce(topic, value, key, partition, b"%d" % commit_ts)

    def _send_watermark(self, producing: Producing, checkpoint: Checkpoint) -> None:
        every_s, now_s = self._target.watermark_s, time.monotonic()
        if every_s and checkpoint.commit_ts and now_s - self._watermark_s >= every_s:
            message = stream_encoder_of(self.encoding).watermark(checkpoint.commit_ts)
            self._send(producing, Messages.of([(checkpoint.commit_ts, message)]))
            self._watermark_s = now_s

    def _send_checkpoint(self, producing: Producing, text: str) -> None:
        key = checkpoint_key(self._target.prefix, self._cluster_id)
        producing.produce(self._target.checkpoint_topic, text.encode(), key, 0, b"")

    # --- what is stored --------------------------------------------------------------------

    def _stored(self) -> str | None:
        """Return this cluster's checkpoint; `NeedsOperator` where others have one of the output."""
        target = self._target
        looking = self._producing or Producing(target, "", self._closing.is_set)
        try:
            if not self._topics.has(target.checkpoint_topic, looking.admin):
                return None
            found = read_checkpoints(
                looking.options, target.checkpoint_topic, target.prefix, _TRY_S
            )
        except KafkaException:
            looking.look()
            raise
        finally:
            if looking is not self._producing:
                looking.abandon()
        if self._cluster_id not in found and found:
            raise of_another_cluster(self._cluster_id, list(found), "prefix")
        return found.get(self._cluster_id)

    # --- outages ---------------------------------------------------------------------------

    def _drop(self) -> None:
        producing, self._producing = self._producing, None
        if producing is not None:
            producing.abandon()

    def _retrying(self, attempt: Callable[[bool], T]) -> T:
        """Return what `attempt` returns; it is given whether it was tried before."""
        began_s, is_retried = time.monotonic(), False
        with self._using:
            while True:
                if self._closing.is_set():
                    raise Retryable("the sink is closed", code=Code.CLOSED)
                try:
                    made = attempt(is_retried)
                    self._problem = ""
                    return made
                except KafkaException as error:
                    self._drop()
                    fault: KafkaError = error.args[0]
                    found = None if fault.code() in REPLACED else refusal(fault)
                    if found is not None:
                        raise found from error
                    problem, self._problem = error, fault.str()
                except BaseException:
                    self._drop()
                    raise
                self._topics.forget()
                is_retried = True
                if time.monotonic() - began_s > self._retry_s_max:
                    raise Retryable(
                        f"Kafka at {self._target.brokers}: {self._problem}, for"
                        f" {self._retry_s_max:.0f} s",
                        code=Code.SINK_AWAY,
                    ) from problem
                log.warning("Kafka at %s: %s; trying again", self._target.brokers, self._problem)
                if self._closing.wait(_PAUSE_S):
                    raise Retryable(
                        "the sink was closed while it waited", code=Code.CLOSED
                    ) from problem


def _oversize(topic: str, message: Message, bytes_max: int) -> Refused:
    key = (message.key or b"").decode(errors="replace")[:_KEY_SHOWN]
    size = len(message.value or b"") + len(message.key or b"")
    return Refused(
        f"a message for topic {topic}, key {key or 'none'}, has {size} bytes, and max-message-bytes"
        f" is {bytes_max}",
        hint="raise max-message-bytes in the sink's URL and max.message.bytes of the topic; or set"
        " oversize=key-only, by which readers get the row's key alone",
        code=Code.KAFKA_SIZE,
    )
