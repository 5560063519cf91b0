"""Filters and routes as a Drainer's settings ask for them."""

from __future__ import annotations

from urllib.parse import urlsplit

from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.settings.syncer import MYSQL_TYPES
from drainer.task.loopback import OWN_SCHEMAS
from drainer.task.selection import Selection
from penstock.filters import Rules


def protected_schemas(config: DrainerConfig) -> set[str]:
    """Return the schemas that are the Drainers' own, downstream and, if it loops, upstream."""
    sink_url = config.downstream
    own = set(OWN_SCHEMAS) if config.syncer.loopback_control else set()
    if urlsplit(sink_url).scheme in MYSQL_TYPES:
        from drainer.sinks.mysql.url import parse_url

        own.add(parse_url(sink_url).checkpoint_schema)
    return own


def compiled(config: DrainerConfig) -> Rules:
    """Return the compiled filters and routes; raise `NeedsOperator` for those that cannot be."""
    return Rules(
        config.syncer.added_to(config.filter),
        lists=[config.syncer.lists()],
        protected=protected_schemas(config),
        source_id=config.source_id,
    )


def selection_of(config: DrainerConfig, schemas: SchemaTracker) -> Selection:
    """Return the selection that a Drainer's settings ask for."""
    syncer = config.syncer
    return Selection(
        compiled(config),
        schemas,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        runs_ddl=syncer.sync_ddl,
    )
