"""Supervisor: starts parts in their order, restarts a part that ends, and stops them in reverse.

    waiting ──> starting ──> running ──> ended ──> starting …
                    └── ended with code 2 before it was ever running: the pipeline stops

A part is running once it notifies its supervisor (sd_notify), or its health page answers. A part
that ends is started again after 1 s, and after twice as long each time, up to 30 s.

Parts have a session of their own, so that Ctrl-C reaches the supervisor only. If the supervisor is
killed, Linux stops its parts; otherwise the next start would find their folders locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.process import open_local, tail_of
from penstock.local.run.parts import Part
from penstock.node import command

WAITING, STARTING, RUNNING, ENDED, STOPPED = "waiting", "starting", "running", "ended", "stopped"
_PAUSE_S, _PAUSE_S_MAX = 1.0, 30.0
_SOUND_S = 60.0
"""A part that ran for so long is restarted after the first pause."""
_STOP_S_MAX = 60.0
_POLL_S = 0.1
_ANSWER_S = 1.0
_NOTICE_BYTES_MAX = 4096
_PR_SET_PDEATHSIG = 1
_OF_SYSTEMD = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_READY = b"READY=1"


@dataclass(slots=True)
class Running:
    """A part and its process."""

    part: Part
    state: str = WAITING
    pid: int = 0
    starts: int = 0
    problem: str = ""
    """The last line of its log when it last ended."""
    process: asyncio.subprocess.Process | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has been running."""


class Supervisor:
    """Runs parts until it is asked to stop."""

    def __init__(
        self, parts: Sequence[Part], changed: Callable[[Running], object] = lambda running: None
    ) -> None:
        """`changed` is called after each change of a part's state."""
        self.parts = {part.name: Running(part) for part in parts}
        self._changed = changed

    async def run(self, stop: asyncio.Event, work: Coroutine[Any, Any, int]) -> int:
        """Run the parts until `work` has ended or `stop` is set, then stop them.

        Returns the result of the work, 0 if it was stopped; raises its error, and `NeedsOperator`
        if a part refuses to start.
        """
        keeping = [asyncio.create_task(self._keep(each)) for each in self.parts.values()]
        working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
        tasks = (stopping, working, *keeping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in keeping:
                if task.done():
                    task.result()
            return working.result() if working.done() else command.DONE
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_all()

    async def until_running(self) -> None:
        for each in self.parts.values():
            await each.is_ready.wait()

    async def _keep(self, running: Running) -> None:
        for name in running.part.after:
            await self.parts[name].is_ready.wait()
        pause_s = _PAUSE_S
        while True:
            began_s = time.monotonic()
            code = await self._run_once(running)
            running.problem = tail_of(running.part.log, 1)
            self._note(running, ENDED)
            if code == command.NEEDS_OPERATOR and not running.is_ready.is_set():
                raise NeedsOperator(
                    f"the {running.part.name} does not start: {running.problem}",
                    f"more in {running.part.log}",
                    Code.CHILD_FAILED,
                )
            if time.monotonic() - began_s > _SOUND_S:
                pause_s = _PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _run_once(self, running: Running) -> int:
        with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
            path = f"{folder}/notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
                notices.bind(path)
                notices.setblocking(False)
                with running.part.log.open("ab") as log:
                    running.process = await asyncio.create_subprocess_exec(
                        *running.part.command,
                        stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                        env={**_environment(), "NOTIFY_SOCKET": path},
                        start_new_session=True, preexec_fn=_end_with_the_supervisor,
                    )  # fmt: skip
                running.pid, running.starts = running.process.pid, running.starts + 1
                self._note(running, STARTING)
                readiness = asyncio.create_task(self._until_ready(running, notices))
                try:
                    return await running.process.wait()
                finally:
                    readiness.cancel()
                    await asyncio.wait((readiness,))  # It reads from the socket closed next.

    async def _until_ready(self, running: Running, notices: socket.socket) -> None:
        loop, health = asyncio.get_running_loop(), running.part.health
        if health:
            while not await asyncio.to_thread(_answers, health):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        else:
            while _READY not in (await loop.sock_recv(notices, _NOTICE_BYTES_MAX)).splitlines():
                pass
        running.is_ready.set()
        self._note(running, RUNNING)

    def _note(self, running: Running, state: str) -> None:
        running.state = state
        self._changed(running)

    async def _stop_all(self) -> None:
        """Stop the parts one after another, so that each finds the parts that it needs."""
        for running in reversed(self.parts.values()):
            process = running.process
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(_STOP_S_MAX):
                        await process.wait()
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
            self._note(running, STOPPED)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_SYSTEMD}


def _end_with_the_supervisor() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _answers(url: str) -> bool:
    try:
        open_local(url, timeout_s=_ANSWER_S).close()
    except OSError:
        return False
    return True
