"""Refusals: Kafka's errors that retrying cannot resolve, and an operator's remedy for each."""

from __future__ import annotations

from confluent_kafka import KafkaError

from drainer.sinks.protocol import Refused
from penstock.codes import Code
from penstock.errors import NeedsOperator

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
            hint="write the password into password-file, check sasl-mechanism and the user",
            code=Code.SINK_GRANT,
        )
    if code == _E._SSL and ("certificate" in said or "verify" in said):
        return NeedsOperator(
            f"TLS towards Kafka: {said}",
            hint="check ssl-ca, ssl-cert and ssl-key, and the names and dates of the certificates",
            code=Code.TLS_NOT_TRUSTED,
        )
    if code in _SETTINGS:
        return NeedsOperator(
            f"Kafka's client refuses a setting: {said}",
            hint="check the options in the sink's URL, and the paths of ssl-ca, ssl-cert and"
            " ssl-key",
            code=Code.URL_INVALID,
        )
    if code in _RIGHTS:
        return NeedsOperator(
            f"{of_topic}Kafka denies a right: {said}",
            hint="let the user write, describe and create the topics, read the checkpoint topic,"
            " and write the transactional id, all of which begin with the output's names",
            code=Code.SINK_GRANT,
        )
    if code in _NO_TRANSACTIONS:
        return NeedsOperator(
            f"this Kafka has no transactions: {said}",
            hint="use one that has; or set delivery=at-least-once, by which readers may see a"
            " batch twice",
            code=Code.KAFKA_TRANSACTIONS,
        )
    if code == _E.INVALID_TRANSACTION_TIMEOUT:
        return NeedsOperator(
            f"Kafka refuses the transaction timeout: {said}",
            hint="set transaction-timeout in the sink's URL to at most the brokers'"
            " transaction.max.timeout.ms",
            code=Code.KAFKA_TRANSACTIONS,
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
            hint="create it by hand, or change topic, partitions or replication-factor in the"
            " sink's URL",
            code=Code.KAFKA_TOPIC,
        )
    return None
