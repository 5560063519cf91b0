"""Settings of a `PumpClient` that few applications ever need to change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from penstock.cluster.labels import parse_labels
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security import tls as security
from penstock.security.tls import Tls

__all__ = ["CHANNEL_OPTIONS", "TRANSPORTS", "Options", "Tls", "open_channel"]

TRANSPORTS = ("http2", "grpcio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and intervals of one client; bounds apply to each Pump unless stated otherwise."""

    # Off sends one binlog per call through TiDB-Binlog's unary method: slower, and useful only for
    # comparison.
    coalesce: bool = True
    # The gRPC implementation: "http2" is our own, "grpcio" the public library, which is slower.
    transport: str = "http2"
    # Maximum number of binlogs in a message.
    batch_count_max: int = 512
    # Maximum size of a message's binlogs in bytes.
    batch_bytes_max: int = 4 << 20
    # Maximum number of unanswered batches: more hide the network's delay, fewer let batches grow.
    batches_in_flight_max: int = 4
    # A writer that would exceed this waits; this bounds memory whatever the Pump's speed.
    queue_bytes_max: int = 64 << 20
    # Rows of one transaction; Pumps have a limit of their own, transaction-bytes-max.
    transaction_bytes_max: int = 4 << 30
    # Above this size, rows wait for the commit in an unnamed file and go to the Pump in chunks.
    spill_bytes: int = 16 << 20
    # The folder of that file; None means the system's folder for temporary files.
    spill_dir: str | Path | None = None
    # How long `connect` waits for a Pump, and a connection for its Pump's name.
    connect_timeout_s: float = 3.0
    # Time limit of an attempt on one Pump before the next Pump is asked; large binlogs get more.
    attempt_timeout_s: float = 5.0
    # The pause before a Prewrite that no Pump accepted is tried again.
    prewrite_retry_s: float = 0.1
    # The pause before an unanswered Commit is sent again.
    commit_retry_s: float = 1.0
    # Just under the Pumps' own `txn_timeout` (10 min), after which they may consider a transaction
    # rolled back: a Commit must never arrive after that verdict.
    commit_timeout_s: float = 570.0
    # TiDB-Binlog probes every 30 s; a restarted Pump needs one probe, and each is one small call.
    probe_interval_s: float = 3.0
    # A Pump that fails more often than this in a row gets no new transactions until a probe works.
    errors_in_a_row_max: int = 10
    # A Pump that is out of space or overloaded gets no new transactions for this long; each refusal
    # in a row doubles the pause, up to `full_pause_s_max`.
    full_pause_s: float = 1.0
    # The longest such pause.
    full_pause_s_max: float = 30.0
    # Maximum number of Commits that are delivered in the background.
    deliveries_max: int = 100_000
    # How long `close` waits for them.
    close_timeout_s: float = 10.0
    # Only Pumps with all of these labels are written to: ("zone=a", "disk=fast").
    labels: tuple[str, ...] = ()
    # Among those, Pumps with all of these labels come first, the others when none can accept.
    prefer: tuple[str, ...] = ()
    # Address of a real PD to take timestamps from; None means the oracle that the Pumps elect.
    pd_address: str | None = None
    # For an etcd at https://; None means the `tls` that is used for the Pumps.
    etcd_tls: Tls | None = None
    # For a PD at https://; None means the `tls` that is used for the Pumps.
    pd_tls: Tls | None = None

    def __post_init__(self) -> None:
        for name in ("batch_count_max", "batch_bytes_max", "batches_in_flight_max"):
            if getattr(self, name) < 1:
                raise NeedsOperator(
                    f"{name} is {getattr(self, name)}",
                    hint="it must be 1 or more",
                    code=Code.SETTING_VALUE,
                )
        if self.transport not in TRANSPORTS:
            raise NeedsOperator(
                f"transport is {self.transport!r}",
                hint=f"one of {', '.join(TRANSPORTS)}",
                code=Code.SETTING_VALUE,
            )
        if not 0 < self.full_pause_s <= self.full_pause_s_max:
            raise NeedsOperator(
                f"full_pause_s is {self.full_pause_s:g}",
                hint="above 0, at most full_pause_s_max",
                code=Code.SETTING_VALUE,
            )
        parse_labels(self.labels)
        parse_labels(self.prefer)


CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A transaction may be large; the Pump enforces the limit and reports it clearly.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A fresh channel is a fresh connection, without the backoff of an older connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, tls: Tls | None) -> grpc.Channel:
    """Return a channel to a node; nothing is sent yet."""
    return security.open_channel(address, tls, CHANNEL_OPTIONS)
