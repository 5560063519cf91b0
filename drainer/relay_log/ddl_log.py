"""All DDL that the relay log's stream speaks of, so that the schema can be rebuilt without etcd.

A log of its own, `ddl/` in the relay log's folder: one frame for each job, JSON as in etcd. It has
the whole history and is never cut: the schema at any checkpoint begins with the first job. Older
versions wrote a frame for each override of a DDL, too: {"decision": commit_ts} with its fields, or
without when it is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from drainer.differences.overrides import Override
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import Files
from penstock.log.segment import segment_name
from penstock.log.segments import Position, Segments
from penstock.schema.model import DdlJob
from penstock.schema.tableinfo import job_from_json, job_to_json


class DdlLog:
    """The open log; writes raise `WriteFailed`."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Open it, creating it if need be, and read it once; raise `Corrupt`."""
        self._segments = Segments.open(folder, files=files)
        self._jobs: dict[int, DdlJob] = {}
        self._overrides: dict[int, Override] = {}
        for position, payload in self._segments.scan():
            if payload:  # Or it is the mark of a clean stop.
                self._found(position, payload)

    def _found(self, position: Position, payload: bytes) -> None:
        try:
            fields = json.loads(payload)
            if "decision" in fields:
                commit_ts = fields["decision"]
                self._overrides.pop(commit_ts, None)
                if "made" in fields:
                    self._overrides[commit_ts] = Override.from_json(commit_ts, fields)
            else:
                job = job_from_json(fields)
                self._jobs[job.id] = job
        except (ValueError, KeyError, TypeError, NeedsOperator) as error:
            path = str(self._segments.folder / segment_name(position.segment))
            raise Corrupt(path, position.offset, f"no job of DDL: {error}") from error

    def jobs(self) -> list[DdlJob]:
        """Return all jobs that are on record, in order of their schema version."""
        return sorted(self._jobs.values(), key=lambda job: job.schema_version)

    def overrides(self) -> dict[int, Override]:
        """Return the operator's overrides that an older version wrote, by the DDL's commit_ts."""
        return dict(self._overrides)

    def note(self, jobs: Iterable[DdlJob]) -> None:
        """Keep jobs, each once; `sync` makes it durable."""
        fresh = [job for job in jobs if job.id not in self._jobs]
        if fresh:
            records = [json.dumps(job_to_json(job), ensure_ascii=False) for job in fresh]
            self._segments.append([record.encode() for record in records])
        self._jobs.update((job.id, job) for job in fresh)

    def sync(self) -> None:
        """Return once everything noted is on the disk."""
        self._segments.sync()

    def close(self) -> None:
        """Mark the clean stop and let go."""
        self._segments.close()
