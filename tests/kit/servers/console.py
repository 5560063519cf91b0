"""Consoles: a `penstock console` process, and one of a cluster that is as a test says; axe-core.

axe-core finds barriers in a page.
"""

import argparse
import asyncio
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from penstock.codes import Code
from penstock.ctl.console.access import Access
from penstock.ctl.console.observation import Observation
from penstock.ctl.console.poller import Poller
from penstock.ctl.console.web import Console
from penstock.errors import NeedsOperator
from penstock.local.process import UNPACKED, ServerProcess, free_port, python_module
from tests.kit.servers.chromium import Chromium

START_S_MAX = 30.0
NOWHERE = "127.0.0.1:1"
"""An address at which nothing listens."""
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


class Scene(Poller):
    """What a console knows of a cluster that exists only in a test."""

    def __init__(self, seen: Observation) -> None:
        super().__init__(NOWHERE)
        self.seen = seen

    def observation(self) -> Observation:
        return self.seen


class StillConsole:
    """The console of a scene, in a thread; use as a context manager."""

    def __init__(self, seen: Observation, token: str = "") -> None:
        self.scene = Scene(seen)
        self.url = ""
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._is_up, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        arguments = argparse.Namespace(addr="127.0.0.1:0", etcd_urls=NOWHERE)
        console = Console(self.scene, Access(self._token, time.monotonic), arguments)
        runner = web.AppRunner(console.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        self._is_up.set()
        await self._stop.wait()
        await console.close()
        await runner.cleanup()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(START_S_MAX), "the console does not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


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
