"""Filters and routes from a Drainer's settings, for the Drainer and for tasks that fetch rows."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.settings.syncer_section import MYSQL_TYPES
from drainer.task.loopback import OWN_SCHEMAS
from drainer.task.row_fetch_unit import FetchSettings
from drainer.task.selection import Selection
from penstock.filters import Rules

log = logging.getLogger(__name__)


def protected_schemas(config: DrainerConfig) -> set[str]:
    """Return the Drainers' own schemas: downstream and, with loopback control, upstream."""
    sink_url = config.downstream
    own = set(OWN_SCHEMAS) if config.syncer.loopback_control else set()
    if urlsplit(sink_url).scheme in MYSQL_TYPES:
        from drainer.sinks.mysql.url import parse_url

        own.add(parse_url(sink_url).checkpoint_schema)
    return own


def compiled(config: DrainerConfig) -> Rules:
    """Compile filters and routes; raise `NeedsOperator` for an invalid rule."""
    return Rules(
        config.syncer.added_to(config.filter),
        lists=[config.syncer.lists()],
        protected=protected_schemas(config),
        source_id=config.source_id,
    )


def selection_of(config: DrainerConfig, schemas: SchemaTracker) -> Selection:
    syncer = config.syncer
    return Selection(
        compiled(config),
        schemas,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        runs_ddl=syncer.sync_ddl,
    )


def fetch_settings(config: DrainerConfig) -> FetchSettings | None:
    """Return the settings with which tasks fetch rows themselves, None if they must not.

    The log names a requested mode that is not possible.
    """
    spark, security = config.spark, config.security
    asked = spark.payloads == "executors"
    if spark.payloads == "driver" or (not asked and spark.master.startswith("local")):
        return None
    why = ""
    if config.pd_address:
        why = "a TiDB's rows may need a DDL before its binlog, which is known here alone"
    elif config.relay.log_dir:
        why = "the relay log needs them here"
    elif config.strategy in ("statements", "events"):
        why = f"strategy {config.strategy} orders the changes here"
    elif security.ssl_ca and not asked:
        why = "executors would need the PEM files of [security]: set spark.payloads = executors"
        why += " where they have them at the same paths"
    if why:
        log.warning("payloads go through the driver: %s", why)
        return None
    log.info("executors fetch the payloads from the Pumps")
    pem = (security.ssl_ca, security.ssl_cert, security.ssl_key) if security.ssl_ca else None
    syncer = config.syncer
    return FetchSettings(
        filters=syncer.added_to(config.filter),
        lists=[syncer.lists()],
        protected=frozenset(protected_schemas(config)),
        source_id=config.source_id,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        pem=pem,
    )
