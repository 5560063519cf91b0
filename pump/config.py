"""Config: a Pump's settings, and the mapping of TiDB-Binlog's keys, flags and variables to them.

Each setting gives its default, its unit in its name, and its effect. The tables omit the names of
TiDB-Binlog that are also ours. `penstock.settings.compat` defines the answers in the tables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from penstock.cluster.node_registry import parse_labels
from penstock.node.http_status import OFF
from penstock.outbox import TABLE
from penstock.security.tls import SecurityConfig
from penstock.settings.compat import Answer, Met, Refused, Renamed, Translation
from penstock.settings.load import duration_s, read_settings, size_bytes
from penstock.settings.setting import check_address, check_advertised, out_of_range, setting
from pump.store.storage import StorageConfig

_GRPC_MESSAGE_BYTES_END = (2 << 30) - (16 << 20)
_DAY_S = 86400.0
_COPIES_MAX = 7
_REPLICA_TIMEOUT_S = 1.0
_COPIED_SEGMENT_BYTES_MAX = 3 << 30
"""A group may make a segment larger than requested. With copies, a segment must be below 4 GiB."""

HTTP2, GRPCIO = ENGINES = ("http2", "grpcio")
"""The servers that can serve the port; both serve the same calls."""

_NO_PUSH = "nothing is pushed: Prometheus fetches /metrics at status-addr"
_OWN_INDEX = "the index has other parts: storage.index-write-buffer-bytes, index-cache-bytes"


@dataclass(frozen=True, kw_only=True)
class ResolverConfig:
    """Settings for finding out the state of transactions whose writer went silent."""

    kind: str = setting(
        "",
        "method to determine the outcome of a transaction whose writer is silent. none: only the"
        " timeout decides; sql: query the writers' databases. Default: none. With pd-address, TiKV"
        " is queried about TiDB's transactions: tikv (then the default), or sql for both",
    )
    url: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "database of the outbox: mysql://user:password@host:port/schema or"
            " sqlite:///file; for several databases, one name=URL each"
        },
    )
    table: str = setting(TABLE, "outbox table, in each of these databases")
    timeout_s: float = setting(3.0, "time limit of a query to a database or to TiKV, in seconds")
    fence_after_s: float = setting(
        10.0,
        "seconds of silence after which a writer's transaction is rolled back if the database has"
        " not committed it; a higher value tolerates slower writers",
    )
    given_up: tuple[str, ...] = setting(
        (), "start_ts of transactions to skip that TiKV has forgotten; the log names each of them"
    )

    def __post_init__(self) -> None:
        if self.kind not in ("", "none", "sql", "tikv"):
            raise out_of_range("resolver.kind", self.kind, "one of none, sql and tikv")
        if (self.kind == "sql") != bool(self.url):
            raise out_of_range("resolver.url", "", "kind sql needs one, no other has one")
        for text in self.given_up:
            if not text.isdecimal():
                raise out_of_range("resolver.given_up", text, "give start_ts, comma-separated")
        for name in ("timeout_s", "fence_after_s"):
            if getattr(self, name) <= 0:
                raise out_of_range(f"resolver.{name}", getattr(self, name), "it must be above zero")


@dataclass(frozen=True, kw_only=True)
class PumpConfig:
    """A Pump keeps binlogs that writers send, and streams them to Drainers in commit order."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "fake-binlog-interval-pulled-s": "an idle stream that is pulled advances every 0.1 s:"
        " remove the key",
        "pull-batch-bytes": "a message to a Drainer has at most 1 MiB: remove the key",
        "write-group-bytes": "a write has at most 4 MiB: remove the key",
        "replica-timeout-s": "it is half of takeover-after-s, or 1 s if that is 0: remove the key",
        "resolver.lock-wait-s": "it is 2 s: remove the key",
    }
    """Former settings, each with the remedy."""

    addr: str = setting("127.0.0.1:8250", "host:port to listen on; port 0 chooses a free port")
    advertise_addr: str = setting("", "host:port at which others reach this Pump; default: addr")
    status_addr: str = setting(
        "",
        "host:port of the HTTP pages and metrics; default: loopback, addr's port + 1000; off: none",
    )
    etcd_urls: str = setting("127.0.0.1:2379", "etcd endpoints, comma-separated")
    pd_address: str = setting(
        "",
        "host:port of a TiDB cluster's PDs, comma-separated: they provide the cluster id and the"
        " timestamps, and TiKV the outcome of transactions",
    )
    data_dir: Path = field(
        default=Path("data.pump"), metadata={"help": "directory of the log and the index"}
    )
    node_id: str = setting(
        "", "name in the cluster; default: host:port, then stored in the data-dir"
    )
    labels: tuple[str, ...] = setting(
        (), "labels by which writers may choose Pumps, such as zone=a: name=value, comma-separated"
    )
    heartbeat_interval_s: float = setting(
        2.0, "interval in seconds at which the status in etcd is renewed"
    )
    gc_days: float = setting(
        7.0,
        "retention in days: older binlogs are purged once every Drainer has them; a higher value"
        " needs more disk space",
    )
    gc_force_after_days: float = setting(
        0.0, "age in days at which binlogs are purged even if a Drainer still needs them; 0: never"
    )
    fake_binlog_interval_s: float = setting(
        3.0, "interval in seconds at which an idle Pump's stream advances while no Drainer pulls"
    )
    txn_timeout_s: float = setting(
        600.0,
        "age in seconds at which a transaction of unknown outcome is rolled back; does not apply"
        " to a TiDB's transactions",
    )
    pause_grace_s: float = setting(
        1.0, "seconds that a stopping Pump waits for the Commits of open transactions"
    )
    max_message_bytes: int = setting(
        512 << 20, "maximum size of a binlog in a single message, in bytes; all nodes must agree"
    )
    transaction_bytes_max: int = setting(
        4 << 30,
        "maximum size of a transaction, in bytes; large transactions are transferred in chunks",
    )
    write_queue_bytes: int = setting(
        256 << 20,
        "maximum size of the write queue, in bytes; above it writers are rejected; a higher value"
        " needs more memory",
    )
    server_engine: str = setting(
        "http2", "gRPC server at addr: http2, which is Penstock's own, or grpcio"
    )
    copies: int = setting(
        1,
        "number of Pumps whose disks must have a binlog before it is acknowledged; 1: only this"
        " Pump",
    )
    copies_min: int = setting(
        0, "minimum number of copies, below which nothing is acknowledged; 0: same as copies"
    )
    copies_apart: str = setting(
        "", "label, such as zone, in which the Pumps with replicas of a log must differ"
    )
    takeover_after_s: float = setting(
        2.0,
        "seconds of silence after which a Pump loses its log to a Pump with a replica; a higher"
        " value delays failover; 0: never. A replica that does not answer for half of this, or for"
        " 1 s if it is 0, is removed from the replica set",
    )
    scrub_mb_per_s: float = setting(
        20.0,
        "read rate of the scrub in MB per second, which reads the whole disk to find corruption",
    )
    scrub_every_days: float = setting(
        7.0, "interval of the scrub in days; 0: only on penstock ctl scrub"
    )
    leave_grace_s: float = setting(
        10.0,
        "seconds that a stopping Pump waits until others have the replicas on its disk; 0: no wait",
    )
    taken_over_by: str = setting(
        "", "set by a Pump for the process that it starts on a log after a failover; leave it empty"
    )
    log_level: str = setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = setting(
        "", "log file instead of stderr; it is reopened after it is moved, or at SIGHUP"
    )
    log_format: str = setting("text", "text, or json with an object in each line")
    storage: StorageConfig = field(default_factory=StorageConfig)
    resolver: ResolverConfig = field(default_factory=ResolverConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)

    def __post_init__(self) -> None:
        for name in ("addr", "advertise_addr", "pd_address"):
            check_address(name, getattr(self, name))
        if self.status_addr != OFF:
            check_address("status_addr", self.status_addr)
        for name, value in vars(self).items():
            may_be_zero = name in (
                *("pause_grace_s", "gc_force_after_days", "takeover_after_s", "leave_grace_s"),
                "scrub_every_days",
            )
            is_measured = name.endswith(("_s", "_days", "_bytes", "_bytes_max"))
            if is_measured and (value < 0 or (value == 0 and not may_be_zero)):
                hint = "it must not be negative" if may_be_zero else "it must be above zero"
                raise out_of_range(name, value, hint)
        if 0 != self.gc_force_after_days < self.gc_days:
            raise out_of_range("gc_force_after_days", self.gc_force_after_days, "at least gc-days")
        if self.max_message_bytes > _GRPC_MESSAGE_BYTES_END:
            raise out_of_range(
                "max_message_bytes", self.max_message_bytes, "gRPC carries less than 2 GiB"
            )
        if self.server_engine not in ENGINES:
            raise out_of_range("server_engine", self.server_engine, f"one of {', '.join(ENGINES)}")
        self._check_copies()
        check_advertised(self.advertise_addr or self.addr)
        parse_labels(self.labels)
        if self.resolver.kind == "tikv" and not self.pd_address:
            raise out_of_range("resolver.kind", "tikv", "it needs pd-address")
        if self.resolver.kind == "none" and self.pd_address:
            raise out_of_range(
                "resolver.kind",
                "none",
                "with pd-address TiKV must be asked, or what a TiDB committed may be rolled back:"
                " leave it out",
            )

    @property
    def replica_timeout_s(self) -> float:
        """The silence after which a replica is removed, before the primary itself is replaced."""
        return self.takeover_after_s / 2 or _REPLICA_TIMEOUT_S

    @property
    def copies_needed(self) -> int:
        return self.copies_min or self.copies

    def _check_copies(self) -> None:
        if not 1 <= self.copies <= _COPIES_MAX:
            raise out_of_range("copies", self.copies, f"1 to {_COPIES_MAX}")
        if not 0 <= self.copies_min <= self.copies:
            raise out_of_range("copies_min", self.copies_min, "at most as many as copies")
        if self.copies == 1:
            return
        if not self.storage.sync_log:
            raise out_of_range("copies", self.copies, "copies need storage.sync-log")
        if self.storage.segment_bytes_max > _COPIED_SEGMENT_BYTES_MAX:
            raise out_of_range(
                "storage.segment_bytes_max",
                self.storage.segment_bytes_max,
                "with copies it must be at most 3 GiB",
            )


