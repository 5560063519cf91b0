"""One card for each cause: what follows from it is beneath it, with a remedy and whole commands."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from penstock.ctl.console import page
from penstock.ctl.console.concerns import folded
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    Answer,
    Chronicle,
    Listing,
    Observation,
    SourceEntry,
)
from penstock.ctl.console.views import Concern, Level
from tests.kit.console_states import (
    CALM,
    DEAD,
    FAILURES,
    NOW_S,
    QUIET,
    cluster,
    drainer_facts,
    drainer_says,
    node,
    seen,
    source_says,
    waits_for_pump_2,
)

MACHINERY = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|Errno|Error:|Traceback|all addresses|\(\d{4},"
)


def shown(observation: Observation) -> ElementTree.Element:
    chronicle = Chronicle(0.0)
    parts = page.fragments(seen(observation, chronicle), chronicle, 10.0)
    return ElementTree.fromstring(f"<div>{''.join(parts.values())}</div>")


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_is_one_red_card_with_a_remedy(name: str) -> None:
    state = seen(FAILURES[name])
    (card,) = [each for each in state.concerns if each.level is Level.ACT]
    assert [each for each in state.concerns if each is not card] == []
    assert card.remedy or card.choices
    reds = shown(FAILURES[name]).findall(".//article[@class='concern act']")
    assert len(reds) == 1


@pytest.mark.parametrize("name", [*FAILURES, *CALM])
def test_no_state_shows_machinery_or_raw_times(name: str) -> None:
    words = " ".join(shown({**FAILURES, **CALM}[name]).itertext())
    assert MACHINERY.search(words) is None
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d", words) is None


@pytest.mark.parametrize("name", CALM)
def test_without_a_failure_no_card_is_red(name: str) -> None:
    assert seen(CALM[name]).level < Level.WATCH


@pytest.mark.parametrize("name", FAILURES)
def test_a_red_card_has_no_green_node_for_its_cause(name: str) -> None:
    state = seen(FAILURES[name])
    for pump in state.pumps:
        is_named = any(each.title.startswith(f"Pump {pump.name} ") for each in state.concerns)
        assert not is_named or pump.level > Level.FINE or not pump.acknowledges
    for drainer in state.drainers:
        about = (f"Drainer {drainer.name} has stopped", f"Drainer {drainer.name} is ")
        is_named = any(each.title.startswith(about) for each in state.concerns)
        assert not is_named or drainer.downstream_look[0] is Level.NOTE


def test_a_dead_pump_has_all_that_follows_beneath_it() -> None:
    (card,) = seen(FAILURES["a Pump whose log's copy is on a dead one"]).concerns
    assert card.title == "Pump pump-2 is dead"
    assert card.follows == (
        "The merge of drainer-1 has been blocked for 32 s: nothing goes downstream",
        "The downstream of drainer-1 is 33 s behind",
        "Pump pump-1 acknowledges nothing: its log has too few copies",
    )


def test_two_causes_are_two_cards() -> None:
    broken = waits_for_pump_2("pump-1", downstream_waits_for="no route")
    titles = [
        each.title for each in seen(cluster(pumps=DEAD, answers={**QUIET, **broken})).concerns
    ]
    assert titles == ["The downstream of drainer-1 takes no changes", "Pump pump-2 is dead"]


def test_a_pump_that_a_drainer_finds_dead_is_not_shown_as_online() -> None:
    state = seen(FAILURES["a Pump that the console has not missed yet"])
    assert [(each.name, each.word) for each in state.pumps] == [
        ("pump-1", "online"),
        ("pump-2", "unreachable"),
    ]


def test_a_stalled_merge_without_a_known_cause_stands_for_itself() -> None:
    facts = drainer_facts("pump-1", "pump-2", held_by="pump-2 (slow: 5 s behind)", lag_s=31.0)
    facts["pumps"][1] |= {"condition": "slow", "holds_low_water": True}
    (card,) = seen(cluster(answers={(DRAINER, "drainer-1"): Answer(facts=facts)})).concerns
    assert card.level is Level.WATCH
    assert card.title.startswith("The merge of drainer-1 has been blocked")
    assert card.follows == ("The downstream of drainer-1 is 31 s behind",)


@pytest.mark.parametrize(
    ("facts", "look"),
    [
        ({"steps": 0}, (Level.NOTE, "not tried yet")),
        ({"steps": 3}, (Level.FINE, "0.2 s behind")),
        ({"steps": 3, "lag_s": 40.0}, (Level.WATCH, "40 s behind")),
        ({"steps": 3, "downstream_waits_for": "a lock"}, (Level.ACT, "takes no changes")),
    ],
)
def test_a_downstream_is_fine_only_once_it_has_taken_something(
    facts: dict[str, object], look: tuple[Level, str]
) -> None:
    assert seen(drainer_says(**facts)).drainers[0].downstream_look == look


def test_a_downstream_of_a_drainer_that_does_not_run_is_unknown() -> None:
    for name in ("a dead Drainer", "a paused Drainer", "a DDL that has stopped a Drainer"):
        assert seen(FAILURES[name]).drainers[0].downstream_look == (Level.NOTE, "unknown")


def test_a_drainer_whose_downstream_another_one_writes_is_worth_a_look_only() -> None:
    both = cluster(drainer=node("drainer-1", heard_s=60), answers={
        (DRAINER, "drainer-1"): Answer(facts=drainer_facts(), problem="gone", silent_since_s=NOW_S),
        (DRAINER, "drainer-2"): Answer(facts=drainer_facts("pump-1", "pump-2")),
    })  # fmt: skip
    assert both.listing is not None
    drainers = [*both.listing.drainers, node("drainer-2")]
    state = seen(replace(both, listing=replace(both.listing, drainers=drainers)))
    (card,) = state.concerns
    assert (card.level, card.title) == (Level.WATCH, "Drainer drainer-1 is dead")
    assert card.detail.startswith("Drainer drainer-2 writes to the same downstream")


def test_a_program_that_reads_the_stream_is_no_drainer() -> None:
    reader = replace(node("copy"), host="reader@host:0")
    state = seen(cluster(drainer=reader))
    assert state.drainers == []


def test_commands_name_the_cluster_and_the_node() -> None:
    dead = replace(FAILURES["a dead Pump"], flags="--etcd-urls=10.0.0.1:2379")
    (card,) = seen(dead).concerns
    assert [each.command for each in card.commands] == [
        "penstock ctl lost-pump pump-2 --accept-loss-after 0 --etcd-urls=10.0.0.1:2379"
    ]
    hostile = "$(reboot)"
    quiet = {(PUMP, hostile): QUIET[PUMP, "pump-2"]}
    state = seen(cluster(pumps={hostile: node(hostile, heard_s=60)}, answers=quiet))
    assert any(f"lost-pump '{hostile}'" in c.command for e in state.concerns for c in e.commands)


def test_commands_for_a_source_find_it_from_any_machine() -> None:
    (card,) = seen(FAILURES["a source that needs a decision"]).concerns
    assert [each.command for each in card.choices] == [
        "penstock source skip --at f:4 --status-addr=127.0.0.1:9251"
    ]
    (card,) = seen(FAILURES["a paused source"]).concerns
    assert card.commands[0].command == "penstock source resume --status-addr=127.0.0.1:9251"


def test_a_load_shows_how_far_it_is_and_how_long_it_takes_still() -> None:
    (source,) = seen(CALM["a load"]).sources
    assert [(each.name, each.share) for each in source.load] == [
        ("All tables", 0.325),
        ("shop.orders", 410 / 900),
        ("shop.visits", None),
    ]
    assert source.load_about == "5 of 16 tables loaded, 1 min 24 s left"
    words = " ".join(shown(CALM["a load"]).itertext())
    assert "32%, 1,300,000 rows of about 4,000,000" in words


@pytest.mark.parametrize("load", [None, {}, {"tables": 3, "rows": 7}, {"rows_done": "many"}])
def test_a_load_of_another_version_is_shown_as_not_known(load: object) -> None:
    (source,) = seen(source_says(state="loading", load=load)).sources
    assert (source.word, list(source.load)) == ("loading", [])
    assert source.load_about == "How far the load is, is not known yet."


def test_tables_that_wait_for_a_repair_are_named() -> None:
    noted = source_says(cascaded={"shop.items": {"since_ts": 5, "rows": 2}})
    assert "shop.items" in "".join(shown(noted).itertext())
    assert "to be repaired" not in "".join(shown(CALM["all is well"]).itertext())


def test_a_source_that_waits_for_pumps_is_not_shown_as_fine() -> None:
    state = seen(source_says(problem="no Pump answers"))
    assert (state.sources[0].word, state.level) == ("waiting", Level.WATCH)


def test_what_cannot_be_explained_is_never_folded_away() -> None:
    circle = [
        Concern(level=Level.ACT, title="a", subject="a"),
        Concern(level=Level.WATCH, title="b", subject="b", due_to=("a",)),
        Concern(level=Level.WATCH, title="c", due_to=("b", "a")),
        Concern(level=Level.WATCH, title="d", due_to=("absent",)),
    ]
    assert [(each.title, each.follows) for each in folded(circle)] == [("a", ("b", "c")), ("d", ())]


def test_an_entry_without_an_answer_is_unknown_and_not_green() -> None:
    state = seen(CALM["nothing was asked"])
    words = [each.word for each in state.pumps] + [each.word for each in state.drainers]
    assert {*words, *(each.word for each in state.sources)} == {"unknown"}
    alone = Observation(now_s=NOW_S, listing=Listing(pumps=[node("pump-1")]))
    assert seen(alone).level is Level.NOTE
    assert seen(cluster(sources=(SourceEntry(source_id="x", owner="h"),))).level is Level.FINE
