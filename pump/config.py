"""A Pump's settings: each with its default, its unit in its name, and what it moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import NeedsOperator
from pump.storage import StorageConfig

_GRPC_MESSAGE_BYTES_END = (2 << 30) - (16 << 20)


def _setting(default: Any, text: str, **extra: str) -> Any:
    return field(default=default, metadata={"help": text, **extra})


@dataclass(frozen=True, kw_only=True)
class PumpConfig:
    """A Pump keeps binlogs that writers send, and streams them to Drainers in commit order."""

    addr: str = _setting("127.0.0.1:8250", "host:port to listen on; port 0 takes a free one")
    advertise_addr: str = _setting("", "host:port that others reach this Pump at; default: addr")
    etcd_urls: str = _setting("127.0.0.1:2379", "etcd endpoints, comma-separated")
    pd_address: str = _setting("", "a TiDB PD's host:port to take timestamps from, if there is one")
    data_dir: Path = field(
        default=Path("data.pump"), metadata={"help": "directory of the log and the index"}
    )
    node_id: str = _setting(
        "", "name in the cluster; default: host:port, then kept in the data-dir"
    )
    heartbeat_interval_s: float = _setting(2.0, "how often the status in etcd is renewed")
    gc_days: float = _setting(7.0, "binlogs older than this are purged once every Drainer has them")
    fake_binlog_interval_s: float = _setting(
        3.0, "how long an idle Pump's stream stands still while nobody pulls"
    )
    fake_binlog_interval_pulled_s: float = _setting(
        0.1, "the same while a Drainer waits; lower: less delay, more small writes"
    )
    txn_timeout_s: float = _setting(
        600.0, "a transaction whose outcome nobody knows is rolled back at this age"
    )
    pause_grace_s: float = _setting(
        1.0, "how long a stopping Pump waits for the Commits of open transactions"
    )
    max_message_bytes: int = _setting(512 << 20, "the largest binlog; all nodes must agree")
    pull_batch_bytes: int = _setting(1 << 20, "how much one message to a Drainer carries at most")
    write_group_bytes: int = _setting(4 << 20, "how much one write and fdatasync covers at most")
    write_queue_bytes: int = _setting(256 << 20, "above this much waiting, writers are refused")
    log_level: str = _setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = _setting("", "log to this file instead of stderr")
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        """Raise `NeedsOperator` for a value out of range."""
        for name in ("addr", "advertise_addr", "pd_address"):
            _check_address(name, getattr(self, name))
        for name, value in vars(self).items():
            may_be_zero = name == "pause_grace_s"
            if name.endswith(("_s", "_days", "_bytes")) and value <= 0 and not may_be_zero:
                raise _wrong(name, value, "it must be above zero")
        if self.max_message_bytes > _GRPC_MESSAGE_BYTES_END:
            raise _wrong(
                "max_message_bytes", self.max_message_bytes, "gRPC carries less than 2 GiB"
            )
        if (self.advertise_addr or self.addr).startswith("0.0.0.0:"):
            raise _wrong("advertise_addr", self.advertise_addr, "others cannot connect to 0.0.0.0")


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not address and name != "addr":
        return
    if not host or "/" in address or not port.isdecimal() or int(port) > 65535:
        raise _wrong(name, address, "write host:port, such as 127.0.0.1:8250")


def _wrong(name: str, value: object, hint: str) -> NeedsOperator:
    return NeedsOperator(f"{name.replace('_', '-')} is {value!r}", hint=hint)
