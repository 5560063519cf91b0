"""All DDL that the relay log's stream speaks of, so that the schema can be rebuilt without etcd.

A log of its own, `ddl/` in the relay log's folder: one frame for each job, JSON as in etcd, and one
for each decision of the operator about a DDL, {"decision": commit_ts, "replace": …, "made": …}. It
has the whole history and is never cut: the schema at any checkpoint begins with the first job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from drainer.decisions import Decision
from penstock.errors import Corrupt, NeedsOperator
from penstock.files import Files
from penstock.schema import DdlJob
from penstock.segment import segment_name
from penstock.segments import Position, Segments
from penstock.tableinfo import job_from_json, job_to_json


class DdlLog:
    """The open log; writes raise `WriteFailed`."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Open it, creating it if need be, and read it once; raise `Corrupt`."""
        self._segments = Segments.open(folder, files=files)
        self._jobs: dict[int, DdlJob] = {}
        self._decisions: dict[int, Decision] = {}
        for position, payload in self._segments.scan():
            if payload:  # Or it is the mark of a clean stop.
                self._found(position, payload)

    def _found(self, position: Position, payload: bytes) -> None:
        try:
            fields = json.loads(payload)
            if "decision" in fields:
                made = Decision(
                    commit_ts=fields["decision"], sql=fields["replace"], made=fields["made"]
                )
                self._decisions[made.commit_ts] = made
            else:
                job = job_from_json(fields)
                self._jobs[job.id] = job
        except (ValueError, KeyError, TypeError, NeedsOperator) as error:
            path = str(self._segments.folder / segment_name(position.segment))
            raise Corrupt(path, position.offset, f"no job of DDL: {error}") from error

    def jobs(self) -> list[DdlJob]:
        """Return all jobs that are on record, in order of their schema version."""
        return sorted(self._jobs.values(), key=lambda job: job.schema_version)

    def decisions(self) -> dict[int, Decision]:
        """Return the operator's decisions by the commit_ts of the DDL."""
        return dict(self._decisions)

    def note(self, jobs: Iterable[DdlJob], decisions: Iterable[Decision] = ()) -> None:
        """Keep jobs and decisions, each once; `sync` makes them durable."""
        fresh = [job for job in jobs if job.id not in self._jobs]
        made = [d for d in decisions if self._decisions.get(d.commit_ts) != d]
        records = [job_to_json(job) for job in fresh]
        records += [{"decision": d.commit_ts, "replace": d.sql, "made": d.made} for d in made]
        if records:
            self._segments.append([json.dumps(r, ensure_ascii=False).encode() for r in records])
        self._jobs.update((job.id, job) for job in fresh)
        self._decisions.update((d.commit_ts, d) for d in made)

    def sync(self) -> None:
        """Return once everything noted is on the disk."""
        self._segments.sync()

    def close(self) -> None:
        """Mark the clean stop and let go."""
        self._segments.close()
