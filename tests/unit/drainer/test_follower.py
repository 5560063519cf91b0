"""A DDL is tracked always and executed maybe; an operator's override says how."""

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from drainer.ddl.follower import DdlFollower, FollowedDdl, fetch_job
from drainer.ddl.starting_schema import OVERRIDES, recorded_overrides
from drainer.differences import (
    DDLS,
    IGNORED,
    OVERRIDE,
    REPLACE,
    SKIP,
    TRACK,
    Override,
    Skipped,
    in_force,
)
from drainer.planner import DdlStep
from drainer.schema.rules import FENCED, TIDB, StreamRules
from drainer.schema.tracker import SchemaTracker, Unknown
from drainer.sinks.checkpoint import Checkpoint
from penstock.codes import Code
from penstock.ddl import SchemaChange, route_change
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import DdlJob
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
        self._follower = DdlFollower(self.tracker, self._fetch, **{"overrides": {}, **settings})

    async def _fetch(self, step: DdlStep) -> DdlJob:
        if step.job_id not in self._jobs:
            raise NeedsOperator(
                "the job is not there", hint="restore it", code=Code.DDL_UNSUPPORTED
            )
        return self._jobs[step.job_id]

    def follow(self, job: DdlJob) -> FollowedDdl:
        step = DdlStep(job.finished_ts, job.id, job.query)
        return asyncio.run(self._follower.follow(step))

    def lacking(self, table_id: int = TABLE_ID) -> list[str]:
        found = self.tracker.catalog.table_by_id(table_id)
        assert found is not None
        return self.tracker.drift(table_id).lacking(found[1])


def overridden(job: DdlJob, verb: str, sql: str | None = None) -> dict[int, Override]:
    return {job.finished_ts: Override(commit_ts=job.finished_ts, verb=verb, sql=sql, made="then")}


def test_a_ddl_is_tracked_and_returned_to_be_run() -> None:
    stream = Stream()
    followed = stream.follow(JOBS[2])
    assert followed.run is not None
    assert (followed.run.job, followed.skipped) == (JOBS[2], {})
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]


def test_a_ddl_that_a_filter_keeps_from_running_is_tracked_all_the_same() -> None:
    filtered = Skipped(DDLS, "filter", "d.t")
    stream = Stream(route=lambda change: filtered)
    followed = stream.follow(JOBS[2])
    assert (followed.run, followed.skipped) == (None, {filtered: 1})
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]


DROPS = history("CREATE TABLE t (a INT)", "CREATE TABLE u (a INT)", "CREATE TABLE v (a INT)",
                "DROP TABLE t, u, v")  # fmt: skip


def test_of_a_drop_a_filter_leaves_out_its_tables_and_the_rest_is_one_statement() -> None:
    filtered = Skipped(DDLS, "filter", "d.u")

    def route(change: SchemaChange) -> SchemaChange | Skipped | None:
        ((_, table),) = change.dropped
        return filtered if table.name == "u" else change

    stream = Stream(DROPS, 4, route=route)
    followed = stream.follow(DROPS[4])
    assert followed.run is not None
    assert followed.run.job.query == "DROP TABLE `t`, `v`"
    assert [table.name for _, table in followed.run.dropped] == ["t", "v"]
    assert followed.skipped == {filtered: 1}
    assert stream.tracker.catalog.tables() == ()
    assert Stream(DROPS, 4, route=lambda change: filtered).follow(DROPS[4]).run is None


def test_of_a_drop_a_table_that_the_downstream_lacks_is_not_dropped_there() -> None:
    skipped = overridden(DROPS[2], SKIP)
    stream = Stream(DROPS, 2, overrides=skipped)
    for job in DROPS[2:4]:
        stream.follow(job)
    followed = stream.follow(DROPS[4])
    assert followed.run is not None
    assert followed.run.job.query == "DROP TABLE `t`, `v`"
    assert followed.skipped == {Skipped(DDLS, OVERRIDE, "d.u"): 1}