def _days(value: Any) -> float:
    text = str(value)
    return float(text) if text.isdecimal() else duration_s(text) / _DAY_S


KEYS: dict[str, Answer] = {
    "pd-urls": Renamed("etcd-urls", also="pd-address"),
    "heartbeat-interval": Renamed("heartbeat-interval-s"),
    "gc": Renamed("gc-days", _days),
    "gen-binlog-interval": Renamed("fake-binlog-interval-s"),
    "max-message-size": Renamed("max-message-bytes"),
    "socket": Refused("there is no socket in the file system: writers use addr"),
    "metrics-addr": Refused(_NO_PUSH),
    "metrics-interval": Refused(_NO_PUSH, ("", 0, "0", 15, "15")),
    "enable-debug": Refused("use log-level = debug", (False, "false")),
    "log-rotate": Met("it had none in TiDB-Binlog either; logrotate does it"),
    "binlog-file-size": Met("it had none in TiDB-Binlog either; see storage.segment-bytes-max"),
    "enable-binlog-slice": Met("it had none in TiDB-Binlog either; large binlogs go in chunks"),
    "binlog-slice-size": Met("it had none in TiDB-Binlog either; large binlogs go in chunks"),
    "storage.kv_chan_cap": Met("what waits is bounded in bytes: write-queue-bytes"),
    "storage.kv-chan-cap": Met("what waits is bounded in bytes: write-queue-bytes"),
    "storage.slow_write_threshold": Met("/metrics shows how long writes take"),
    "storage.slow-write-threshold": Met("/metrics shows how long writes take"),
    "storage.stop-write-at-available-space": Renamed(
        "storage.stop-write-at-available-bytes",
        lambda value: size_bytes(value or "0") if isinstance(value, str) else value,
    ),
    **{
        f"storage.kv.{name}": Met(_OWN_INDEX)
        for name in (
            "block-cache-capacity", "block-restart-interval", "block-size",
            "compaction-L0-trigger", "compaction-table-size", "compaction-total-size",
            "compaction-total-size-multiplier", "write-buffer", "write-L0-pause-trigger",
            "write-L0-slowdown-trigger",
        )
    },
}  # fmt: skip
"""Keys of TiDB-Binlog's pump.toml that differ from ours; sections come first."""

