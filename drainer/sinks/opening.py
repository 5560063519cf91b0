"""Opening: returns the sink that a URL names."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from drainer.settings.syncer_section import MYSQL_TYPES
from drainer.sinks.protocol import RETRY_S_MAX, Sink
from penstock.codes import Code
from penstock.errors import NeedsOperator


def label_of(url: str) -> str:
    """Return what downstream a URL names, without its user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"sqlite {unquote(parts.path)[1:]}"
    return f"{parts.scheme} {parts.netloc.rpartition('@')[2]}"


def open_sink(url: str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX) -> Sink:
    """Return the sink for `url` (`sqlite:///file` or `mysql://user:password@host:port/`).

    Nothing is contacted yet. Raise `NeedsOperator` for a URL that names no known downstream.
    """
    # Each downstream's driver is imported only by who uses it.
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from drainer.sinks.sqlite.sink import SqliteSink

        return SqliteSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    if scheme in MYSQL_TYPES:
        from drainer.sinks.mysql.sink import MysqlSink

        return MysqlSink(url, cluster_id=cluster_id, retry_s_max=retry_s_max)
    raise NeedsOperator(
        f"no sink for downstream scheme {scheme!r}",
        hint="use sqlite:///path/file.db or mysql://user:password@host:port/",
        code=Code.SINK_URL,
    )