def test_tables_that_are_one_downstream_are_dropped_once_where_all_of_them_go() -> None:
    def route(change: SchemaChange) -> SchemaChange:
        return route_change(change, lambda schema, table: (schema, "all" if table else ""))

    followed = Stream(DROPS, 4, route=route).follow(DROPS[4])
    assert followed.run is not None
    assert followed.run.job.query == "DROP TABLE `all`"


def test_an_ignored_ddl_is_tracked_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(ignored_ts={JOBS[2].finished_ts})
    with caplog.at_level(logging.WARNING):
        followed = stream.follow(JOBS[2])
    assert (followed.run, followed.skipped) == (None, {Skipped(DDLS, IGNORED, "d.t"): 1})
    assert "ignore-txn-commit-ts: tracked, not run" in caplog.text
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]
    assert stream.follow(JOBS[3]).run is not None


def test_a_tracked_ddl_is_not_run_and_leaves_nothing_out(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(overrides=overridden(JOBS[2], TRACK))
    with caplog.at_level(logging.WARNING):
        followed = stream.follow(JOBS[2])
    assert (followed.run, followed.skipped) == (None, {Skipped(DDLS, OVERRIDE, "d.t"): 1})
    assert "tracked and not run, as decided then: nothing is skipped" in caplog.text
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]
    assert stream.lacking() == []


def test_a_skipped_ddl_is_tracked_and_what_it_brings_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = Stream(overrides=overridden(JOBS[2], SKIP))
    with caplog.at_level(logging.WARNING):
        followed = stream.follow(JOBS[2])
    assert (followed.run, followed.skipped) == (None, {Skipped(DDLS, OVERRIDE, "d.t"): 1})
    assert "the values of columns b, c of d.t are skipped and counted" in caplog.text
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]
    assert stream.lacking() == ["b", "c"]
    assert stream.follow(JOBS[3]).run is not None


def test_the_hint_offers_the_safe_override_first_and_says_what_each_means() -> None:
    unfit = replace(JOBS[2], tables=(("d", replace(JOBS[2].table or JOBS[2].tables[0][1], id=99)),))
    for job, stream in (
        (JOBS[2], Stream(route=lambda change: refuse())),
        (unfit, Stream([*JOBS[:2], unfit])),
    ):
        with pytest.raises(NeedsOperator) as caught:
            stream.follow(job)
        hint = caught.value.hint
        verbs = [
            hint.find(f"`penstock drainer ddl {verb} 30") for verb in ("track", "replace", "skip")
        ]
        if job is unfit:
            assert verbs[0] == -1
            assert "what it does is not known" in hint
        else:
            assert 0 < verbs[0] < verbs[1] < verbs[2]
            assert "the values of columns b, c of d.t are skipped and counted" in hint
        assert "`penstock drainer ddl undo 30` takes an override back" in hint


def refuse() -> SchemaChange:
    raise NeedsOperator("only an operator knows", hint="look", code=Code.DDL_UNSUPPORTED)


def test_a_skipped_ddl_that_cannot_be_tracked_leaves_out_the_tables_that_no_one_knows() -> None:
    unknown = replace(JOBS[2], type=250, table=None)
    stream = Stream([*JOBS[:2], unknown, JOBS[3]], overrides=overridden(unknown, SKIP))
    assert stream.follow(unknown).run is None
    assert stream.tracker.version == 3
    assert columns(stream.tracker, TABLE_ID, 3) == ["a"]
    assert stream.tracker.table_at(4711, 3) == Unknown(4711)
    assert stream.follow(JOBS[3]).run is not None


def test_a_ddl_that_cannot_be_tracked_cannot_be_overridden_by_track() -> None:
    unknown = replace(JOBS[2], type=250, table=None)
    with pytest.raises(NeedsOperator, match="without a table are unknown"):
        Stream([*JOBS[:2], unknown], overrides=overridden(unknown, TRACK)).follow(unknown)


