"""Encoding: the name and options of an output's encoder, from its URL to its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from drainer.task.events.encoder import Encoder, StreamEncoder
from drainer.task.events.topics.destination import Destinations, Limit
from penstock.codes import Code
from penstock.errors import Malformed

TIDB_BINLOG_FILE = "tidb-binlog-file"
CANAL_JSON, DEBEZIUM, MAXWELL = "canal-json", "debezium", "maxwell"
TIDB_BINLOG = "tidb-binlog"
DELTA_CHANGES = "delta-changes"
"""Blocks of whole units, which `change_blocks` makes instead of an `Encoder`."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder's name and options."""

    format: str
    options: tuple[tuple[str, str], ...] = ()


@lru_cache(maxsize=16)
def encoder_of(encoding: Encoding) -> Encoder:
    """Return the (cached) encoder; raise `Malformed` for an unsupported format."""
    options = dict(encoding.options)
    if encoding.format == TIDB_BINLOG_FILE:
        from drainer.task.events.tidb_binlog_file import TidbBinlogFile

        return TidbBinlogFile(**options)
    if encoding.format == TIDB_BINLOG:
        from drainer.task.events.tidb_binlog_topic import TidbBinlogTopic

        return TidbBinlogTopic(**options)
    return stream_encoder_of(encoding)


@lru_cache(maxsize=16)
def stream_encoder_of(encoding: Encoding) -> StreamEncoder:
    """Return the (cached) encoder with watermarks; raise `Malformed` as `encoder_of` does."""
    options = dict(encoding.options)
    if encoding.format not in (CANAL_JSON, DEBEZIUM, MAXWELL):
        raise Malformed(
            f"no encoder for the format {encoding.format!r}",
            hint="Drainer and Spark tasks must run the same version of Penstock",
            code=Code.SPARK_VERSION,
        )
    destinations = Destinations(
        prefix=options["prefix"], topic=options["topic"], partition=options["partition"]
    )
    limit = Limit(int(options["bytes_max"]), keeps_whole=options["whole"] == "True")
    if encoding.format == CANAL_JSON:
        from drainer.task.events.topics.canal_json import CanalJson

        return CanalJson(destinations, limit=limit, only_changed=options["old"] == "changed")
    if encoding.format == MAXWELL:
        from drainer.task.events.topics.maxwell_json import MaxwellJson

        return MaxwellJson(destinations, limit=limit)
    from drainer.task.events.topics.debezium_json import DebeziumJson

    return DebeziumJson(
        destinations,
        name=options["prefix"],
        limit=limit,
        schemas=options["schemas"] == "True",
        tombstones=options["tombstones"] == "True",
        decimals=options["decimals"],
    )
