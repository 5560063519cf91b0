"""A TiDB's DDL jobs are read from whichever of its servers answers, all of them, each once."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.build import starting_point
from drainer.ddl.follower import fetch_job
from drainer.ddl.jobs import PAGE_JOBS, EtcdJobs, TidbJobs, open_job_source
from drainer.ddl.tidb_servers import GLOBAL_VERSION, SERVERS, StatusPorts, read_array
from drainer.planner import DdlStep
from drainer.schema.rules import FENCED, TIDB
from drainer.settings.config import DrainerConfig
from penstock.cluster.history import History
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.schema.model import TableInfo
from penstock.schema.tidb_json import table_to_json
from tests.kit.servers.authority import Authority
from tests.kit.tidb.status_port import StatusPort
from tests.kit.tidb.tidb_history import TidbHistory, ascending, failed
from tests.unit.drainer.test_schema import history

KINDS = ("pages", "capped", "limit")


def of(version: int, **more: Any) -> dict[str, Any]:
    """Return a job without a table."""
    binlog = {"SchemaVersion": version, "DBInfo": None, "TableInfo": None, "FinishedTS": version}
    return {"id": version, "type": 57, "schema_id": 2, "schema_name": "shop", "state": 6,
            "query": f"job {version}", "binlog": binlog, **more}  # fmt: skip


@pytest.fixture
def ports(etcd: Any) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(jobs: list[dict[str, Any]], knows: str = "pages", **more: Any) -> StatusPort:
            port = StatusPort(etcd, lambda: jobs, knows=knows, **more)
            return stack.enter_context(port)

        yield make


@pytest.mark.parametrize("knows", KINDS)
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 21, 57])
def test_all_history_is_read_whatever_the_server_knows_of_pages(
    etcd: Any, ports: Any, knows: str, count: int
) -> None:
    ports([of(n) for n in range(1, count + 1)], knows)
    source = TidbJobs(StatusPorts(etcd, None), page_jobs=10)
    assert [job.id for job in source.jobs()] == list(range(1, count + 1))
    assert [job.id for job in source.jobs(count - 3)] == list(range(max(1, count - 2), count + 1))


@pytest.mark.parametrize("knows", KINDS)
@pytest.mark.parametrize("wanted", [3, 30, 397, 700, 1499, 1500])
def test_one_job_is_found_and_one_that_is_not_there_is_not(
    etcd: Any, ports: Any, knows: str, wanted: int
) -> None:
    jobs = [of(n) for n in range(3, 1501) if n != 400]
    port = ports(jobs, knows)
    source = TidbJobs(StatusPorts(etcd, None))
    found = source.get(wanted)
    assert found is not None
    assert (found.id, found.query) == (wanted, f"job {wanted}")
    assert len(port.asked) == 1 or knows == "limit"
    assert source.get(400) is None
    assert source.get(1) is None
    assert source.get(1501) is None


def test_jobs_come_in_the_order_in_which_they_took_effect_with_all_that_left_a_version(
    etcd: Any, ports: Any
) -> None:
    ports([of(1, id=5), of(9, id=6), of(4, id=7, state=3), of(3, id=8), of(0, id=9, state=5)])
    jobs = TidbJobs(StatusPorts(etcd, None)).jobs()
    assert [(job.schema_version, job.id) for job in jobs] == [(1, 5), (3, 8), (4, 7), (9, 6)]
    assert len(jobs) == 4


def test_a_job_is_what_the_tidb_says_of_it(etcd: Any, ports: Any) -> None:
    shop = TidbHistory()
    shop.run("CREATE DATABASE Shop")
    made = shop.run("CREATE TABLE Shop.T (Id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x')")
    ports(ascending(shop.all))
    job = TidbJobs(StatusPorts(etcd, None)).get(made.fields["id"])
    assert job == made.job
    assert job is not None
    assert job.schema_name == "shop"
    assert job.table == shop.table("T")


@pytest.mark.fault(
    "one of three gone for good; one that fails, refuses, breaks off or is mute",
    "another one answers",
    cases="5",
)
def test_one_of_three_servers_gone_for_good_is_passed_over(etcd: Any, ports: Any) -> None:
    servers = [ports([of(1)]) for _ in range(3)]
    source = TidbJobs(StatusPorts(etcd, None))
    for gone in servers:
        gone.stop()
        assert source.get(1) is not None
        gone.start()
    servers[0].stop()
    asked = [len(each.asked) for each in servers]
    for _ in range(5):
        assert source.get(1) is not None
    assert sum(len(each.asked) for each in servers) == sum(asked) + 5


@pytest.mark.parametrize("fault", ["500", "refused", "cut", "mute"])
def test_a_server_that_cannot_answer_leaves_it_to_another_one(
    etcd: Any, ports: Any, fault: str
) -> None:
    servers = [ports([of(n) for n in range(1, 6)]) for _ in range(2)]
    source = TidbJobs(StatusPorts(etcd, None, timeout_s=0.3))
    servers[0].fault = servers[1].fault = fault
    with pytest.raises((Retryable, NeedsOperator)):
        source.jobs()
    servers[1].fault = ""
    for _ in range(3):
        # What began to answer and broke off is asked again by the caller: then it is another one.
        try:
            assert len(source.jobs()) == 5
        except Retryable:
            continue
        break
    assert len(source.jobs()) == 5


def test_what_every_server_refuses_is_for_an_operator(etcd: Any, ports: Any) -> None:
    ports([of(1)]).fault = "refused"
    with pytest.raises(NeedsOperator, match="Information schema is out of date"):
        TidbJobs(StatusPorts(etcd, None)).jobs()


def test_without_any_server_it_is_said_where_they_would_be_listed(etcd: Any) -> None:
    with pytest.raises(Retryable, match=r"no TiDB server is listed.*/tidb/server/info/"):
        TidbJobs(StatusPorts(etcd, None)).jobs()


def test_an_entry_that_is_no_server_is_named_and_passed_over(
    etcd: Any, ports: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ports([of(1)])
    etcd.put(f"{SERVERS}odd", "?")
    with caplog.at_level(logging.WARNING):
        assert TidbJobs(StatusPorts(etcd, None)).get(1) is not None
    assert f"{SERVERS}odd in etcd is no TiDB server" in caplog.text


def test_a_page_that_is_no_history_is_malformed(etcd: Any, ports: Any) -> None:
    port = ports([])
    source = TidbJobs(StatusPorts(etcd, None))
    for answer in (b'{"a": 1}', b"<html>", b'["job"]', b'[{"id": "one"}]', b"\xff\xff"):
        port.answer = lambda path, answer=answer: (200, answer)
        with pytest.raises(Malformed):
            source.jobs()


def test_servers_of_a_cluster_with_tls_are_asked_with_its_certificates(
    etcd: Any, ports: Any, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("tidb")
    ports([of(1)], pair=pair)
    assert TidbJobs(StatusPorts(etcd, pair.tls)).get(1) is not None
    foreign = Authority(tmp_path, "other").issue("foreign")
    for tls in (None, foreign.tls):
        with pytest.raises(Retryable, match=r"no TiDB server's status port answers: 127\.0\.0\.1"):
            TidbJobs(StatusPorts(etcd, tls)).get(1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers() | st.text(max_size=9) | st.dictionaries(st.text(max_size=3), st.text())),
    st.integers(1, 40),
    st.sampled_from([None, 1]),
)
def test_an_array_comes_element_by_element_however_it_is_cut(
    values: list[Any], size: int, indent: int | None
) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    assert list(read_array(Dripping(data, size), "x")) == values
    for cut in {len(data) // 2, len(data) - 1} - {0}:
        with pytest.raises((Retryable, Malformed)):
            list(read_array(Dripping(data[:cut], size), "x"))


class Dripping(io.BytesIO):
    """Gives out few bytes at once."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = None) -> bytes:
        return super().read(self._size)


