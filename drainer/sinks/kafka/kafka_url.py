"""URL of a Kafka: parses it.

kafka://user@host:9092,host2:9092/?format=canal-json&prefix=shop&password-file=/etc/kafka.pw

format               canal-json, debezium, maxwell, tidb-binlog
prefix               the prefix of topic names; two outputs differ in it
topic                a table's topic: {prefix}.{schema}.{table}; {cluster} is the cluster's id
partition            table, key, ts or one: see drainer.task.events.topics.destination
create-topics        true; false: a topic that is missing stops the Drainer
partitions           of topics that are created; 0: the broker's default
replication-factor   the same
max-message-bytes    the largest message; topics must accept that size
oversize             stop; key-only: a larger row is sent as its key; claim-check: and a file
claim-check-dir      the folder of such files
delivery             exactly-once, or at-least-once for brokers without transactions
transaction-timeout  after which a broker aborts a transaction of a Drainer that has died
compression          none, gzip, snappy, lz4, zstd
watermark            the shortest interval between watermarks; 0: never
client-id            this Drainer's id in the brokers' quotas and logs
checkpoint-topic     the topic of the checkpoint
old                  canal-json: full rows before an update, or changed columns only
schemas, tombstones, decimals   debezium: see drainer.task.events.topics.debezium_json
time-zone            tidb-binlog: of TIMESTAMPs
tls, ssl-ca, ssl-cert, ssl-key, sasl-mechanism, password-file

With tidb-binlog everything is in one partition of one topic, {cluster}_obinlog by default, and a
message is a transaction. Options for tables, partitions and single rows are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from drainer.task.events.encoding import CANAL_JSON, DEBEZIUM, MAXWELL, TIDB_BINLOG, Encoding
from drainer.task.events.tidb_binlog_file import zone_offset
from drainer.task.events.topics.debezium_types import DECIMALS, PRECISE
from drainer.task.events.topics.destination import BY_TABLE, PARTITIONS, topic_name
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.databases import PasswordFile
from penstock.settings.load import duration_s, size_bytes
from penstock.settings.setting import out_of_range

T = TypeVar("T")

STOP, KEY_ONLY, CLAIM_CHECK = OVERSIZE = "stop", "key-only", "claim-check"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
MESSAGE_BYTES_MAX = 1_000_000
"""Slightly below a topic's default limit."""
_TOPIC, _FIELDS = "{prefix}.{schema}.{table}", ("prefix", "cluster", "schema", "table")
_TIDB_TOPIC, _TIDB_FIELDS = "{cluster}_obinlog", ("prefix", "cluster")
_FORMATS = (CANAL_JSON, DEBEZIUM, MAXWELL, TIDB_BINLOG)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_BROKER = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:,\[\]]+)(:\d+)?")
_FIELD = re.compile(r"\{(\w*)\}")
_HINT = "write kafka://host:9092,host2:9092/?format=canal-json&prefix=shop"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """The brokers, the output, and its options."""

    brokers: str
    prefix: str
    encoding: Encoding
    connection: Mapping[str, str]
    """librdkafka's settings of TLS and SASL, except the password."""
    password: str = ""
    password_file: PasswordFile | None = None
    create_topics: bool = True
    partitions: int = 0
    replication_factor: int = 0
    message_bytes_max: int = MESSAGE_BYTES_MAX
    is_transactional: bool = True
    transaction_timeout_s: float = 900.0
    compression: str = "none"
    watermark_s: float = 1.0
    checkpoint_topic: str = "_penstock_checkpoint"
    client_id: str = "penstock"
    claim_check_dir: Path | None = None

    @property
    def cuts_rows(self) -> bool:
        """True if a row that is too large is reduced to its key."""
        return dict(self.encoding.options).get("bytes_max", "0") != "0"

    @property
    def sends_transactions(self) -> bool:
        """True if a message is a whole transaction, not a row."""
        return self.encoding.format == TIDB_BINLOG

    def of_cluster(self, cluster_id: int) -> KafkaTarget:
        options = [
            (name, text.replace("{cluster}", str(cluster_id)) if name == "topic" else text)
            for name, text in self.encoding.options
        ]
        return replace(self, encoding=Encoding(self.encoding.format, tuple(options)))

    def client_options(self) -> dict[str, Any]:
        """Return librdkafka's settings of every client, with the current password."""
        password = self.password_file.password() if self.password_file else self.password
        secret = {"sasl.password": password} if password else {}
        return {
            "bootstrap.servers": self.brokers,
            "client.id": self.client_id,
            **self.connection,
            **secret,
        }


