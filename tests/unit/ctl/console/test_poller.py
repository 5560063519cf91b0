"""Who is asked, and what etcd says of sources, whatever it holds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import SOURCES, NodeState
from penstock.cluster.records import Standby
from penstock.ctl.console.observation import DRAINER, PUMP, SOURCE, Listing, SourceEntry
from penstock.ctl.console.poller import asked, source_entries
from pumpclient.mysql.source.command import reached_at
from tests.kit.console_states import node


def test_nodes_that_were_stopped_are_not_asked_and_a_standby_is_asked_where_it_is() -> None:
    waiting = Standby(
        node_id="drainer-2", host="other:8249", active="drainer-1", writer="w",
        checkpoint_ts=0, update_ts=0,
    )  # fmt: skip
    listing = Listing(
        pumps=[node("pump-1"), node("pump-2", NodeState.PAUSED), node("p-3", NodeState.OFFLINE)],
        drainers=[node("drainer-1"), node("drainer-2", NodeState.PAUSED)],
        standbys=[waiting],
        sources=[
            SourceEntry(source_id="a", owner="h-1", pages_url="http://h:9251/"),
            SourceEntry(source_id="b"),
        ],
    )
    assert asked(listing) == [
        ((PUMP, "pump-1"), "pump-1:8250"),
        ((DRAINER, "drainer-1"), "drainer-1:8250"),
        ((DRAINER, "drainer-2"), "other:8249"),
        ((SOURCE, "a"), "http://h:9251/"),
    ]


def test_a_source_is_put_together_from_its_keys() -> None:
    items = {
        f"{SOURCES}db-1": json.dumps({"gtids": "0-1-9"}).encode(),
        f"{SOURCES}db-1/owner": b"host-7",
        f"{SOURCES}db-1/pages": b"http://127.0.0.1:9251/",
        f"{SOURCES}db-2/owner": b"host-8",
    }
    assert source_entries(items) == [
        SourceEntry(
            source_id="db-1",
            checkpoint={"gtids": "0-1-9"},
            owner="host-7",
            pages_url="http://127.0.0.1:9251/",
        ),
        SourceEntry(source_id="db-2", owner="host-8"),
    ]


@given(st.dictionaries(st.text(), st.binary()))
def test_whatever_is_stored_about_sources_is_no_error(items: dict[str, bytes]) -> None:
    found = source_entries({SOURCES + key: value for key, value in items.items()})
    assert len(found) <= len(items)


def test_pages_at_any_address_are_reached_by_the_machines_name() -> None:
    assert reached_at("http://127.0.0.1:9251/") == "http://127.0.0.1:9251/"
    assert "0.0.0.0" not in reached_at("http://0.0.0.0:9251/")
    assert reached_at("http://[::]:9251/").endswith(":9251/")
    assert reached_at("") == ""