@pytest.mark.fault("all status ports away at a DDL; the job comes late")
def test_a_ddl_waits_for_a_job_that_comes_late_and_says_so(etcd: Any, ports: Any) -> None:
    jobs: list[dict[str, Any]] = [of(1)]
    port = ports(jobs)
    said: list[str] = []

    def report(what: str) -> None:
        """Let all servers go away once it waits, and come back with the job after that."""
        said.append(what)
        if len(said) == 2:
            port.stop()
        if len(said) == 4:
            port.start()
            jobs.append(of(7))

    source, step = TidbJobs(StatusPorts(etcd, None)), DdlStep(6, 7, "CREATE TABLE t (a INT)")
    job = asyncio.run(fetch_job(source, step, absent_s_max=0.0, report=report))
    assert job.id == 7
    assert "job 7, which is not in the DDL history of the TiDB yet" in said[0]
    assert "no TiDB server's status port answers" in said[2]
    assert said[-1] == ""


def test_the_settings_say_whose_jobs_they_are(etcd: Any) -> None:
    own = open_job_source("", etcd, None)
    assert isinstance(own, EtcdJobs)
    assert own.rules is FENCED
    tidb = open_job_source("127.0.0.1:2379", etcd, None)
    assert tidb.rules is TIDB
    History(etcd).append(history()[0])
    assert [job.id for job in own.jobs()] == [history()[0].id]
    with pytest.raises(NeedsOperator, match="one stream has one source of schemas"):
        open_job_source("127.0.0.1:2379", etcd, None)