def parse_kafka_url(url: str) -> KafkaTarget:
    """Return the parts of `url`; raise `NeedsOperator` for an unknown option or value."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query, True, bool(parts.query)))
    except ValueError as error:  # The URL may hold a password, and is not repeated.
        raise NeedsOperator(
            f"unreadable downstream URL: {error}", hint=_HINT, code=Code.URL_INVALID
        ) from error
    account, _, hosts = parts.netloc.rpartition("@")
    found = [_BROKER.fullmatch(each) for each in hosts.split(",")]
    if not all(found) or parts.path.strip("/"):
        raise NeedsOperator(
            "the downstream URL names no brokers, or a path", hint=_HINT, code=Code.URL_INVALID
        )
    options = _Options(asked)
    user, _, password = account.partition(":")
    file = options.text("password-file", "")
    if password and file:
        raise NeedsOperator(
            "the downstream's URL has a password and a password-file",
            hint="leave one of them out",
            code=Code.URL_INVALID,
        )
    is_tidb = options.one_of("format", _FORMATS) == TIDB_BINLOG
    target = KafkaTarget(
        brokers=",".join(each[1] + (each[2] or ":9092") for each in found if each),
        prefix=topic_name(options.text("prefix", "penstock")),
        connection=_connection(options, unquote(user)),
        password=unquote(password),
        password_file=PasswordFile(file) if file else None,
        create_topics=options.flag("create-topics", "true"),
        partitions=1 if is_tidb else options.number("partitions", 0, 100_000),
        replication_factor=options.number("replication-factor", 0, 100),
        message_bytes_max=options.bytes("max-message-bytes", MESSAGE_BYTES_MAX),
        is_transactional=options.one_of("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)) == EXACTLY_ONCE,
        transaction_timeout_s=options.seconds("transaction-timeout", "15m"),
        compression=options.one_of("compression", ("none", "gzip", "snappy", "lz4", "zstd")),
        watermark_s=0.0 if is_tidb else options.seconds("watermark", "1s"),
        checkpoint_topic=topic_name(options.text("checkpoint-topic", "_penstock_checkpoint")),
        client_id=options.text("client-id", "penstock"),
        claim_check_dir=None if is_tidb else _claim_check_dir(options),
        encoding=_tidb_encoding(options) if is_tidb else _encoding(options),
    )
    options.check_all_known()
    if target.connection.get("sasl.mechanism") and not (password or file):
        raise NeedsOperator(
            "the downstream's URL has a user and no password",
            hint="name a password-file",
            code=Code.URL_INVALID,
        )
    return target


def _encoding(options: _Options) -> Encoding:
    name = options.one_of("format", _FORMATS)
    oversize = options.one_of("oversize", OVERSIZE)
    bytes_max = options.bytes("max-message-bytes", MESSAGE_BYTES_MAX)
    chosen = {
        "prefix": topic_name(options.text("prefix", "penstock")),
        "topic": _topic(options, _TOPIC, _FIELDS),
        "partition": options.one_of("partition", (BY_TABLE, *PARTITIONS)),
        "bytes_max": str(0 if oversize == STOP else bytes_max),
        "whole": str(oversize == CLAIM_CHECK),
    }
    if name == CANAL_JSON:
        chosen["old"] = options.one_of("old", ("full", "changed"))
    elif name == DEBEZIUM:
        chosen["schemas"] = str(options.flag("schemas", "false"))
        chosen["tombstones"] = str(options.flag("tombstones", "true"))
        chosen["decimals"] = options.one_of("decimals", (PRECISE, *DECIMALS))
    return Encoding(name, tuple(chosen.items()))


def _tidb_encoding(options: _Options) -> Encoding:
    zone = options.text("time-zone", "+00:00")
    zone_offset(zone)
    template = _topic(options, _TIDB_TOPIC, _TIDB_FIELDS)
    topic = template.replace("{prefix}", topic_name(options.text("prefix", "penstock")))
    return Encoding(TIDB_BINLOG, (("topic", topic), ("time_zone", zone)))


def _claim_check_dir(options: _Options) -> Path | None:
    folder = options.text("claim-check-dir", "")
    if (options.one_of("oversize", OVERSIZE) == CLAIM_CHECK) != bool(folder):
        raise out_of_range(
            "claim-check-dir", folder, "name a folder together with oversize=claim-check"
        )
    if folder and not Path(folder).is_absolute():
        raise out_of_range("claim-check-dir", folder, "write an absolute path: readers get it")
    return Path(folder) if folder else None


def _topic(options: _Options, default: str, fields: tuple[str, ...]) -> str:
    topic = options.text("topic", default)
    unknown = set(_FIELD.findall(topic)) - set(fields)
    if unknown or re.search(r"[{}]", _FIELD.sub("", topic)):
        known = ", ".join(f"{{{each}}}" for each in fields)
        raise out_of_range("topic", topic, f"it may have {known}")
    return topic


def _connection(options: _Options, user: str) -> dict[str, str]:
    files = {
        name: text
        for option, name in (
            ("ssl-ca", "ssl.ca.location"),
            ("ssl-cert", "ssl.certificate.location"),
            ("ssl-key", "ssl.key.location"),
        )
        if (text := options.text(option, ""))
    }
    has_tls = options.flag("tls", "true" if files else "false")
    if files and not has_tls:
        raise out_of_range("tls", "false", "leave it out: certificates are named")
    mechanism = options.one_of("sasl-mechanism", _MECHANISMS)
    protocol = ("SASL_" if user else "") + ("SSL" if has_tls else "PLAINTEXT")
    sasl = {"sasl.mechanism": mechanism, "sasl.username": user} if user else {}
    return {"security.protocol": protocol, **files, **sasl}


class _Options:
    """The URL's options, each read by its name."""

    def __init__(self, asked: dict[str, str]) -> None:
        self._asked = asked
        self._known: set[str] = set()

    def text(self, name: str, default: str) -> str:
        self._known.add(name)
        return self._asked.get(name, default)

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        """Return an option's value, which must be one of `values`; the first is the default."""
        value = self.text(name, values[0])
        if value not in values:
            raise out_of_range(name, value, f"use {' or '.join(dict.fromkeys(values))}")
        return value

    def flag(self, name: str, default: str) -> bool:
        value = self.text(name, default)
        if value not in ("true", "false"):
            raise out_of_range(name, value, "use true or false")
        return value == "true"

    def number(self, name: str, default: int, end: int) -> int:
        value = self._parsed(name, str(default), int)
        if not 0 <= value < end:
            raise out_of_range(name, value, f"0 to {end - 1} is the range")
        return value

    def bytes(self, name: str, default: int) -> int:
        value = self._parsed(name, str(default), size_bytes)
        if not 1000 <= value <= 1_000_000_000:
            raise out_of_range(name, value, "1000 bytes to 1 GB is the range")
        return value

    def seconds(self, name: str, default: str) -> float:
        return self._parsed(name, default, duration_s)

    def _parsed(self, name: str, default: str, parse: Callable[[str], T]) -> T:
        text = self.text(name, default)
        try:
            return parse(text)
        except ValueError as error:
            raise out_of_range(name, text, str(error)) from error

    def check_all_known(self) -> None:
        """Raise `NeedsOperator` for an option that no code has asked for."""
        for key in self._asked:
            if key not in self._known | _OF_FORMATS:
                known = ", ".join(sorted(self._known | _OF_FORMATS))
                raise NeedsOperator(
                    f"unknown downstream option {key!r}",
                    hint=f"known are {known}",
                    code=Code.URL_INVALID,
                )
            if key not in self._known:
                raise NeedsOperator(
                    f"the downstream option {key!r} is not one of this format",
                    hint="leave it out, or choose another format",
                    code=Code.URL_INVALID,
                )


_OF_FORMATS = {"old", "schemas", "tombstones", "decimals", "time-zone", "partition", "partitions",
               "oversize", "claim-check-dir", "watermark"}  # fmt: skip
