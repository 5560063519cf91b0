"""Against an etcd that is away, each command is one line with the same remedy, and nothing else."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cluster import etcd
from penstock.codes import Code
from penstock.ctl.commands import command_parser as ctl_parser
from penstock.errors import Retryable
from penstock.stream import Reader
from pumpclient import PumpClient
from tests.unit.test_commands_to_paste import OTHERS, names_of

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:1"
AT = f"--etcd-urls={NOWHERE}"
OFFLINE = {"encrypt", "dump"}
"""Commands of `penstock ctl` that ask no etcd."""
COMMANDS = [
    *(f"{line} {AT}" for line in OTHERS.split("\n") if line.startswith("ctl ")),
    *(f"ctl {line} {AT}" for line in ("pumps", "drainers", "status p", "timestamp")),
    f"ctl generate_meta --data-dir . {AT}",
    *(
        f"drainer ddl {line} --sink=sqlite:///x.db {AT}"
        for line in ("list", "track 7", "skip 7", "undo 7", "replace 7 'DROP TABLE t'")
    ),
    "source skip-table shop.t --status-addr=127.0.0.1:1 --config s.toml",
]


def test_the_table_has_every_command_that_asks_etcd() -> None:
    words = [line.split() for line in COMMANDS]
    assert {w[1] for w in words if w[0] == "ctl"} == names_of(ctl_parser()) - OFFLINE


def test_each_command_says_in_one_line_that_etcd_is_away_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'source-id = "s"\netcd-urls = "{NOWHERE}"\n')
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK", "GRPC"))}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'proto'}"

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *shlex.split(line)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    with ThreadPoolExecutor(3) as pool:
        for line, done in zip(COMMANDS, pool.map(run, COMMANDS), strict=True):
            (said,) = done.stderr.splitlines() or [""]
            assert (done.returncode, done.stdout) == (1, ""), (line, done)
            assert said.startswith(f"penstock {line.split()[0]}: "), said
            assert f"etcd at {NOWHERE} failed: " in said
            assert said.endswith(f" ({etcd.AWAY_HINT}) [PS-2001]"), said


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: etcd.read(client, "k"),
        lambda client: etcd.read_at(client, "k"),
        lambda client: etcd.read_prefix(client, "k"),
        lambda client: etcd.put(client, "k", "v"),
        lambda client: etcd.delete(client, "k"),
        lambda client: etcd.transact(client, [], []),
        lambda client: etcd.Watch(client, "k", lambda items: None),
        lambda client: etcd.revoke(client, 7),
        lambda client: PumpClient.connect(NOWHERE),
        lambda client: Reader.connect(NOWHERE),
    ],
)
def test_each_caller_of_etcd_gets_the_same_remedy(ask: Callable[[etcd.EtcdClient], object]) -> None:
    client = etcd.connect(NOWHERE)
    try:
        with pytest.raises(Retryable) as caught:
            ask(client)
    finally:
        client.close()
    assert caught.value.code is Code.ETCD_AWAY
    assert str(caught.value).endswith(f" ({etcd.AWAY_HINT})")
