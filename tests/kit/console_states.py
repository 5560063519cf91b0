"""Clusters as a console sees them: well, with one failure each, and hostile."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.cluster.records import DrainerStop, Gap, Standby
from penstock.ctl.console.cluster_state import state_of
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
from penstock.ctl.console.views import ClusterState
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


def silent(since_s: float, facts: Mapping[str, Any] | None = None) -> Answer:
    """Return a node that stopped answering so long ago."""
    problem = (
        "127.0.0.1:8250: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN:"
        " ipv4:127.0.0.1:8250: connect: Connection refused (111); if it does not run, start it"
    )
    return Answer(facts=facts, problem=problem, silent_since_s=NOW_S - since_s)


RUNNING = SourceEntry(source_id="db-1", owner="host-7", pages_url="http://127.0.0.1:9251/")
REFUSED = (
    "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8250:"
    " connect: Connection refused (111)"
)
DDL_STOP = DrainerStop(
    node_id="drainer-1",
    made="2025-11-23T12:13:18+00:00",
    problem="DDL at 5: the downstream refused: (1146, \"Table 'shop.orders' doesn't exist\")",
    hint="a long hint",
    choices=(
        "the downstream's schema is not the upstream's at the checkpoint; make it so; then start"
        " the Drainer again",
        "`penstock drainer ddl track 5 --etcd-urls=127.0.0.1:2379 --sink=mysql://u@db:3306`:"
        " nothing is left out",
        '`penstock drainer ddl replace 5 "<sql>" --etcd-urls=127.0.0.1:2379'
        " --sink=mysql://u@db:3306`: your statement runs instead",
        "`penstock drainer ddl skip 5 --etcd-urls=127.0.0.1:2379 --sink=mysql://u@db:3306`: the"
        " values of column paid of shop.orders are skipped and counted",
    ),
)
LOADING = {
    "state": "loading",
    "load": {
        "tables": 16,
        "tables_done": 5,
        "rows": 4_000_000,
        "rows_done": 1_300_000,
        "seconds_left": 84.0,
        "running": [
            {"table": "shop.orders", "rows": 900_000, "rows_done": 410_000},
            {"table": "shop.visits", "rows": 0, "rows_done": 12_000},
        ],
    },
}


def waits_for_pump_2(*others: str, **more: Any) -> Mapping[Named, Answer]:
    """Return the answer of a Drainer that finds pump-2 dead."""
    held = {
        "held_by": f"pump-2 (dead: no heartbeat for 30 s, {REFUSED}), since"
        " 2025-11-23T12:12:48+00:00",
        "held_by_remedy": "start pump-2 again",
        "low_water_held_s": 32.0,
        "lag_s": 33.0,
    }
    facts = drainer_facts(*others, **held, **more)
    dead = {"node_id": "pump-2", "condition": "dead", "why": REFUSED, "holds_low_water": True}
    facts["pumps"] = [*facts["pumps"], dead]
    return {(DRAINER, "drainer-1"): Answer(facts=facts)}


def drainer_says(**facts: Any) -> Observation:
    said = drainer_facts("pump-1", "pump-2", **facts)
    return cluster(answers={(DRAINER, "drainer-1"): Answer(facts=said)})


def source_says(**facts: Any) -> Observation:
    return cluster(sources=(RUNNING,), answers=source_answer(**facts))


DEAD = {"pump-2": node("pump-2", heard_s=60)}
QUIET = {(PUMP, "pump-2"): silent(30)}
PAUSED = NodeState.PAUSED
FEW = pump_facts(copies_present=1, copies_min=2, copies_on="pump-1", copies_problem="1 of 2")
AWAY: dict[str, Any] = {
    "etcd_problem": "etcd at 127.0.0.1:2379 failed: UNAVAILABLE: failed to connect to all"
    " addresses; last error: UNKNOWN: ipv4:127.0.0.1:2379: connect: Connection refused (111)",
    "etcd_silent_since_s": NOW_S - 75,
}
FAILURES: Mapping[str, Observation] = {
    "a dead Pump": cluster(pumps=DEAD, answers={**QUIET, **waits_for_pump_2("pump-1")}),
    "a Pump that the console has not missed yet": cluster(answers=waits_for_pump_2("pump-1")),
    "a Pump whose log's copy is on a dead one": cluster(
        pumps=DEAD,
        answers={**QUIET, **waits_for_pump_2("pump-1"), (PUMP, "pump-1"): Answer(facts=FEW)},
    ),
    "a paused Pump": cluster(
        pumps={"pump-2": node("pump-2", PAUSED)}, answers=waits_for_pump_2("pump-1")
    ),
    "all Pumps dead": replace(
        cluster(
            pumps=DEAD,
            sources=(RUNNING,),
            answers={**QUIET, **waits_for_pump_2(), **source_answer(problem="no Pump answers")},
        ),
        listing=Listing(
            pumps=[DEAD["pump-2"]], drainers=[node("drainer-1")], sources=[RUNNING]
        ),
    ),
    "a full Pump": cluster(
        answers={(PUMP, "pump-1"): Answer(facts=pump_facts(storage_available_bytes=1 << 30))}
    ),
    "a Pump without the copies that it needs": cluster(
        answers={(PUMP, "pump-1"): Answer(facts=FEW)}
    ),
    "a dead Drainer": cluster(
        drainer=node("drainer-1", heard_s=60), answers={(DRAINER, "drainer-1"): silent(55)}
    ),
    "a paused Drainer": cluster(drainer=node("drainer-1", PAUSED)),
    "a DDL that has stopped a Drainer": cluster(
        drainer=node("drainer-1", PAUSED), stops=(DDL_STOP,)
    ),
    "a Drainer that has stopped": cluster(
        drainer=node("drainer-1", PAUSED),
        stops=(replace(DDL_STOP, choices=(), problem="the disk is full", hint="make room"),),
    ),
    "an etcd that is away": replace(drainer_says(
        lag_s=75.0, low_water_held_s=74.0, ddl_waits_for="etcd does not answer",
        held_by="no Pump is registered, since 2025-11-23T12:12:05+00:00",
    ), **AWAY),
    "an etcd that never answered": Observation(now_s=NOW_S, **AWAY),
    "a downstream that refuses": drainer_says(
        lag_s=95.0,
        downstream_waits_for="OperationalError: (2003, \"Can't connect to MySQL server on 'db'"
        " ([Errno 111] Connection refused)\")",
    ),
    "no Spark task": drainer_says(lag_s=95.0, spark_waits_for="no Spark task is connected"),
    "a DDL without its job": drainer_says(ddl_waits_for="the DDL at 5 waits for its job 7"),
    "a paused source": source_says(state="paused"),
    "a source that needs a decision": source_says(
        state="failed",
        problem="a view without a table",
        overrides=["penstock source skip --at f:4 --config=/x/s.toml: leave it"],
    ),
    "a source that has stopped": source_says(state="failed", problem="no right to read"),
    "a source whose server is away": source_says(
        relay={"connected": False, "problem": "OperationalError: (2003, 'refused')"}
    ),
    "a source that no process runs": cluster(sources=(SourceEntry(source_id="db-1"),)),
    "binlogs that are gone": replace(
        cluster(),
        listing=Listing(
            pumps=[node("pump-1")],
            drainers=[node("drainer-1")],
            gaps=[Gap(drainer="drainer-1", pump="pump-9", after_ts=5, up_to_ts=9)],
        ),
    ),
}  # fmt: skip
"""States with one cause each."""
CALM: Mapping[str, Observation] = {
    "all is well": cluster(sources=(RUNNING,), answers=source_answer()),
    "a load": cluster(sources=(RUNNING,), answers=source_answer(**LOADING)),
    "Spark is starting": drainer_says(
        uptime_s=12, steps=0, lag_s=40.0, spark_waits_for="no Spark task is connected"
    ),
    "nothing is known": Observation(now_s=NOW_S),
    "nothing was asked": replace(cluster(sources=(RUNNING,)), answers={}),
    "an empty cluster": Observation(now_s=NOW_S, listing=Listing(pumps=[node("pump-1")])),
}
"""States in which no person is needed."""
