"""Upkeep of a lake: combines small files, and removes files that no retained version needs.

It runs in the sink's thread, one table after a commit, so that it never conflicts with another
commit of ours. It rewrites only data that arrived since its last run, and therefore takes as long
as some batches.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from deltalake import CommitProperties, DeltaTable

from drainer.settings.syncer_section import MIRROR
from drainer.sinks.delta.lake import OWN, RETAINED, Lake, configuration, forget_log
from drainer.sinks.delta.lake_ddl import DROPPED
from drainer.sinks.delta.lake_url import LakeTarget
from drainer.sinks.delta.own_tables import CheckpointTable, VersionsTable

log = logging.getLogger(__name__)


class LakeUpkeep:
    """The pending upkeep of a lake; `step` does the next piece of it."""

    def __init__(
        self,
        target: LakeTarget,
        lake: Lake,
        checkpoints: CheckpointTable,
        versions: VersionsTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._lake = lake
        self._checkpoints = checkpoints
        self._versions = versions
        self._clock = clock
        self._due_s = clock()
        self._steps: Iterator[None] = iter(())

    def step(self) -> None:
        """Do the next piece of work, if any; the lake's lock must be held."""
        if not self._target.optimize_s:
            return
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + self._target.optimize_s
            self._steps = self._all()
        next(self._steps, None)

    def _all(self) -> Iterator[None]:
        retention = timedelta(seconds=self._target.retention_s)
        if self._target.mode == MIRROR:  # A change log is kept forever.
            self._remove_dropped(time.time() - self._target.retention_s)
            yield
        self._versions.expire(datetime.now(UTC) - retention)
        for own in (self._versions, self._checkpoints):
            if (table := own.opened()) is not None:
                tidied(table, CommitProperties(max_commit_retries=0), configuration(0))
                own.noted()
                own.forget()
                forget_log(own.path, table.version())
            yield
        oldest = self._versions.oldest()
        for place in list(self._lake.versions):
            if not self._lake.has(place):
                continue  # It has been dropped since.
            self._lake.commit(place, None, self._tidied)
            forget_log(self._lake.path(place), oldest.get(place, self._lake.versions[place]))
            yield

    def _tidied(self, table: DeltaTable, properties: CommitProperties) -> None:
        tidied(table, properties, self._lake.configuration)

    def _remove_dropped(self, before_s: float) -> None:
        dropped = self._target.folder / OWN / DROPPED
        for each in dropped.iterdir() if dropped.exists() else ():
            if each.stat().st_mtime < before_s:
                log.info("the retention of %s has passed: it is removed", each)
                shutil.rmtree(each)


def tidied(table: DeltaTable, properties: CommitProperties, settings: Mapping[str, str]) -> None:
    """Compact a table's small files, and remove files replaced long enough ago."""
    known = table.metadata().configuration
    if any(known.get(name) != value for name, value in settings.items()):
        table.alter.set_table_properties(dict(settings), commit_properties=properties)
    table.optimize.compact(commit_properties=properties)
    vacuum = partial(
        table.vacuum,
        retention_hours=int(settings[RETAINED].split()[1]),
        enforce_retention_duration=False,
        full=True,
    )
    if vacuum(dry_run=True):
        vacuum(dry_run=False, commit_properties=properties)
