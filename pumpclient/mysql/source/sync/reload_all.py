"""Reload of all: discards a stopped source's position; its next start loads all tables.

For a server whose history does not continue, and for a source whose checkpoint is lost. The next
start uses an epoch above all epochs ever seen of the source's id, so that no Drainer considers its
rows repeated. The relay log is moved aside, since it may be the only copy of binlogs that a server
has lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing

from penstock.cluster import etcd
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.security.tls import Security
from pumpclient.mysql.load.state import ASKED, LoadState, StateFile
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.state.checkpoint import SourceStore, sources
from pumpclient.mysql.source.sync.loading import state_path
from pumpclient.mysql.source.sync.reload_group import replicated_tables

_NAMED_MAX = 20


def reload_all(config: SourceConfig, *, accepts_gap: bool = False) -> str:
    """Make a stopped source load all its tables when it starts; return a report.

    Raises `Retryable` while a process has the source, and `NeedsOperator` where tables may have
    rows of other sources, which a load drops, without `accepts_gap`.
    """
    names = replicated_tables(config, Rules(config.filter))
    security = Security(config.security)
    with closing(etcd.connect(config.etcd_urls, tls=security.etcd_tls)) as connection:
        others = [each for each in sources(connection) if each != config.source_id]
        routed = [name for name in sorted(names) if Rules(config.filter).router.is_routed(*name)]
        if others and routed and not accepts_gap:
            raise NeedsOperator(
                f"{'.'.join(routed[0])} is routed, and its table may have rows of other sources too"
                f" ({', '.join(others)}), which a load drops",
                hint="with --accept-gap they are dropped; penstock verify --repair with"
                " --source-config of each of the others then brings back its rows",
                code=Code.NOT_CONFIRMED,
            )
        store = SourceStore(connection, config.source_id, ttl_s=config.lease_s)
        store.own("penstock source reload --all of an operator")
        try:
            store.forget()
            aside = _put_aside(config)
            file = StateFile(state_path(config))
            before = file.read()
            known = before.begun | before.loaded.keys() if before is not None else set()
            gone = sorted(name for name in known - names if name[1])
            file.write(LoadState(source=config.source_id, epoch=ASKED, begun=names))
        finally:
            store.close()
    return (
        f"source {config.source_id} loads {len(names)} tables when it starts, from the server as it"
        " is then: downstream they are dropped, created and filled; tables that the server does not"
        f" have any more stay there{_names(gone)}{aside}\n"
    )


def _names(gone: Sequence[Name]) -> str:
    if not gone:
        return ""
    more = f" and {len(gone) - _NAMED_MAX} more" if len(gone) > _NAMED_MAX else ""
    return f" ({', '.join('.'.join(name) for name in gone[:_NAMED_MAX])}{more})"


def _put_aside(config: SourceConfig) -> str:
    relay = config.relay.dir
    if not relay.exists() or not any(relay.iterdir()):
        return ""
    aside = relay.with_name(f"{relay.name}.until-{time.time_ns() // 1_000_000}")
    os.rename(relay, aside)
    return f"; its relay log is in {aside} now"
