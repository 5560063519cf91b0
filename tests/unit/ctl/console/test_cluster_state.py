"""What an operator is shown of a cluster: the problems that require action, with remedies."""

import pytest

from penstock.cluster.node_registry import NodeState
from penstock.cluster.records import DrainerStop, Gap, Standby
from penstock.ctl.console.access import offers
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    SOURCE,
    Answer,
    Listing,
    Observation,
    SourceEntry,
)
from penstock.ctl.console.views import ClusterState, Level
from tests.kit.console_states import (
    NOW_S,
    RUNNING,
    ago,
    cluster,
    drainer_facts,
    node,
    pump_facts,
    seen,
    silent,
    source_answer,
)

WAITING = Standby(
    node_id="drainer-2", host="h", active="drainer-1", writer="w", checkpoint_ts=0, update_ts=ago(1)
)


def titles(state: ClusterState) -> list[str]:
    return [concern.title for concern in state.concerns]


def test_of_a_cluster_that_is_well_nothing_is_said() -> None:
    state = seen(cluster())
    assert (state.level, titles(state)) == (Level.FINE, [])
    assert {pump.word for pump in state.pumps} == {"online"}
    assert state.drainers[0].lag_s == 0.25
    assert state.programs == 1


def test_before_etcd_has_answered_nothing_is_known_and_an_etcd_that_is_away_is_said() -> None:
    assert not seen(Observation(now_s=NOW_S)).is_known
    away = Observation(now_s=NOW_S, etcd_problem="UNAVAILABLE", etcd_silent_since_s=NOW_S - 75)
    state = seen(away)
    assert titles(state) == ["etcd has not answered this console for 1 min 15 s"]
    assert state.level is Level.ACT


def test_a_node_is_dead_only_when_its_heartbeat_is_stale_too() -> None:
    quiet = {(PUMP, "pump-2"): silent(30)}
    assert seen(cluster(answers=quiet)).pumps[1].word == "no answer"
    dead = seen(cluster(pumps={"pump-2": node("pump-2", heard_s=60)}, answers=quiet))
    pump = dead.pumps[1]
    assert (pump.word, pump.level) == ("dead", Level.ACT)
    assert pump.why == f"No answer for 30 s: {silent(30).problem}. Its last heartbeat: 1 min ago."
    assert "Start it again on pump-2" in dead.concerns[0].remedy


def test_a_node_that_was_stopped_in_order_is_paused_and_one_that_left_is_not_shown() -> None:
    state = seen(
        cluster(
            pumps={
                "pump-2": node("pump-2", NodeState.PAUSED),
                "pump-3": node("pump-3", NodeState.OFFLINE),
            }
        )
    )
    assert [(pump.name, pump.word) for pump in state.pumps] == [
        ("pump-1", "online"),
        ("pump-2", "paused"),
    ]
    assert state.offline == ["pump-3"]
    assert titles(state) == ["Pump pump-2 is paused"]


def test_a_full_disk_is_said_before_writers_do() -> None:
    full = pump_facts(storage_available_bytes=1 << 30)
    state = seen(cluster(answers={(PUMP, "pump-1"): Answer(facts=full)}))
    assert (state.pumps[0].word, state.level) == ("full", Level.ACT)


def test_a_drainer_that_stopped_at_a_ddl_is_shown_with_the_choices() -> None:
    stop = DrainerStop(
        node_id="drainer-1",
        made="2026-11-21T09:30:00+00:00",
        problem="DDL at 5: no such column",
        hint="a long hint",
        choices=(
            "`penstock drainer ddl track 5`: nothing is left out",
            "`penstock drainer ddl skip 5`: rows are",
        ),
    )
    stopped = cluster(drainer=node("drainer-1", NodeState.PAUSED), stops=(stop,))
    state = seen(stopped)
    (concern,) = state.concerns
    assert concern.title == "Drainer drainer-1 has stopped and waits for a decision"
    assert [(each.command, each.means) for each in concern.choices] == [
        ("penstock drainer ddl track 5", "nothing is left out"),
        ("penstock drainer ddl skip 5", "rows are"),
    ]
    assert state.drainers[0].word == "stopped"


def test_why_a_drainer_stopped_is_over_once_it_runs_again() -> None:
    stop = DrainerStop(node_id="drainer-1", made="", problem="DDL at 5", hint="")
    assert seen(cluster(stops=(stop,))).concerns == []


def test_what_a_drainer_said_before_its_last_heartbeat_is_over() -> None:
    old = DrainerStop(
        node_id="drainer-1", made="2025-11-23T12:00:00+00:00", problem="DDL at 5", hint=""
    )
    state = seen(cluster(drainer=node("drainer-1", NodeState.PAUSED), stops=(old,)))
    assert state.drainers[0].word == "paused"


