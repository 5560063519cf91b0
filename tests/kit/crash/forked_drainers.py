"""Drainers, each in a process of its own, that end by kill -9 at a named step.

A process that has imported everything forks a child for each, which takes milliseconds in place of
a second: `python -m tests.kit.crash.forked_drainers`. It reads one JSON line for each Drainer and
answers with one: how it ended, and how often it came by each step. It runs no thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from drainer.schema.rules import FENCED

if TYPE_CHECKING:
    from tests.kit.fakes.local_drainer import Way
    from tests.kit.workloads.bank import Bank


ROOT = Path(__file__).resolve().parents[3]
SETTLED = 0


class ForkedDrainers:
    """The forking process, seen from the test; use it in a `with`."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.crash.forked_drainers"],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.steps = set(self._answer())
        """The names of all steps of a Drainer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()

    def run(
        self,
        way: Way,
        *,
        bank: dict[str, int],
        kill_at: dict[str, int] | None = None,
        kill_after_s: float = 0.0,
    ) -> tuple[int, Counter[str]]:
        """Run a Drainer to its end; return its exit code, -9 when it was killed, and its steps.

        `kill_at` says at which passing of which step; steps are known only of those not killed.
        """
        assert way.rules is FENCED, (
            "they are not sent: a bank's stream has those of writers of ours"
        )
        fields = {name: value for name, value in asdict(way).items() if name != "rules"}
        asked = {"way": fields, "bank": bank, "at": kill_at or {}, "after_s": kill_after_s}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked, default=str).encode() + b"\n")
        self._process.stdin.flush()
        code, steps = self._answer()
        return int(code), Counter(steps)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the forking process has ended: {Path(self._log.name).read_text()[-3000:]}"
        return json.loads(line)


def _serve() -> None:
    from penstock import failpoints

    passed: Counter[str] = Counter()
    kill_at: dict[str, int] = {}

    def point(name: str, environment: str | None = None) -> failpoints.Point:
        failpoints.known.add(name)

        def hit() -> None:
            passed[name] += 1
            if passed[name] == kill_at.get(name):
                failpoints.kill()

        return hit

    failpoints.point = point
    import drainer.sinks.delta.changes_sink
    import drainer.sinks.delta.sink
    import drainer.sinks.mysql.sink
    import drainer.sinks.sqlite.sink
    import drainer.task.partitions
    import drainer.task.sql.lake_files
    import tests.kit.fakes.local_drainer  # noqa: F401  # Before the fork.
    from tests.kit.workloads.bank import Bank

    sinks = (
        drainer.sinks.delta.sink.DeltaSink,
        drainer.sinks.mysql.sink.MysqlSink,
        drainer.sinks.sqlite.sink.SqliteSink,
    )
    assert len({sink.dialect for sink in sinks}) == len(sinks)
    drainer.task.partitions.PARTITION_BYTES_MIN = 200  # The bank's batches are small.
    drainer.task.sql.lake_files.FILE_ROWS_MIN = 3
    drainer.sinks.delta.sink.MERGE_ROWS_MIN = 0
    _say(sorted(name for name in failpoints.known if name.startswith("drainer.")))
    banks: dict[str, Bank] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name = str(asked["bank"])
        if name not in banks:
            banks[name] = Bank(**asked["bank"])
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            kill_at.update(asked["at"])
            code = _run_drainer(banks[name], asked["way"])
            os.write(write_end, json.dumps(passed).encode())
            os._exit(code)
        os.close(write_end)
        ended = _ended(child, asked["after_s"])
        with os.fdopen(read_end, "rb") as pipe:
            _say([ended, json.loads(pipe.read() or b"{}")])


def _run_drainer(bank: Bank, asked: dict[str, Any]) -> int:
    """Run a Drainer in this process; return the exit code to end with."""
    from tests.kit.fakes.local_drainer import Way, run_drainer

    way = {**asked, "folder": Path(asked["folder"]), "ignored": tuple(asked["ignored"])}
    try:
        asyncio.run(run_drainer(bank, Way(**way)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return SETTLED


def _ended(child: int, after_s: float) -> int:
    """Wait for the child's end, which comes after `after_s` if that is not 0."""
    if after_s:
        watch = os.pidfd_open(child)
        ready, _, _ = select.select([watch], [], [], after_s)
        os.close(watch)
        if not ready:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve()
