"""A start from a snapshot ends where one from all history ends; a bad one is never believed."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.ddl.jobs import EtcdJobs
from drainer.ddl.starting_schema import (
    FILE_NAME,
    JOBS_BETWEEN,
    STEPS_BEHIND,
    SnapshotFile,
    StartingSchema,
    schema_from,
)
from drainer.differences import SKIP, Override
from drainer.schema.snapshot import SnapshotOrigin, pack, unpack
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import JOBS, SCHEMA_VERSION_KEY, History
from penstock.errors import Corrupt, NeedsOperator
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import job_to_json
from tests.unit.drainer.test_schema import history
from tests.unit.penstock.ddl_session import DdlSession
from tests.unit.penstock.test_ddl_property import SEEDS, run

ORIGIN = SnapshotOrigin(
    cluster_id=7,
    commit_ts=50,
    schema_version=5,
    last_job_id=9,
    revision=3,
    overrides={"8": {"verb": "skip"}},
)
MANY = history(*(f"CREATE TABLE t{i} (a INT PRIMARY KEY, b VARCHAR(9))" for i in range(240)))


def knows(tracker: SchemaTracker) -> object:
    state = tracker.state()
    state["versions"].sort(key=lambda version: (version[3]["id"], version[0]))
    return tracker.version, {
        **state,
        "schemas": sorted(map(str, state["schemas"])),
        "gone": sorted(state["gone"]),
    }


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_a_tracker_knows_comes_back(data: st.DataObject) -> None:
    jobs = run(data.draw(SEEDS)).history
    jobs = [replace(job, finished_ts=10 * job.schema_version) for job in jobs]
    half = data.draw(st.integers(0, len(jobs)))
    tracker = SchemaTracker.from_history(jobs[:half], 10**9)
    again, origin = unpack(pack(tracker, replace(ORIGIN, schema_version=tracker.version)), "x")
    assert knows(again) == knows(tracker)
    assert origin.overrides == {"8": {"verb": "skip"}}
    for job in jobs[half:]:
        assert again.follow(job).altered == tracker.follow(job).altered
    assert knows(again) == knows(tracker)


@pytest.mark.fault(
    "the schema's snapshot is lost: any byte of it flipped", "found", cases="each 7th byte"
)
def test_a_flipped_bit_anywhere_is_found() -> None:
    data = pack(SchemaTracker.from_history(MANY[:5], 10**9), replace(ORIGIN, schema_version=5))
    for at in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            unpack(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], "x")
    with pytest.raises(Corrupt):
        unpack(data[:-1], "x")


class Start:
    """A Drainer's start on a history in etcd, with a data directory."""

    def __init__(self, etcd: EtcdClient, folder: Path, jobs: list[DdlJob] = MANY) -> None:
        self.etcd, self.folder = etcd, folder
        self.history = History(etcd)
        self.jobs = jobs
        for job in jobs:
            self.history.append(job)

    @property
    def snapshot(self) -> Path:
        return self.folder / FILE_NAME

    def __call__(
        self,
        up_to: int,
        made: dict[int, Override] | None = None,
        *,
        cluster_id: int = 7,
        version: int | None = None,
    ) -> StartingSchema:
        source = EtcdJobs(self.history)
        file = SnapshotFile(self.folder, cluster_id, source, made or {})
        version = self.jobs[up_to - 1].schema_version if version is None else version
        checkpoint = Checkpoint(self.jobs[up_to - 1].finished_ts, version)
        return schema_from(source, file, checkpoint, made or {})


def test_a_second_start_reads_the_snapshot_and_only_later_jobs(
    etcd: EtcdClient, tmp_path: Path
) -> None:
    start = Start(etcd, tmp_path)
    first = start(230)
    assert len(first.jobs) == len(MANY)
    second = start(235)
    assert [job.schema_version for job in second.jobs] == list(range(231, 242))
    assert knows(second.tracker) == knows(SchemaTracker.from_history(MANY, MANY[234].finished_ts))


@pytest.mark.fault(
    "the schema's snapshot is lost, cut, flipped, foreign, ahead of the checkpoint",
    "rebuilt from the DDL jobs up to the checkpoint",
    cases="5",
)
@pytest.mark.parametrize("harm", ["lost", "cut", "flipped", "foreign", "ahead"])
def test_a_snapshot_that_cannot_be_used_is_rebuilt_from_history(
    etcd: EtcdClient, tmp_path: Path, harm: str
) -> None:
    start = Start(etcd, tmp_path)
    start(230)
    data = start.snapshot.read_bytes()
    up_to = 235
    if harm == "lost":
        start.snapshot.unlink()
    elif harm == "cut":
        start.snapshot.write_bytes(data[:100])
    elif harm == "flipped":
        start.snapshot.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    elif harm == "foreign":
        start.snapshot.write_bytes(b"something else")
    else:
        up_to = 225
    again = start(up_to)
    assert len(again.jobs) == len(MANY)
    wanted = SchemaTracker.from_history(MANY, MANY[up_to - 1].finished_ts)
    assert knows(again.tracker) == knows(wanted)
    assert unpack(start.snapshot.read_bytes(), "x")[1].commit_ts == MANY[up_to - 1].finished_ts


