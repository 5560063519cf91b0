"""DDL jobs: where the jobs of a stream are, and the rules that relate its rows and DDL.

    EtcdJobs   etcd's /penstock/v1/ddl: writers of ours, whose stream is fenced
    TidbJobs   a TiDB's history, from the status port of any of its servers

With `pd-address` the stream is a TiDB's. A cluster has only one of the two sources. With jobs in
both, ids of tables and versions would be ambiguous, so that is refused.

    GET /ddl/history?limit=n                   the newest n jobs
    GET /ddl/history?start_job_id=i&limit=n    from TiDB 6.3 on: n jobs from i on, newest first
    GET /ddl/history                           all of it; of the newest TiDBs only 1,024 jobs
    GET /schema?table_id=i                     a current table, with columns not yet public

All history of a TiDB is read page by page, from its newest job to its oldest. A server that does
not know `start_job_id` ignores it and answers with newer jobs than requested; then all of it is
read as one answer, job by job. New jobs that come between the pages are not part of the requested
history. Jobs do not finish in the order of their ids, so the result is put in the order of schema
versions, in which they took effect. Until they are followed they are kept packed, about 1 KB each
for tables of ten columns.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from drainer.ddl.tidb_servers import NotGiven, StatusPorts
from drainer.schema.rules import FENCED, TIDB, StreamRules
from drainer.settings.config import DrainerConfig
from penstock.cluster.etcd import EtcdClient, is_any_from
from penstock.cluster.history import JOBS, History
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.schema.model import DdlJob, TableInfo
from penstock.schema.tidb_json import job_from_json, table_from_json
from penstock.security.tls import Tls

log = logging.getLogger(__name__)

PAGE_JOBS = 256
"""Servers refuse more than 1,024."""
_PATH = "/ddl/history"
_LISTED_AFTER_S = 1.0
"""How long a TiDB may take to report a new version: usually milliseconds."""
_LIMITS = (2, 16, 256)
"""Numbers of jobs requested to find one: two if the server knows `start_job_id`, else more."""


class TidbJobs:
    """The jobs of a TiDB; a mark is a schema version."""

    rules = TIDB
    place = "the DDL history of the TiDB"

    def __init__(
        self,
        ports: StatusPorts,
        *,
        page_jobs: int = PAGE_JOBS,
        listed_after_s: float = _LISTED_AFTER_S,
    ) -> None:
        self._ports = ports
        self._page_jobs = page_jobs
        self._listed_after_s = listed_after_s

    def get(self, job_id: int) -> DdlJob | None:
        for limit in _LIMITS:
            page = list(self._elements(_page(limit, job_id + 1)))
            found = next((each for each in page if each["id"] == job_id), None)
            if found is not None:
                return job_from_json(found)
            # Older jobs have their place behind the job; behind newer jobs there are more.
            if len(page) < limit or any(each["id"] < job_id for each in page):
                return None
        everything = self._elements(_PATH)
        found = next((each for each in everything if each["id"] == job_id), None)
        return None if found is None else job_from_json(found)

    def jobs(self, after_mark: int = 0) -> PackedJobs:
        """Return the jobs of later schema versions; a failed job may also have left a version."""
        began_s, count, packed = time.monotonic(), 0, []
        for fields in self._all():
            count += 1
            version = _version(fields)
            if version > after_mark:
                packed.append((version, zlib.compress(json.dumps(fields).encode(), 1)))
        packed.sort()
        log.info(
            "%d DDL jobs of the TiDB's %d are of later versions than %d, read in %.1f s",
            len(packed), count, after_mark, time.monotonic() - began_s,
        )  # fmt: skip
        return PackedJobs([data for _, data in packed])

    def mark_of(self, job: DdlJob) -> int:
        return job.schema_version

    def jobs_of(self, table_id: int, after_version: int) -> list[DdlJob]:
        """Return the jobs of later schema versions that changed a table.

        History is read back to an earlier job: jobs of a table finish in the order of their ids.
        """
        found, last_id = [], 0
        for fields in self._all():
            is_newest_first, last_id = fields["id"] < last_id, fields["id"]
            table = (fields.get("binlog") or {}).get("TableInfo") or {}
            if table.get("id") != table_id:
                continue
            if _version(fields) > after_version:
                found.append(job_from_json(fields))
            elif is_newest_first:
                break
        return found

    def table_now(self, table_id: int) -> tuple[int, TableInfo | None]:
        """Return a table with its columns not yet public, and a lower bound of its version.

        None if the table does not exist. The version is read first, and given time to reach all
        servers, because any of them may be asked.
        """
        version = self._ports.schema_version()
        time.sleep(self._listed_after_s)
        try:
            return version, table_from_json(self._ports.value(f"/schema?table_id={table_id}"))
        except NotGiven as error:
            log.debug("no table %d: %s", table_id, error)
            return version, None

    def check_settled(self) -> None:
        """Raise Retryable while a job is running: it may have taken effect but be missing here."""
        time.sleep(self._listed_after_s)
        wanted = self._ports.schema_version()
        newest = max(map(_version, self._elements(_page(self._page_jobs))), default=0)
        if newest < wanted:
            newest = max(map(_version, self._all()), default=0)
        if newest < wanted:
            raise Retryable(
                f"a DDL of the TiDB is under way: its schema version is {wanted}, and its history"
                f" leads to {newest}. A Drainer without a checkpoint waits for its end. A DDL that"
                " was cancelled midway leaves a version that no job is about: then any further one,"
                " as CREATE DATABASE, ends the wait",
                Code.TIDB_DDL_WAITS,
            )

    def _all(self) -> Iterator[Any]:
        """Yield each job of the history once, however the server returns the history."""
        limit = self._page_jobs
        page = list(self._elements(_page(limit)))
        yield from page
        while len(page) >= limit:
            oldest = min(each["id"] for each in page)
            # One more, because the oldest known job is among them.
            page = list(self._elements(_page(limit + 1, oldest)))
            if any(each["id"] > oldest for each in page):
                log.info("this TiDB does not know start_job_id: reading all its history at once")
                yield from (each for each in self._elements(_PATH) if each["id"] < oldest)
                return
            page = [each for each in page if each["id"] < oldest]
            yield from page

    def _elements(self, path: str) -> Iterator[Any]:
        try:
            for each in self._ports.elements(path):
                if not isinstance(each, dict) or not isinstance(each.get("id"), int):
                    raise Malformed(
                        f"{path} has {str(each)[:80]!r}, which is no DDL job",
                        "its JSON must have the shape of TiDB's",
                        Code.TIDB_STATUS_PORT,
                    )
                yield each
        except NotGiven as error:
            raise NeedsOperator(
                f"the TiDB does not give out its DDL history: {error}",
                "is this a TiDB's status port? Its [status] settings and its log say more",
                Code.TIDB_STATUS_PORT,
            ) from error


def _page(limit: int, start_job_id: int = 0) -> str:
    start = f"start_job_id={start_job_id}&" if start_job_id else ""
    return f"{_PATH}?{start}limit={limit}"


def _version(fields: Any) -> int:
    """Return the schema version that a job, even a failed job, left; 0 without a version."""
    version = (fields.get("binlog") or {}).get("SchemaVersion", 0)
    return version if isinstance(version, int) else 0


class PackedJobs(Sequence[DdlJob]):
    """Jobs in order of schema version, which each iteration unpacks one at a time."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, at: Any) -> Any:
        return job_from_json(json.loads(zlib.decompress(self._packed[at])))


