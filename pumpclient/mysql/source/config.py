"""Settings of a source, in the order of DM's source and task files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from penstock.filters import FilterConfig
from penstock.node.http_status import OFF
from penstock.security.databases import FULL, PasswordFile, SqlTls
from penstock.security.tls import SecurityConfig
from penstock.settings.setting import check_address, out_of_range, setting
from pumpclient.mysql.load.sink import SESSIONS_MAX, SinkOptions
from pumpclient.mysql.protocol.server import ServerAddress, address_in
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.translate.online_ddl import SHADOW, TRASH, OnlineDdl

OPTIMISTIC = "optimistic"
STOP, REPAIR, ACCEPT = "stop", "repair", "accept"
_TRANSACTION_BYTES_MIN, _TRANSACTION_BYTES = 4 << 10, 1 << 20
_REMOVE = "remove the key: "


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The server whose changes are replicated."""

    host: str = setting("127.0.0.1", "host of the server")
    port: int = setting(3306, "port of the server")
    user: str = setting("", "account; needs REPLICATION SLAVE, REPLICATION CLIENT and SELECT")
    password: str = setting(
        "", "password; prefer password-file, or the variable MYSQL_SOURCE_SOURCE_PASSWORD"
    )
    password_file: str = setting(
        "", "file whose first line is the password; read for each connection"
    )
    ssl_ca: str = setting("", "PEM file of the CA that signed the server's certificate")
    ssl_cert: str = setting("", "PEM file of a client certificate for the server")
    ssl_key: str = setting("", "PEM file of the client certificate's private key")
    ssl_verify: str = setting(
        FULL, '"full": CA and host name of the server are checked; "ca": only the CA'
    )
    server_id: int = setting(0, "server id of the replica; 0: a free number at each connection")
    semi_sync: bool = setting(
        False,
        "acknowledgement of events that are on the disk, if the server uses semi-synchronous"
        " replication",
    )

    def __post_init__(self) -> None:
        SqlTls(verify=self.ssl_verify)

    def address(self) -> ServerAddress:
        """Return the server's address and credentials; raise `NeedsOperator` for a missing file."""
        tls = None
        if self.ssl_ca or self.ssl_cert:
            ca, cert, key = (
                Path(path) if path else None for path in (self.ssl_ca, self.ssl_cert, self.ssl_key)
            )
            tls = SqlTls(ca, cert, key, self.ssl_verify)
        file = PasswordFile(self.password_file) if self.password_file else None
        return ServerAddress(
            self.host, self.port, self.user, self.password, tls, password_file=file
        )

    def stream(self) -> StreamOptions:
        return StreamOptions(server_id=self.server_id or None, semi_sync=self.semi_sync)


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """The local copy of the server's binlog."""

    dir: Path = field(
        default=Path("data.source/relay"), metadata={"help": "directory of the relay log"}
    )
    purge_expires_s: float = setting(
        0.0, "age in seconds at which files that have been read are purged; 0: never"
    )
    purge_remain_space_bytes: int = setting(
        15 << 30, "free space in bytes, below which all files that have been read are purged"
    )


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How transactions reach the Pumps."""

    group_count_max: int = setting(
        512, "maximum number of transactions in a group, which are committed together"
    )
    strategy: str = setting("range", "method to choose a group's Pump: range, hash or score")


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """How existing tables are loaded, with mode full or all."""

    readers: int = setting(
        4,
        "number of sessions that read in parallel, all from one snapshot; a higher value increases"
        " the load on the server",
    )
    rate_bytes_per_s: int = setting(0, "maximum load rate in bytes per second; 0: unlimited")
    into_existing: bool = setting(
        False, "load into existing tables, to merge several servers into one target"
    )
    sink: str = setting(
        "",
        "downstream of the Drainer, into which the load writes rows directly:"
        " mysql://user:password@host:port/",
    )
    sink_checkpoint: str = setting(
        "tidb_binlog.checkpoint", "table of the Drainer's checkpoint in that downstream"
    )

    @property
    def transaction_bytes(self) -> int:
        """The maximum size of the rows that are committed together; a low rate limits it, too."""
        tenth = max(self.rate_bytes_per_s // 10, _TRANSACTION_BYTES_MIN)
        return min(_TRANSACTION_BYTES, tenth) if self.rate_bytes_per_s else _TRANSACTION_BYTES

    def sink_options(self) -> SinkOptions | None:
        """Return the sink for direct loading, if set; raise `NeedsOperator` for an invalid URL."""
        if not self.sink:
            return None
        return SinkOptions(
            address_in(self.sink, "load's sink"), self.sink_checkpoint, is_shared=self.into_existing
        )


@dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """Tables that gh-ost and pt-osc make."""

    shadow: tuple[str, ...] = setting(
        SHADOW,
        "patterns of the tools' copies, with one group for the real table's name; empty, with an"
        " empty trash: tables of these tools are replicated like others",
    )
    trash: tuple[str, ...] = setting(TRASH, "patterns of the tools' other tables")

    def rules(self) -> OnlineDdl | None:
        """Compile the patterns; raise `NeedsOperator` for an invalid pattern."""
        return OnlineDdl(self.shadow, self.trash) if self.shadow or self.trash else None


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """A source follows one MySQL or MariaDB server and writes its changes through the Pumps."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "source.heartbeat-s": f"{_REMOVE}heartbeats come every 10 s",
        "relay.sync-interval-s": f"{_REMOVE}relayed events are synced every second",
        "relay.purge-interval-s": f"{_REMOVE}files are purged every hour",
        "sync.group-bytes-max": f"{_REMOVE}a group has at most 4 MiB; set sync.group-count-max",
        "sync.checkpoint-interval-s": f"{_REMOVE}the checkpoint is stored every second",
        "sync.write-timeout-s": f"{_REMOVE}a write waits 15 s for a Pump, and is then retried",
        "load.rows-per-chunk": f"{_REMOVE}a chunk has about 100,000 rows",
        "load.transaction-bytes": f"{_REMOVE}it follows from load.rate-bytes-per-s, at most 1 MiB",
        "online-ddl.enabled": "for false, set online-ddl.shadow = [] and online-ddl.trash = [];"
        " for true, remove the key",
    }
    """Former settings, each with the remedy."""

    source_id: str = setting(
        "mysql-1", "name in the cluster; only one process at a time may use it"
    )
    start: str = setting(
        "current", "start position of the first run: current, file:position, a GTID set, or a time"
    )
    mode: str = setting(
        "incremental",
        "full: load the existing tables and exit; incremental: follow the binlog; all: both",
    )
    shard_mode: str = setting(
        "",
        "optimistic: several tables, of this or other sources, are routed into one table; or empty",
    )
    cascades: str = setting(
        STOP,
        "treatment of foreign keys that change rows without a record in the binlog (CASCADE, SET"
        " NULL): stop, repair, or accept",
    )
    etcd_urls: str = setting("127.0.0.1:2379", "etcd endpoints, comma-separated")
    pd_address: str = setting(
        "",
        "host:port of a TiDB cluster's PDs, comma-separated: they provide the cluster id and the"
        " timestamps",
    )
    data_dir: Path = field(
        default=Path("data.source"), metadata={"help": "directory of the source's files"}
    )
    status_addr: str = setting("127.0.0.1:9251", "host:port of the pages and metrics; off: none")
    lease_s: int = setting(
        10,
        "seconds for which a dead process still holds the source-id; a higher value delays its"
        " replacement",
    )
    log_level: str = setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = setting(
        "", "log file instead of stderr; it is reopened after it is moved, or at SIGHUP"
    )
    log_format: str = setting("text", "text, or json with an object in each line")
    source: ServerConfig = field(default_factory=ServerConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    online_ddl: OnlineConfig = field(default_factory=OnlineConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def as_flags(self) -> str:
        """The flags with which a command finds this source."""
        flags = [each for each in self.given if each.startswith("--config=")]
        if self.status_addr != OFF:
            flags.append(f"--status-addr={self.status_addr}")
        return shlex.join(flags)

    def __post_init__(self) -> None:
        check_address("pd_address", self.pd_address)
        if self.status_addr != OFF:
            check_address("addr", self.status_addr)
        if not self.source_id or "/" in self.source_id:
            raise out_of_range("source_id", self.source_id, "a name without /")
        if any(rule.extracts for rule in self.filter.routes):
            raise out_of_range(
                "filter.routes", "extract-…", "let a route of the Drainer add these columns"
            )
        choices = {
            "shard_mode": (self.shard_mode, ("", OPTIMISTIC), f"{OPTIMISTIC}, or leave it empty"),
            "mode": (self.mode, ("full", "incremental", "all"), "full, incremental or all"),
            "cascades": (self.cascades, (STOP, REPAIR, ACCEPT), f"{STOP}, {REPAIR} or {ACCEPT}"),
        }
        for name, (given, allowed, wanted) in choices.items():
            if given not in allowed:
                raise out_of_range(name, given, wanted)
        if not 1 <= self.sync.group_count_max <= 4096:
            raise out_of_range("group_count_max", self.sync.group_count_max, "from 1 to 4096")
        if self.load.sink_options() is not None and self.load.readers > SESSIONS_MAX:
            raise out_of_range("readers", self.load.readers, f"with a sink at most {SESSIONS_MAX}")
        for name, value in (("readers", self.load.readers), ("lease_s", self.lease_s)):
            if value <= 0:
                raise out_of_range(name, value, "it must be above zero")
