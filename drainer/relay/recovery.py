"""Bring the downstream to a consistent state from the relay log, because the upstream is gone.

The same planner, tasks and sink as ever, fed from the disk: everything after the checkpoint that
the log holds. What was applied is in the log, for it was synced there first; so at the log's end
the downstream is at a state that the upstream had, whatever it was caught between before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from drainer.merger import Merged
from drainer.pipeline import Pipeline
from drainer.planner import DdlStep
from drainer.relay.log import RelayLog
from drainer.relay.records import Run
from penstock.errors import PenstockError
from penstock.schema import DdlJob

log = logging.getLogger(__name__)

_LOOK_S = 0.02


class EndsAtDdl(PenstockError):
    """The job of the next DDL is not in the log: neither it nor what follows it was run."""


class Replay:
    """The stored stream in the place of the Pumps' merged one."""

    def __init__(self, stored: RelayLog, after_ts: int) -> None:
        """Prepare to give out what was merged after `after_ts`."""
        self.arrived = asyncio.Event()
        self.is_out = False
        """True once everything was given out."""
        self.last_ts = after_ts
        """The commit_ts of the last binlog that was given out."""
        self._runs: Iterator[Run] = stored.runs(after_ts)
        self._jobs = {job.id: job for job in stored.jobs()}

    def take(self) -> Merged | None:
        """Return the next run; None at the end."""
        run = next(self._runs, None)
        if run is None:
            self.is_out = True
            return None
        self.last_ts = run.commit_ts[-1]
        return Merged(run.commit_ts, run.payloads, sum(map(len, run.payloads)))

    def taken(self) -> None:
        """Do nothing: there is no one to tell that there is room."""

    async def fetch_job(self, step: DdlStep) -> DdlJob:
        """Return the job of a DDL; raise `EndsAtDdl` when the log lacks it."""
        job = self._jobs.get(step.job_id)
        if job is None:
            raise EndsAtDdl(f"the relay log has no job for the DDL at {step.commit_ts}")
        return job


async def replay(pipeline: Pipeline, source: Replay, stop: asyncio.Event) -> bool:
    """Run the pipeline to the end of the log; False when asked to stop before."""

    def is_done() -> bool:
        return source.is_out and pipeline.progress.checkpoint.commit_ts >= source.last_ts

    running = asyncio.create_task(pipeline.run(), name="replay")
    try:
        while not (running.done() or stop.is_set() or is_done()):
            await asyncio.wait((running,), timeout=_LOOK_S)
        pipeline.stop()
        await running
    except EndsAtDdl as end:
        log.warning("%s, so it was not run downstream: this is the end of what is known", end)
        return True
    finally:
        running.cancel()
    return is_done()
