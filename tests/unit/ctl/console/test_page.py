"""The page: whatever nodes and etcd say, it is well-formed, and none of its markup is theirs."""

import re
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cluster.node_registry import NodeState
from penstock.cluster.records import DrainerStop
from penstock.ctl.console import page
from penstock.ctl.console.access import offers
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    SOURCE,
    Answer,
    Chronicle,
    Observation,
    SourceEntry,
)
from penstock.ctl.console.page import Notice, Viewer
from tests.kit.console_states import (
    HOSTILE,
    NOW_S,
    cluster,
    drainer_facts,
    node,
    pump_facts,
    seen,
    source_answer,
)

KEYS = st.sampled_from(
    ["lag_s", "rows", "pumps", "problems", "summary", "time", "left_out", "held_by",
     "left_out_counts", "overrides",
     "node_id", "condition", "purge", "gtids", "state", "storage_log_bytes", "low_water_held_s",
     "load", "rows_done", "running", "table", "tables", "tables_done", "seconds_left", "cascaded",
     "relay", "connected", "problem", "hint", "name", "steps", "uptime_s", "spark_waits_for", "why",
     "copies_problem", "downstream_waits_for", "holds_low_water",
     "storage_available_bytes", "is_whole", "since", "downstream", "storage_unmatched"]
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just(HOSTILE)
    | st.sampled_from(["loading", "failed", "paused", "syncing", "dead", "2025-11-23T12:00:00Z"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=6)
    ),
    max_leaves=12,
)
FACTS = st.dictionaries(KEYS, VALUES, max_size=12)
LOOKS = Viewer()


def drawn(observation: Observation, viewer: Viewer = LOOKS) -> str:
    """Return the page, having seen to it that each fragment can stand by itself."""
    chronicle = Chronicle(0.0)
    state = seen(observation, chronicle)
    parts = page.fragments(state, chronicle, 10.0)
    for part in parts.values():
        ElementTree.fromstring(f"<div>{part}</div>")
    parts["actions"] = page.actions(offers(state), [Notice(NOW_S, HOSTILE, HOSTILE)], NOW_S)
    text = page.document(parts, viewer, cluster=HOSTILE, began_s=NOW_S)
    ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))
    return text


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)  # The machine may be loaded.
@given(FACTS, FACTS, FACTS, st.dictionaries(KEYS, VALUES, max_size=5))
def test_whatever_nodes_say_the_page_is_well_formed(
    pump: dict[str, object],
    drainer: dict[str, object],
    source: dict[str, object],
    checkpoint: dict[str, object],
) -> None:
    drawn(
        cluster(
            answers={
                (PUMP, "pump-1"): Answer(facts=pump),
                (DRAINER, "drainer-1"): Answer(facts=drainer),
                (SOURCE, "db-1"): Answer(facts=source),
            },
            sources=(SourceEntry(source_id="db-1", owner="h", checkpoint=checkpoint),),
        )
    )


def test_a_hostile_name_is_shown_and_does_nothing() -> None:
    stop = DrainerStop(
        node_id=HOSTILE, made=HOSTILE, problem=HOSTILE, hint=HOSTILE, choices=(HOSTILE, HOSTILE)
    )
    facts = drainer_facts(HOSTILE, left_out=f"filter: 3 rows of {HOSTILE}", held_by=HOSTILE)
    facts["problems"] = [{"time": HOSTILE, "summary": HOSTILE}]
    text = drawn(
        cluster(
            pumps={HOSTILE: node(HOSTILE)},
            drainer=node(HOSTILE, NodeState.PAUSED),
            answers={
                (DRAINER, HOSTILE): Answer(facts=facts, problem=HOSTILE),
                (PUMP, HOSTILE): Answer(facts=pump_facts(purge=HOSTILE), problem=HOSTILE),
                **source_answer(problem=HOSTILE, hint=HOSTILE, state=HOSTILE),
            },
            stops=(stop,),
            sources=(SourceEntry(source_id="db-1", owner=HOSTILE, checkpoint={"gtids": HOSTILE}),),
        ),
        Viewer(may_act=True, csrf=HOSTILE),
    )
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in text
    scripts = list(ElementTree.fromstring(text.removeprefix("<!doctype html>\n")).iter("script"))
    assert [each.get("src") for each in scripts] == ["/static/console.js"]


def test_nothing_on_the_page_comes_from_elsewhere_or_needs_an_exception_of_the_policy() -> None:
    text = drawn(cluster(), Viewer(may_act=True))
    assert re.findall(r'(?:src|href|action)="(?!/|do/)', text) == []
    assert "style=" not in text
    assert re.findall(r'\son\w+="', text) == []


def test_a_decision_is_shown_as_commands_with_their_consequences() -> None:
    stop = DrainerStop(
        node_id="drainer-1", made="now", problem="DDL at 5: no", hint="",
        choices=("correct it; then start the Drainer again",
                 '`penstock drainer ddl replace 5 "<sql>"`: your statement runs instead'),
    )  # fmt: skip
    text = drawn(cluster(drainer=node("drainer-1", NodeState.PAUSED), stops=(stop,)))
    assert "<p>Correct it; then start the Drainer again.</p>" in text
    assert "<p>Your statement runs instead.</p>" in text
    page_ = ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))
    commands = ["".join(each.itertext()) for each in page_.iter("code")]
    assert 'penstock drainer ddl replace 5 "<sql>"' in commands


def test_nothing_left_out_is_said_of_nodes_that_have_said_so_only() -> None:
    assert "Nothing: all that is written goes downstream." in drawn(cluster())
    text = drawn(cluster(answers={(DRAINER, "drainer-1"): Answer()}))
    assert "Nothing: all" not in text
    assert "Not known of drainer-1" in text


def test_only_who_may_act_sees_actions() -> None:
    assert "pause-pump" not in drawn(cluster())
    assert "Read-only" in drawn(cluster())
    assert "Log in to act" in drawn(cluster(), Viewer(can_log_in=True))
    acting = drawn(cluster(), Viewer(may_act=True, csrf="c"))
    assert 'href="do/pause-pump/pump-1"' in acting


def test_states_are_said_in_words_and_shapes() -> None:
    text = drawn(cluster(pumps={"pump-2": node("pump-2", NodeState.PAUSED)}))
    assert "<circle" in text
    assert "paused" in text
    assert "1 problem requires action" in text
    assert "downstream 0.2 s behind" in text
