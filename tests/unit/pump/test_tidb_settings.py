"""Every key and flag of TiDB-Binlog's Pump is understood, or answered with what replaces it."""

from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from penstock.settings.compat import Met
from pump.config import KEYS, PumpConfig, load_settings

KV = ("block-cache-capacity", "block-restart-interval", "block-size", "compaction-L0-trigger",
      "compaction-table-size", "compaction-total-size", "compaction-total-size-multiplier",
      "write-buffer", "write-L0-pause-trigger", "write-L0-slowdown-trigger")  # fmt: skip
ALL = [
    ("node-id", '"n"'), ("addr", '"127.0.0.1:1"'), ("advertise-addr", '"h:1"'),
    ("socket", '"unix:///s"'), ("pd-urls", '"http://127.0.0.1:2379"'), ("data-dir", '"d"'),
    ("heartbeat-interval", "3"), ("gc", "9"), ("gc", '"8h"'), ("log-level", '"debug"'),
    ("log-file", '"f"'), ("gen-binlog-interval", "5"), ("storage.sync-log", "false"),
    ("storage.kv_chan_cap", "9"), ("storage.slow_write_threshold", "1.0"),
    ("storage.stop-write-at-available-space", '"10 gib"'), *((f"storage.kv.{n}", "1") for n in KV),
]  # fmt: skip
FLAGS = {
    "node-id": "n", "addr": "127.0.0.1:1", "advertise-addr": "h:1", "socket": "",
    "pd-urls": "127.0.0.1:2379", "data-dir": "d", "heartbeat-interval": "3", "gc": "8h",
    "L": "debug", "log-file": "f", "fake-binlog-interval": "4", "metrics-addr": "",
    "metrics-interval": "15", "enable-debug": "false", "max-message-size": "1048576",
    "binlog-file-size": "1", "enable-binlog-slice": "true", "binlog-slice-size": "1",
    "log-rotate": "day",
}  # fmt: skip


def load(tmp_path: Path, text: str, *flags: str) -> tuple[PumpConfig, list[str]]:
    (tmp_path / "pump.toml").write_text(text)
    return load_settings(["--config", str(tmp_path / "pump.toml"), *flags], env={})


@pytest.mark.parametrize(("key", "value"), ALL)
def test_every_key_has_an_answer(key: str, value: str, tmp_path: Path) -> None:
    if key == "socket":
        with pytest.raises(NeedsOperator, match="socket is not supported"):
            load(tmp_path, f"{key} = {value}")
        return
    config, notes = load(tmp_path, f"{key} = {value}")
    assert bool(notes) == isinstance(KEYS.get(key), Met)
    assert notes or config != PumpConfig()


def test_every_flag_has_an_answer(tmp_path: Path) -> None:
    flags = [part for flag, value in FLAGS.items() for part in (f"-{flag}={value}",)]
    config, notes = load(tmp_path, "", *flags)
    assert config.gc_days == pytest.approx(1 / 3)
    assert config.heartbeat_interval_s == 3.0
    assert (config.fake_binlog_interval_s, config.max_message_bytes) == (4.0, 1 << 20)
    assert (config.log_level, config.etcd_urls) == ("debug", "127.0.0.1:2379")
    assert len(notes) == 4


def test_a_flag_is_not_taken_for_the_value_of_the_flag_before_it() -> None:
    with pytest.raises(NeedsOperator, match="--data-dir has no value"):
        load_settings(["--data-dir", "--help"])


def test_a_reserve_of_disk_space_keeps_its_unit(tmp_path: Path) -> None:
    for text, wanted in (("10 gib", 10 << 30), ("42 MB", 42_000_000), ("", 0)):
        config, _ = load(tmp_path, f'storage.stop-write-at-available-space = "{text}"')
        assert config.storage.stop_write_at_available_bytes == wanted


@pytest.mark.parametrize("key", PumpConfig.REMOVED)
def test_a_removed_setting_is_refused_with_its_replacement(key: str, tmp_path: Path) -> None:
    section, _, name = key.rpartition(".")
    text = f"[{section}]\n{name} = 1" if section else f"{name} = 1"
    flag = key.replace(".", "-")
    for args in ((text,), ("", f"--{flag}=1")):
        with pytest.raises(NeedsOperator, match=f"{key} is no longer a setting .*: remove the key"):
            load(tmp_path, *args)
    with pytest.raises(NeedsOperator, match=f"{key} is no longer a setting"):
        load_settings([], env={f"PUMP_{flag.replace('-', '_').upper()}": "1"})