def test_an_entry_of_etcd_that_cannot_be_read_is_said_and_hides_nothing_else() -> None:
    listing = Listing(pumps=[node("pump-1")], problems=["a node's status is b'?'"])
    state = seen(Observation(now_s=NOW_S, listing=listing))
    assert "An entry in etcd cannot be read" in titles(state)
    assert [pump.name for pump in state.pumps] == ["pump-1"]


def test_a_drainer_without_a_checkpoint_has_no_lag_yet() -> None:
    fresh = drainer_facts("pump-1", lag_s=1.7e9, max_commit_ts=0)
    state = seen(cluster(answers={(DRAINER, "drainer-1"): Answer(facts=fresh)}))
    assert (state.drainers[0].lag_s, state.level) == (None, Level.FINE)


def test_a_standby_is_named_at_the_drainer_that_it_waits_for() -> None:
    state = seen(cluster(standbys=(WAITING,)))
    assert [drainer.name for drainer in state.drainers] == ["drainer-1"]
    assert state.drainers[0].standbys == ["drainer-2"]


def test_a_source_has_its_gtids_and_is_no_program_besides() -> None:
    state = seen(
        cluster(sources=(RUNNING,), answers=source_answer(), writers=("host-7-aa", "host-8-bb"))
    )
    (source,) = state.sources
    assert (source.word, source.gtids, source.behind_s) == ("syncing", "0-1-100", 0.5)
    assert state.programs == 1


def test_of_a_source_that_does_not_run_its_checkpoint_speaks() -> None:
    stored = SourceEntry(source_id="db-1", checkpoint={"gtids": "0-1-99", "done": "f:4"})
    state = seen(cluster(sources=(stored,)))
    assert (state.sources[0].word, state.sources[0].gtids) == ("not running", "0-1-99")
    assert titles(state) == ["Source db-1 is not running"]


def test_a_source_that_failed_says_what_can_be_decided() -> None:
    answers = source_answer(
        state="failed",
        problem="a view without a table",
        overrides=["penstock source skip: leave it"],
    )
    (concern,) = seen(cluster(sources=(RUNNING,), answers=answers)).concerns
    assert (concern.level, concern.detail) == (Level.ACT, "A view without a table.")
    assert [each.means for each in concern.choices] == ["leave it"]


def test_what_is_left_out_has_its_table_its_cause_and_its_count() -> None:
    counts = [
        {"kind": "rows", "cause": "filter", "name": "shop.a", "count": 12},
        {"kind": "ddls", "cause": "override", "name": "", "count": 1},
        {"odd": []},
    ]
    facts = drainer_facts("pump-1", left_out_counts=counts)
    source = source_answer(left_out={"shop.b": {"is_whole": True, "rows": 7, "since": "f:9"}})
    state = seen(
        cluster(sources=(RUNNING,), answers={(DRAINER, "drainer-1"): Answer(facts=facts), **source})
    )
    assert [(each.cause, each.name, each.count, each.kind) for each in state.skipped] == [
        ("filter", "shop.a", 12, "rows"),
        ("override", "", 1, "ddls"),
        ("", "", 0, ""),
        ("skip-table", "shop.b", 7, "rows"),
    ]


def test_the_last_problems_of_all_nodes_are_one_list_the_newest_first() -> None:
    def said(time: str, text: str) -> Answer:
        return Answer(facts=pump_facts(problems=[{"time": time, "summary": text}]))

    state = seen(
        cluster(
            answers={
                (PUMP, "pump-1"): said("2026-11-21T09:30:00Z", "WARNING pump.x: slow"),
                (PUMP, "pump-2"): said("2026-11-21T09:31:00Z", "ERROR pump.y: broken"),
            }
        )
    )
    assert [(each.node, each.severity, each.line) for each in state.problems] == [
        ("pump pump-2", "error", "pump.y: broken"),
        ("pump pump-1", "warning", "pump.x: slow"),
    ]


def test_what_a_node_left_out_stays_known_once_it_is_stopped_and_what_it_did_does_not() -> None:
    count = {"kind": "rows", "cause": "filter", "name": "shop.a", "count": 12}
    said = drainer_facts("pump-1", left_out_counts=[count])
    state = seen(
        cluster(
            drainer=node("drainer-1", NodeState.PAUSED),
            answers={(DRAINER, "drainer-1"): Answer(facts=said)},
        )
    )
    assert [each.name for each in state.skipped] == ["shop.a"]
    (drainer,) = state.drainers
    assert (drainer.lag_s, list(drainer.streams)) == (None, [])
    assert drainer.downstream == "mysql db:3306"


def test_of_a_node_that_has_said_nothing_it_is_not_claimed_that_it_leaves_nothing_out() -> None:
    quiet = cluster(
        drainer=node("drainer-1", NodeState.PAUSED), answers={(DRAINER, "drainer-1"): Answer()}
    )
    assert seen(quiet).unheard == ["drainer-1"]
    assert seen(cluster()).unheard == []


