from dataclasses import replace

import pytest

from drainer.schema.rules import FENCED
from drainer.schema.tracker import Gone, SchemaTracker
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob
from tests.unit.penstock.ddl_session import DdlSession


def history(*statements: str) -> list[DdlJob]:
    """A finished history; job n (and CREATE DATABASE is 1) finished at ts 10n."""
    jobs = DdlSession(*statements).history
    return [replace(job, finished_ts=10 * job.schema_version) for job in jobs]


def columns(tracker: SchemaTracker, table_id: int, version: int) -> list[str]:
    found = tracker.table_at(table_id, version)
    assert isinstance(found, tuple)
    return [c.name for c in found[1].columns]


JOBS = history(
    "CREATE TABLE t (a INT)",
    "ALTER TABLE t ADD b INT",
    "CREATE DATABASE e",
    "RENAME TABLE t TO e.u",
    "TRUNCATE e.u",
    "DROP TABLE e.u",
)
T_ID = JOBS[1].table_id


def test_history_is_followed_up_to_a_ts_and_not_beyond() -> None:
    assert SchemaTracker.from_history([], up_to_ts=100).version == 0
    assert SchemaTracker.from_history(JOBS, up_to_ts=30).version == 3
    assert SchemaTracker.from_history(reversed(JOBS), up_to_ts=39).version == 3
    assert SchemaTracker.from_history(JOBS, up_to_ts=10**18).version == 7


def test_rows_get_the_table_of_their_own_schema_version() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=50)
    assert columns(tracker, T_ID, 2) == ["a"]
    assert columns(tracker, T_ID, 3) == ["a", "b"]
    assert columns(tracker, T_ID, 4) == ["a", "b"]
    found = tracker.table_at(T_ID, 5)
    assert isinstance(found, tuple)
    assert (found[0], found[1].name) == ("e", "u")


def test_a_job_followed_again_changes_nothing() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    assert tracker.follow(JOBS[2]).is_nothing
    assert not tracker.follow(JOBS[3]).is_nothing
    assert tracker.follow(JOBS[3]).is_nothing
    assert tracker.version == 4


def test_rows_of_a_truncated_or_dropped_table_have_nowhere_to_go() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=60)
    assert tracker.table_at(T_ID, 5) == Gone(T_ID, "e", "u", dropped_at_version=6)
    new = JOBS[5].table
    assert new is not None
    assert columns(tracker, new.id, 6) == ["a", "b"]
    tracker.follow(JOBS[6])
    assert isinstance(tracker.table_at(new.id, 6), Gone)


def test_dropping_a_schema_drops_its_tables() -> None:
    jobs = history("CREATE TABLE t (a INT)", "DROP DATABASE d")
    tracker = SchemaTracker.from_history(jobs, up_to_ts=10**6)
    assert isinstance(tracker.table_at(jobs[1].table_id, 2), Gone)


def test_rows_that_no_ddl_explains_are_refused() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    with pytest.raises(NeedsOperator, match="which no DDL has made"):
        tracker.table_at(4711, 3)
    with pytest.raises(NeedsOperator, match="has come to 3 only"):
        tracker.table_at(T_ID, 4)
    with pytest.raises(NeedsOperator, match="older than the versions kept"):
        tracker.table_at(T_ID, 1)


def test_a_job_that_does_not_fit_is_refused() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=10)
    with pytest.raises(NeedsOperator, match="does not fit"):
        tracker.follow(JOBS[2])
    assert tracker.version == 1


def test_only_the_last_versions_of_a_table_are_kept() -> None:
    jobs = history("CREATE TABLE t (a INT)", *(f"ALTER TABLE t ADD c{i} INT" for i in range(20)))
    tracker = SchemaTracker.from_history(jobs, up_to_ts=10**6)
    kept = tracker.version - FENCED.versions_per_table_max + 1
    assert len(columns(tracker, jobs[1].table_id, kept)) == 21 - FENCED.versions_per_table_max + 1
    with pytest.raises(NeedsOperator, match="older than the versions kept"):
        tracker.table_at(jobs[1].table_id, kept - 1)
