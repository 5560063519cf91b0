"""Command: `penstock init DIR` writes the files for a first cluster into a folder.

*.toml         settings of a Pump, a Drainer and a source, each with its default
compose/       a whole cluster in containers, with a generated password in .env
kubernetes/    manifests of Pumps and Drainers
monitoring/    settings and alerts of Prometheus, Grafana's dashboard, a runbook
spark/         a Drainer's settings for Spark on a cluster
systemd/       units that start the programs installed here
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local import FILES
from penstock.node import command
from penstock.node.output import add_output, show
from penstock.settings.load import Parser

_FOLDERS = {
    "conf": "",
    "compose": "compose",
    "kubernetes": "kubernetes",
    "monitoring": "monitoring",
    "spark": "spark",
    "systemd": "systemd",
}
"""Folders of samples, and their names below DIR."""
_NOT_SAMPLES = frozenset({".py", ".pyc", ""})
_PROGRAMS_OF_UNITS = "/opt/penstock/bin/"
_OPEN, _SECRET = 0o644, 0o600


def main(argv: Sequence[str] | None = None) -> int:
    return command.run("penstock init", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(
        prog="penstock init",
        description="Write sample settings, units, alerts and a compose file into a folder.",
    )
    parser.add_argument("--version", action="version", version=f"penstock init {__version__}")
    parser.add_argument("folder", metavar="DIR", type=Path, help="created when it is missing")
    add_output(parser)
    asked = parser.parse_args(argv)
    folder: Path = asked.folder
    samples = list(_samples())
    for path, _, _ in samples:
        if (folder / path).exists():
            raise NeedsOperator(
                f"there is {folder / path} already", "name a new folder", Code.COMMAND_INVALID
            )
    for path, text, mode in samples:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        created = os.open(folder / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(created, "w", encoding="utf-8") as file:
            file.write(text)
    written = [str(folder / path) for path, _, _ in samples]
    show(asked, {"files": written}, "\n".join(written))
    return command.DONE


def _samples() -> Iterator[tuple[Path, str, int]]:
    """Yield the path below the folder, the text and the mode of each file.

    systemd units start the program of this Python environment.
    """
    for source, target in _FOLDERS.items():
        for path in sorted((FILES / source).iterdir()):
            if path.suffix in _NOT_SAMPLES:
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".service":
                text = text.replace(_PROGRAMS_OF_UNITS, f"{Path(sys.executable).parent}/")
            yield Path(target) / path.name, text, _OPEN
    password = f"PENSTOCK_PASSWORD={secrets.token_hex(16)}\n"
    yield Path("compose/.env"), password, _SECRET


if __name__ == "__main__":
    raise SystemExit(main())
