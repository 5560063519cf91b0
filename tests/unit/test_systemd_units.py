"""The units of deploy/systemd, judged by systemd itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.local.process import program

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unit: Path = request.param
    text = unit.read_text()
    assert text.count("/opt/penstock/bin/") == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/penstock/bin/", f"{PROGRAMS}/"))
    return copy


def analyzed(*arguments: str) -> str:
    command = [program("systemd-analyze"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path) -> None:
    assert analyzed("verify", "--man=no", str(unit)) == ""


def test_a_unit_lets_its_node_do_little(unit: Path) -> None:
    found = analyzed("security", "--offline=true", "--no-pager", str(unit))
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", found)
    assert exposure is not None
    assert float(exposure[1]) < 2.5


def test_every_node_has_a_unit() -> None:
    assert [each.name for each in UNITS] == [
        "penstock-console.service",
        "penstock-drainer.service",
        "penstock-pump.service",
        "penstock-run.service",
        "penstock-source@.service",
    ]
