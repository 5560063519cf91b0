"""Every command explains itself, prints its version, and refuses a typo with a hint."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import __version__

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NODES = ("pump", "drainer")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a console script's function as the installed script does."""
    module, function = SCRIPTS[name].split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_explains_itself_on_stdout(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_prints_its_version(name: str) -> None:
    done = run(name, "--version")
    assert done.returncode == 0
    assert __version__ in done.stdout


@pytest.mark.parametrize("name", NODES)
def test_a_mistyped_flag_ends_a_node_with_a_hint_on_stderr(name: str) -> None:
    done = run(name, "--etcd-url", "127.0.0.1:1")
    assert done.returncode == 2
    assert "did you mean --etcd-urls" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", NODES)
def test_a_mistyped_key_ends_a_node_with_the_nearest_key(name: str, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('adr = "127.0.0.1:1"\n')
    done = run(name, "--config", str(path))
    assert done.returncode == 2
    assert "unknown key 'adr' (did you mean 'addr'?)" in done.stderr
