"""Facts of a Pump: its parts, and its status for operators, see `penstock.node.output`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.cluster.node_registry import labels_text
from penstock.http2.grpc_front import GrpcFront
from penstock.node.logs import RECENT, Problem
from penstock.oracle.server import OracleServer
from penstock.ts import compose
from pump.cluster.clock import ClusterClock, FakeBinlogs
from pump.cluster.membership import Membership
from pump.cluster.resolver import OpenTransaction, Resolver, Resolving
from pump.cluster.retention import Retention
from pump.config import PumpConfig
from pump.counters import Counters
from pump.replication.replicas import KeptReplica, Replicas
from pump.replication.scrubbing import Scrubbing, ScrubFacts
from pump.replication.shipping import ReplicationFacts, Shipping
from pump.service.decided_writes import DecidedWrites
from pump.service.group_commit import GroupCommit
from pump.service.pull_binlogs import Pulls
from pump.store.storage import Storage

_WAITING_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpFacts:
    """All that a Pump reports, see `penstock.node.output`."""

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
    instance: str
    labels: str
    score: int
    purge: str
    closing: str | None
    moving: str | None
    problems: tuple[Problem, ...] | None


@dataclass(frozen=True, slots=True)
class Components:
    """The parts that `build` constructs, `node` runs, and status and metrics query on demand."""

    config: PumpConfig
    counters: Counters
    storage: Storage
    oracle: OracleServer | None
    clock: ClusterClock
    pulls: Pulls
    group_commit: GroupCommit
    decided: DecidedWrites
    membership: Membership
    fake_binlogs: FakeBinlogs
    resolver: Resolver
    resolving: Resolving
    retention: Retention
    copies: Shipping | None
    """Replication of this log; None with one copy."""
    kept: Replicas | None
    """Replicas of other Pumps' logs; None if this Pump keeps none."""
    scrubbing: Scrubbing
    front: GrpcFront | None
    """Our own server of the port; None if grpcio serves it."""
    began_s: float = field(default_factory=time.monotonic)

    def now_ts(self) -> int:
        if self.clock.is_set:
            return self.clock.now_ts()
        return compose(int(time.time() * 1000), 0)

    def facts(self, *, status_pages: str, closing: str, moving: str) -> PumpFacts:
        """Describe this Pump; `closing` and `moving` are empty unless that is under way."""
        waiting, membership = self.resolving.waiting(), self.membership
        refused = sorted(list(self.counters.refused.items()))
        return PumpFacts(
            server_engine=self.config.server_engine,
            status_pages=status_pages,
            uptime_s=round(time.monotonic() - self.began_s),
            binlogs_written=self.group_commit.records_written,
            groups_written=self.group_commit.groups_written,
            append_ms_average=round(self.group_commit.times.average_s * 1000, 2),
            appends_run_in="event loop" if self.group_commit.times.are_short else "thread",
            binlogs_refused=", ".join(f"{n} {why}" for why, n in refused) or "0",
            fake_binlogs_written=self.fake_binlogs.written,
            transactions_resolved=self.resolving.resolved,
            transactions_waiting=len(waiting),
            transactions=tuple(waiting[:_WAITING_SHOWN_MAX]) or None,
            large_transactions_coming=len(self.storage.incoming),
            pullers=", ".join(f"{p.name} after {p.after_ts}" for p in self.pulls.open.values()),
            replication=None if self.copies is None else self.copies.facts(),
            kept_replicas=None if self.kept is None else self.kept.facts(),
            scrubbing=self.scrubbing.facts(),
            etcd="away" if membership.etcd_is_away else "reachable",
            leads_oracle=self.oracle is not None and self.oracle.is_leader,
            storage=self.storage.stats(),
            instance=membership.identity.instance,
            labels=labels_text(membership.identity.labels),
            score=membership.score,
            purge=self.retention.report,
            closing=closing or None,
            moving=moving or None,
            problems=RECENT.facts() or None,
        )