@pytest.mark.fault(
    "a DDL that the downstream refuses: its job is lost",
    "skipped, counted as a schema version",
    cases="1",
)
def test_a_ddl_whose_job_is_lost_can_be_skipped() -> None:
    stream = Stream([*JOBS[:2], JOBS[3]], overrides=overridden(JOBS[2], SKIP))
    assert stream.follow(JOBS[2]).run is None
    assert stream.follow(JOBS[3]).run is not None
    again = SchemaTracker.from_history([*JOBS[:2], JOBS[3]], 10**18, overridden(JOBS[2], SKIP))
    assert again.blind_ts == stream.tracker.blind_ts == 30


def test_a_replacement_runs_and_what_it_does_not_bring_is_left_out() -> None:
    sql = "ALTER TABLE t ADD c BIGINT, ADD d INT"
    stream = Stream(overrides=overridden(JOBS[2], REPLACE, sql))
    followed = stream.follow(JOBS[2])
    assert followed.run is not None
    assert followed.run.job.query == "ALTER TABLE `t` ADD c BIGINT, ADD d INT"
    ((_, _, after),) = followed.run.altered
    original = JOBS[2].table
    assert original is not None
    ids = {c.name: c.id for c in original.columns}
    assert [(c.name, ids.get(c.name)) for c in after.columns] == [
        ("a", 1), ("c", ids["c"]), ("d", None),
    ]  # fmt: skip
    assert after.columns[1].id == ids["c"]
    assert after.columns[2].id not in ids.values()
    # Rows are what upstream wrote, whatever the downstream makes of them.
    assert columns(stream.tracker, TABLE_ID, 3) == ["a", "b", "c"]
    assert stream.lacking() == ["b"]
    assert stream.tracker.drift(TABLE_ID).converted(original) == ["c"]


def test_a_created_table_of_a_replacement_has_the_id_that_rows_will_name() -> None:
    stream = Stream(overrides=overridden(JOBS[3], REPLACE, "CREATE TABLE u (a BIGINT, z INT)"))
    stream.follow(JOBS[2])
    followed = stream.follow(JOBS[3])
    assert followed.run is not None
    ((_, table),) = followed.run.created
    assert (table.id, [c.name for c in table.columns]) == (JOBS[3].table_id, ["a", "z"])
    assert columns(stream.tracker, JOBS[3].table_id, 4) == ["a"]


def test_a_replacement_that_does_not_fit_stops_again_with_the_way_out() -> None:
    for sql in ("ALTER TABLE nope ADD x INT", "DROP TABLE IF EXISTS nope", "not a statement"):
        with pytest.raises(NeedsOperator) as caught:
            Stream(overrides=overridden(JOBS[2], REPLACE, sql)).follow(JOBS[2])
        assert "penstock drainer ddl undo 30" in caught.value.hint


def test_history_is_rebuilt_as_it_was_overridden() -> None:
    for verb, sql, lacking in (
        (TRACK, None, []), (SKIP, None, ["b", "c"]), (REPLACE, "ALTER TABLE t ADD b INT", ["c"]),
    ):  # fmt: skip
        made = overridden(JOBS[2], verb, sql)
        stream = Stream(overrides=made)
        for job in JOBS[2:]:
            stream.follow(job)
        again = SchemaTracker.from_history(JOBS, 10**18, made)
        assert again.version == 4
        assert again.state() == stream.tracker.state()
        assert stream.lacking() == lacking


def test_what_was_taken_back_is_no_longer_left_out_from_there_on() -> None:
    made = overridden(JOBS[2], SKIP)
    ended = {30: replace(made[30], ended_ts=40)}
    assert SchemaTracker.from_history(JOBS, 39, ended).drift(TABLE_ID).columns
    assert not SchemaTracker.from_history(JOBS, 40, ended).drifts


