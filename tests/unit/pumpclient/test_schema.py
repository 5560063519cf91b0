from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.history import History
from penstock.codes import Code
from penstock.ddl import plan_ddl
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import DdlJob
from pumpclient.schema import Schemas, split_name
from tests.kit.fakes.etcd import MemoryEtcd
from tests.unit.penstock.ddl_session import DdlSession


@pytest.mark.parametrize(
    ("name", "schema", "parts"),
    [
        ("t", "db", ("db", "t")),
        ("db.t", None, ("db", "t")),
        ("db.t", "other", ("db", "t")),
        ("`db`.`t.x`", None, ("db", "t.x")),
        ("`a``b`", "db", ("db", "a`b")),
        ("db.`t`", None, ("db", "t")),
    ],
)
def test_a_table_is_named_with_or_without_its_schema(
    name: str, schema: str | None, parts: tuple[str, str]
) -> None:
    assert split_name(name, schema) == parts


@pytest.mark.parametrize("name", ["t", "", "a.b.c", ".t", "db."])
def test_what_names_no_table_is_refused(name: str) -> None:
    with pytest.raises(NeedsOperator, match="names no table"):
        split_name(name, None)


class CountingEtcd(MemoryEtcd):
    read_count = 0

    def Range(self, request: Any, timeout_s: float, metadata: Any) -> Any:  # noqa: N802
        answer = super().Range(request, timeout_s, metadata)
        self.read_count += len(answer.kvs)
        return answer


def recorded(*statements: str) -> History:
    history = History(MemoryEtcd())
    for job in DdlSession(*statements).history:
        history.append(job)
    return history


def test_a_mistyped_table_and_an_unreadable_ddl_are_mistakes_of_the_program() -> None:
    schemas = Schemas(recorded("CREATE TABLE goods (a INT)"))
    with pytest.raises(Malformed, match=r"no table d.good .did you mean d.goods") as caught:
        schemas.table("d", "good")
    assert caught.value.code is Code.ROW_REFUSED
    for sql in ("CREATE TABLE d.t (a INT, ", "CREATE TABLE `d"):
        with pytest.raises(Malformed) as unreadable:
            plan_ddl(sql, "d", schemas.catalog(), lambda: 1)
        assert unreadable.value.code is Code.DDL_UNREADABLE, sql


@pytest.mark.parametrize("count", [10, 1_000])
def test_a_ddl_costs_an_idle_writer_the_same_after_any_history(count: int) -> None:
    etcd = CountingEtcd()
    history, session = History(etcd), DdlSession("CREATE TABLE t (a INT)")
    for _ in range(count // 2):
        session.run("ALTER TABLE t ADD b INT", "ALTER TABLE t DROP COLUMN b")
    for job in session.history:
        history.append(job)
    schemas = Schemas(history)
    schemas.confirm(session.catalog.version)
    (last,) = session.run("ALTER TABLE t ADD c INT")
    history.append(last)
    etcd.read_count = 0
    schemas.confirm(last.schema_version)
    assert etcd.read_count == len(["the last known job", "the version", "the new job"])
    assert [c.name for c in schemas.table("d", "t").info.columns] == ["a", "c"]


@given(
    ids=st.lists(st.integers(1, 99), min_size=1, max_size=12, unique=True),
    known=st.integers(1, 12),
    step=st.integers(1, 2),
)
def test_later_jobs_are_complete_whatever_the_order_of_their_ids(
    ids: list[int], known: int, step: int
) -> None:
    jobs = [
        DdlJob(id=each, type=49, schema_id=1, schema_name="d", query="", schema_version=at * step)
        for at, each in enumerate(ids, 1)
    ]
    history = History(MemoryEtcd())
    for job in jobs:
        history.append(job)
    known = min(known, len(jobs))
    assert history.jobs(known * step, ids[known - 1]) == jobs[known:]


def test_a_writer_that_knows_a_ddl_which_etcd_has_lost_writes_nothing() -> None:
    full = recorded("CREATE TABLE t (a INT)", "ALTER TABLE t ADD b INT")
    schemas = Schemas(full)
    schemas.confirm(3)
    schemas.confirm(3)
    for restored in (
        recorded("CREATE TABLE t (a INT)"),
        recorded("CREATE TABLE t (a INT)", "ALTER TABLE t ADD price INT"),
    ):
        schemas._history = restored
        with pytest.raises(NeedsOperator, match="ADD b INT") as caught:
            schemas.confirm(restored.schema_version())
        assert caught.value.code is Code.DDL_HISTORY
        with pytest.raises(NeedsOperator, match="ADD b INT"):
            schemas.catalog()
