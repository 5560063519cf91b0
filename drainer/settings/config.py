"""Settings of a Drainer: each with its default, its unit in its name, and its effect."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from drainer.settings.syncer_section import DEFAULT_SINK, VARIABLES, SyncerConfig, downstream_of
from drainer.settings.targets import (
    COLLATIONS,
    MYSQL_PASSWORD,
    SQLITE,
    LakeTarget,
    MysqlTarget,
    Target,
)
from penstock.filters import FilterConfig
from penstock.node.http_status import OFF
from penstock.security.tls import SecurityConfig
from penstock.settings.load import size_bytes
from penstock.settings.setting import (
    check_address,
    check_advertised,
    out_of_range,
    setting,
    without_password,
)

_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|(spark|k8s|mesos)://\S+|yarn")
_CONF = re.compile(r"spark\.[^\s=]+=.*", re.DOTALL)
DOWNSTREAM_KEYS = ("sink", "syncer.db-type", "syncer.to")
"""Settings of which at least one names the downstream."""
_SINK, _PASSWORD = "--sink=", "--syncer-to-password="
PAYLOADS = ("auto", "driver", "executors")


@dataclass(frozen=True, kw_only=True)
class SparkConfig:
    """The Spark job that turns rows into SQL."""

    master: str = setting("local[*]", "Spark master; a local master runs inside the Drainer")
    tasks: int = setting(
        0, "number of resident tasks; 0: one per core, at most 4 on a local master"
    )
    host: str = setting("127.0.0.1", "address at which executors reach this Drainer")
    conf: tuple[str, ...] = setting((), "additional Spark settings, name=value, comma-separated")
    payloads: str = setting(
        "auto",
        "process that pulls the rows from the Pumps: driver; executors, which then must reach"
        " every Pump; auto: executors on a cluster without TLS",
    )

    def __post_init__(self) -> None:
        if self.payloads not in PAYLOADS:
            raise out_of_range("spark.payloads", self.payloads, f"use {', '.join(PAYLOADS)}")
        if self.tasks < 0:
            raise out_of_range("spark.tasks", self.tasks, "use 0 for the default")
        if not _MASTER.fullmatch(self.master):
            hint = "use local[*], local[2] or spark://host:port"
            raise out_of_range("spark.master", self.master, hint)
        for each in self.conf:
            if not _CONF.fullmatch(each):
                raise out_of_range("spark.conf", each, "write spark.name=value, comma-separated")


STRATEGIES = {
    "auto": ("snapshot", "parallel"),
    "merge": ("snapshot", "parallel"),
    "statements": ("snapshot",),
    "events": ("snapshot",),
}
"""Each strategy with its modes; only those of `merge` differ."""


@dataclass(frozen=True, kw_only=True)
class ApplyConfig:
    """How batches reach the downstream."""

    strategy: str = setting(
        "auto",
        "merge: only the last change of each row in a batch; statements: every change, for "
        "triggers and audits; events: every change in commit order, for files and Kafka; auto: "
        "merge for tables, else events",
    )
    mode: str = setting(
        "snapshot",
        "snapshot: a batch is one transaction with its checkpoint; parallel: each partition of a"
        " batch is a transaction on a separate connection (MySQL and MariaDB)",
    )
    connections: int = setting(2, "number of connections that commit partitions in mode parallel")
    worker_count: int = setting(16, "number of connections over which statements are distributed")
    txn_batch: int = setting(20, "number of statements in a downstream transaction")
    dispatch: bool = setting(
        True,
        "distribution of statements over connections; false: upstream's transactions stay"
        " complete, on one connection",
    )
    safe_mode: bool = setting(
        False,
        "use of idempotent statements, which replace conflicting rows, at all times; if false,"
        " only during recovery after an unclean shutdown",
    )

    collations: str = setting(
        "map",
        "treatment of a collation that the downstream lacks: map: the nearest available collation"
        " replaces it, unless two keys could become equal; stop: its DDL is rejected",
    )

    def __post_init__(self) -> None:
        if self.collations not in COLLATIONS:
            hint = f"use {' or '.join(COLLATIONS)}"
            raise out_of_range("apply.collations", self.collations, hint)
        if self.strategy not in STRATEGIES:
            raise out_of_range("apply.strategy", self.strategy, f"use {' or '.join(STRATEGIES)}")
        modes = STRATEGIES[self.strategy]
        if self.mode not in modes:
            hint = f"strategy {self.strategy} has {' or '.join(modes)}"
            raise out_of_range("apply.mode", self.mode, hint)
        for name in ("connections", "worker_count", "txn_batch"):
            if getattr(self, name) < 1:
                raise out_of_range(f"apply.{name}", getattr(self, name), "it must be above zero")


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """The relay log: merged binlogs on a local disk before they change the downstream."""

    log_dir: str = setting("", "directory of the relay log; empty: no relay log")
    max_file_size: int = field(
        default=10 << 20,
        metadata={
            "help": "size in bytes at which a file ends, with the transaction that reaches it",
            "parse": lambda value: size_bytes(value) if isinstance(value, str) else int(value),
        },
    )
    upstream_timeout_s: float = setting(
        30.0,
        "seconds that a start tries to reach etcd before it makes an inconsistent downstream"
        " consistent from the relay log and exits",
    )

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "log_dir" and value <= 0:
                raise out_of_range(f"relay.{name}", value, "it must be above zero")


@dataclass(frozen=True, kw_only=True)
class DrainerConfig:
    """A Drainer merges the streams of all Pumps and applies them downstream, in commit order."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "buffer-bytes": "16 MiB of binlogs may wait for the merge: remove the key",
        "checkpoint-interval-s": "an idle Drainer saves its checkpoint every 3 s: remove the key",
        "heartbeat-interval-s": "the status and the list of Pumps are renewed every second:"
        " remove the key",
        "spark.driver-memory": 'set spark.conf = ["spark.driver.memory=1g"] instead',
        "spark.executor-memory": 'set spark.conf = ["spark.executor.memory=1g"] instead',
    }
    """Former settings, each with the remedy."""

    addr: str = setting("127.0.0.1:8249", "host:port to listen on; port 0 chooses a free port")
    advertise_addr: str = setting("", "host:port at which others reach this Drainer; default: addr")
    status_addr: str = setting(
        "",
        "host:port of the HTTP pages and metrics; default: loopback, addr's port + 1000; off: none",
    )
    etcd_urls: str = setting("127.0.0.1:2379", "etcd endpoints, comma-separated")
    pd_address: str = setting(
        "",
        "host:port of a TiDB cluster's PDs, comma-separated: they provide the cluster id and the"
        " timestamps, and its TiDB servers the DDL jobs, instead of other writers in etcd",
    )
    data_dir: Path = field(
        default=Path("data.drainer"),
        metadata={"help": "directory of the lock, the node id and Spark's files"},
    )
    node_id: str = setting(
        "", "name in the cluster; default: host:port, then stored in the data-dir"
    )
    source_id: str = setting(
        "", "name of this upstream in routes with extract-source; not used otherwise"
    )
    sink: str = setting(
        DEFAULT_SINK,
        "downstream: sqlite:///file.db, mysql://user:password@host:port/, file:///folder, "
        "kafka://host:9092/, delta:///folder, or delta:///folder?mode=changes for change logs",
    )
    initial_commit_ts: int = setting(
        0,
        "start position on a downstream without a checkpoint: after this commit_ts, as of which the"
        " downstream holds a copy; 0: the beginning; -1: now, without earlier changes",
    )
    ignore_txn_commit_ts: tuple[str, ...] = setting(
        (), "commit_ts of transactions that are not applied; a DDL among them is still tracked"
    )
    accept_gap_commit_ts: tuple[str, ...] = setting(
        (),
        "commit_ts of transactions that are applied although earlier transactions of their source"
        " are missing in the stream, or from which on an epoch of that source is skipped (PS-6015)",
    )
    batch_rows_max: int = setting(
        50_000, "number of rows at which a batch ends; a higher value needs more memory"
    )
    batch_bytes_max: int = setting(
        8 << 20, "size in bytes at which a batch ends; a higher value needs more memory"
    )
    synced_check_time: int = setting(
        5, "minutes without a change for the downstream after which /status reports Synced"
    )
    stop_timeout_s: float = setting(10.0, "seconds that a stop waits for batches in progress")
    log_level: str = setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = setting(
        "", "log file instead of stderr; it is reopened after it is moved, or at SIGHUP"
    )
    log_format: str = setting("text", "text, or json with an object in each line")
    apply: ApplyConfig = field(default_factory=ApplyConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    syncer: SyncerConfig = field(default_factory=SyncerConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def as_flags(self) -> str:
        """The flags with which a command in any folder finds this etcd and this downstream.

        They contain no password: `password_hint` says how to give it.
        """
        place, to = self.downstream.local, self.syncer.to
        flags = [each for each in self.given if not each.startswith(_SINK)]
        has_moved = place is not None and not place.is_absolute()
        if self._is_by_sink and (has_moved or len(flags) < len(self.given)):
            flags.append(_SINK + self._sink_anywhere())
        elif has_moved:
            flags.append(f"--syncer-to-dir={Path(to.dir).absolute()}")
        named = {each.partition("=")[0] for each in flags}
        for name, variable in () if self._is_by_sink else VARIABLES.items():
            flag = f"--syncer-to-{name.replace('_', '-')}"
            if flag not in named and not getattr(to, name) and os.environ.get(variable):
                flags.append(f"{flag}={os.environ[variable]}")
        return shlex.join(flags)

    @property
    def password_hint(self) -> str:
        """How a command with `as_flags` gets the password; empty if it needs no more."""
        target = self.downstream
        by_flag = any(each.startswith((_SINK, _PASSWORD)) for each in self.given)
        in_settings = without_password(self.sink, "") != self.sink or self.syncer.to.password
        if not getattr(target, "password", "") or (in_settings and not by_flag):
            return ""
        if isinstance(target, MysqlTarget):
            return f"set {MYSQL_PASSWORD} to the downstream's password"
        return "add password-file=FILE, a file with its password, to the options of the sink"

    @property
    def _is_by_sink(self) -> bool:
        return self.sink != DEFAULT_SINK or self.downstream.scheme == SQLITE

    def _sink_anywhere(self) -> str:
        place, (_, _, query) = self.downstream.local, self.sink.partition("?")
        if place is None:
            return without_password(self.sink, "")
        root = f"{self.downstream.scheme}://{'/' if self.downstream.scheme == SQLITE else ''}"
        return root + quote(str(place.absolute())) + (f"?{query}" if query else "")

    @property
    def downstream(self) -> Target:
        """The downstream, password included: not for logs."""
        return downstream_of(self.sink, self.syncer, collations=self.apply.collations)

    @property
    def strategy(self) -> str:
        """The strategy's name, also if the settings leave it to the downstream."""
        asked = self.apply.strategy
        if asked != "auto":
            return asked
        return "events" if self.downstream.takes_events else "merge"

    @property
    def ignored_ts(self) -> frozenset[int]:
        return frozenset(map(int, self.ignore_txn_commit_ts))

    @property
    def accepted_gap_ts(self) -> frozenset[int]:
        return frozenset(map(int, self.accept_gap_commit_ts))

    def __post_init__(self) -> None:
        for name in ("addr", "advertise_addr", "pd_address"):
            check_address(name, getattr(self, name))
        if self.status_addr != OFF:
            check_address("status_addr", self.status_addr)
        for name, value in vars(self).items():
            if name.endswith(("_s", "_bytes", "_max")) and value <= 0:
                raise out_of_range(name, value, "it must be above zero")
        for name in ("ignore_txn_commit_ts", "accept_gap_commit_ts"):
            wrong = [text for text in getattr(self, name) if not text.isdecimal()]
            if wrong:
                raise out_of_range(name, wrong[0], "give commit_ts, comma-separated")
        for name, least, hint in (
            ("initial_commit_ts", -1, "use -1, 0 or a commit_ts"),
            ("synced_check_time", 0, "use 0 for at once"),
        ):
            if getattr(self, name) < least:
                raise out_of_range(name, getattr(self, name), hint)
        check_advertised(self.advertise_addr or self.addr)
        self._check_downstream()

    def _check_downstream(self) -> None:
        target = self.downstream
        has_events, is_lake = target.takes_events, isinstance(target, LakeTarget)
        if has_events != (self.strategy == "events"):
            hint = "leave it out, or say auto" if has_events else "it is for sink = file:///folder"
            raise out_of_range("apply.strategy", self.apply.strategy, hint)
        if has_events and self.apply.mode != "snapshot":
            raise out_of_range("apply.mode", self.apply.mode, "files and logs are written by one")
        if is_lake and not has_events:
            for name, value, only in (
                ("strategy", self.strategy, "merge"),
                ("mode", self.apply.mode, "snapshot"),
            ):
                if value != only:
                    raise out_of_range(f"apply.{name}", value, f"a lake takes {only}: leave it out")
        if target.local is not None and target.local.absolute() == self.data_dir.absolute():
            raise out_of_range("sink", self.sink, "the data-dir is locked: name another folder")
