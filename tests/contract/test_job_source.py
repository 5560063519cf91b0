"""What every source of DDL jobs promises."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from drainer.ddl.jobs import EtcdJobs, JobSource, TidbJobs
from drainer.ddl.tidb_servers import StatusPorts
from drainer.schema.rules import StreamPosition
from penstock.cluster.history import History
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import job_to_json
from tests.kit.tidb.status_port import StatusPort
from tests.unit.drainer.test_schema import history

JOBS = history(*(f"CREATE TABLE t{n} (id INT PRIMARY KEY, a INT)" for n in range(12)))

Made = Callable[[list[DdlJob]], JobSource]


@pytest.fixture(params=["etcd", "tidb", "tidb before 6.3"])
def source_of(request: Any, etcd: Any) -> Iterator[Made]:
    if request.param == "etcd":

        def recorded(jobs: list[DdlJob]) -> JobSource:
            for job in jobs:
                History(etcd).append(job)
            return EtcdJobs(History(etcd))

        yield recorded
        return
    held: list[DdlJob] = []
    knows = "pages" if request.param == "tidb" else "limit"
    with StatusPort(etcd, lambda: [job_to_json(job) for job in held], knows=knows):

        def listed(jobs: list[DdlJob]) -> JobSource:
            held.extend(jobs)
            return TidbJobs(StatusPorts(etcd, None), page_jobs=5)

        yield listed


def test_a_job_is_found_by_its_id_and_another_one_is_not(source_of: Made) -> None:
    source = source_of(JOBS)
    assert [source.get(job.id) for job in JOBS] == JOBS
    assert source.get(JOBS[-1].id + 1) is None
    assert source_of([]).get(1_000_000) is None


def test_all_jobs_come_in_the_order_of_their_versions(source_of: Made) -> None:
    assert list(source_of(JOBS).jobs()) == JOBS
    assert not list(source_of([]).jobs(10**6))


def test_a_mark_leaves_the_jobs_after_it(source_of: Made) -> None:
    source = source_of(JOBS)
    for at, job in enumerate(JOBS):
        assert list(source.jobs(source.mark_of(job))) == JOBS[at + 1 :]


def test_the_rules_say_when_the_stream_has_had_a_ddl(source_of: Made) -> None:
    source = source_of(JOBS)
    job = replace(JOBS[3], finished_ts=500)
    assert source.rules.has_passed(job, StreamPosition(500))
    assert not source.rules.has_passed(job, StreamPosition(499))
    by_version = StreamPosition(499, job.schema_version)
    assert source.rules.has_passed(job, by_version) is not source.rules.is_fenced
