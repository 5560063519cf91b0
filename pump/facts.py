"""Facts of a Pump: its status as an operator and programs read it, see `penstock.node.output`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.node.logs import Problem
from penstock.node.output import NO_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction whose Commit has not arrived; `key` is in hexadecimal."""

    start_ts: int
    key: str
    open_since: str
    waits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """The replicas of this Pump's log; `copies` and `copies_on` are text for people."""

    log_epoch: int
    copies: str
    copies_present: int = field(metadata=NO_TEXT)
    copies_wanted: int = field(metadata=NO_TEXT)
    copies_min: int = field(metadata=NO_TEXT)
    copies_on: str
    copies_eligible: str | None
    copies_problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReplica:
    """A replica of another Pump's log on this Pump's disk."""

    node_id: str
    summary: str
    bytes: int = field(metadata=NO_TEXT)
    first_segment: int = field(metadata=NO_TEXT)
    epoch: int = field(metadata=NO_TEXT)
    damaged: str | None


class ScrubState(StrEnum):
    """The state of reading all data on the disk."""

    NEVER = "never"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A corrupted place that no other disk could repair."""

    place: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubFacts:
    """The last scrub or the current one, and the repairs since the start."""

    scrub: str
    scrub_state: ScrubState = field(metadata=NO_TEXT)
    mended: str | None
    damaged_places: int | None
    damages: tuple[Damage, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipFacts:
    """This Pump's entry in etcd."""

    instance: str
    labels: str
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpFacts:
    """All that a Pump reports."""

    server_engine: str
    status_pages: str
    uptime_s: int
    binlogs_written: int
    groups_written: int
    append_ms_average: float
    appends_run_in: str
    binlogs_refused: str
    fake_binlogs_written: int
    transactions_resolved: int
    transactions_waiting: int
    transactions: tuple[OpenTransaction, ...] | None
    """The oldest of them."""
    large_transactions_coming: int
    pullers: str
    replication: ReplicationFacts | None
    kept_replicas: tuple[KeptReplica, ...] | None
    scrubbing: ScrubFacts
    etcd: str
    leads_oracle: bool
    storage: Mapping[str, int]
    membership: MembershipFacts
    purge: str
    closing: str | None
    moving: str | None
    problems: tuple[Problem, ...] | None
