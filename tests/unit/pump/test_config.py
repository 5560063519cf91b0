from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from penstock.settings.load import read_settings
from pump.__main__ import main
from pump.config import PumpConfig


def load(*argv: str) -> PumpConfig:
    return read_settings(PumpConfig, argv, prog="pump", env_prefix="PUMP", env={})


def test_the_defaults_bind_to_this_machine_only() -> None:
    settings = load()
    assert settings.addr == "127.0.0.1:8250"
    assert settings.max_message_bytes == 512 << 20
    assert settings.gc_days == 7
    assert settings.storage.sync_log


def test_every_setting_is_a_flag() -> None:
    settings = load(
        *("--addr", "127.0.0.1:0", "--data-dir", "d", "--max-message-bytes", "1 GiB"),
        *("--gc-days", "0.5", "--fake-binlog-interval-s", "200ms", "--no-storage-sync-log"),
    )
    assert settings.data_dir == Path("d")
    assert settings.max_message_bytes == 1 << 30
    assert settings.gc_days == 0.5
    assert settings.fake_binlog_interval_s == 0.2
    assert not settings.storage.sync_log


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--addr", "8250"], "addr is '8250'.*host:port"),
        (["--addr", "http://127.0.0.1:8250"], "addr is"),
        (["--addr", "127.0.0.1:70000"], "addr is"),
        (["--addr", "0.0.0.0:8250"], "advertise-addr.*cannot connect to 0.0.0.0"),
        (["--gc-days", "0"], "gc-days is 0.0.*above zero"),
        (["--txn-timeout-s", "0s"], "txn-timeout-s is 0.0"),
        (["--scrub-every-days", "-1"], "scrub-every-days is -1.0.*not be negative"),
        (
            ["--copies", "2", "--storage-segment-bytes-max", "4 GiB"],
            "with copies it must be at most",
        ),
        (["--max-message-bytes", "3 GiB"], "gRPC carries less than 2 GiB"),
        (["--gc-day", "3"], "did you mean --gc-days"),
        (["--resolver-kind", "tikv"], "resolver.kind is 'tikv'.*needs pd-address"),
        (["--resolver-kind", "pd"], "resolver.kind is 'pd'.*none, sql and tikv"),
        (
            ["--resolver-kind", "none", "--pd-address", "a:1"],
            "resolver.kind is 'none'.*what a TiDB committed may be rolled back",
        ),
        (["--resolver-timeout-s", "0"], "resolver.timeout-s is 0.0"),
        (["--pd-address", "a:1,,b:1"], "pd-address is 'a:1,,b:1'"),
        (["--pd-address", "a:1, http://b"], "pd-address is 'a:1, http://b'"),
    ],
)
def test_a_value_out_of_range_stops_with_a_hint(argv: list[str], expected: str) -> None:
    with pytest.raises(NeedsOperator, match=expected):
        load(*argv)


def test_a_wildcard_address_needs_one_to_advertise() -> None:
    settings = load("--addr", "0.0.0.0:8250", "--advertise-addr", "10.0.0.1:8250")
    assert settings.advertise_addr == "10.0.0.1:8250"


def test_several_pds_are_given_as_a_list() -> None:
    assert load("--pd-address", "https://a:2379, https://b:2379").resolver.kind == ""
    assert load("--pd-address", "a:1,http://b:1", "--resolver-kind", "tikv").pd_address


def test_a_wrong_setting_ends_the_process_with_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--adr", "x"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "did you mean --addr?" in printed.err
