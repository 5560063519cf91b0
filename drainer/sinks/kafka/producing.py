"""Producing: one Kafka producer, its transactions, the offsets it gets, and its errors.

If a broker rejects a password, librdkafka reports it only to a callback, while the waiting call
just times out. `Producing` combines both: each call returns, or raises `KafkaException` for a
transient error or for one that an operator must fix.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.checkpoint_topic import Offsets
from drainer.sinks.protocol import Refused
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable

_E = KafkaError
_CREDENTIALS = frozenset({_E._AUTHENTICATION, _E.SASL_AUTHENTICATION_FAILED,
                          _E.UNSUPPORTED_SASL_MECHANISM, _E.ILLEGAL_SASL_STATE})  # fmt: skip
_RIGHTS = frozenset({_E.TOPIC_AUTHORIZATION_FAILED, _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                     _E.CLUSTER_AUTHORIZATION_FAILED, _E.GROUP_AUTHORIZATION_FAILED})  # fmt: skip
_NO_TRANSACTIONS = frozenset({_E.UNSUPPORTED_VERSION, _E._UNSUPPORTED_FEATURE})
_TOO_LARGE = frozenset({_E.MSG_SIZE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE})
_SETTINGS = frozenset({_E._INVALID_ARG, _E._NOT_IMPLEMENTED})
_NOT_MADE = frozenset({_E.TOPIC_EXCEPTION, _E.POLICY_VIOLATION, _E.INVALID_REPLICATION_FACTOR,
                       _E.INVALID_PARTITIONS, _E.INVALID_CONFIG})  # fmt: skip
REPLACED = frozenset({_E._FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH,
                      _E.INVALID_PRODUCER_ID_MAPPING})  # fmt: skip
"""Another producer uses the same transactional.id, or the broker ended ours."""


def is_of_credentials(error: KafkaError) -> bool:
    return error.code() in _CREDENTIALS


def refusal(error: KafkaError, topic: str = "") -> NeedsOperator | None:
    """Return the error for the operator; None for a fault that may be transient."""
    code, said = error.code(), error.str()
    of_topic = f"topic {topic}: " if topic else ""
    if is_of_credentials(error):
        return NeedsOperator(
            f"Kafka refuses the user or the password: {said}",
            "write the password into password-file, check sasl-mechanism and the user",
            Code.SINK_GRANT,
        )
    if code == _E._SSL and ("certificate" in said or "verify" in said):
        return NeedsOperator(
            f"TLS towards Kafka: {said}",
            "check ssl-ca, ssl-cert and ssl-key, and the names and dates of the certificates",
            Code.TLS_NOT_TRUSTED,
        )
    if code in _SETTINGS:
        return NeedsOperator(
            f"Kafka's client refuses a setting: {said}",
            "check the options in the sink's URL, and the paths of ssl-ca, ssl-cert and ssl-key",
            Code.URL_INVALID,
        )
    if code in _RIGHTS:
        return NeedsOperator(
            f"{of_topic}Kafka denies a right: {said}",
            "let the user write, describe and create the topics, read the checkpoint topic in the"
            " group penstock-checkpoint, and write the transactional id; the commands are in"
            " install.md, Accounts",
            Code.SINK_GRANT,
        )
    if code in _NO_TRANSACTIONS:
        return NeedsOperator(
            f"this Kafka has no transactions: {said}",
            "use one that has; or set delivery=at-least-once, by which readers may see a"
            " batch twice",
            Code.KAFKA_TRANSACTIONS,
        )
    if code == _E.INVALID_TRANSACTION_TIMEOUT:
        return NeedsOperator(
            f"Kafka refuses the transaction timeout: {said}",
            "set transaction-timeout in the sink's URL to at most the brokers'"
            " transaction.max.timeout.ms",
            Code.KAFKA_TRANSACTIONS,
        )
    return _of_message(code, said, of_topic)


def _of_message(code: int, said: str, of_topic: str) -> NeedsOperator | None:
    if code in _TOO_LARGE:
        return Refused(
            f"{of_topic}Kafka refuses the size of a message: {said}",
            hint="raise max.message.bytes of the topic",
            code=Code.ROW_TOO_LARGE,
        )
    if code == _E.INVALID_RECORD:
        return Refused(
            f"{of_topic}Kafka refuses a message: {said}",
            hint="a compacted topic takes only messages with a key: give the table a primary key,"
            " use a format or partition=key that has keys, or set the topic's cleanup.policy to"
            " delete",
            code=Code.KAFKA_TOPIC,
        )
    if code in _NOT_MADE:
        return NeedsOperator(
            f"{of_topic}it cannot be created: {said}",
            "create it by hand, or change topic, partitions or replication-factor in the"
            " sink's URL",
            Code.KAFKA_TOPIC,
        )
    return None


log = logging.getLogger("librdkafka")

_WAIT_S = 0.5
_SLACK_BYTES = 4096
"""A message's size beside key and value: headers, and the frame of a batch."""
_QUEUE_KIB_MIN = 64 << 10
"""Size of the send queue; a larger message has to fit also."""
_BATCH_BYTES_MAX = 1_000_000