def test_purging_waits_for_the_drainer_that_is_furthest_behind() -> None:
    words = seen(cluster()).purge_waits_for
    assert words.startswith("Pumps keep what Drainer drainer-1 (online) has not got yet")
    assert "2 s ago" in words
    alone = Observation(now_s=NOW_S, listing=Listing(pumps=[node("pump-1")]))
    assert "No Drainer needs" in seen(alone).purge_waits_for


def test_a_pump_whose_log_has_too_few_copies_is_named_with_what_it_waits_for() -> None:
    facts = pump_facts(
        copies_on="pump-1", copies_problem="1 of 2 copies of this Pump's log are there"
    )
    state = seen(cluster(answers={(PUMP, "pump-1"): Answer(facts=facts)}))
    (concern,) = [each for each in state.concerns if "too few copies" in each.title]
    assert concern.title == "The log of Pump pump-1 has too few copies"
    assert concern.detail == "It is on pump-1. 1 of 2 copies of this Pump's log are there."
    assert concern.level is Level.WATCH
    whole = {(PUMP, "pump-1"): Answer(facts=pump_facts(copies_on="pump-1, pump-2"))}
    assert not any("too few copies" in title for title in titles(seen(cluster(answers=whole))))


def test_a_pump_that_acknowledges_nothing_wants_a_person_at_once() -> None:
    facts = pump_facts(
        copies_present=1, copies_min=2, copies_on="pump-1", copies_problem="1 of 2 are there"
    )
    state = seen(cluster(answers={(PUMP, "pump-1"): Answer(facts=facts)}))
    (concern,) = [each for each in state.concerns if "too few copies" in each.title]
    assert concern.title == "Pump pump-1 acknowledges nothing: its log has too few copies"
    assert concern.level is Level.ACT
    assert state.pumps[0].copies_min == 2
    enough = {**facts, "copies_present": 2}
    state = seen(cluster(answers={(PUMP, "pump-1"): Answer(facts=enough)}))
    assert "The log of Pump pump-1 has too few copies" in titles(state)


def test_a_gap_is_said_as_long_as_it_is_recorded() -> None:
    listing = Listing(
        pumps=[node("pump-1")],
        drainers=[node("drainer-1")],
        gaps=[Gap(drainer="drainer-1", pump="pump-9", after_ts=5, up_to_ts=9)],
    )
    state = seen(Observation(now_s=NOW_S, listing=listing))
    assert "Drainer drainer-1 can never get the binlogs of Pump pump-9" in titles(state)


@pytest.mark.parametrize(
    "facts",
    [{}, {"lag_s": "soon", "pumps": 5, "left_out_counts": 7}, {"pumps": [1, {"node_id": []}]}],
)
def test_a_node_of_another_version_is_shown_as_far_as_it_is_understood(
    facts: dict[str, object],
) -> None:
    state = seen(cluster(answers={(DRAINER, "drainer-1"): Answer(facts=facts)}))
    assert state.drainers[0].lag_s is None


def test_what_can_be_done_to_a_node_that_is_online_says_what_follows() -> None:
    offered = {(each.verb, each.node_id): each for each in offers(seen(cluster()))}
    assert set(offered) == {
        ("pause-pump", "pump-1"),
        ("offline-pump", "pump-1"),
        ("pause-pump", "pump-2"),
        ("offline-pump", "pump-2"),
        ("pause-drainer", "drainer-1"),
    }
    pausing = offered["pause-pump", "pump-1"]
    assert "Writers use the other one." in pausing.consequences
    assert any("Every Drainer waits for it" in each for each in pausing.consequences)
    command = "penstock ctl pause-pump pump-1 --etcd-urls=10.0.0.1:2379"
    assert pausing.command("--etcd-urls=10.0.0.1:2379") == command


def test_of_the_last_pump_it_is_said_that_writers_then_get_errors() -> None:
    state = seen(cluster(pumps={"pump-2": node("pump-2", NodeState.PAUSED)}))
    last = next(iter(offers(state)))
    assert "No other Pump is online: writers get an error until one is." in last.consequences


def test_no_verb_is_offered_that_could_lose_what_a_drainer_needs() -> None:
    verbs = {each.verb for each in offers(seen(cluster(standbys=(WAITING,))))}
    assert verbs == {"pause-pump", "offline-pump", "pause-drainer", "hand-over"}


def test_a_source_without_pages_runs_all_the_same() -> None:
    state = seen(cluster(sources=(SourceEntry(source_id="db-1", owner="host-7"),)))
    assert state.sources[0].word == "running"
    quiet = {(SOURCE, "db-1"): silent(40)}
    assert seen(cluster(sources=(RUNNING,), answers=quiet)).sources[0].word == "no answer"
