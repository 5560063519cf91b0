"""Settings that cannot be are refused by name, place and the nearest that could."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drainer.components import compiled
from drainer.settings.config import DrainerConfig
from penstock.errors import NeedsOperator
from penstock.settings.load import read_settings
from pump.config import PumpConfig

NODES = {"pump": PumpConfig, "drainer": DrainerConfig}
COMMON = [
    ("adr = 'h:1'", "adr.*did you mean 'addr'"),
    ("log_level = 'info'", "log_level.*did you mean 'log-level'"),
    ("etcd-url = 'h:1'", "etcd-url.*did you mean 'etcd-urls'"),
    ("node-idd = 'x'", "node-idd.*did you mean 'node-id'"),
    ("zzz = 1", "unknown key 'zzz'"),
    ("addr = 5", "addr: 5 is not text"),
    ("addr = 'nowhere'", "addr is 'nowhere'.*host:port"),
    ("addr = 'h:99999'", "addr is 'h:99999'.*host:port"),
    ("addr = ''", "addr is ''.*host:port"),
    ("advertise-addr = 'h'", "advertise-addr is 'h'"),
    ("advertise-addr = '0.0.0.0:1'", "advertise-addr.*cannot connect to 0.0.0.0"),
    ("status-addr = 'h:x'", "status-addr is 'h:x'"),
    ("pd-address = 'http://h'", "pd-address"),
    ("data-dir = 7", "data-dir: 7 is not text"),
    ("addr = 'h:1'\naddr = 'h:2'", "is not TOML.*(line 2|end of)"),
    ("addr = ", "is not TOML.*(line 1|end of)"),
    ("[security", "is not TOML.*(line 1|end of)"),
    ("[securty]\nssl-ca = 'x'", "securty.ssl-ca.*did you mean 'security.ssl-ca'"),
    ("[security]\nssl-caa = 'x'", "security.ssl-caa.*did you mean 'security.ssl-ca'"),
    ("[security]\nssl-ca = 3", "security.ssl-ca: 3 is not text"),
]
OWN: dict[str, list[tuple[str, str]]] = {
    "pump": [
        ("heartbeat-interval-s = -1", "heartbeat-interval-s is -1"),
        ("heartbeat-interval-s = 0", "heartbeat-interval-s is 0"),
        ("heartbeat-interval-s = 'soon'", "heartbeat-interval-s: 'soon' is not a duration"),
        ("heartbeat-interval-s = '5 parsecs'", "heartbeat-interval-s: '5 parsecs'"),
        ("heartbeat-interval-s = true", "heartbeat-interval-s: True is not"),
        ("gcc = '7d'", "unknown key 'gcc'"),
        ("server-engine = 'http3'", "server-engine is 'http3'.*one of http2, grpcio"),
        ("[storage]\nsync-log = 'perhaps'", "storage.sync-log"),
        ("[storage]\nsegment-bytes-max = '64 MoB'", "segment-bytes-max: '64 MoB' is not a size"),
        ("[storage]\nsegment-bytes-maxx = 1", "did you mean 'storage.segment-bytes-max'"),
        ("[storage]\nsegment-bytes-max = 1.5", "segment-bytes-max: 1.5 is not a whole number"),
        ("[storage]\nsegment-bytes-max = -1", "storage.segment-bytes-max is -1"),
        ("[storage]\nindex-cache-bytes = 0", "storage.index-cache-bytes is 0"),
        ("[storage]\naccept-loss-up-to-ts = -5", "storage.accept-loss-up-to-ts is -5"),
    ],
    "drainer": [
        ("sink = 5", "sink: 5 is not text"),
        ("batch-rows-max = 0", "batch-rows-max is 0"),
        ("batch-rows-max = -1", "batch-rows-max is -1"),
        ("batch-rows-max = 'many'", "batch-rows-max.*'many'"),
        ("batch-rows-max = 1.5", "batch-rows-max: 1.5 is not a whole number"),
        ("batch-bytes-max = '8 MoB'", "batch-bytes-max: '8 MoB' is not a size"),
        ("batch-bytes-max = '-1'", "batch-bytes-max: '-1' is not a size"),
        ("stop-timeout-s = 0", "stop-timeout-s is 0"),
        ("stop-timeout-s = 'soon'", "stop-timeout-s: 'soon' is not a duration"),
        ("initial-commit-ts = -2", "initial-commit-ts is -2"),
        ("ignore-txn-commit-ts = 'abc'", "ignore-txn-commit-ts is 'abc'"),
        ("ignore-txn-commit-ts = [1.5]", "ignore-txn-commit-ts is '1.5'"),
        ("[apply]\nstrategy = 'merg'", "apply.strategy is 'merg'.*merge or statements"),
        ("[apply]\nmode = 'fast'", "apply.mode is 'fast'.*snapshot or parallel"),
        ("[apply]\nstrategy = 'statements'\nmode = 'parallel'", "apply.mode is 'parallel'"),
        ("[apply]\nworker-count = 0", "apply.worker-count is 0"),
        ("[apply]\ntxn-batch = -5", "apply.txn-batch is -5"),
        ("[apply]\nsafe-mode = 'maybe'", "apply.safe-mode.*neither true nor false"),
        ("[aply]\nmode = 'snapshot'", "did you mean 'apply.mode'"),
        ("[relay]\nmax-file-size = 0", "relay.max-file-size is 0"),
        ("[relay]\nmax-file-size = 'big'", "relay.max-file-size"),
        ("[spark]\ntasks = -1", "spark.tasks is -1"),
        ("[syncer]\ndb-type = 'oracle'", "no such downstream.*mysql"),
        ("[syncer]\ndb-type = 'postgres'", "syncer.db-type is 'postgres'"),
        ("[[filter.routes]]\nschema-patern = 'a'", "schema-patern"),
    ],
}
CASES = [
    pytest.param(node, text, message, id=f"{node}: {text}")
    for node in NODES
    for text, message in (*COMMON, *OWN[node])
]


def refused(node: str, path: Path) -> str:
    try:
        config: Any = read_settings(
            NODES[node], ["--config", str(path)], prog=node, env_prefix="X", env={}
        )
        if node == "drainer":
            compiled(config)
    except NeedsOperator as error:
        return str(error)
    return "nothing"


@pytest.mark.fault(
    "settings of Pump and Drainer that cannot be",
    "exit code 1 or 2 with key, file and line, and the nearest key",
    cases="80 + 2 commands",
)
@pytest.mark.parametrize(("node", "text", "message"), CASES)
def test_a_setting_that_cannot_be_is_named_by_its_key(
    tmp_path: Path, node: str, text: str, message: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, "utf-8")
    found = refused(node, path)
    assert re.search(message, found, re.S), found


@pytest.mark.parametrize("node", NODES)
def test_the_command_ends_with_the_file_the_key_and_a_hint(tmp_path: Path, node: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("# a comment\nnode-idd = 'x'\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", node, "--config", str(path)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert f"{path}:2: unknown key 'node-idd'" in done.stderr
    assert "did you mean 'node-id'" in done.stderr
