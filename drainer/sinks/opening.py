"""Opening: returns the sink that a URL names."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from drainer.settings.syncer_section import (
    DELTA,
    EVENT_TYPES,
    KAFKA,
    MYSQL_TYPES,
    takes_events,
)
from drainer.sinks.protocol import RETRY_S_MAX, EventSink, Sink, SqlSink, TableSink
from penstock.codes import Code
from penstock.errors import NeedsOperator

_TABLES = "sqlite:///path/file.db or mysql://user:password@host:port/"


_NAMES_OF_OUTPUTS = ("checkpoint-schema", "checkpoint-table", "checkpoint-topic", "prefix")


def label_of(url: str) -> str:
    """Return the downstream that a URL names, without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"sqlite {unquote(parts.path)[1:]}"
    if parts.scheme == DELTA:
        return f"{DELTA} {unquote(parts.path)}"
    return f"{parts.scheme} {parts.netloc.rpartition('@')[2]}"


def output_of(url: str) -> str:
    """Identify the output of a URL; unlike `label_of`, it is unique for each output."""
    parts = urlsplit(url)
    names = [f"{k}={v}" for k, v in parse_qsl(parts.query) if k in _NAMES_OF_OUTPUTS]
    return f"{parts.scheme} {parts.netloc.rpartition('@')[2]}{parts.path} {' '.join(names)}".strip()


def open_sink(
    url: str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX, accepted_ts: int = -1
) -> Sink:
    """Return the sink for `url`, of tables, of events or of a lake.

    Contacts nothing yet. Raises `NeedsOperator` for a URL that names no known downstream. While the
    checkpoint is at `accepted_ts`, an operator has accepted the downstream as it is.
    """
    if takes_events(url):
        return open_event_sink(
            url, cluster_id=cluster_id, retry_s_max=retry_s_max, accepted_ts=accepted_ts
        )
    if urlsplit(url).scheme == DELTA:
        return open_lake_sink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    return open_table_sink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)


def open_table_sink(url: str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX) -> SqlSink:
    """Return the SQL table sink for a `sqlite:///file` or `mysql://user:pw@host:port/` URL."""
    # Import each downstream's driver only if it is used.
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from drainer.sinks.sqlite.sink import SqliteSink

        return SqliteSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    if scheme in MYSQL_TYPES:
        from drainer.sinks.mysql.sink import MysqlSink

        return MysqlSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    others = "file:///folder, kafka://host:9092/ or delta:///folder"
    hint = _TABLES if scheme in (*EVENT_TYPES, DELTA) else f"{_TABLES}, {others}"
    raise NeedsOperator(
        f"no sink for downstream scheme {scheme!r}", hint=f"use {hint}", code=Code.URL_INVALID
    )


def open_lake_sink(url: str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX) -> TableSink:
    """Return the Arrow table sink for a `delta:///folder` URL."""
    from drainer.sinks.delta.sink import DeltaSink

    return DeltaSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)


def open_event_sink(
    url: str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX, accepted_ts: int = -1
) -> EventSink:
    """Return the sink that takes events for `url`.

    The URL is `file:///folder`, `kafka://host:9092/` or `delta:///folder?mode=changes`.
    """
    scheme = urlsplit(url).scheme
    if scheme == DELTA:
        from drainer.sinks.delta.changes_sink import ChangesSink

        return ChangesSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    if scheme == KAFKA:
        from drainer.sinks.kafka.sink import KafkaSink

        return KafkaSink(
            url, cluster_id=cluster_id, retry_s_max=retry_s_max, accepted_ts=accepted_ts
        )
    from drainer.sinks.files.sink import FileSink

    return FileSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
