"""Clusters as a console sees them, for its tests."""

from collections.abc import Mapping
from typing import Any

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.cluster.records import DrainerStop, Standby
from penstock.ctl.console.cluster_state import ClusterState, state_of
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    SOURCE,
    Answer,
    Chronicle,
    Listing,
    Named,
    Observation,
    SourceEntry,
)
from penstock.ts import compose

NOW_S = 1_763_900_000.0
NOW_TS = compose(int(NOW_S * 1000), 0)
HOSTILE = '<script>alert("1")</script>\' onload=x &amp; \x00\ud800 `penstock drainer ddl skip 1`: '
"""A name that someone gave a table, or a line that someone made a node log."""


def ago(seconds: float) -> int:
    """Return a timestamp of so many seconds before now."""
    return compose(int((NOW_S - seconds) * 1000), 0)


def node(name: str, state: NodeState = NodeState.ONLINE, *, heard_s: float = 1.0) -> NodeStatus:
    """Return a node as etcd has it, whose heartbeat was so long ago."""
    return NodeStatus(
        node_id=name, host=f"{name}:8250", state=state, max_commit_ts=ago(2), update_ts=ago(heard_s)
    )


def pump_facts(**more: Any) -> dict[str, Any]:
    return {
        "etcd": "reachable",
        "leads_oracle": True,
        "storage_log_bytes": 5 << 20,
        "storage_available_bytes": 50 << 30,
        "storage_stop_write_at_available_bytes": 5 << 30,
        "purge": "no purge since the start",
        **more,
    }


def drainer_facts(*pumps: str, **more: Any) -> dict[str, Any]:
    """Return what a Drainer says that is well and merges these Pumps."""
    return {
        "lag_s": 0.25,
        "max_commit_ts": ago(0.25),
        "downstream": "mysql db:3306",
        "downstream_waits_for": "nothing",
        "ddl_waits_for": "nothing",
        "left_out_counts": [],
        "low_water_held_s": 0.1,
        "pumps": [
            {"node_id": name, "condition": "ok", "lag_s": 0.1, "holds_low_water": False}
            for name in pumps
        ],
        **more,
    }


def cluster(
    *,
    pumps: Mapping[str, NodeStatus] | None = None,
    answers: Mapping[Named, Answer] | None = None,
    standbys: tuple[Standby, ...] = (),
    stops: tuple[DrainerStop, ...] = (),
    sources: tuple[SourceEntry, ...] = (),
    drainer: NodeStatus | None = None,
    writers: tuple[str, ...] = ("host-1-abc",),
) -> Observation:
    """Return two Pumps and a Drainer that are well, but for what is given."""
    nodes = {name: node(name) for name in ("pump-1", "pump-2")} | dict(pumps or {})
    said = {(PUMP, name): Answer(facts=pump_facts()) for name in nodes}
    said[DRAINER, "drainer-1"] = Answer(facts=drainer_facts(*nodes))
    return Observation(
        now_s=NOW_S,
        listing=Listing(
            pumps=list(nodes.values()),
            drainers=[drainer or node("drainer-1")],
            standbys=standbys,
            stops=stops,
            writers=writers,
            sources=sources,
        ),
        answers={**said, **(answers or {})},
    )


def seen(observation: Observation, chronicle: Chronicle | None = None) -> ClusterState:
    return state_of(observation, chronicle or Chronicle(0.0), 10.0)


def source_answer(**more: Any) -> Mapping[Named, Answer]:
    facts = {"state": "syncing", "seconds_behind": 0.5, "gtids": "0-1-100", **more}
    return {(SOURCE, "db-1"): Answer(facts=facts)}
