"""Components: the parts of a running Pump, and their details for an operator."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.logs import RECENT
from penstock.ts import compose
from penstock.wire.binlog_text import time_text

if TYPE_CHECKING:
    from penstock.http2.grpc_front import GrpcFront
    from penstock.oracle.server import OracleServer
    from pump.cluster.clock import ClusterClock
    from pump.cluster.fake_binlogs import FakeBinlogs
    from pump.cluster.membership import Membership
    from pump.cluster.resolver import Resolver, Resolving, Waiting
    from pump.cluster.retention import Retention
    from pump.config import PumpConfig
    from pump.counters import Counters
    from pump.replication.replicas import Copies
    from pump.replication.scrubbing import Scrubbing
    from pump.replication.shipping import Shipping
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls
    from pump.store.storage import Storage


_WAITING_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The parts that `build` constructs, `node` runs, and status and metrics query on demand."""

    config: PumpConfig
    counters: Counters
    storage: Storage
    oracle: OracleServer | None
    clock: ClusterClock
    pulls: Pulls
    group_commit: GroupCommit
    membership: Membership
    fake_binlogs: FakeBinlogs
    resolver: Resolver
    resolving: Resolving
    retention: Retention
    copies: Shipping | None
    """Replication of this log; None with one copy."""
    kept: Copies | None
    """Replicas of other Pumps' logs; None if this Pump keeps none."""
    scrubbing: Scrubbing
    front: GrpcFront | None
    """Our own server of the port; None if grpcio serves it."""
    began_s: float = field(default_factory=time.monotonic)

    def now_ts(self) -> int:
        """Estimate the cluster's time; use this machine's until the oracle has answered."""
        if self.clock.is_set:
            return self.clock.now_ts()
        return compose(int(time.time() * 1000), 0)

    def details(self) -> dict[str, str]:
        open_pulls = self.pulls.open.values()
        waiting = self.resolving.waiting()
        return {
            "server_engine": self.config.server_engine,
            "uptime_s": f"{time.monotonic() - self.began_s:.0f}",
            "binlogs_written": str(self.group_commit.records_written),
            "groups_written": str(self.group_commit.groups_written),
            "append_ms_average": f"{self.group_commit.append_s_average * 1000:.2f}",
            "appends_run_in": "event loop" if self.group_commit.appends_inline else "thread",
            "binlogs_refused": self.counters.refused_text(),
            "fake_binlogs_written": str(self.fake_binlogs.written),
            "transactions_resolved": str(self.resolving.resolved),
            "transactions_waiting": str(len(waiting)),
            **_described(waiting[:_WAITING_SHOWN_MAX]),
            "large_transactions_coming": str(len(self.storage.incoming)),
            "pullers": ", ".join(f"{p.name} after {p.after_ts}" for p in open_pulls),
            **(self.copies.details() if self.copies is not None else {}),
            **(self.kept.details() if self.kept is not None else {}),
            **self.scrubbing.details(),
            "etcd": "away" if self.membership.etcd_is_away else "reachable",
            "leads_oracle": str(self.oracle is not None and self.oracle.is_leader),
            **{f"storage_{name}": str(value) for name, value in self.storage.stats().items()},
            **RECENT.details(),
        }


def _described(waiting: Iterable[Waiting]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for each in waiting:
        name = f"transaction {each.start_ts}"
        facts[f"{name} key"] = each.prewrite_key.hex() or "none"
        facts[f"{name} open_since"] = time_text(compose(int(each.since_s * 1000), 0))
        facts[f"{name} waits"] = each.why
    return facts