class JobSource(Protocol):
    """A source of DDL jobs. Blocking; each method may be Retryable."""

    rules: StreamRules
    place: str
    """The store that an operator would have to restore if it were lost."""

    def get(self, job_id: int) -> DdlJob | None:
        """Return a job, None when there is none of that id, or none yet."""

    def jobs(self, after_mark: int = 0) -> Sequence[DdlJob]:
        """Return the jobs after a mark, or all jobs after 0, in order of schema version."""

    def mark_of(self, job: DdlJob) -> int:
        """Return the mark that all jobs up to this one have passed, 0 if the job is missing."""

    def check_settled(self) -> None:
        """Raise Retryable while a DDL may have taken effect whose job is not available yet."""


class EtcdJobs:
    """The jobs of writers of ours; a mark is etcd's revision of a job's recording."""

    rules = FENCED
    place = "/penstock/v1/ddl in etcd"

    def __init__(self, history: History) -> None:
        self._history = history

    def get(self, job_id: int) -> DdlJob | None:
        return self._history.get(job_id)

    def jobs(self, after_mark: int = 0) -> list[DdlJob]:
        found = [job for job, _ in self._history.recorded(after_mark)]
        return sorted(found, key=lambda job: job.schema_version)

    def mark_of(self, job: DdlJob) -> int:
        return self._history.revision_of(job.id)

    def check_settled(self) -> None:
        """Do nothing: a job is recorded before its DDL takes effect."""


def rules_of(config: DrainerConfig) -> StreamRules:
    return TIDB if config.pd_address else FENCED


def open_job_source(pd_address: str, etcd: EtcdClient, pd_tls: Tls | None) -> JobSource:
    """Return the source of a cluster with this PD, empty for none; it may be Retryable.

    Raises NeedsOperator if a history of Penstock's own exists beside a TiDB's.
    """
    if not pd_address:
        return EtcdJobs(History(etcd))
    if is_any_from(etcd, JOBS, JOBS):
        raise NeedsOperator(
            f"pd-address says that a TiDB writes to this cluster, but etcd has DDL jobs of other"
            f" writers in {JOBS}: one stream has one source of schemas",
            "give the other writers a cluster of their own, with its own etcd and Pumps; or,"
            " where no TiDB writes here, leave pd-address out for this Drainer",
            Code.CLUSTER_MISMATCH,
        )
    # PD, TiDB and the servers between them have the same certificates.
    return TidbJobs(StatusPorts(etcd, pd_tls if pd_address.startswith("https://") else None))
