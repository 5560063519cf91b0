"""Settings of a `PumpClient` that few applications ever need to change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.cluster.node_registry import parse_labels
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.tls import Tls

__all__ = ["Options", "Tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and intervals of one client; bounds apply to each Pump unless stated otherwise."""

    # Batching of binlogs. False sends one binlog per call through TiDB-Binlog's unary method, which
    # is slower and useful only for comparison.
    coalesce: bool = True
    # Maximum number of binlogs in a message.
    batch_count_max: int = 512
    # Maximum size of a message's binlogs in bytes.
    batch_bytes_max: int = 4 << 20
    # Maximum number of unanswered batches. A higher value hides the network's delay, a lower value
    # lets batches grow.
    batches_in_flight_max: int = 4
    # Maximum size of the queue in bytes, above which writers wait. It bounds memory even if the
    # Pump is slow.
    queue_bytes_max: int = 64 << 20
    # Maximum size of a transaction's rows in bytes; Pumps have a separate transaction-bytes-max.
    transaction_bytes_max: int = 4 << 30
    # Size in bytes above which rows are stored in an unnamed file until the commit, and sent to the
    # Pump in chunks. A higher value needs more memory.
    spill_bytes: int = 16 << 20
    # Directory of that file; None means the system's directory for temporary files.
    spill_dir: str | Path | None = None
    # Seconds that `connect` waits for a Pump, and that a connection waits for its Pump's name.
    connect_timeout_s: float = 3.0
    # Seconds that an attempt on one Pump may take before the next Pump is tried; large binlogs get
    # more time.
    attempt_timeout_s: float = 5.0
    # Seconds before a Prewrite that no Pump accepted is retried.
    prewrite_retry_s: float = 0.1
    # Seconds before an unanswered Commit is sent again.
    commit_retry_s: float = 1.0
    # Time limit of a Commit in seconds. It must be below the Pumps' `txn-timeout-s` (600), after
    # which they may roll a transaction back: a Commit must never arrive after that.
    commit_timeout_s: float = 570.0
    # Interval in seconds of the probes of failed Pumps. A probe is one small call, and a restarted
    # Pump needs one. TiDB-Binlog probes every 30 s.
    probe_interval_s: float = 3.0
    # Maximum number of consecutive errors of a Pump, above which it gets no new transactions until
    # a probe succeeds.
    errors_in_a_row_max: int = 10
    # Seconds for which a Pump that is out of space or overloaded gets no new transactions; each
    # consecutive rejection doubles the pause, up to `full_pause_s_max`.
    full_pause_s: float = 1.0
    # Maximum of that pause in seconds.
    full_pause_s_max: float = 30.0
    # Maximum number of Commits that are delivered in the background.
    deliveries_max: int = 100_000
    # Seconds that `close` waits for these deliveries.
    close_timeout_s: float = 10.0
    # Labels that a Pump must have, all of them, to be written to: ("zone=a", "disk=fast").
    labels: tuple[str, ...] = ()
    # Labels of preferred Pumps. Pumps without all of these labels are used only when no preferred
    # Pump can accept a transaction.
    prefer: tuple[str, ...] = ()
    # Address of a real PD to take timestamps from; None means the oracle that the Pumps elect.
    pd_address: str | None = None
    # TLS for an etcd at https://; None means the `tls` that is used for the Pumps.
    etcd_tls: Tls | None = None
    # TLS for a PD at https://; None means the `tls` that is used for the Pumps.
    pd_tls: Tls | None = None

    def __post_init__(self) -> None:
        for name in ("batch_count_max", "batch_bytes_max", "batches_in_flight_max"):
            if getattr(self, name) < 1:
                problem = f"{name} is {getattr(self, name)}"
                raise NeedsOperator(problem, "it must be 1 or more", Code.SETTING_VALUE)
        if not 0 < self.full_pause_s <= self.full_pause_s_max:
            problem = f"full_pause_s is {self.full_pause_s:g}"
            raise NeedsOperator(problem, "above 0, at most full_pause_s_max", Code.SETTING_VALUE)
        parse_labels(self.labels)
        parse_labels(self.prefer)
