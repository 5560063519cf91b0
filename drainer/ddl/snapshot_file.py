"""The schema's snapshot in the data directory: read at a start, renewed as DDLs are committed.

A state is written once the checkpoint has come to it, so a snapshot is ahead of it only when the
downstream was put back. Writing one fails softly: the next start just takes longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from drainer.differences.overrides import Override
from drainer.schema.packed import Origin, pack, unpack
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.log.files import replace_file
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)

FILE_NAME = "schema.snapshot"
JOBS_BETWEEN = 200
"""How many DDLs a start may have to follow on top of a snapshot."""
STEPS_BEHIND = 4
"""So many DDLs later one is downstream: fewer steps are under way at once."""


class Revisions(Protocol):
    """What is asked of the DDL history."""

    def revision_of(self, job_id: int) -> int:
        """Return etcd's revision of a job's recording, 0 when there is no such job."""


class SnapshotFile:
    """One snapshot, replaced as a whole."""

    def __init__(
        self, folder: Path, cluster_id: int, history: Revisions, overrides: Mapping[int, Override]
    ) -> None:
        self.path = folder / FILE_NAME
        self._cluster_id = cluster_id
        self._history = history
        self._overrides = overrides
        self._jobs_since = 0
        self._last_job: DdlJob | None = None
        self._waiting: tuple[SchemaTracker, DdlJob] | None = None

    def load(self, checkpoint: Checkpoint) -> tuple[SchemaTracker, Origin] | None:
        """Return the snapshot, None when there is none that can be used for this checkpoint.

        One of another cluster, or made under overrides that are gone, raises NeedsOperator.
        """
        try:
            tracker, origin = unpack(self.path.read_bytes(), str(self.path))
        except FileNotFoundError:
            return None
        except (OSError, Corrupt) as error:
            log.warning("%s; reading all DDL history instead", error)
            return None
        ahead = origin.commit_ts > checkpoint.commit_ts
        self._check(origin, ahead=ahead)
        if ahead or origin.overrides != self._overridden(origin.commit_ts):
            why = "is ahead of the checkpoint" if ahead else "is older than an override of a DDL"
            log.warning("%s %s; reading all DDL history instead", self.path, why)
            return None
        return tracker, origin

    def _check(self, origin: Origin, *, ahead: bool) -> None:
        if origin.cluster_id != self._cluster_id:
            raise NeedsOperator(
                f"{self.path} is of cluster {origin.cluster_id}, not of {self._cluster_id}",
                hint="is --data-dir another Drainer's? If not, delete the file",
            )
        for ts, fields in () if ahead else origin.overrides.items():
            if int(ts) not in self._overrides:
                was = Override.from_json(int(ts), fields).describe()
                raise NeedsOperator(
                    f"{self.path} was made with an override of the DDL at {ts} ({was}), which is"
                    " not in the downstream's checkpoint",
                    hint="was the checkpoint written by hand, or is this another downstream? The"
                    " DDL was not run as it is, so without the override rows would be written"
                    " wrongly: put the checkpoint back; for another downstream delete the file",
                )

    def _overridden(self, up_to_ts: int) -> dict[str, Any]:
        return {
            str(ts): override.to_json()
            for ts, override in sorted(self._overrides.items())
            if ts <= up_to_ts
        }

    async def before(self, tracker: SchemaTracker, job: DdlJob) -> None:
        """Take note of a DDL about to be followed; write the state of a few DDLs ago, if due."""
        last, self._last_job = self._last_job, job
        self._jobs_since += 1
        if self._waiting is None:
            if self._jobs_since > JOBS_BETWEEN and last is not None:
                self._waiting, self._jobs_since = (tracker.copy(), last), 0
        elif self._jobs_since >= STEPS_BEHIND:
            (settled, last), self._waiting = self._waiting, None
            await asyncio.to_thread(self.write, settled, last, last.finished_ts)

    def write(self, tracker: SchemaTracker, last_job: DdlJob, commit_ts: int) -> None:
        """Write the schema as of `commit_ts`, after `last_job`; a failure is logged only."""
        self._jobs_since = 0
        try:
            origin = Origin(
                cluster_id=self._cluster_id,
                commit_ts=commit_ts,
                schema_version=tracker.version,
                last_job_id=last_job.id,
                revision=self._history.revision_of(last_job.id),
                overrides=self._overridden(commit_ts),
            )
            if origin.revision == 0:
                return
            replace_file(self.path, pack(tracker, origin))
        except (OSError, Retryable) as error:
            log.warning("the schema's snapshot is not renewed: %s", error)