@pytest.mark.slow
@pytest.mark.parametrize(("knows", "questions"), [("pages", 10_000 // PAGE_JOBS + 1), ("limit", 3)])
def test_ten_thousand_jobs_are_read_once_and_kept_packed(
    etcd: Any, ports: Any, knows: str, questions: int
) -> None:
    shop = TidbHistory()
    shop.run("CREATE DATABASE Shop")
    columns = ", ".join(f"c{i} VARCHAR(20) NOT NULL DEFAULT 'x'" for i in range(10))
    made = shop.run(f"CREATE TABLE Shop.t (id BIGINT PRIMARY KEY, {columns})")
    binlog = made.fields["binlog"]
    jobs = [
        made.fields | {"id": n, "binlog": binlog | {"SchemaVersion": n}} for n in range(1, 10_001)
    ]
    port = ports(jobs, knows)
    found = TidbJobs(StatusPorts(etcd, None)).jobs()
    assert [found[0].id, found[-1].id, len(found)] == [1, 10_000, 10_000]
    assert found[5_000].table == made.job.table
    assert len(port.asked) == questions
    assert sum(map(len, found._packed)) < 20_000_000


def test_a_failed_job_is_given_out_to_who_asks_for_it(etcd: Any, ports: Any) -> None:
    shop = TidbHistory()
    shop.run("CREATE DATABASE Shop")
    lost = shop.run("CREATE TABLE Shop.t (a INT)", change=failed(5))
    ports(ascending(shop.all))
    source = TidbJobs(StatusPorts(etcd, None))
    job = source.get(lost.fields["id"])
    assert job is not None
    assert job.has_failed
    assert [each.has_failed for each in source.jobs()] == [False, True]


@pytest.mark.parametrize(
    ("setting", "begins", "asked"),
    [(-1, 99, ["present", "settled"]), (77, 77, ["settled"]), (0, 0, [])],
)
def test_a_drainer_without_a_checkpoint_begins_when_no_ddl_is_under_way(
    setting: int, begins: int, asked: list[str]
) -> None:
    called: list[str] = []

    def get_ts() -> int:
        called.append("present")
        return 99

    async def call(function: Any) -> Any:
        return function()

    components: Any = SimpleNamespace(
        thread=SimpleNamespace(call=call),
        sink=SimpleNamespace(load_checkpoint=lambda: None),
        oracle=SimpleNamespace(get_ts=get_ts),
        home=SimpleNamespace(downstream=lambda: ""),
    )
    source: Any = SimpleNamespace(check_settled=lambda: called.append("settled"))
    config = DrainerConfig(initial_commit_ts=setting)

    async def start() -> int:
        found = await starting_point(config, components, source, asyncio.Event())
        return found.commit_ts

    assert (asyncio.run(start()), called) == (begins, asked)


def test_a_beginning_at_the_present_waits_for_the_end_of_a_ddl_under_way(
    etcd: Any, ports: Any
) -> None:
    jobs = [of(n, id=100 - n) for n in range(1, 30)]
    jobs.sort(key=lambda job: job["id"])
    ports(jobs)
    source = TidbJobs(StatusPorts(etcd, None), page_jobs=5, listed_after_s=0)
    source.check_settled()
    etcd.put(GLOBAL_VERSION, "29")
    source.check_settled()
    etcd.put(GLOBAL_VERSION, "31")
    with pytest.raises(Retryable, match="its schema version is 31, and its history leads to 29"):
        source.check_settled()
    jobs.append(of(31, id=101, state=3))
    source.check_settled()


def test_a_table_s_jobs_are_read_back_to_an_earlier_one_of_it(etcd: Any, ports: Any) -> None:
    def on(table_id: int, version: int) -> dict[str, Any]:
        made = of(version)
        made["binlog"]["TableInfo"] = table_to_json(TableInfo(id=table_id, name="t"))
        return made

    jobs = [on(7 + n % 2, n) for n in range(1, 41)]
    for knows in KINDS:
        port = ports(jobs, knows)
        source = TidbJobs(StatusPorts(etcd, None), page_jobs=5)
        assert sorted(job.schema_version for job in source.jobs_of(7, 36)) == [38, 40]
        assert knows == "limit" or len(port.asked) == 1
        port.stop()


def test_a_table_of_now_is_asked_for_by_its_id(etcd: Any, ports: Any) -> None:
    port = ports([])
    table = TableInfo(id=7, name="t", comment="of now")
    port.tables[7] = table_to_json(table)
    etcd.put(GLOBAL_VERSION, "54")
    source = TidbJobs(StatusPorts(etcd, None), listed_after_s=0)
    assert source.table_now(7) == (54, table)
    assert source.table_now(8) == (54, None)
    port.fault = "cut"
    with pytest.raises(Retryable):
        source.table_now(7)