def test_overrides_that_older_versions_wrote_are_read_for_the_drainers_of_a_downstream(
    etcd: Any,
) -> None:
    for node, ts, text in (
        ("one", 7, '{"verb": "track", "replace": null, "made": "then"}'),
        ("one", 8, '{"replace": null, "made": "then"}'),
        ("former", 8, '{"replace": "DROP TABLE t", "made": "then"}'),
        ("other", 9, '{"replace": null, "made": "then"}'),
    ):
        etcd.put(f"{OVERRIDES}{node}/{ts:020d}", text)
    found = recorded_overrides(etcd, ["one", "former"])
    assert {ts: (o.verb, o.sql) for ts, o in found.items()} == {
        7: (TRACK, None), 8: (REPLACE, "DROP TABLE t"),
    }  # fmt: skip
    etcd.put(f"{OVERRIDES}one/{8:020d}", "nonsense")
    with pytest.raises(Malformed, match="no override"):
        recorded_overrides(etcd, ["one"])


def test_what_older_versions_kept_elsewhere_counts_until_a_checkpoint_has_all() -> None:
    recorded = {ts: Override(commit_ts=ts, verb=SKIP) for ts in (10, 30)}
    passed = {10: Override(commit_ts=10, verb=TRACK)}
    of_before = Checkpoint(20, 1, overrides=passed)
    read = Checkpoint.from_json(of_before.to_json("run").replace(', "all-overrides": false', ""))
    made = read.overrides_with(recorded)
    assert made == {10: passed[10], 30: recorded[30]}
    stored = Checkpoint.from_json(
        replace(read, overrides=made, has_all_overrides=True).to_json("run")
    )
    assert stored.overrides_with({40: Override(commit_ts=40, verb=SKIP)}) == made


def test_what_the_checkpoint_has_passed_counts_and_not_what_is_recorded_later() -> None:
    recorded = {ts: Override(commit_ts=ts, verb=SKIP) for ts in (10, 20, 30)}
    assert in_force(recorded, None, 20) == recorded
    assert in_force(recorded, {}, 20) == {30: recorded[30]}
    passed = {5: Override(commit_ts=5, verb=TRACK), 10: Override(commit_ts=10, verb=SKIP)}
    taken_back = {**recorded, 10: replace(recorded[10], ended_ts=15)}
    assert in_force(taken_back, passed, 20) == {
        5: passed[5], 10: taken_back[10], 30: recorded[30],
    }  # fmt: skip


@pytest.mark.fault("etcd is restored to what it was before a DDL")
@pytest.mark.parametrize(
    ("rules", "job", "is_same"),
    [
        (FENCED, JOBS[2], True),
        (FENCED, replace(JOBS[2], finished_ts=JOBS[2].finished_ts + 1), False),
        (FENCED, replace(JOBS[2], query="ALTER TABLE t ADD price INT"), False),
        (TIDB, replace(JOBS[2], start_ts=29, finished_ts=32, query="other words"), True),
        (TIDB, replace(JOBS[2], start_ts=31, finished_ts=32), False),
        (TIDB, replace(JOBS[2], start_ts=27, finished_ts=29), False),
    ],
)
def test_the_job_of_a_ddls_id_must_be_that_ddls(
    rules: StreamRules, job: DdlJob, is_same: bool
) -> None:
    history: Any = SimpleNamespace(rules=rules, place="etcd", get=lambda job_id: job)
    step = DdlStep(JOBS[2].finished_ts, job.id, JOBS[2].query)
    if is_same:
        assert asyncio.run(fetch_job(history, step)) == job
        return
    with pytest.raises(NeedsOperator) as caught:
        asyncio.run(fetch_job(history, step))
    assert caught.value.code is Code.DDL_HISTORY
    for each in (str(step.commit_ts), step.query, str(job.finished_ts), job.query):
        assert each in caught.value.problem


def test_a_ddl_of_another_history_stops_and_only_leaving_it_out_continues() -> None:
    other = replace(JOBS[2], id=77, query="ALTER TABLE t ADD price INT", schema_version=2)
    stream = Stream([*JOBS, other])
    with pytest.raises(NeedsOperator, match="price INT") as caught:
        stream.follow(other)
    assert "ddl skip" in caught.value.hint
    assert "ddl replace" not in caught.value.hint
    assert Stream([*JOBS, other], overrides=overridden(other, SKIP)).follow(other).run is None
