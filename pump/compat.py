"""The keys, flags and variables of TiDB-Binlog's own Pump, and what becomes of each here.

Those that bear the same name here are not in the table; what the answers mean is in
`penstock.settings.compat`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.settings.compat import Answer, Met, Refused, Renamed, Translation
from penstock.settings.config import duration_s, load, size_bytes
from pump.config import PumpConfig

_DAY_S = 86400.0
_NO_PUSH = "nothing is pushed: Prometheus fetches /metrics at status-addr"
_OWN_INDEX = "the index has other parts: storage.index-write-buffer-bytes, index-cache-bytes"


def _days(value: Any) -> float:
    """Return the days that a number of them, or a duration such as "8h", stands for."""
    text = str(value)
    return float(text) if text.isdecimal() else duration_s(text) / _DAY_S


KEYS: dict[str, Answer] = {
    "pd-urls": Renamed("etcd-urls"),
    "heartbeat-interval": Renamed("heartbeat-interval-s"),
    "gc": Renamed("gc-days", _days),
    "gen-binlog-interval": Renamed("fake-binlog-interval-s"),
    "max-message-size": Renamed("max-message-bytes"),
    "socket": Refused("there is no socket in the file system: writers use addr"),
    "metrics-addr": Refused(_NO_PUSH),
    "metrics-interval": Refused(_NO_PUSH, ("", 0, "0", 15, "15")),
    "enable-debug": Refused("use log-level = debug", (False, "false")),
    "log-rotate": Met("it had none in the original either; logrotate does it"),
    "binlog-file-size": Met("it had none in the original either; see storage.segment-bytes-max"),
    "enable-binlog-slice": Met("it had none in the original either; large binlogs go in pieces"),
    "binlog-slice-size": Met("it had none in the original either; large binlogs go in pieces"),
    "storage.kv_chan_cap": Met("what waits is bounded in bytes: write-queue-bytes"),
    "storage.kv-chan-cap": Met("what waits is bounded in bytes: write-queue-bytes"),
    "storage.slow_write_threshold": Met("/metrics tells how long writes take"),
    "storage.slow-write-threshold": Met("/metrics tells how long writes take"),
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
"""Keys of its pump.toml that are not ours under the same name, sections before them."""

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
"""Its flags, which may begin with one dash, and the key that each sets."""


def load_settings(
    argv: Sequence[str] | None, *, env: Mapping[str, str] | None = None
) -> tuple[PumpConfig, list[str]]:
    """Return the settings from every source, and what to tell the log about them.

    Exits for --help and --version. Raises `NeedsOperator` for what cannot be.
    """
    translated = Translation(
        keys=KEYS,
        flags=FLAGS,
        prefixes=("PUMP", "PUMP"),
        switches=frozenset({"enable-debug", "enable-binlog-slice"}),
    )
    config = load(
        PumpConfig,
        translated.arguments(sys.argv[1:] if argv is None else argv),
        prog="pump",
        env_prefix="PUMP",
        env=translated.environment(os.environ if env is None else env),
        rewrite=translated.document,
    )
    return config, translated.notes
