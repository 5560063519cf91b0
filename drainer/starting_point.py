"""Starting point: where a Drainer continues, from its downstream's checkpoint or the settings."""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import replace

from drainer.components import Components, refuse_torn
from drainer.ddl.job_source import JobSource
from drainer.outages import insist, unless_stopped
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint, went_back
from drainer.sinks.opening import output_of
from penstock.cluster.node_registry import NodeKind, NodeState, Registry

log = logging.getLogger(__name__)


async def starting_point(
    config: DrainerConfig, components: Components, source: JobSource, stop: asyncio.Event
) -> Checkpoint:
    """Return the checkpoint to resume from; on a fresh downstream, the configured start."""
    load = components.thread.call(components.sink.load_checkpoint)
    found = await unless_stopped(load, stop)
    await check_not_behind(config, components, found, stop)
    if found is not None and (found.commit_ts or found.ddl_intent_ts):
        if found.is_torn:
            refuse_torn(config.apply, found.commit_ts)
        log.info("continuing after commit_ts %d", found.commit_ts)
        if found.ddl_intent_ts:
            log.info("the DDL at %d may have run already", found.ddl_intent_ts)
        return found
    start_ts = config.initial_commit_ts
    if start_ts < 0:
        start_ts = await insist(stop, "the present timestamp", components.oracle.get_ts)
    if start_ts > 0:  # An earlier DDL may still be without a job.
        await insist(stop, "the schema of the beginning", source.check_settled)
    log.info("the downstream has no checkpoint; starting after commit_ts %d", start_ts)
    fresh = Checkpoint(start_ts, 0)
    if found is None:
        return fresh
    # An operator wrote overrides before the first Drainer started.
    return replace(fresh, overrides=found.overrides, has_all_overrides=found.has_all_overrides)


async def check_not_behind(
    config: DrainerConfig, components: Components, found: Checkpoint | None, stop: asyncio.Event
) -> None:
    """Raise `NeedsOperator` if the downstream is behind the state this Drainer had brought it to.

    etcd stores the former position, and the data directory the former downstream. Tables that went
    back together with their checkpoint are continued there, because that state is correct. Readers
    of messages would get some twice, or see them replaced.
    """
    home = components.home
    if home.downstream() != output_of(config.downstream):
        if found is not None and found.commit_ts:
            home.note_downstream(output_of(config.downstream))
        return  # Its first start, or an operator has named another downstream.
    node_id = home.known_node_id("", "")
    ask = functools.partial(Registry(components.etcd).get, NodeKind.DRAINER, node_id)
    entry = await insist(stop, "how far this Drainer was", ask)
    known_ts = 0
    if entry is not None and entry.state is not NodeState.OFFLINE:
        known_ts = entry.max_commit_ts
    found_ts = 0 if found is None else found.commit_ts
    accepted = config.initial_commit_ts
    if found_ts >= known_ts or (accepted >= 0 if not found_ts else accepted == found_ts):
        return
    error = went_back(found if found_ts else None, known_ts)
    if not found_ts or config.strategy == "events":
        raise error
    log.warning("%s: continuing after %d", error.problem, found_ts)
