"""Encoding: the name and options of an output's encoder, from its target to its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from drainer.task.events.messages import Encoder, StreamEncoder
from drainer.task.events.topics.destination import BY_TABLE, Destinations, Limit
from penstock.codes import Code
from penstock.errors import Malformed

TIDB_BINLOG_FILE = "tidb-binlog-file"
CANAL_JSON, DEBEZIUM, MAXWELL = "canal-json", "debezium", "maxwell"
TIDB_BINLOG = "tidb-binlog"
DELTA_CHANGES = "delta-changes"
"""Blocks of whole units, which `change_blocks` makes instead of an `Encoder`."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder's name, and the options of all encoders."""

    format: str
    prefix: str = ""
    topic: str = ""
    """The template of a table's topic, or the topic of all messages."""
    partition: str = BY_TABLE
    bytes_max: int = 0
    """The size above which only a row's key is sent; 0: no limit."""
    keeps_whole: bool = False
    """True if the full message is stored elsewhere then."""
    only_changed: bool = False
    """True if a row before an update has changed columns only."""
    schemas: bool = False
    tombstones: bool = True
    decimals: str = "precise"
    time_zone: str = "+00:00"


@lru_cache(maxsize=16)
def encoder_of(encoding: Encoding) -> Encoder:
    """Return the (cached) encoder; raise `Malformed` for an unsupported format."""
    if encoding.format == TIDB_BINLOG_FILE:
        from drainer.task.events.tidb_binlog_file import TidbBinlogFile

        return TidbBinlogFile(time_zone=encoding.time_zone)
    if encoding.format == TIDB_BINLOG:
        from drainer.task.events.tidb_binlog_topic import TidbBinlogTopic

        return TidbBinlogTopic(topic=encoding.topic, time_zone=encoding.time_zone)
    return stream_encoder_of(encoding)


def destinations_of(encoding: Encoding) -> Destinations:
    """Return the destinations of a format in which a message is a row."""
    return Destinations(prefix=encoding.prefix, topic=encoding.topic, partition=encoding.partition)


@lru_cache(maxsize=16)
def stream_encoder_of(encoding: Encoding) -> StreamEncoder:
    """Return the (cached) encoder with watermarks; raise `Malformed` as `encoder_of` does."""
    destinations = destinations_of(encoding)
    limit = Limit(encoding.bytes_max, encoding.keeps_whole)
    if encoding.format == CANAL_JSON:
        from drainer.task.events.topics.canal_json import CanalJson

        return CanalJson(destinations, limit=limit, only_changed=encoding.only_changed)
    if encoding.format == MAXWELL:
        from drainer.task.events.topics.maxwell_json import MaxwellJson

        return MaxwellJson(destinations, limit=limit)
    if encoding.format == DEBEZIUM:
        from drainer.task.events.topics.debezium_json import DebeziumJson

        return DebeziumJson(
            destinations,
            name=encoding.prefix,
            limit=limit,
            schemas=encoding.schemas,
            tombstones=encoding.tombstones,
            decimals=encoding.decimals,
        )
    raise Malformed(
        f"no encoder for the format {encoding.format!r}",
        "Drainer and Spark tasks must run the same version of Penstock",
        Code.SPARK_VERSION,
    )
