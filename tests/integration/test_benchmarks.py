"""Every benchmark runs to its end in its smallest size."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.mariadb, pytest.mark.spark]


@pytest.mark.parametrize("only", ["", pytest.param("tidb", marks=pytest.mark.tidb)])
def test_every_benchmark_prints_its_figures(only: str) -> None:
    from tests.bench.__main__ import LONG, OTHERS, SPINE

    groups = [group for group in SPINE | OTHERS | LONG if group.startswith("tidb") == bool(only)]
    words = [word for group in groups for word in group.split()]
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BENCH_SCALE": "0.01"},
    )
    figures = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, "the error is on standard error, above"
    printed = {figure["name"] for figure in figures if figure["value"] > 0}
    for group in groups:
        assert any(name.startswith(word) for name in printed for word in group.split()), group
