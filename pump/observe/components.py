"""The parts of a Pump that its status and its metrics are about."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.ts import compose

if TYPE_CHECKING:
    from penstock.oracle.server import OracleServer
    from pump.cluster.clock import ClusterClock
    from pump.cluster.fake_binlogs import Faker
    from pump.cluster.membership import Membership
    from pump.cluster.resolver.resolving import Resolving
    from pump.counters import Figures
    from pump.service.group_commit import Writer
    from pump.service.pulls import Pulls
    from pump.store.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The parts; they are asked when somebody asks for status or metrics, never on their own."""

    figures: Figures
    storage: Storage
    writer: Writer
    pulls: Pulls
    membership: Membership
    clock: ClusterClock
    faker: Faker
    resolving: Resolving
    oracle: OracleServer | None
    data_dir: Path
    queue_bytes_max: int
    began_s: float = field(default_factory=time.monotonic)

    def now_ts(self) -> int:
        """Return about the cluster's time; this machine's while the oracle has not answered yet."""
        if self.clock.is_set:
            return self.clock.now_ts()
        return compose(int(time.time() * 1000), 0)

    def details(self) -> dict[str, str]:
        """Return what an operator wants to read about the parts, one line each."""
        open_pulls = self.pulls.open.values()
        return {
            "uptime_s": f"{time.monotonic() - self.began_s:.0f}",
            "binlogs_written": str(self.writer.records_written),
            "groups_written": str(self.writer.groups_written),
            "append_ms_average": f"{self.writer.append_s_average * 1000:.2f}",
            "appends_run_in": "event loop" if self.writer.appends_inline else "thread",
            "binlogs_refused": self.figures.refused_text(),
            "fake_binlogs_written": str(self.faker.written),
            "transactions_resolved": str(self.resolving.resolved),
            "large_transactions_coming": str(len(self.storage.uploads)),
            "pullers": ", ".join(f"{p.name} after {p.after_ts}" for p in open_pulls),
            "etcd": "away" if self.membership.etcd_is_away else "reachable",
            "leads_oracle": str(self.oracle is not None and self.oracle.is_leader),
            **{f"storage_{name}": str(value) for name, value in self.storage.stats().items()},
        }
