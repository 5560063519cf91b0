"""A DDL is tracked always and executed maybe; an operator's decision stands in for it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from drainer.decisions import DECISIONS, Decision, decide, decisions
from drainer.follower import DdlFollower
from drainer.planner import DdlStep
from drainer.schema import SchemaTracker
from penstock.ddl import SchemaChange
from penstock.errors import Malformed, NeedsOperator
from penstock.schema import DdlJob
from tests.unit.drainer.test_schema import columns, history

JOBS = history(
    "CREATE TABLE t (a INT)", "ALTER TABLE t ADD b INT, ADD c INT", "CREATE TABLE u (a INT)"
)
TABLE_ID = JOBS[1].table_id


class Stream:
    """A follower that got as far as the job before last, and what it is still to follow."""

    def __init__(self, jobs: list[DdlJob] = JOBS, followed: int = 2, **settings: Any) -> None:
        self.tracker = SchemaTracker.from_history(jobs[:followed], 10**18)
        self._jobs = {job.id: job for job in jobs}
        self._follower = DdlFollower(self.tracker, self._fetch, **{"decisions": {}, **settings})

    async def _fetch(self, step: DdlStep) -> DdlJob:
        if step.job_id not in self._jobs:
            raise NeedsOperator("the job is not there", hint="restore it")
        return self._jobs[step.job_id]

    def follow(self, job: DdlJob) -> SchemaChange | None:
        step = DdlStep(job.finished_ts, job.id, job.query)
        return asyncio.run(self._follower.follow(step))


def decided(job: DdlJob, sql: str | None) -> dict[int, Decision]:
    return {job.finished_ts: Decision(commit_ts=job.finished_ts, sql=sql)}


def test_a_ddl_is_tracked_and_returned_to_be_run() -> None:
    stream = Stream()
    change = stream.follow(JOBS[2])
    assert change is not None
    assert change.job == JOBS[2]
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]


def test_a_ddl_that_a_filter_keeps_from_running_is_tracked_all_the_same() -> None:
    stream = Stream(route=lambda change: None)
    assert stream.follow(JOBS[2]) is None
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]


def test_an_ignored_ddl_is_tracked_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(ignored_ts={JOBS[2].finished_ts})
    with caplog.at_level(logging.WARNING):
        assert stream.follow(JOBS[2]) is None
    assert "ignore-txn-commit-ts: tracked, not run" in caplog.text
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]
    assert stream.follow(JOBS[3]) is not None


def test_an_unknown_ddl_stops_with_the_commands_that_go_on() -> None:
    unknown = replace(JOBS[2], type=250, table=None)
    with pytest.raises(NeedsOperator, match="drainer ddl skip 30") as caught:
        Stream([*JOBS[:2], unknown]).follow(unknown)
    assert "drainer ddl replace 30" in caught.value.hint


def test_a_skipped_ddl_is_neither_run_nor_tracked_but_counts_as_a_version() -> None:
    unknown = replace(JOBS[2], type=250, table=None)
    stream = Stream([*JOBS[:2], unknown, JOBS[3]], decisions=decided(unknown, None))
    assert stream.follow(unknown) is None
    assert stream.tracker.version == 3
    assert columns(stream.tracker, TABLE_ID, 3) == ["a"]
    assert stream.follow(JOBS[3]) is not None


def test_a_ddl_whose_job_is_lost_can_be_skipped() -> None:
    stream = Stream([*JOBS[:2], JOBS[3]], decisions=decided(JOBS[2], None))
    assert stream.follow(JOBS[2]) is None
    assert stream.follow(JOBS[3]) is not None


def test_a_replacement_is_tracked_and_run_under_the_original_s_ids() -> None:
    sql = "ALTER TABLE t ADD c BIGINT, ADD d INT"
    stream = Stream(decisions=decided(JOBS[2], sql))
    change = stream.follow(JOBS[2])
    assert change is not None
    assert change.job.query == "ALTER TABLE `t` ADD c BIGINT, ADD d INT"
    found = stream.tracker.catalog.table("d", "t")
    original = JOBS[2].table
    assert found is not None
    assert original is not None
    assert found.id == original.id
    ids = {c.name: c.id for c in original.columns}
    assert [(c.name, ids.get(c.name)) for c in found.columns][:2] == [("a", 1), ("c", ids["c"])]
    assert found.columns[1].id == ids["c"]
    assert found.columns[2].id not in ids.values()


def test_a_created_table_of_a_replacement_has_the_id_that_rows_will_name() -> None:
    stream = Stream(decisions=decided(JOBS[3], "CREATE TABLE u (a BIGINT, z INT)"))
    stream.follow(JOBS[2])
    stream.follow(JOBS[3])
    assert columns(stream.tracker, JOBS[3].table_id, 4) == ["a", "z"]


def test_a_replacement_that_does_not_fit_stops_again_with_the_way_out() -> None:
    for sql in ("ALTER TABLE nope ADD x INT", "DROP TABLE IF EXISTS nope", "not a statement"):
        with pytest.raises(NeedsOperator, match="drainer ddl skip 30"):
            Stream(decisions=decided(JOBS[2], sql)).follow(JOBS[2])


def test_history_is_rebuilt_as_it_was_decided() -> None:
    skipped = SchemaTracker.from_history(JOBS, 10**18, decided(JOBS[2], None))
    assert columns(skipped, TABLE_ID, 4) == ["a"]
    assert skipped.version == 4
    replaced = SchemaTracker.from_history(JOBS, 10**18, decided(JOBS[2], "ALTER TABLE t ADD z INT"))
    assert columns(replaced, TABLE_ID, 4) == ["a", "z"]


def test_decisions_are_kept_for_one_drainer_and_the_last_one_counts(etcd: Any) -> None:
    decide(etcd, "one", 30, None)
    decide(etcd, "one", 30, "DROP TABLE t")
    decide(etcd, "one", 7, None)
    decide(etcd, "other", 30, None)
    found = decisions(etcd, "one")
    assert {ts: d.sql for ts, d in found.items()} == {7: None, 30: "DROP TABLE t"}
    assert found[30].made
    etcd.put(f"{DECISIONS}one/{8:020d}", "nonsense")
    with pytest.raises(Malformed, match="no decision"):
        decisions(etcd, "one")
