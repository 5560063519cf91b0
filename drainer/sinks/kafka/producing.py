"""Producing: one Kafka producer, its transactions, and the errors it reports separately.

If a broker rejects a password, librdkafka tells only a callback, while the waiting call just times
out. `Producing` combines both: each call returns, or raises `KafkaException` for a transient error
or for one that an operator must fix.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from drainer.sinks.kafka.kafka_url import KafkaTarget
from drainer.sinks.kafka.offsets import Offsets
from drainer.sinks.kafka.refusals import is_of_credentials, refusal
from penstock.codes import Code
from penstock.errors import Retryable

log = logging.getLogger("librdkafka")

_WAIT_S = 0.5
_SLACK_BYTES = 4096
"""A message's size beside key and value: headers, and the frame of a batch."""
_QUEUE_KIB_MIN = 64 << 10
"""Size of the send queue; a larger message has to fit also."""
_BATCH_BYTES_MAX = 1_000_000

RecordHeader = tuple[str, str | bytes | None]
RecordHeaders = list[RecordHeader]
_NO_HEADERS: RecordHeaders = []


class Producing:
    """A connection to write with; used by one thread."""

    def __init__(
        self,
        target: KafkaTarget,
        transactional_id: str,
        is_closing: Callable[[], bool],
        offsets: Offsets | None = None,
    ) -> None:
        """Start connecting; an empty `transactional_id` means no transactions."""
        self.options = {
            **target.client_options(),
            "error_cb": self._on_error,
            "logger": log,
            "log_level": 0,  # It repeats itself while brokers are unreachable; calls report errors.
        }
        self._target = target
        self._is_closing = is_closing
        self._offsets = offsets or Offsets()
        self._is_transactional = bool(transactional_id)
        self._fault: KafkaError | None = None
        self._topic = ""
        # A transaction that fails reports which of its messages was rejected.
        more: dict[str, Any] = {}
        if transactional_id:
            more = {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(target.transaction_timeout_s * 1000),
            }
        self._producer = Producer(
            {
                **self.options,
                "enable.idempotence": True,
                **more,
                "message.max.bytes": target.message_bytes_max + _SLACK_BYTES,
                "batch.size": min(target.message_bytes_max, _BATCH_BYTES_MAX),
                "compression.type": target.compression,
                "queue.buffering.max.kbytes": max(_QUEUE_KIB_MIN, target.message_bytes_max >> 9),
            }
        )
        self.admin = AdminClient(self.options)

    def begin_writing(self, timeout_s: float) -> None:
        """Abort open transactions of the same transactional.id and fence their producers."""
        if not self._is_transactional:
            return
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._producer.init_transactions(_WAIT_S)
                return
            except KafkaException as error:
                self.look()
                fault = error.args[0]
                if not fault.retriable() or time.monotonic() > deadline_s:
                    raise
            self._check_open()

    def begin(self) -> None:
        self._offsets.begin()
        if self._is_transactional:
            self._producer.begin_transaction()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: RecordHeaders = _NO_HEADERS,
    ) -> None:
        """Queue a message for sending; wait while many are in flight."""
        is_first = self._offsets.send((topic, partition))
        more: dict[str, Any] = {}
        if is_first or not self._is_transactional:
            more = {"on_delivery": self._on_first if is_first else self._on_delivery}
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers, **more)
                return
            except BufferError:
                self._producer.poll(_WAIT_S)
                self.look()
                self._check_open()

    def flush(self, timeout_s: float) -> None:
        """Return once the brokers have all sent messages, after those they already had."""
        deadline_s = time.monotonic() + timeout_s
        while self._producer.flush(_WAIT_S):
            self.look()
            self._check_open()
            if time.monotonic() > deadline_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "messages are not taken"))
        self.look()
        self._offsets.check()

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction; after an error, the outcome is unknown."""
        if not self._is_transactional:
            self._offsets.committed()
            return
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._producer.commit_transaction(_WAIT_S)
                self._offsets.committed()
                return
            except KafkaException as error:
                self.look()
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
            self._check_open()

    def abandon(self) -> None:
        """Close for good; immediately abort an open transaction if brokers are reachable."""
        try:
            if self._is_transactional:
                self._producer.abort_transaction(_WAIT_S)
            self._producer.purge(blocking=False)
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:
            log.debug("the transaction is left to the next producer: %s", error)
        finally:
            # Both refer to this object. Their threads would stay until the garbage collector finds
            # the circle, which may be after hundreds of tries.
            del self._producer, self.admin

    def look(self) -> None:
        self._producer.poll(0)
        self.admin.poll(0)
        fault, self._fault = self._fault, None
        if fault is None:
            return
        if is_of_credentials(fault) and self._is_outdated():
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the password has changed"))
        raise refusal(fault, self._topic) or KafkaException(fault)

    def _is_outdated(self) -> bool:
        now = self._target.client_options()
        return bool(now.get("sasl.password") != self.options.get("sasl.password"))

    def _check_open(self) -> None:
        if self._is_closing():
            raise Retryable("the sink was closed while it waited", code=Code.CLOSED)

    def _on_error(self, error: KafkaError) -> None:
        # librdkafka retries all other errors automatically.
        if is_of_credentials(error) or refusal(error) is not None:
            self._fault, self._topic = error, ""

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._fault is None:
            self._fault, self._topic = error, message.topic() or ""

    def _on_first(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._offsets.delivered((message.topic(), message.partition()), message.offset())
        elif not self._is_transactional:
            self._on_delivery(error, message)
