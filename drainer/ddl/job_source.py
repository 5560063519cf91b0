"""Job source: where the DDL jobs of a stream are, and the rules that relate its rows and DDL.

    EtcdJobs   etcd's /penstock/v1/ddl: writers of ours, whose stream is fenced
    TidbJobs   a TiDB's history, at the status ports of its servers (`drainer.ddl.tidb_jobs`)

With `pd-address` the stream is a TiDB's. A cluster has only one of the two sources. With jobs in
both, ids of tables and versions would be ambiguous, so that is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from drainer.ddl.status_ports import StatusPorts
from drainer.ddl.tidb_jobs import TidbJobs
from drainer.schema.rules import FENCED, TIDB, StreamRules
from drainer.settings.config import DrainerConfig
from penstock.cluster.etcd import EtcdClient, is_any_from
from penstock.cluster.history import JOBS, History
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob
from penstock.security.tls import Tls


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
        """Return the etcd revision at which a job was recorded."""
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
            hint="give the other writers a cluster of their own, with its own etcd and Pumps; or,"
            " where no TiDB writes here, leave pd-address out for this Drainer",
            code=Code.CLUSTER_MISMATCH,
        )
    # PD, TiDB and the servers between them have the same certificates.
    return TidbJobs(StatusPorts(etcd, pd_tls if pd_address.startswith("https://") else None))
