"""Facts of a node: described once, read as JSON by programs and as text by people."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.node.output import NO_TEXT, facts_in, reply_of
from penstock.pb import penstock_pb2


@dataclass(frozen=True, kw_only=True)
class Stream:
    node_id: str
    summary: str
    received_ts: int = field(metadata=NO_TEXT)
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Merge:
    low_water: int
    held_by: str | None
    pumps: tuple[Stream, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    uptime_s: int
    lag_s: float
    labels: str
    storage: Mapping[str, int]
    merge: Merge


STREAM = Stream(node_id="10.0.0.1:8250", summary="online, ok", received_ts=1 << 62, holds=True)
NODE = Node(
    uptime_s=12,
    lag_s=0.25,
    labels="7",
    storage={"segments": 2},
    merge=Merge(low_water=3, held_by=None, pumps=(STREAM,)),
)
REPLY = reply_of(NODE, node_id="drainer-1", state="online", max_commit_ts=5)


def test_programs_read_numbers_truths_and_lists_with_their_types() -> None:
    assert facts_in(REPLY) == {
        "node_id": "drainer-1",
        "state": "online",
        "max_commit_ts": 5,
        "uptime_s": 12,
        "lag_s": 0.25,
        "labels": "7",
        "storage_segments": 2,
        "low_water": 3,
        "pumps": [
            {
                "node_id": "10.0.0.1:8250",
                "summary": "online, ok",
                "received_ts": 1 << 62,
                "holds": True,
            }
        ],
    }


def test_people_read_a_line_for_each_fact_that_has_a_text() -> None:
    assert dict(REPLY.details) == {
        "uptime_s": "12",
        "lag_s": "0.25",
        "labels": "7",
        "storage_segments": "2",
        "low_water": "3",
        "pump 10.0.0.1:8250": "online, ok",
        "pump 10.0.0.1:8250 holds": "True",
    }


def test_the_facts_of_an_older_node_are_text() -> None:
    old = penstock_pb2.StatusReply(node_id="pump-1", state="online", details={"uptime_s": "12"})
    assert facts_in(old)["uptime_s"] == "12"
