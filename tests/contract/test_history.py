"""What every DDL history promises, in memory and in etcd."""

import threading
from dataclasses import replace

import pytest

from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import FIRST_ID, LOCK_KEY, Guard, History, together
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob, DdlType, TableInfo
from penstock.wire.binlog import Origin
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.wait import eventually, is_within


@pytest.fixture(params=["memory", "etcd"])
def history(request: pytest.FixtureRequest) -> History:
    if request.param == "memory":
        return History(MemoryEtcd())
    return History(request.getfixturevalue("etcd"))


def job(job_id: int, version: int) -> DdlJob:
    return DdlJob(
        id=job_id,
        type=DdlType.CREATE_TABLE,
        schema_id=2,
        schema_name="shop",
        query=f"create table t{job_id} (id int)",
        schema_version=version,
        table_id=job_id - 1,
        table=TableInfo(id=job_id - 1, name=f"t{job_id}"),
        finished_ts=version << 18,
    )


def test_an_empty_history_has_version_zero(history: History) -> None:
    assert history.schema_version() == 0
    assert history.jobs() == []
    assert history.get(1) is None


def test_a_job_reads_back_and_moves_the_version(history: History) -> None:
    history.append(job(103, 1))
    assert history.get(103) == job(103, 1)
    assert history.schema_version() == 1


def test_jobs_come_in_order_of_version_not_of_id(history: History) -> None:
    history.append(job(300, 1))
    history.append(job(20, 2))
    history.append(job(1000, 3))
    assert [j.id for j in history.jobs()] == [300, 20, 1000]
    assert [j.id for j in history.jobs(after_version=2)] == [1000]
    assert history.jobs(after_version=3) == []


@pytest.mark.etcd
def test_a_job_that_is_not_there_is_overtaken_once_a_later_one_is(etcd: EtcdClient) -> None:
    history = History(etcd)
    assert not history.is_overtaken(103)
    history.append(job(103, 1))
    assert not history.is_overtaken(103)
    assert not history.is_overtaken(104)
    history.append(job(105, 2))
    assert history.is_overtaken(104)
    assert not history.is_overtaken(103)
    assert not history.is_overtaken(106)


def test_appending_the_same_job_again_changes_nothing(history: History) -> None:
    history.append(job(103, 1))
    history.append(job(104, 2))
    history.append(job(103, 1))
    assert [j.id for j in history.jobs()] == [103, 104]


def test_another_job_under_a_taken_id_is_refused(history: History) -> None:
    history.append(job(103, 1))
    with pytest.raises(NeedsOperator):
        history.append(replace(job(103, 2), query="drop table t"))
    assert history.get(103) == job(103, 1)


@pytest.mark.fault(
    "a Pump rolls a DDL back while its writer records it",
    "one of the two fails, in etcd",
    cases="2 + 2",
)
@pytest.mark.etcd
def test_a_job_is_recorded_or_rolled_back_and_never_both(etcd: EtcdClient) -> None:
    history = History(etcd)
    history.append(job(103, 1))
    assert history.roll_back(103) == job(103, 1)
    assert history.roll_back(104) is None
    with pytest.raises(Retryable, match="rolled back by a Pump") as caught:
        history.append(job(104, 2))
    assert caught.value.code is Code.DDL_ROLLED_BACK
    assert (history.get(104), history.schema_version()) == (None, 1)
    assert (history.is_rolled_back(103), history.is_rolled_back(104)) == (False, True)
    history.append(job(103, 1))
    history.append(job(105, 2))


def test_jobs_that_are_appended_together_are_recorded_all_or_none(history: History) -> None:
    origins = [Origin(source="a", epoch=1, file=0, position=at) for at in (1, 2)]
    first = [replace(job(103 + at, 1 + at), origin=origin) for at, origin in enumerate(origins)]
    history.append(*first)
    history.append(*first)
    assert (history.jobs(), history.schema_version()) == (first, 2)
    assert history.last_origin("a") == origins[1]
    history.roll_back(106)
    with pytest.raises(Retryable, match="DDL job 106 was rolled back by a Pump"):
        history.append(job(105, 3), job(106, 4))
    with pytest.raises(Retryable, match="the lock or the version moved on"):
        history.append(job(107, 2), job(108, 3))
    assert (history.jobs(), history.schema_version()) == (first, 2)
    history.append(job(105, 3), job(107, 4))
    assert [each.id for each in history.jobs(after_version=2)] == [105, 107]


