"""The supervisor of `penstock run`, with small programs for parts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import NeedsOperator
from penstock.local.run import supervisor as module
from penstock.local.run.parts import Part
from penstock.local.run.supervisor import ENDED, RUNNING, STARTING, STOPPED, Running, Supervisor
from tests.kit.wait import eventually, until

NODE = """
import os, signal, socket, sys, time
def stop(*_):
    print("stops", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
assert "WATCHDOG_USEC" not in os.environ
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
    out.sendto(b"STATUS=up\\nREADY=1", os.environ["NOTIFY_SOCKET"])
while True:
    time.sleep(60)
"""
FAILS = "import sys; print('the disk is full'); sys.exit(int(sys.argv[1]))"


def part(
    folder: Path, name: str, program: str, *arguments: str, after: tuple[str, ...] = ()
) -> Part:
    command = [sys.executable, "-c", program, *arguments]
    return Part(name=name, command=command, log=folder / f"{name}.log", after=after)


class Recorded:
    """The changes of parts, in their order."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []

    def __call__(self, running: Running) -> None:
        self.states.append((running.part.name, running.state))


async def forever() -> int:
    await asyncio.Event().wait()
    return 1


def run(supervisor: Supervisor, work: Coroutine[Any, Any, int]) -> Coroutine[Any, Any, int]:
    return supervisor.run(asyncio.Event(), work)


async def test_a_part_starts_when_those_before_it_are_ready_and_all_stop_in_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    seen = Recorded()
    parts = [part(tmp_path, "a", NODE), part(tmp_path, "b", NODE, after=("a",))]
    supervisor = Supervisor(parts, seen)

    async def work() -> int:
        await supervisor.until_running()
        return 7

    assert await run(supervisor, work()) == 7
    assert seen.states == [
        ("a", STARTING), ("a", RUNNING), ("b", STARTING), ("b", RUNNING),
        ("b", STOPPED), ("a", STOPPED),
    ]  # fmt: skip
    assert (tmp_path / "b.log").read_text() == "stops\n"
    assert not any(psutil.pid_exists(each.pid) for each in supervisor.parts.values())


async def test_a_part_that_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    seen, stop = Recorded(), asyncio.Event()
    supervisor = Supervisor([part(tmp_path, "a", NODE)], seen)
    running = asyncio.create_task(supervisor.run(stop, forever()))
    await until(lambda: seen.states[-1:] == [("a", RUNNING)])
    first = supervisor.parts["a"].pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.parts["a"].starts == 2 and seen.states[-1] == ("a", RUNNING))
    assert supervisor.parts["a"].pid != first
    assert ("a", ENDED) in seen.states
    stop.set()
    assert await running == 0


async def test_a_part_that_refuses_to_start_stops_the_pipeline_with_its_reason(
    tmp_path: Path,
) -> None:
    seen = Recorded()
    parts = [part(tmp_path, "a", NODE), part(tmp_path, "b", FAILS, "2", after=("a",))]
    with pytest.raises(NeedsOperator, match="the b does not start: the disk is full"):
        await run(Supervisor(parts, seen), forever())
    assert seen.states[-2:] == [("b", STOPPED), ("a", STOPPED)]


async def test_a_part_that_fails_is_tried_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 7:
            await asyncio.Event().wait()

    stop = asyncio.Event()
    supervisor = Supervisor([part(tmp_path, "a", FAILS, "1")])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    running = asyncio.create_task(supervisor.run(stop, forever()))
    while len(slept) < 7:
        await asyncio.get_running_loop().run_in_executor(None, os.sched_yield)
    monkeypatch.undo()
    assert slept == [1, 2, 4, 8, 16, 30, 30]
    assert supervisor.parts["a"].problem == "the disk is full"
    stop.set()
    assert await running == 0


SUPERVISES = """
import asyncio, sys
from pathlib import Path
from penstock.local.run.supervisor import Supervisor
from tests.unit.test_run_supervisor import NODE, forever, part
def say(running): print(running.pid, running.state, flush=True)
asyncio.run(Supervisor([part(Path(sys.argv[1]), "a", NODE)], say).run(asyncio.Event(), forever()))
"""


def test_no_part_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, _ = process.stdout.readline().split()
        assert process.stdout.readline().split() == [pid, RUNNING]
        process.kill()
    eventually(lambda: not psutil.pid_exists(int(pid)))
    assert (tmp_path / "a.log").read_text() == "stops\n"
