"""Generates the protobuf code under `proto/penstock/pb`, or checks that it is up to date.

python -m deploy.generated [--check]
"""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path("penstock/pb")
PROTOBUF, GRPC = "6.31.1", "1.75.1"
"""The oldest runtimes that pyproject.toml permits.

The compilers of these versions generate the same code but for hints of types and the base class
`object`. So that Penstock can be installed beside packages that require protobuf 6, the generated
code requires these versions instead of its compiler's; deploy/beside.sh runs it on them.
"""
VERSIONS = {
    r"(# Protobuf Python Version: ).*": rf"\g<1>{PROTOBUF}",
    r"(Domain\.PUBLIC,\n)( +\d+,\n){3}": "\\1" + re.sub(r"(\d+)\.?", r"    \1,\n", PROTOBUF),
    r"(GRPC_GENERATED_VERSION = ).*": rf"\g<1>'{GRPC}'",
}


def generate(into: Path) -> None:
    """Write the modules of every .proto file below `into`; raises when protoc fails."""
    for source, package in ((ROOT / "proto", TARGET), (ROOT / "proto/etcd", TARGET / "etcd")):
        files = sorted(str(path) for path in source.glob("*.proto"))
        outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{package}={source}"]
        subprocess.run([*command, *outputs, *files], check=True)
    for path in into.rglob("*.py"):
        text = path.read_text()
        for found, instead in VERSIONS.items():
            text = re.sub(found, instead, text)
        path.write_text(text)


def differences(made: Path, committed: Path) -> list[str]:
    """Return the names of generated files that are missing, stale or without a source."""
    names = {path.relative_to(made) for path in made.rglob("*_pb2*.py*")}
    kept = {path.relative_to(committed) for path in committed.rglob("*_pb2*.py*")}
    kept = {path for path in kept if "__pycache__" not in path.parts}
    wrong = names ^ kept
    for name in names & kept:
        if not filecmp.cmp(made / name, committed / name, shallow=False):
            wrong.add(name)
    return sorted(map(str, wrong))


def main() -> int:
    """Generate, or with --check compare; return 1 when the committed code is not up to date."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        made, committed = Path(folder) / TARGET, ROOT / "proto" / TARGET
        if "--check" not in sys.argv[1:]:
            shutil.copytree(made, committed, dirs_exist_ok=True)
            return 0
        wrong = differences(made, committed)
    for name in wrong:
        print(f"not up to date: proto/{TARGET}/{name} (run `make proto`)", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