RecordHeaders = list[tuple[str, str | bytes | None]]


def client_options(target: KafkaTarget) -> dict[str, Any]:
    files = {
        "ssl.ca.location": target.ssl_ca,
        "ssl.certificate.location": target.ssl_cert,
        "ssl.key.location": target.ssl_key,
    }
    has_tls = target.tls or any(files.values())
    sasl = {"sasl.mechanism": target.sasl_mechanism, "sasl.username": target.user}
    password = target.current_password()
    return {
        "bootstrap.servers": target.bootstrap_servers,
        "client.id": target.client_id,
        "security.protocol": ("SASL_" if target.user else "") + ("SSL" if has_tls else "PLAINTEXT"),
        **{name: path for name, path in files.items() if path},
        **(sasl if target.user else {}),
        **({"sasl.password": password} if password else {}),
    }


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
            **client_options(target),
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
        timeout_ms = int(target.transaction_timeout_s * 1000)
        more = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer(
            {
                **self.options,
                "enable.idempotence": True,
                **(more if transactional_id else {}),
                "message.max.bytes": target.message_bytes_max + _SLACK_BYTES,
                "batch.size": min(target.message_bytes_max, _BATCH_BYTES_MAX),
                "compression.type": target.compression,
                "queue.buffering.max.kbytes": max(_QUEUE_KIB_MIN, target.message_bytes_max >> 9),
            }
        )
        self.admin = AdminClient(self.options)

    def begin_writing(self, timeout_s: float) -> None:
        """Abort open transactions of the same transactional.id and fence their producers."""
        if self._is_transactional:
            self._insist(self._producer.init_transactions, timeout_s)

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
        headers: RecordHeaders | None = None,
    ) -> None:
        """Queue a message for sending; wait while many are in flight."""
        is_first = self._offsets.send((topic, partition))
        more: dict[str, Any] = {}
        if is_first or not self._is_transactional:
            more = {"on_delivery": self._on_first if is_first else self._on_delivery}
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers or [], **more)
                return
            except BufferError:
                self._producer.poll(_WAIT_S)
                self.look()
                self._check_open()
            except KafkaException as error:
                if self._is_transactional and error.args[0].code() == _E._STATE:
                    # Brokers have rejected an earlier message: a commit fails with the reason.
                    self._producer.commit_transaction(_WAIT_S)
                raise

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
        if self._is_transactional:
            self._insist(self._producer.commit_transaction, timeout_s)
        self._offsets.committed()

    def _insist(self, call: Callable[[float], None], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return call(_WAIT_S)
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
        known = self.options.get("sasl.password", "")
        if is_of_credentials(fault) and self._target.current_password() != known:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the password has changed"))
        raise refusal(fault, self._topic) or KafkaException(fault)

    def _check_open(self) -> None:
        if self._is_closing():
            raise Retryable("the sink was closed while it waited", Code.CLOSED)

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