def test_jobs_are_divided_into_runs_that_etcd_takes_in_one_request(history: History) -> None:
    small = [job(1000 + version, version) for version in range(1, 121)]
    wide = [replace(job(2000 + n, 120 + n), query="x" * 200_000) for n in range(1, 6)]
    runs = list(together([*small, *wide]))
    assert [each for run in runs for each in run] == [*small, *wide]
    assert [len(run) for run in runs] == [50, 50, 22, 2, 1]
    for run in runs:
        history.append(*run)
    assert len(history.jobs()) == 125
    assert list(together([])) == []


def test_ids_are_not_below_the_least(history: History) -> None:
    assert history.next_ids(1, least=5000) == 5000
    assert history.next_ids(2, least=4000) == 5001
    assert history.next_ids(1) == 5003


def test_a_version_that_was_reached_before_is_refused(history: History) -> None:
    history.append(job(103, 2))
    for version in (1, 2):
        with pytest.raises(Retryable):
            history.append(job(104, version))
    assert history.schema_version() == 2


def test_the_origin_of_a_sources_last_job_is_known(history: History) -> None:
    first, last = (Origin(source="a/b", epoch=1, file=7, position=at, gtid="ü") for at in (4, 99))
    assert history.last_origin("a/b") is None
    history.append(replace(job(103, 1), origin=first))
    history.append(replace(job(104, 2), origin=last))
    history.append(replace(job(105, 3), origin=Origin(source="c", epoch=9, file=9, position=9)))
    history.append(job(106, 4))
    assert history.last_origin("a/b") == last
    assert history.last_origin("a") is None
    assert history.jobs()[0].origin == first


def test_a_job_whose_guard_is_gone_is_not_recorded(history: History) -> None:
    with history.lock("a") as lock:
        old = lock.guard
    with history.lock("b") as lock:
        with pytest.raises(Retryable):
            history.append(job(103, 1), guards=[old])
        history.append(job(103, 1), guards=[lock.guard])
    with pytest.raises(Retryable):
        history.append(job(104, 2), guards=[Guard(LOCK_KEY, 1 << 40)])
    assert history.schema_version() == 1


def test_a_watch_reports_old_and_new_jobs_once_in_order(history: History) -> None:
    for version in (1, 2, 3):
        history.append(job(100 + version, version))
    versions: list[int] = []
    watch = history.watch(lambda j: versions.append(j.schema_version), after_version=1)
    assert versions == [2, 3]
    history.append(job(50, 4))
    history.append(job(200, 5))
    eventually(lambda: len(versions) >= 4)
    watch.cancel()
    assert versions == [2, 3, 4, 5]


def test_the_lock_is_held_by_one_at_a_time(history: History) -> None:
    inside, most = 0, 0
    all_of_them = threading.Barrier(5)

    def work(holder: str) -> None:
        nonlocal inside, most
        all_of_them.wait(10)
        with history.lock(holder):
            inside += 1
            most = max(most, inside)
            eventually(lambda: all(map(has_tried, threads)))
            inside -= 1

    def has_tried(thread: threading.Thread) -> bool:
        is_here = thread is threading.current_thread()
        return is_here or is_within(thread, "lock") or not thread.is_alive()

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_waiting_for_the_lock_ends_with_retryable(history: History) -> None:
    with (
        history.lock("a") as lock,
        pytest.raises(Retryable, match="holds the DDL lock"),
        history.lock("b", wait_s_max=0.1),
    ):
        pass
    assert lock.guard.key == LOCK_KEY


def test_ids_are_never_given_twice(history: History) -> None:
    assert history.next_ids(3) == FIRST_ID
    assert history.next_ids(1) == FIRST_ID + 3
    firsts: list[int] = []
    threads = [
        threading.Thread(target=lambda: firsts.extend(history.next_ids(2) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == list(range(FIRST_ID + 4, FIRST_ID + 84, 2))
