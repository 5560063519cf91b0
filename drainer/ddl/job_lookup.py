"""Find the DDL job that a DDL binlog speaks of, through outages of etcd."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from drainer.plan.planner import DdlStep
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)

ABSENT_S_MAX = 30.0
_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 3.0


class JobHistory(Protocol):
    """Where the DDL jobs are."""

    def get(self, job_id: int) -> DdlJob | None:
        """Return a job, None when there is none of that id. May be Retryable."""


async def fetch_job(
    history: JobHistory, step: DdlStep, *, absent_s_max: float = ABSENT_S_MAX
) -> DdlJob:
    """Return the job of a DDL; wait for etcd as long as it takes.

    A job is written before its binlog, so one that stays absent is not late but lost: after
    `absent_s_max` that raises `NeedsOperator`.
    """
    pause_s = _RETRY_S_MIN
    asked_s = time.monotonic()
    while True:
        try:
            job = await asyncio.to_thread(history.get, step.job_id)
        except Retryable as error:
            log.error("the DDL at %d waits for its job %d: %s", step.commit_ts, step.job_id, error)
            asked_s = time.monotonic()
        else:
            if job is not None:
                return job
            if time.monotonic() - asked_s > absent_s_max:
                raise NeedsOperator(
                    f"DDL job {step.job_id}, committed at {step.commit_ts}, is not in the history:"
                    f" {step.query}",
                    hint="was etcd wiped? Restore /penstock/v1/ddl, or start on a fresh copy of "
                    "the downstream with initial-commit-ts above this DDL",
                )
            log.warning("the DDL at %d waits for its job %d", step.commit_ts, step.job_id)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _RETRY_S_MAX)