@pytest.mark.fault(
    "the history in etcd ends before the checkpoint, or leads beyond it",
    "refused with a hint; a wiped one by a real Drainer",
    cases="2 + 1",
)
def test_a_history_that_does_not_lead_to_the_checkpoint_is_refused(
    etcd: EtcdClient, tmp_path: Path
) -> None:
    start = Start(etcd, tmp_path)
    with pytest.raises(NeedsOperator, match="leads to 230"):
        start(230, version=233)
    with pytest.raises(NeedsOperator, match="leads to 230"):
        start(230, version=229)


def test_a_history_that_is_not_the_snapshot_s_is_refused(etcd: EtcdClient, tmp_path: Path) -> None:
    start = Start(etcd, tmp_path)
    start(230)
    etcd.delete_prefix(JOBS)
    with pytest.raises(NeedsOperator, match="does not have"):
        start(235)


@pytest.mark.fault(
    "the schema's snapshot is lost: of another cluster, of another history, made with an"
    " override that is gone",
    "refused with a hint",
    cases="3",
)
def test_a_snapshot_of_another_cluster_is_refused(etcd: EtcdClient, tmp_path: Path) -> None:
    start = Start(etcd, tmp_path)
    start(230)
    with pytest.raises(NeedsOperator, match="of cluster 7, not of 8"):
        start(235, cluster_id=8)


def test_an_override_that_the_snapshot_was_made_with_must_not_get_lost(
    etcd: EtcdClient, tmp_path: Path
) -> None:
    start = Start(etcd, tmp_path)
    ts = MANY[100].finished_ts
    made = {ts: Override(commit_ts=ts, verb=SKIP)}
    first = start(230, made)
    assert first.tracker.drift(MANY[100].table_id).absent_ts == ts
    assert knows(start(230, made).tracker) == knows(first.tracker)
    with pytest.raises(NeedsOperator, match="which is not in the downstream"):
        start(230)
    # A downstream that was put back to before the DDL is asked about it again.
    assert knows(start(90).tracker) == knows(SchemaTracker.from_history(MANY, 900))


def test_a_long_run_renews_the_snapshot_behind_the_stream(etcd: EtcdClient, tmp_path: Path) -> None:
    start = Start(etcd, tmp_path)
    followed = start(1)
    file = followed.file
    assert file is not None

    async def live() -> None:
        for job in MANY[1:]:
            await file.before(followed.tracker, job)
            followed.tracker.follow(job)

    asyncio.run(live())
    tracker, origin = unpack(start.snapshot.read_bytes(), "x")
    assert origin.schema_version == 1 + JOBS_BETWEEN
    assert origin.last_job_id == MANY[JOBS_BETWEEN].id
    assert tracker.version < followed.tracker.version - STEPS_BEHIND
    assert knows(start(240).tracker) == knows(SchemaTracker.from_history(MANY, 2400))


@pytest.mark.slow
def test_a_start_with_ten_thousand_jobs_follows_few_of_them(
    etcd: EtcdClient, tmp_path: Path
) -> None:
    """Long histories as they are: tables that come, change and go."""
    columns = ", ".join(f"c{i} VARCHAR(20) NOT NULL DEFAULT 'x'" for i in range(10))
    session = DdlSession()
    for i in range(2500):
        session.run(f"CREATE TABLE t{i} (id BIGINT PRIMARY KEY, {columns})")
        session.run(f"ALTER TABLE t{i} ADD extra INT", f"CREATE INDEX i ON t{i} (c1)")
        session.run(f"DROP TABLE t{i - 500}" if i >= 500 else f"ALTER TABLE t{i} ADD more INT")
    jobs = [replace(j, finished_ts=10 * j.schema_version) for j in session.history]
    write_at_once(etcd, jobs)
    start = Start(etcd, tmp_path, [])
    start.jobs = jobs
    assert len(start(9_950).jobs) > 10_000
    followed = start(10_000)
    assert len(followed.jobs) < 100
    wanted = SchemaTracker.from_history(jobs, jobs[9_999].finished_ts)
    assert knows(followed.tracker) == knows(wanted)


def write_at_once(etcd: EtcdClient, jobs: list[DdlJob]) -> None:
    """Record jobs without the history's own care, which takes several calls each."""
    for job in jobs:
        etcd.put(f"{JOBS}{job.id:020d}", json.dumps(job_to_json(job)))
    etcd.put(SCHEMA_VERSION_KEY, str(jobs[-1].schema_version))
