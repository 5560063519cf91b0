"""Loads: the initial load before a source's first run, and requests to load tables again.

Tables that share a target are loaded again together. `reload_all` discards a stopped source's
position: its next start loads all tables. It is for a server whose history does not continue, and
for a source whose checkpoint is lost. The next start uses an epoch above all epochs ever seen of
the source's id, so that no Drainer considers its rows repeated. The relay log is moved aside, since
it may be the only copy of binlogs that a server has lost.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.cluster import etcd
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.security.tls import Security
from pumpclient.client import PumpClient
from pumpclient.mysql.load.loader import Load, LoadOptions, LoadProgress
from pumpclient.mysql.load.state import ASKED, LoadState, read_state, write_state
from pumpclient.mysql.relay.resume import history_of
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.source.ddl.table_mapping import server_tables
from pumpclient.mysql.source.state.checkpoint import SourceStore, fresh_epoch, sources
from pumpclient.mysql.source.state.overrides import (
    VERBS,
    Edit,
    history_accepted,
    override_at,
    revoked,
    table_name,
    table_repaired,
    table_skipped,
    tables_reloaded,
)
from pumpclient.mysql.translate.ddl_pieces import Translator


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
        raise NeedsOperator(f"the filters skip {label}", "change them first", Code.OVERRIDE_INVALID)
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
                "with --accept-gap it does so, and loads what this source has; penstock verify"
                " --repair with --source-config of each of the others then brings back its rows",
                Code.NOT_CONFIRMED,
            )
    return tables_reloaded((name, *sorted(group - {name})), gone=group - found)


EDITS = {
    "ruling": ("/ruling/{verb}/{place}/{sql}", "skip, replace or inject; - is none"),
    "reload": (
        "/reload/{table}/{gap}",
        "schema.table is loaded again, the others go on; - or accept",
    ),
    "continue": ("/continue", "another history of the server is followed"),
    "skip-table": ("/skip-table/{table}", "schema.table is skipped from here on"),
    "repaired": (
        "/repaired/{table}/{last}",
        "schema.table was compared after foreign keys changed it, the last time at this place",
    ),
    "revoke": ("/revoke/{what}/{gap}", "file:position or schema.table; - or accept"),
}
"""The requests that change a checkpoint: path of the page, and its description."""


def edit_of(config: SourceConfig, request: str, parts: Mapping[str, str]) -> Edit:
    """Return the edit that a request with these parts of its path means.

    Raises `NeedsOperator` for an invalid request. `reload` and `continue` ask the server.
    """
    rules, accepts_gap = Rules(config.filter), parts.get("gap") == "accept"
    match request:
        case "skip-table":
            return table_skipped(table_name(parts["table"]), rules.is_replicated)
        case "reload":
            return reloaded(config, rules, table_name(parts["table"]), accepts_gap=accepts_gap)
        case "revoke":
            return revoked(parts["what"], accepts_gap=accepts_gap)
        case "repaired":
            return table_repaired(parts["table"], parts["last"])
        case "continue":
            history = history_of(config.source.address(), config.source.stream())
            return history_accepted(history.name, str(history))
    verb, place, sql = parts["verb"], parts["place"], parts["sql"]
    if verb not in VERBS:
        raise NeedsOperator(f"no verb {verb!r}", ", ".join(VERBS), Code.COMMAND_INVALID)
    if (sql != "-") == (verb == "skip"):
        raise NeedsOperator(
            f"{verb} {'takes no' if sql != '-' else 'needs a'} statement",
            "as --help says",
            Code.COMMAND_INVALID,
        )
    if place == "-":
        raise NeedsOperator("the source is stopped", "name the place: --at", Code.COMMAND_INVALID)
    return override_at(verb, place, (sql,) if sql != "-" else ())


log = logging.getLogger(__name__)


def state_path(config: SourceConfig) -> Path:
    return config.data_dir / f"{config.source_id}.load.json"


def load_state(config: SourceConfig) -> LoadState | None:
    return read_state(state_path(config))


def load_tables(
    config: SourceConfig,
    client: PumpClient,
    rules: Rules,
    stopped: threading.Event,
    may_commit: Callable[[], bool],
    epoch: int,
    show: Callable[[LoadProgress], None],
) -> tuple[str, str]:
    """Load all tables that the filters allow; return where to continue, and its GTIDs.

    A load is the first step of a source's start, so it is in the epoch of that start.

    Raises `Retryable` when stopped before the end; another run continues.
    """
    online = config.online_ddl.rules()

    def is_replicated(schema: str, table: str) -> bool:
        is_copy = online is not None and online.is_copy(table)
        return rules.is_replicated(schema, table) and not is_copy

    settings = config.load
    options = LoadOptions(
        translator=Translator(is_replicated=is_replicated, target=rules.target, online=None),
        policy=rules.of_rows,
        readers=settings.readers,
        transaction_bytes=settings.transaction_bytes,
        rate_bytes_per_s=settings.rate_bytes_per_s or None,
        sink=settings.sink_options(),
        into_existing=settings.into_existing,
        may_commit=may_commit,
        show=show,
    )
    load = Load(
        config.source.address(), client, state_path(config), options, is_stopped=stopped.is_set
    )
    asked = read_state(load.path)
    if asked is not None and asked.epoch == ASKED:
        write_state(load.path, replace(asked, epoch=epoch))
    start = load.run(config.source_id, epoch).start
    assert start is not None, "a load that is complete began somewhere"
    return str(start), start.gtids


def begin_epoch(config: SourceConfig, client: PumpClient, store: SourceStore) -> int:
    """Return the epoch of a source without a checkpoint, after storing it in etcd.

    It is the load's if a process ended within a load, else an unused epoch.
    """
    begun, load = store.begun(), load_state(config)
    if load is not None and load.epoch != ASKED and not begun.is_followed:
        last = client.last_ddl_origin(config.source_id)
        # Before epochs were stored, only the cluster's DDL proves that the load is this cluster's.
        is_older = not begun.epoch and last is not None and last.epoch == load.epoch
        if load.epoch == begun.epoch or (is_older and not load.is_complete):
            return load.epoch
    epoch = fresh_epoch(client, config.source_id, max(begun.epoch, load.epoch if load else 0))
    store.begin(epoch)
    return epoch


def is_load_asked(config: SourceConfig) -> bool:
    """Return whether an operator requested a load, or a requested load is unfinished."""
    load = load_state(config)
    return load is not None and not load.is_complete


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
                "with --accept-gap they are dropped; penstock verify --repair with"
                " --source-config of each of the others then brings back its rows",
                Code.NOT_CONFIRMED,
            )
        store = SourceStore(connection, config.source_id, ttl_s=config.lease_s)
        store.own("penstock source reload --all of an operator")
        try:
            store.forget()
            aside = _put_aside(config)
            before = load_state(config)
            known = before.begun | before.loaded.keys() if before is not None else set()
            gone = sorted(name for name in known - names if name[1])
            asked = LoadState(source=config.source_id, epoch=ASKED, begun=names)
            write_state(state_path(config), asked)
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


def report_text(label: str, report: Mapping[str, Any]) -> str:
    if report["dropped"]:
        return f"{label}: the server dropped it at {report['dropped']}, nothing was loaded\n"
    return f"{label}: {report['rows']} rows loaded, {report['started']} to {report['ended']}\n"
