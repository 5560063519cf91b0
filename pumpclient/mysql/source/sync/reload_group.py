"""Finds the server's tables that must be loaded again together because they share a target."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from penstock.cluster import etcd
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.security.tls import Security
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.source.ddl.table_mapping import server_tables
from pumpclient.mysql.source.state.checkpoint import sources
from pumpclient.mysql.source.state.overrides import Edit, tables_reloaded


def siblings(config: SourceConfig, rules: Rules, names: Iterable[Name]) -> frozenset[Name]:
    """Return all tables of the server that share a target with one of `names`."""
    targets = {rules.target(*name) for name in names}
    return frozenset(
        name for name in replicated_tables(config, rules) if rules.target(*name) in targets
    )


def replicated_tables(config: SourceConfig, rules: Rules) -> frozenset[Name]:
    online = config.online_ddl.rules()
    with config.source.address().session() as connection:
        return frozenset(
            name
            for name in server_tables(connection)
            if rules.is_replicated(*name) and (online is None or not online.is_copy(name[1]))
        )


def reloaded(config: SourceConfig, rules: Rules, name: Name, *, accepts_gap: bool = False) -> Edit:
    """Return the edit that requests a reload of a table and of all tables with the same target.

    Raises `NeedsOperator` for a table that the filters exclude, and, without `accepts_gap`, where
    other sources may have written rows into the same table, which a reload drops.
    """
    label = ".".join(name)
    if not rules.is_replicated(*name):
        raise NeedsOperator(
            f"the filters leave {label} out", hint="change them first", code=Code.OVERRIDE_INVALID
        )
    found = siblings(config, rules, [name])
    group = found | {name}
    is_merged = len(group) > 1 or (
        config.shard_mode == OPTIMISTIC and rules.router.is_routed(*name)
    )
    if is_merged and not accepts_gap:
        tls = Security(config.security).etcd_tls
        with closing(etcd.connect(config.etcd_urls, tls=tls)) as connection:
            others = [each for each in sources(connection) if each != config.source_id]
        if others:
            target = ".".join(rules.target(*name))
            raise NeedsOperator(
                f"{target} may have rows of other sources too ({', '.join(others)}), and a reload"
                " drops it with all its rows",
                hint="with --accept-gap it does so, and loads what this source has; penstock verify"
                " --repair with --source-config of each of the others then brings back its rows",
                code=Code.NOT_CONFIRMED,
            )
    return tables_reloaded((name, *sorted(group - {name})), gone=group - found)
