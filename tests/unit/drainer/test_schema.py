from dataclasses import replace

import pytest

from drainer.differences import SKIP, Override
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


def test_rows_get_the_table_of_the_schema_version_at_their_place() -> None:
    assert columns(SchemaTracker.from_history(JOBS, up_to_ts=20), T_ID, 2) == ["a"]
    assert columns(SchemaTracker.from_history(JOBS, up_to_ts=30), T_ID, 3) == ["a", "b"]
    found = SchemaTracker.from_history(JOBS, up_to_ts=50).table_at(T_ID, 5)
    assert isinstance(found, tuple)
    assert (found[0], found[1].name) == ("e", "u")


@pytest.mark.fault("etcd is restored to what it was before a DDL")
def test_rows_of_an_earlier_version_are_of_another_history() -> None:
    # As after a restore of etcd: the fence lets no transaction commit rows of an older version.
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    with pytest.raises(NeedsOperator, match=r"under schema version 2, but .* has come to 3 "):
        tracker.table_at(T_ID, 2)


def test_a_job_of_a_version_that_the_stream_has_had_is_of_another_history() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    other = history("CREATE TABLE t (a INT)", "ALTER TABLE t ADD price INT")[2]
    with pytest.raises(NeedsOperator, match=r"price INT.* made schema version 3") as caught:
        tracker.track(other)
    assert "an earlier DDL of the stream had that version" in caught.value.problem
    assert tracker.version == 3
    with pytest.raises(NeedsOperator, match="the stream had no DDL of version 4"):
        tracker.track(JOBS[4])


def test_an_override_follows_a_job_of_another_history_and_the_stream_goes_on_from_there() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    other = history("CREATE TABLE t (a INT)", "ALTER TABLE t ADD price INT")[2]
    assert tracker.track(other, Override(commit_ts=77, verb=SKIP)).run is None
    assert tracker.version == 3
    tracker.track(replace(other, id=99, query="ALTER TABLE t COMMENT 'x'", schema_version=4))
    assert columns(tracker, T_ID, 4) == ["a", "price"]


def test_rows_of_a_truncated_or_dropped_table_have_nowhere_to_go() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=60)
    assert tracker.table_at(T_ID, 6) == Gone(T_ID, "e", "u", dropped_at_version=6)
    new = JOBS[5].table
    assert new is not None
    assert columns(tracker, new.id, 6) == ["a", "b"]
    tracker.follow(JOBS[6])
    assert isinstance(tracker.table_at(new.id, 7), Gone)


def test_dropping_a_schema_drops_its_tables() -> None:
    jobs = history("CREATE TABLE t (a INT)", "DROP DATABASE d")
    tracker = SchemaTracker.from_history(jobs, up_to_ts=10**6)
    assert isinstance(tracker.table_at(jobs[1].table_id, 3), Gone)


def test_rows_that_no_ddl_explains_are_refused() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=30)
    with pytest.raises(NeedsOperator, match="which no DDL has made"):
        tracker.table_at(4711, 3)
    with pytest.raises(NeedsOperator, match="has come to 3 only"):
        tracker.table_at(T_ID, 4)


def test_a_job_that_does_not_fit_is_refused() -> None:
    tracker = SchemaTracker.from_history(JOBS, up_to_ts=10)
    with pytest.raises(NeedsOperator, match="does not fit"):
        tracker.follow(replace(JOBS[2], schema_version=2))
    assert tracker.version == 1
