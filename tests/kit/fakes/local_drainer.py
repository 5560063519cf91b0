"""A Drainer's pipeline without Pumps, etcd and Spark: everything else is the real thing.

It is fed from a `Bank`, its SQL is made by the task's own function in this process, and it writes
into a real downstream. One `run_drainer` is one run, from the checkpoint on to the ledger's end.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drainer.apply.batches import Fetching
from drainer.apply.pipeline import Pipeline, Progress
from drainer.build import build_pipeline
from drainer.ddl.catch_up import CatchUp, Upstream
from drainer.ddl.starting_schema import StartingSchema
from drainer.intake.merger import Merged
from drainer.intake.payload import Payload, Remote
from drainer.intake.spool import Spool
from drainer.planner import DdlStep
from drainer.relay_log.log import RelayLog, RelayStage
from drainer.schema.rules import FENCED, StreamRules
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread, open_sink
from drainer.sinks.protocol import RETRY_S_MAX, Sink
from drainer.spark.dispatcher import Catalog
from drainer.task.row_fetch import Fetcher, FetchSettings, FetchUnit
from penstock.filters import FilterConfig
from penstock.schema.model import DdlJob
from penstock.wire.codec import decode_binlog
from tests.kit.workloads.bank import Bank

CLUSTER = 7


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a run goes about it."""

    url: str
    folder: Path
    strategy: str = "merge"
    mode: str = "snapshot"
    rows_max: int = 25
    bytes_max: int = 8 << 20
    run_binlogs: int = 6
    relay: bool = False
    fetched: bool = False
    """Whether the tasks fetch the rows."""
    pause_s: float = 0.0
    retry_s_max: float = RETRY_S_MAX
    ignored: tuple[str, ...] = ()
    rules: StreamRules = FENCED
    upstream: Upstream | None = None
    """Asked about rows that come before their DDL."""


class Tasks:
    """In the place of the dispatcher: units are answered here."""

    def __init__(self, bank: Bank) -> None:
        self._task = BankFetcher(bank)

    async def run(self, units: list[bytes]) -> list[bytes]:
        taken = list(units)
        units.clear()
        return [await asyncio.to_thread(self._task.answer, unit) for unit in taken]

    async def run_on(self, unit: bytes, catalog: Catalog, *_: object) -> tuple[bytes, None]:
        self._task.keep(*catalog)
        return await asyncio.to_thread(self._task.answer, unit), None


class BankFetcher(Fetcher):
    """A task that takes the rows from the bank, without Pumps."""

    def __init__(self, bank: Bank) -> None:
        super().__init__(FetchSettings(filters=FilterConfig()))
        self._ledger = dict(bank.binlogs)

    def transactions(self, unit: FetchUnit) -> Iterator[tuple[int, bytes]]:
        return ((ts, self._ledger[ts]) for ts in unit.commit_ts.tolist())


def _as_remote(data: Payload) -> Payload:
    """Return what a Pump sends with `metadata_only`."""
    binlog = decode_binlog(data) if isinstance(data, bytes) else None
    if binlog is None or not binlog.prewrite_value or binlog.ddl_query:
        return data
    return Remote("bank", len(data), binlog.start_ts)


class BankStream:
    """In the place of Pumps and merge: the bank's binlogs after a checkpoint, in runs."""

    def __init__(self, bank: Bank, runs: list[Merged], pause_s: float) -> None:
        self.arrived = asyncio.Event()
        self._runs = runs[::-1]
        self._jobs = {job.id: job for job in bank.jobs}
        self._pause_s = pause_s
        self._may_take = True

    def take(self) -> Merged | None:
        """Return the next run; a while after the last one, if there is to be a pause."""
        if not self._runs or not self._may_take:
            return None
        if self._pause_s:
            self._may_take = False
            asyncio.get_running_loop().call_later(self._pause_s, self._resume)
        return self._runs.pop()

    def _resume(self) -> None:
        self._may_take = True
        self.arrived.set()

    def hurry(self) -> None:
        """Do nothing."""

    def participants(self) -> dict[str, int]:
        """Return none: there are no Pumps."""
        return {}

    async def fetch_job(self, step: DdlStep) -> DdlJob:
        return self._jobs[step.job_id]


