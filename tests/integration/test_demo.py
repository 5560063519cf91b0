"""The demo, smaller: writers, Pumps, Drainer, Spark and downstream end identical, and are gone."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

NODE_MIB_END = 300
"""No Pump, no source, and no Drainer without its JVM, may reach this."""
RUN_S_MAX = 600

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.etcd, pytest.mark.spark]


def nameless() -> list[str]:
    """Return what runs a command on a host without names: own namespaces, empty files of names."""
    files = [f for f in ("/etc/hosts", "/etc/resolv.conf") if Path(f).exists()]
    hide = "".join(f"mount --bind /dev/null {file} && " for file in files)
    script = f'hostname no-such-host && {hide} exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "--uts", "sh", "-c", script, "sh"]


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("sqlite", ""),
        # On a host that resolves no name, not even its own.
        pytest.param("mysql", "", marks=[pytest.mark.mariadb, pytest.mark.slow]),
        pytest.param("files", "restored everything up to", marks=pytest.mark.slow),
        pytest.param("delta", "", marks=pytest.mark.slow),
        pytest.param(
            "kafka", "by Kafka's console consumer", marks=[pytest.mark.kafka, pytest.mark.slow]
        ),
    ],
)
def test_the_demo_ends_identical_and_leaves_no_process(
    sink: str, said: str, tmp_path: Path
) -> None:
    host = nameless() if sink == "mysql" else ()
    size = ("--rows", "12000", "--transactions", "800")
    printed = demo(tmp_path, "--sink", sink, *size, host=host)
    assert said in printed
    assert "killed pump-1 with -9" in printed
    assert "ALTER TABLE flights ADD COLUMN" in printed
    assert_memory(printed, nodes=4)
    assert_nothing_left(tmp_path)


@pytest.mark.mariadb
@pytest.mark.slow
def test_the_demo_on_a_spark_cluster_ends_identical_and_leaves_no_process(tmp_path: Path) -> None:
    size = ("--rows", "12000", "--transactions", "800")
    printed = demo(tmp_path, "--spark", "standalone", *size)
    assert "killed the executor of spark-worker-1 with -9" in printed
    assert "started spark-worker-2 again" in printed
    assert re.search(r"4 Spark tasks are connected, ([4-9]|\d\d) were lost", printed), printed
    assert_memory(printed, nodes=4)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("options", "when"),
    [
        pytest.param((), "loading:", marks=pytest.mark.thorough),
        pytest.param(
            ("--spark", "standalone"),
            "killed the executor",
            marks=[pytest.mark.mariadb, pytest.mark.slow],
        ),
    ],
    ids=["local", "standalone"],
)
def test_the_demo_stops_every_process_after_ctrl_c(
    options: Sequence[str], when: str, tmp_path: Path
) -> None:
    """Ctrl-C interrupts the whole group of processes, twice here."""
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock.local.demo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    printed = ""
    with running:
        assert running.stdout is not None
        for line in running.stdout:
            printed += line
            if when in line or "interrupted" in line:
                os.killpg(running.pid, signal.SIGINT)
                when = "never"
    assert running.wait(RUN_S_MAX) == 130, printed
    assert "Traceback" not in printed
    assert_nothing_left(tmp_path)


@pytest.mark.mariadb
@pytest.mark.slow
def test_the_demo_from_a_mariadb_ends_identical_and_leaves_no_process(tmp_path: Path) -> None:
    printed = demo(
        tmp_path, "--source", "mysql", "--rows", "1000", "--seconds", "10", "--rate", "50"
    )
    assert "killed penstock source with -9" in printed
    assert "RENAME TABLE picked TO chosen" in printed
    assert len(re.findall(r"^(?:chosen|sbtest\d) .* equal$", printed, re.MULTILINE)) == 5, printed
    assert re.search(r"^5 tables, .*: equal$", printed, re.MULTILINE), printed
    assert_memory(printed, nodes=4)
    assert_nothing_left(tmp_path)


@pytest.mark.mariadb
@pytest.mark.tidb
@pytest.mark.alone
def test_the_demo_from_a_tidb_ends_identical_and_leaves_no_process(tmp_path: Path) -> None:
    printed = demo(
        tmp_path, "--source", "tidb", "--rows", "1000", "--seconds", "30", "--rate", "50"
    )
    assert "started the TiDB again" in printed
    assert "ALTER TABLE picked DROP COLUMN price" in printed
    assert len(re.findall(r"^(?:picked|sbtest\d) .* equal$", printed, re.MULTILINE)) == 5, printed
    assert_memory(printed, nodes=3)
    assert_nothing_left(tmp_path)


def demo(home: Path, *options: str, host: Sequence[str] = ()) -> str:
    """Run it with its files below `home`, by way of `host`; return what it printed."""
    done = subprocess.run(
        [*host, sys.executable, "-m", "penstock.local.demo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert done.stdout.splitlines()[-1] == "identical"
    return printed


def assert_memory(printed: str, *, nodes: int) -> None:
    memory = re.findall(r"(pump-\d|drainer-1|penstock source) (\d+) MiB", printed)
    assert len(memory) == nodes, printed
    assert all(int(mib) < NODE_MIB_END for _, mib in memory), memory


def assert_nothing_left(home: Path) -> None:
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if line and str(home) in " ".join(line)]
    assert not list(home.iterdir())
