"""Observation: the last answers of etcd and the nodes, unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ctl.console.facts import Facts
from penstock.cluster.node_registry import NodeStatus
from penstock.cluster.records import DrainerStop, Gap, Standby

PUMP: Final = "pump"
DRAINER: Final = "drainer"
SOURCE: Final = "source"
STREAM: Final = "stream of "
"""Before a Pump's id: a Drainer's quantity for how far that Pump's stream is behind."""

Named = tuple[str, str]
"""A node: its kind and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEntry:
    """A MySQL source in etcd; `owner` is the process that runs it, empty for none."""

    source_id: str
    checkpoint: Facts = field(default_factory=dict)
    owner: str = ""
    pages_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A cluster according to etcd."""

    pumps: Sequence[NodeStatus] = ()
    drainers: Sequence[NodeStatus] = ()
    standbys: Sequence[Standby] = ()
    gaps: Sequence[Gap] = ()
    stops: Sequence[DrainerStop] = ()
    writers: Sequence[str] = ()
    """Ids of writers; a source is also a writer."""
    sources: Sequence[SourceEntry] = ()
    problems: Sequence[str] = ()
    """Unreadable entries; the objects that they describe are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A node's last answer, and the reason why it does not answer now.

    `silent_since_s` is when it stopped answering, seconds since the epoch, None while it answers.
    """

    facts: Facts | None = None
    problem: str = ""
    silent_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that was seen of a cluster by `now_s`, seconds since the epoch."""

    now_s: float
    listing: Listing | None = None
    etcd_problem: str = ""
    etcd_silent_since_s: float | None = None
    answers: Mapping[Named, Answer] = field(default_factory=dict)