async def _runs_of(bank: Bank, after_ts: int, way: Way, spool: Spool) -> list[Merged]:
    runs: list[Merged] = []
    stamps: list[int] = []
    payloads: list[Payload] = []

    def end() -> None:
        if stamps:
            runs.append(Merged(list(stamps), list(payloads), sum(map(len, payloads))))
            stamps.clear()
            payloads.clear()

    for ts, data in bank.binlogs:
        if ts <= after_ts:
            continue
        async for run_stamps, run_payloads in spool.keep_large(f"pump-{ts}", ([ts], [data])):
            stamps += run_stamps
            payloads += map(_as_remote, run_payloads) if way.fetched else run_payloads
        if len(stamps) >= way.run_binlogs:
            end()
    end()
    return runs


async def run_drainer(
    bank: Bank, way: Way, seen: Callable[[Pipeline, Sink], None] | None = None
) -> Checkpoint:
    """Run to the ledger's end and a clean stop; raise what would stop the Drainer."""
    way.folder.mkdir(parents=True, exist_ok=True)
    thread = SinkThread()
    sink = open_sink(way.url, cluster_id=CLUSTER, retry_s_max=way.retry_s_max)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(thread.close, 10)
        stack.callback(sink.close)
        checkpoint = await thread.call(sink.load_checkpoint) or Checkpoint(0, 0)
        made = checkpoint.overrides_with({})
        tracker = SchemaTracker.from_history(
            bank.jobs,
            checkpoint.commit_ts,
            made,
            rules=way.rules,
            version=checkpoint.schema_version,
            ahead=checkpoint.ahead,
        )
        spool = Spool(way.folder / "spool", bytes_max=way.bytes_max)
        runs = await _runs_of(bank, checkpoint.commit_ts, way, spool)
        ledger = BankStream(bank, runs, way.pause_s)
        relay = await _relay(bank, way, checkpoint, stack)
        config = DrainerConfig(
            sink=way.url,
            batch_rows_max=way.rows_max,
            batch_bytes_max=way.bytes_max,
            ignore_txn_commit_ts=way.ignored,
            apply=ApplyConfig(strategy=way.strategy, mode=way.mode, worker_count=3, txn_batch=4),
        )
        components: Any = SimpleNamespace(
            dispatcher=Tasks(bank), task_count=2, sink=sink, thread=thread, executors_commit=False
        )
        schema = StartingSchema(tracker=tracker, overrides=made, jobs=[])
        checkpoint = replace(checkpoint, overrides=made, has_all_overrides=True)
        progress = Progress(checkpoint, waits_for=sink.waits_for, stand_ins=sink.stand_ins)
        places = {"bank": "its address"}
        pipeline = build_pipeline(
            config,
            components,
            schema,
            progress,
            feed=ledger,
            fetch_job=ledger.fetch_job,
            relay=relay,
            checkpoint_interval_s=0.1,
            fetching=Fetching(CLUSTER, "d", lambda: places, tracker) if way.fetched else None,
            catch_up=None if way.upstream is None else CatchUp(tracker, way.upstream),
        )
        if seen is not None:
            seen(pipeline, sink)
        return await _to_the_end(pipeline, bank.last_ts)


async def _relay(bank: Bank, way: Way, at: Checkpoint, stack: AsyncExitStack) -> RelayStage | None:
    if not way.relay:
        return None
    log = RelayLog.open(way.folder / "relay", file_bytes_max=60_000)
    stack.callback(log.close)
    log.start(CLUSTER, at.commit_ts, [j for j in bank.jobs if j.finished_ts <= at.commit_ts])
    stage = RelayStage(log)
    stack.push_async_callback(stage.close)
    return stage


async def _to_the_end(pipeline: Pipeline, last_ts: int) -> Checkpoint:
    if pipeline.progress.checkpoint.commit_ts >= last_ts:
        return pipeline.progress.checkpoint
    running = asyncio.create_task(pipeline.run())
    while not running.done() and pipeline.progress.checkpoint.commit_ts < last_ts:
        await asyncio.wait((running,), timeout=0.01)
    pipeline.stop()
    await running
    return pipeline.progress.checkpoint
