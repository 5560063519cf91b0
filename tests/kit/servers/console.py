"""A real console, a `penstock console` process; and axe-core, which finds barriers in its page."""

from functools import cache
from pathlib import Path
from typing import Any, Self

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.process import UNPACKED, ServerProcess, free_port, python_module
from tests.kit.servers.chromium import Chromium

START_S_MAX = 30.0
_AXE = UNPACKED / "axe-core" / "axe.min.js"


class ConsoleProcess(ServerProcess):
    """One console of the cluster at an etcd."""

    def __init__(self, folder: Path, etcd_url: str, *arguments: str) -> None:
        """With more arguments where it needs them, such as a file with a token."""
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}/"
        command = python_module("penstock", "console", "--addr", address, "--etcd-urls", etcd_url)
        super().__init__([*command, *arguments], log=folder / "console.log")

    def start(self) -> Self:
        """Start it, and return once it answers."""
        super().start()
        return self.until_answers(self.url, START_S_MAX)


@cache
def _axe() -> str:
    if not _AXE.exists():
        raise NeedsOperator(
            f"no {_AXE}", hint=f"deploy/servers.sh {UNPACKED} axe-core", code=Code.PACKAGE_MISSING
        )
    return _AXE.read_text(encoding="utf-8")


def barriers(browser: Chromium) -> list[str]:
    """Return what keeps someone from using the page that is open, as axe-core finds it."""
    browser.ask(f"{_axe()};0")
    found: list[dict[str, Any]] = browser.ask("axe.run().then((result) => result.violations)")
    return [
        f"{each['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]