FLAGS = {
    **{
        name: name
        for name in (
            "node-id", "addr", "advertise-addr", "socket", "pd-urls", "data-dir",
            "heartbeat-interval", "gc", "log-file", "metrics-addr", "metrics-interval", "config",
            "enable-debug", "max-message-size", "binlog-file-size", "enable-binlog-slice",
            "binlog-slice-size", "log-rotate",
        )
    },
    "fake-binlog-interval": "gen-binlog-interval",
    "L": "log-level",
    "V": "version",
}  # fmt: skip
"""TiDB-Binlog's flags, which may begin with one dash, with the key of each."""


def load_settings(
    argv: Sequence[str] | None, *, env: Mapping[str, str] | None = None
) -> tuple[PumpConfig, list[str]]:
    """Return the settings from every source, and lines for the log about them.

    Exits for --help and --version. Raises `NeedsOperator` for impossible settings.
    """
    translated = Translation(
        keys=KEYS,
        flags=FLAGS,
        prefixes=("PUMP", "PUMP"),
        switches=frozenset({"enable-debug", "enable-binlog-slice"}),
    )
    config = read_settings(
        PumpConfig,
        translated.arguments(sys.argv[1:] if argv is None else argv),
        prog="penstock pump",
        env_prefix="PUMP",
        env=translated.environment(os.environ if env is None else env),
        rewrite=translated.document,
    )
    return config, translated.notes
