"""Plug-ins: packages with a sink, as they are installed beside Penstock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/examples/json_lines"


def install_example(folder: Path) -> Path:
    """Build and install the example as pip does, without a network; return where it is now."""
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-deps", "--no-index", "--disable-pip-version-check", "--target", target,
         source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def path_with(*folders: Path) -> str:
    """Return PYTHONPATH with further folders."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(map(str, filter(None, (*folders, ROOT / "proto", ROOT, given))))


def write_package(folder: Path, name: str, entry: str, module: str = "") -> None:
    """Write an installed package with one entry point, `scheme = module:factory`."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[penstock.sinks]\n{entry}\n")
    if module:
        (folder / f"{name}.py").write_text(module)
