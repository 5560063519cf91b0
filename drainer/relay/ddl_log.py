"""All DDL that the relay log's stream speaks of, so that the schema can be rebuilt without etcd.

A log of its own, `ddl/` in the relay log's folder: one frame for each job, JSON as in etcd. It has
the whole history and is never cut, because the schema at any checkpoint begins with the first job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import Corrupt, NeedsOperator
from penstock.files import Files
from penstock.schema import DdlJob
from penstock.segment import segment_name
from penstock.segments import Segments
from penstock.tableinfo import job_from_json, job_to_json


class DdlLog:
    """The open log; writes raise `WriteFailed`."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Open it, creating it if need be, and read it once; raise `Corrupt`."""
        self._segments = Segments.open(folder, files=files)
        self._ids: set[int] = set()
        self._ids = {job.id for job in self.jobs()}

    def jobs(self) -> list[DdlJob]:
        """Return all jobs that are on record."""
        found = []
        for position, payload in self._segments.scan():
            if not payload:
                continue  # The mark of a clean stop.
            try:
                found.append(job_from_json(json.loads(payload)))
            except (ValueError, NeedsOperator) as error:
                path = str(self._segments.folder / segment_name(position.segment))
                raise Corrupt(path, position.offset, f"no job of DDL: {error}") from error
        return found

    def note(self, jobs: Iterable[DdlJob]) -> None:
        """Keep jobs, each once; `sync` makes them durable."""
        fresh = [job for job in jobs if job.id not in self._ids]
        if fresh:
            self._segments.append(
                [json.dumps(job_to_json(job), ensure_ascii=False).encode() for job in fresh]
            )
            self._ids.update(job.id for job in fresh)

    def sync(self) -> None:
        """Return once everything noted is on the disk."""
        self._segments.sync()

    def close(self) -> None:
        """Mark the clean stop and let go."""
        self._segments.close()
