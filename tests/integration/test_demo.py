"""The demo, smaller: writers, Pumps, Drainer, Spark and downstream end identical, and are gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

NODE_MIB_END = 300
"""No Pump, and no Drainer without its JVM, may reach this."""

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.etcd, pytest.mark.spark]


@pytest.mark.parametrize("sink", ["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def test_the_demo_ends_identical_and_leaves_no_process(sink: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.demo", "--sink", sink]
    command += ["--rows", "12000", "--transactions", "800"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert done.stdout.splitlines()[-1] == "identical"
    assert "killed pump-1 with -9" in told
    assert "ALTER TABLE flights ADD COLUMN" in told
    memory = re.findall(r"(pump-\d|drainer-1) (\d+) MiB", done.stdout)
    assert len(memory) == 4, told
    assert all(int(mib) < NODE_MIB_END for _, mib in memory), memory
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if line and str(tmp_path) in " ".join(line)]
    assert not list(tmp_path.iterdir())
