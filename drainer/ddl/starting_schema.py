"""Starting schema: the tracker as of the checkpoint, from a snapshot and the DDL jobs after it.

    <data-dir>/schema.snapshot   the schema at a DDL, renewed as DDLs are committed
    the job source               the jobs from there to the checkpoint; all of them without it

A snapshot is written once the checkpoint has reached its state, so it is ahead of the checkpoint
only if the downstream was reset. A failure to write one is harmless: the next start just takes
longer.

The operator's overrides of DDL are in the checkpoint. Older versions stored the overrides of future
DDL in etcd, by Drainer:

    /penstock/v1/ddl_decisions/<node id>/<commit_ts, 20 digits>   JSON, see `Override`

They are read until the checkpoint says that it has all overrides. The first checkpoint that this
version stores says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainer.ddl.jobs import JobSource
from drainer.differences import Override
from drainer.schema.rules import StreamPosition
from drainer.schema.snapshot import SnapshotOrigin, pack, unpack
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from penstock.cluster.etcd import EtcdClient, read_prefix
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator, Retryable
from penstock.log.files import replace_file
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)

FILE_NAME = "schema.snapshot"
JOBS_BETWEEN = 200
"""How many DDLs a start may have to follow after a snapshot."""
STEPS_BEHIND = 4
"""A DDL is downstream after this many later DDLs, because fewer steps are in progress."""


class SnapshotFile:
    """One snapshot, replaced as a whole."""

    def __init__(
        self, folder: Path, cluster_id: int, marks: JobSource, overrides: Mapping[int, Override]
    ) -> None:
        self.path = folder / FILE_NAME
        self._cluster_id = cluster_id
        self._marks = marks
        self._overrides = overrides
        self._jobs_since = 0
        self._last_job: DdlJob | None = None
        self._waiting: tuple[SchemaTracker, DdlJob] | None = None

    def load(self, checkpoint: Checkpoint) -> tuple[SchemaTracker, SnapshotOrigin] | None:
        """Return the snapshot, None if none is usable for this checkpoint.

        A snapshot of another cluster, or made under overrides that no longer exist, raises
        NeedsOperator.
        """
        try:
            tracker, origin = unpack(self.path.read_bytes(), str(self.path))
        except FileNotFoundError:
            return None
        except (OSError, Corrupt) as error:
            log.warning("%s; reading all DDL history instead", error)
            return None
        ahead = origin.commit_ts > checkpoint.commit_ts
        if not tracker.rules.is_fenced and checkpoint.schema_version:
            ahead = origin.schema_version > checkpoint.schema_version
        self._check(origin, ahead=ahead)
        if ahead or origin.overrides != self._overridden(origin.commit_ts):
            why = "is ahead of the checkpoint" if ahead else "is older than an override of a DDL"
            log.warning("%s %s; reading all DDL history instead", self.path, why)
            return None
        return tracker, origin

    def _check(self, origin: SnapshotOrigin, *, ahead: bool) -> None:
        if origin.cluster_id != self._cluster_id:
            raise NeedsOperator(
                f"{self.path} is of cluster {origin.cluster_id}, not of {self._cluster_id}",
                "is --data-dir another Drainer's? If not, delete the file",
                Code.CLUSTER_MISMATCH,
            )
        for ts, fields in () if ahead else origin.overrides.items():
            if int(ts) not in self._overrides:
                was = Override.from_json(int(ts), fields).describe()
                raise NeedsOperator(
                    f"{self.path} was made with an override of the DDL at {ts} ({was}), which is"
                    " not in the downstream's checkpoint",
                    "was the checkpoint written by hand, or is this another downstream? The"
                    " DDL was not run as it is, so without the override rows would be written"
                    " wrongly: put the checkpoint back; for another downstream delete the file",
                    Code.CHECKPOINT_GONE,
                )

    def _overridden(self, up_to_ts: int) -> dict[str, Any]:
        return {
            str(ts): override.to_json()
            for ts, override in sorted(self._overrides.items())
            if ts <= up_to_ts
        }

    async def before(self, tracker: SchemaTracker, job: DdlJob) -> None:
        last, self._last_job = self._last_job, job
        self._jobs_since += 1
        if self._waiting is None:
            # A job ahead is followed again after a start: its place is in the checkpoint alone.
            if self._jobs_since > JOBS_BETWEEN and last is not None and not tracker.ahead:
                self._waiting, self._jobs_since = (tracker.copy(), last), 0
        elif self._jobs_since >= STEPS_BEHIND:
            (settled, last), self._waiting = self._waiting, None
            await asyncio.to_thread(self.write, settled, last, last.finished_ts)

    def write(self, tracker: SchemaTracker, last_job: DdlJob, commit_ts: int) -> None:
        """Write the schema as of `commit_ts`, after `last_job`; a failure is only logged."""
        self._jobs_since = 0
        try:
            origin = SnapshotOrigin(
                cluster_id=self._cluster_id,
                commit_ts=commit_ts,
                schema_version=tracker.version,
                last_job_id=last_job.id,
                revision=self._marks.mark_of(last_job),
                overrides=self._overridden(commit_ts),
            )
            if origin.revision == 0:
                return
            replace_file(self.path, pack(tracker, origin))
        except (OSError, Retryable) as error:
            log.warning("the schema's snapshot is not renewed: %s", error)


OVERRIDES = "/penstock/v1/ddl_decisions/"


def recorded_overrides(etcd: EtcdClient, node_ids: Iterable[str]) -> dict[int, Override]:
    """Return the overrides of these Drainers by commit_ts; the last Drainer's win.

    It may be Retryable or Malformed.
    """
    found = {}
    for node_id in node_ids:
        items, _ = read_prefix(etcd, f"{OVERRIDES}{node_id}/")
        for key, value in items.items():
            try:
                commit_ts = int(key.rpartition("/")[2])
                found[commit_ts] = Override.from_json(commit_ts, json.loads(value))
            except (ValueError, KeyError, TypeError) as error:
                raise Malformed(
                    f"{key} in etcd is no override of a DDL: {value!r}",
                    "delete it in etcd; `penstock drainer ddl list` shows the DDL, and"
                    " `penstock drainer ddl"
                    " track` or another of its commands writes the override again",
                    Code.ETCD_VALUE,
                ) from error
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingSchema:
    """The tracker as of the checkpoint, and the overrides of DDLs before and after it.

    `jobs` is the history that was read: all of it for a relay log, else the part that the snapshot
    in `file` lacks.
    """

    tracker: SchemaTracker
    overrides: dict[int, Override]
    jobs: Sequence[DdlJob]
    file: SnapshotFile | None = None


def schema_from(
    source: JobSource,
    file: SnapshotFile,
    checkpoint: Checkpoint,
    made: dict[int, Override],
    *,
    whole: bool = False,
) -> StartingSchema:
    """Return the schema at the checkpoint, from the snapshot and the jobs after it.

    Reads all of history if the snapshot cannot be used, or if `whole` jobs are wanted.
    """
    began_s = time.monotonic()
    base = file.load(checkpoint)
    if base is not None and base[0].rules != source.rules:
        log.warning("%s is of another kind of upstream; reading all DDL history", file.path)
        base = None
    position = StreamPosition(checkpoint.commit_ts, checkpoint.schema_version)
    jobs = source.jobs(0 if base is None or whole else base[1].revision)
    tracker, last = SchemaTracker(source.rules), None
    if base is not None:
        _check_same_history(source, file, base[1])
        tracker = base[0]
        after_ts = base[1].commit_ts
        last = tracker.follow_all(jobs, position, made, after_ts=after_ts, ahead=checkpoint.ahead)
        if _differs(tracker, checkpoint):
            log.warning("%s does not lead to the checkpoint; reading all DDL history", file.path)
            jobs, base = source.jobs(), None
    if base is None:
        tracker = SchemaTracker(source.rules)
        last = tracker.follow_all(jobs, position, made, ahead=checkpoint.ahead)
    _check_version(source, tracker, checkpoint, made, jobs)
    followed = tracker.jobs_passed
    if last is not None and followed >= JOBS_BETWEEN and not tracker.ahead:
        file.write(tracker, last, last.finished_ts)
    log.info(
        "schema version %d, %s, in %.1f s",
        tracker.version,
        "from history" if base is None else f"from a snapshot and {followed} DDL jobs",
        time.monotonic() - began_s,
    )
    return StartingSchema(tracker=tracker, overrides=made, jobs=jobs, file=file)


def schema_from_history(source: JobSource, checkpoint: Checkpoint) -> StartingSchema:
    """Return the schema at the checkpoint if neither a snapshot nor an override is kept."""
    jobs = source.jobs()
    tracker = SchemaTracker.from_history(
        jobs, checkpoint.commit_ts, rules=source.rules, version=checkpoint.schema_version,
        ahead=checkpoint.ahead,
    )  # fmt: skip
    _check_version(source, tracker, checkpoint, {}, jobs)
    return StartingSchema(tracker=tracker, overrides={}, jobs=jobs)


def _check_same_history(source: JobSource, file: SnapshotFile, origin: SnapshotOrigin) -> None:
    job = source.get(origin.last_job_id)
    ids = (origin.schema_version, origin.commit_ts)
    if job is None or (job.schema_version, job.finished_ts) != ids:
        raise NeedsOperator(
            f"{file.path} follows DDL job {origin.last_job_id} of schema version"
            f" {origin.schema_version}, finished at {origin.commit_ts}, which {source.place} does"
            " not have",
            f"was it wiped or put back? Restore {source.place}; if the history is right,"
            " delete the file",
            Code.DDL_HISTORY,
        )


def _differs(tracker: SchemaTracker, checkpoint: Checkpoint) -> bool:
    if tracker.rules.is_fenced:
        return checkpoint.schema_version not in (0, tracker.version)
    # Jobs without a binlog, such as that of a table's cache, also have versions.
    return checkpoint.schema_version > tracker.version


def _check_version(
    source: JobSource,
    tracker: SchemaTracker,
    checkpoint: Checkpoint,
    made: dict[int, Override],
    jobs: Sequence[DdlJob],
) -> None:
    if not _differs(tracker, checkpoint):
        return
    finished = {job.finished_ts for job in jobs}
    lost = [d for ts, d in made.items() if ts <= checkpoint.commit_ts and ts not in finished]
    if tracker.version < checkpoint.schema_version and lost:
        # A DDL without a job was skipped; it still counted as a version.
        tracker.catalog.version = checkpoint.schema_version
        return
    raise NeedsOperator(
        f"the checkpoint at {checkpoint.commit_ts} was written under schema version"
        f" {checkpoint.schema_version}, but the DDL history up to there leads to {tracker.version}",
        "was the history wiped or put back, or is the downstream another cluster's? Restore"
        f" {source.place}, or begin with a fresh copy of the data and initial-commit-ts",
        Code.DDL_HISTORY,
    )
