"""A Drainer's settings: each with its default, its unit in its name, and what it moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import NeedsOperator


def _setting(default: Any, text: str, **extra: str) -> Any:
    return field(default=default, metadata={"help": text, **extra})


@dataclass(frozen=True, kw_only=True)
class SparkConfig:
    """The Spark job that turns rows into SQL."""

    master: str = _setting("local[*]", "Spark master; local ones run inside the Drainer")
    tasks: int = _setting(0, "resident tasks; 0: one per core, at most 4 on a local master")
    driver_memory: str = _setting("512m", "heap of the driver's JVM, which only places tasks")
    executor_memory: str = _setting("512m", "heap of each executor's JVM on a cluster")
    host: str = _setting("127.0.0.1", "address at which executors reach this Drainer")
    conf: tuple[str, ...] = _setting((), "more Spark settings, name=value, comma-separated")


@dataclass(frozen=True, kw_only=True)
class DrainerConfig:
    """A Drainer merges the streams of all Pumps and applies them downstream, in commit order."""

    addr: str = _setting("127.0.0.1:8249", "host:port to listen on; port 0 takes a free one")
    advertise_addr: str = _setting("", "host:port that others reach this Drainer at; default: addr")
    etcd_urls: str = _setting("127.0.0.1:2379", "etcd endpoints, comma-separated")
    pd_address: str = _setting("", "a TiDB PD's host:port to take timestamps from, if there is one")
    data_dir: Path = field(
        default=Path("data.drainer"), metadata={"help": "directory of the lock, the node id, Spark"}
    )
    node_id: str = _setting(
        "", "name in the cluster; default: host:port, then kept in the data-dir"
    )
    sink: str = _setting(
        "sqlite:///downstream.db",
        "downstream: sqlite:///file.db or mysql://user:password@host:port/",
    )
    initial_commit_ts: int = _setting(
        0,
        "where to start on a downstream without checkpoint: after this commit_ts, of which the "
        "downstream holds a copy; 0: at the beginning; -1: now, without what was before",
    )
    batch_rows_max: int = _setting(50_000, "a batch is cut at this many rows")
    batch_bytes_max: int = _setting(8 << 20, "a batch is cut at this many bytes")
    buffer_bytes: int = _setting(16 << 20, "how much of all Pumps may wait for the merge")
    checkpoint_interval_s: float = _setting(3.0, "how often an idle Drainer saves its checkpoint")
    heartbeat_interval_s: float = _setting(1.0, "how often status and list of Pumps are renewed")
    stop_timeout_s: float = _setting(10.0, "how long a stop waits for batches under way")
    log_level: str = _setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = _setting("", "log to this file instead of stderr")
    spark: SparkConfig = field(default_factory=SparkConfig)

    def __post_init__(self) -> None:
        """Raise `NeedsOperator` for a value out of range."""
        for name in ("addr", "advertise_addr", "pd_address"):
            _check_address(name, getattr(self, name))
        for name, value in vars(self).items():
            if name.endswith(("_s", "_bytes", "_max")) and value <= 0:
                raise _wrong(name, value, "it must be above zero")
        if self.initial_commit_ts < -1:
            raise _wrong("initial_commit_ts", self.initial_commit_ts, "use -1, 0 or a commit_ts")
        if self.heartbeat_interval_s > 3:
            raise _wrong("heartbeat_interval_s", self.heartbeat_interval_s, "3 s is the most")
        if self.spark.tasks < 0:
            raise _wrong("spark.tasks", self.spark.tasks, "use 0 for the default")
        if (self.advertise_addr or self.addr).startswith("0.0.0.0:"):
            raise _wrong("advertise_addr", self.advertise_addr, "others cannot connect to 0.0.0.0")


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not address and name != "addr":
        return
    if not host or "/" in address or not port.isdecimal() or int(port) > 65535:
        raise _wrong(name, address, "write host:port, such as 127.0.0.1:8249")


def _wrong(name: str, value: object, hint: str) -> NeedsOperator:
    return NeedsOperator(f"{name.replace('_', '-')} is {value!r}", hint=hint)
