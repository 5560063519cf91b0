"""Recovery: makes the downstream consistent from the relay log when the upstream is lost.

It uses the usual planner, tasks and sink, and feeds them everything after the checkpoint that the
log holds. Every applied binlog was first synced to the log. At the log's end the downstream is
therefore in a state that the upstream had, wherever the crash left it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from drainer.apply.pipeline import Pipeline, Progress
from drainer.build import build_pipeline
from drainer.components import Components, StoppedEarly, insist
from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import refuse_other
from drainer.ddl.jobs import rules_of
from drainer.ddl.starting_schema import StartingSchema
from drainer.intake.merger import Merged
from drainer.planner import DdlStep
from drainer.relay_log.log import RelayLog
from drainer.relay_log.records import RECORD_BYTES_MAX, ChunkSpool, Run
from drainer.schema.rules import ALWAYS, StreamRules
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from penstock.cluster.node_registry import Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.schema.model import DdlJob, TableInfo

log = logging.getLogger(__name__)

_LOOK_S = 0.02
_CHECKPOINT_S = 0.1


class EndsAtDdl(PenstockError):
    """The job of the next DDL is not in the log; neither the DDL nor later changes were applied."""


class Replay:
    """The stored stream in place of the Pumps' merged stream, and of a TiDB that answers for DDL.

    If a row's DDL was applied before the DDL's binlog, the log has that job.
    """

    def __init__(
        self, stored: RelayLog, checkpoint: Checkpoint, spool: ChunkSpool, rules: StreamRules
    ) -> None:
        self.arrived = asyncio.Event()
        self.is_out = False
        """True once every binlog was returned."""
        self.last_ts = checkpoint.commit_ts
        """The commit_ts of the last returned binlog."""
        self._runs: Iterator[Run] = stored.runs(checkpoint.commit_ts, spool)
        self._jobs = {job.id: job for job in stored.ddl.jobs()}
        self._pumps = checkpoint.pumps
        self._rules = rules

    def take(self) -> Merged | None:
        run = next(self._runs, None)
        if run is None:
            self.is_out = True
            return None
        self.last_ts = run.commit_ts[-1]
        return Merged(run.commit_ts, run.payloads, sum(map(len, run.payloads)))

    def hurry(self) -> None: ...

    def participants(self) -> Mapping[str, int]:
        return self._pumps

    def jobs_of(self, table_id: int, after_version: int) -> list[DdlJob]:
        of_table = (job for job in self._jobs.values() if job.table and job.table.id == table_id)
        return [job for job in of_table if job.schema_version > after_version]

    def table_now(self, table_id: int) -> tuple[int, TableInfo | None]:
        return ALWAYS.commit_ts, None

    async def fetch_job(self, step: DdlStep) -> DdlJob:
        job = self._jobs.get(step.job_id)
        if job is None:
            raise EndsAtDdl(
                f"the relay log has no job for the DDL at {step.commit_ts}",
                code=Code.CHECKPOINT_INCONSISTENT,
            )
        refuse_other(job, step, self._rules, "the relay log")
        return job


def _ends(waits_for: str) -> None:
    if waits_for:
        raise EndsAtDdl(
            f"the relay log has no job that {waits_for}", code=Code.CHECKPOINT_INCONSISTENT
        )


async def replay(pipeline: Pipeline, source: Replay, stop: asyncio.Event) -> bool:
    """Run the pipeline to the end of the log; False if asked to stop before."""

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


async def recover(config: DrainerConfig, components: Components, stop: asyncio.Event) -> bool:
    """Make the downstream consistent; False if nothing must be done and the upstream is reachable.

    Raises `NeedsOperator` if the log lacks binlogs that may have been applied.
    """
    stored = components.relay_log
    assert stored is not None
    checkpoint = await components.thread.call(components.sink.load_checkpoint)
    if checkpoint is None or checkpoint.consistent:
        log.error("the upstream cannot be reached; the downstream is consistent, so wait for it")
        await _wait_for_upstream(components, stop)
        return False
    may_be_applied_ts = max(checkpoint.applying_ts, checkpoint.ddl_intent_ts)
    stored.check_range(checkpoint.commit_ts, may_be_applied_ts)
    overrides, rules = checkpoint.overrides_with(stored.ddl.overrides()), rules_of(config)
    tracker = SchemaTracker.from_history(
        stored.ddl.jobs(),
        checkpoint.commit_ts,
        overrides,
        rules=rules,
        version=checkpoint.schema_version,
        ahead=checkpoint.ahead,
    )
    spool_dir = components.home.path / "spool"
    spool_dir.mkdir(mode=0o700, exist_ok=True)
    spool = ChunkSpool(spool_dir, RECORD_BYTES_MAX)
    source = Replay(stored, checkpoint, spool, rules)
    log.warning(
        "the upstream cannot be reached and the downstream, at %d, may be between two states: "
        "applying (%d, %d] from the relay log in %s",
        checkpoint.commit_ts, checkpoint.commit_ts, stored.last_ts, stored.folder,
    )  # fmt: skip
    checkpoint = replace(checkpoint, overrides=overrides, has_all_overrides=True)
    sink = components.sink
    progress = Progress(checkpoint, waits_for=sink.waits_for, stand_ins=sink.stand_ins)
    catch_up = None if rules.is_fenced else CatchUp(tracker, source, report=_ends)
    schema = StartingSchema(tracker=tracker, overrides=overrides, jobs=[])
    pipeline = build_pipeline(
        config,
        components,
        schema,
        progress,
        feed=source,
        fetch_job=source.fetch_job,
        checkpoint_interval_s=_CHECKPOINT_S,
        catch_up=catch_up,
    )
    if not await replay(pipeline, source, stop):
        raise StoppedEarly
    last = replace(progress.checkpoint, consistent=True)
    await components.thread.call(lambda: components.sink.save_checkpoint(last))
    log.warning(
        "the downstream is consistent at %d: %d transactions with %d rows came from the relay log; "
        "this Drainer ends, start it again when the upstream is back",
        last.commit_ts, progress.transactions, progress.rows,
    )  # fmt: skip
    return True


async def _wait_for_upstream(components: Components, stop: asyncio.Event) -> None:
    cluster_id = await insist(stop, "the cluster id", Registry(components.etcd).cluster_id)
    if cluster_id != components.cluster_id:
        raise NeedsOperator(
            f"the relay log is of cluster {components.cluster_id}, etcd's is {cluster_id}",
            "give this Drainer another relay log-dir, or the right etcd",
            Code.CLUSTER_MISMATCH,
        )
