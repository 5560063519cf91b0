"""The schema to start with: history up to the checkpoint, as the operator's decisions read it."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

from drainer.config import DrainerConfig
from drainer.decisions import Decision, decisions
from drainer.parts import Parts, insist
from drainer.schema import SchemaTracker
from drainer.sinks import Checkpoint
from penstock.history import History
from penstock.schema import DdlJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The tracker as of the checkpoint, and the decisions about DDLs before and after it.

    `jobs` is the history that it was made from.
    """

    tracker: SchemaTracker
    decisions: dict[int, Decision]
    jobs: list[DdlJob]


async def schema_at(
    config: DrainerConfig, parts: Parts, checkpoint: Checkpoint, stop: asyncio.Event
) -> Followed:
    """Return the schema at the checkpoint, through outages of etcd."""
    node_id = parts.home.known_node_id(config.node_id, config.advertise_addr or config.addr)
    ask = functools.partial(decisions, parts.etcd, node_id)
    decided = await insist(stop, "the decisions about DDL", ask)
    jobs = await insist(stop, "the DDL history", History(parts.etcd).jobs)
    tracker = SchemaTracker.from_history(jobs, checkpoint.commit_ts, decided)
    return Followed(tracker=tracker, decisions=decided, jobs=jobs)
