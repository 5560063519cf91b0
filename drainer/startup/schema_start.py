"""The schema to start with: history up to the checkpoint, under the operator's overrides."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from dataclasses import dataclass

from drainer.ddl.override_store import overrides
from drainer.ddl.snapshot_file import JOBS_BETWEEN, SnapshotFile
from drainer.differences.overrides import Override
from drainer.schema.packed import Origin
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.startup.parts import Parts, insist
from penstock.cluster.history import History
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The tracker as of the checkpoint, and the overrides of DDLs before and after it.

    `jobs` is the history that was read: all of it for a relay log, else what the snapshot in
    `file` lacks.
    """

    tracker: SchemaTracker
    overrides: dict[int, Override]
    jobs: list[DdlJob]
    file: SnapshotFile | None = None

    async def before(self, job: DdlJob) -> None:
        """Take note of a job that the tracker is about to follow."""
        if self.file is not None:
            await self.file.before(self.tracker, job)


async def schema_at(
    config: DrainerConfig,
    parts: Parts,
    checkpoint: Checkpoint,
    stop: asyncio.Event,
    former: str = "",
) -> Followed:
    """Return the schema at the checkpoint, through outages of etcd.

    `former` is the node id of the one whose place this one takes, if there was one. A history that
    does not lead to the checkpoint's schema version raises NeedsOperator.
    """
    recorded: dict[int, Override] = {}
    if not checkpoint.has_all_overrides:
        node_id = parts.home.known_node_id(config.node_id, config.advertise_addr or config.addr)
        ask = functools.partial(overrides, parts.etcd, [node_id, *filter(None, [former])])
        recorded = await insist(stop, "the overrides of DDL", ask)
    made = checkpoint.overrides_with(recorded)
    history = History(parts.etcd)
    file = SnapshotFile(parts.home.path, parts.cluster_id, history, made)
    # A relay log keeps the jobs themselves, for the day when etcd is gone.
    whole = bool(config.relay.log_dir)
    load = functools.partial(schema_from, history, file, checkpoint, made, whole=whole)
    return await insist(stop, "the DDL history", load)


def schema_from(
    history: History,
    file: SnapshotFile,
    checkpoint: Checkpoint,
    made: dict[int, Override],
    *,
    whole: bool = False,
) -> Followed:
    """Return the schema at the checkpoint, from the snapshot and what came after it.

    From all of history if the snapshot cannot be used, or if `whole` jobs are wanted.
    """
    began_s = time.monotonic()
    base = file.load(checkpoint)
    after = 0 if base is None or whole else base[1].revision
    jobs = [job for job, _ in history.recorded(after)]
    tracker, last = SchemaTracker(), None
    if base is not None:
        _check_same_history(history, file, base[1])
        tracker = base[0]
        last = tracker.follow_all(jobs, checkpoint.commit_ts, made, after_ts=base[1].commit_ts)
        if _differs(tracker, checkpoint):
            log.warning("%s does not lead to the checkpoint; reading all DDL history", file.path)
            jobs, base = [job for job, _ in history.recorded()], None
    if base is None:
        tracker = SchemaTracker()
        last = tracker.follow_all(jobs, checkpoint.commit_ts, made)
    _check_version(tracker, checkpoint, made, jobs)
    followed = sum(job.finished_ts <= checkpoint.commit_ts for job in jobs)
    if last is not None and followed >= JOBS_BETWEEN:
        file.write(tracker, last, last.finished_ts)
    log.info(
        "schema version %d, %s, in %.1f s",
        tracker.version,
        "from history" if base is None else f"from a snapshot and {followed} DDL jobs",
        time.monotonic() - began_s,
    )
    return Followed(tracker=tracker, overrides=made, jobs=jobs, file=file)


def _check_same_history(history: History, file: SnapshotFile, origin: Origin) -> None:
    job = history.get(origin.last_job_id)
    if job is None or job.schema_version != origin.schema_version:
        raise NeedsOperator(
            f"{file.path} follows DDL job {origin.last_job_id} of schema version"
            f" {origin.schema_version}, which the DDL history in etcd does not have",
            hint="was etcd wiped or put back? Restore /penstock/v1/ddl; if the history is right,"
            " delete the file",
        )


def _differs(tracker: SchemaTracker, checkpoint: Checkpoint) -> bool:
    return checkpoint.schema_version not in (0, tracker.version)


def _check_version(
    tracker: SchemaTracker,
    checkpoint: Checkpoint,
    made: dict[int, Override],
    jobs: list[DdlJob],
) -> None:
    """Raise NeedsOperator unless the tracker is at the checkpoint's schema version."""
    if not _differs(tracker, checkpoint):
        return
    finished = {job.finished_ts for job in jobs}
    lost = [d for ts, d in made.items() if ts <= checkpoint.commit_ts and ts not in finished]
    if tracker.version < checkpoint.schema_version and lost:
        # A DDL without a job was skipped; it counted as a version all the same.
        tracker.catalog.version = checkpoint.schema_version
        return
    raise NeedsOperator(
        f"the downstream's checkpoint at {checkpoint.commit_ts} was written under schema version"
        f" {checkpoint.schema_version}, but the DDL history up to there leads to {tracker.version}",
        hint="was etcd wiped or put back, or is the downstream another cluster's? Restore"
        " /penstock/v1/ddl, or begin with a fresh copy of the data and initial-commit-ts",
    )
