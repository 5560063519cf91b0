"""Many DDL statements share a lock, a fence and transactions of etcd, and each is done once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pytest

from penstock.cluster.fence import PENDING_KEY, DdlFence
from penstock.cluster.history import History
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, Origin
from penstock.wire.codec import decode_binlog
from pumpclient.ddl import DdlExecutor, LostDdl
from pumpclient.delivery.payload import Payload
from pumpclient.schema import Schemas
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.fakes.oracle import MemoryOracle

T = TypeVar("T")


class CountingEtcd(MemoryEtcd):
    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def call(self, work: Callable[[], T], *, may_be_late: bool = False) -> T:
        self.requests += 1
        return super().call(work, may_be_late=may_be_late)


class Writer:
    """A client's executor of DDL, with a Pump that only notes what it is sent."""

    def __init__(self, etcd: MemoryEtcd) -> None:
        self.history = History(etcd)
        self.oracle = MemoryOracle()
        self.schemas = Schemas(self.history)
        self.prewrites: list[Binlog] = []
        self.commits: list[Binlog] = []
        self.undone: list[int] = []
        lost = LostDdl(dict, self.history)
        self.ddl = DdlExecutor(cast("Any", self), self.history, DdlFence(etcd), lost, "w")

    @contextmanager
    def prewritten(self, payload: Payload) -> Iterator[None]:
        self.prewrites.append(decode_binlog(payload.data))
        try:
            yield
        except Exception:
            self.undone.append(payload.start_ts)
            raise

    def commit(self, home: None, commit: Binlog, **more: object) -> None:
        self.commits.append(commit)

    def sent(self) -> list[Binlog]:
        return sorted(self.prewrites, key=lambda binlog: binlog.start_ts)

    def tables(self) -> list[str]:
        return [table.name for _, table in self.schemas.catalog().tables("d")]


@pytest.fixture
def etcd() -> CountingEtcd:
    return CountingEtcd()


@pytest.fixture
def writer(etcd: CountingEtcd) -> Writer:
    made = Writer(etcd)
    made.ddl.execute([("CREATE DATABASE d", None)])
    return made


def origin(position: int) -> Origin:
    return Origin(source="s", epoch=1, file=0, position=position)


def creates(*numbers: int) -> list[tuple[str, Origin | None]]:
    return [(f"CREATE TABLE d.t{n} (id INT PRIMARY KEY)", origin(n)) for n in numbers]


def test_a_hundred_statements_take_two_requests_of_etcd_more_than_one(
    etcd: CountingEtcd, writer: Writer
) -> None:
    def requests_of(*numbers: int) -> int:
        before = etcd.requests
        assert len(writer.ddl.execute(creates(*numbers))) == len(numbers)
        return etcd.requests - before

    one = requests_of(1)
    # The history is recorded by one transaction more, and it reads the version before it.
    assert requests_of(*range(2, 102)) == one + 2


def test_all_are_prewritten_before_their_commits_have_timestamps_in_order(writer: Writer) -> None:
    finished = writer.ddl.execute(creates(*range(1, 41)))
    prewrites, commits = writer.sent()[1:], writer.commits[1:]
    assert len(prewrites) == 40
    assert [binlog.start_ts for binlog in prewrites] == [binlog.start_ts for binlog in commits]
    assert finished == sorted(set(finished)) == [binlog.commit_ts for binlog in commits]
    assert max(binlog.start_ts for binlog in prewrites) < finished[0]
    jobs = writer.history.jobs()[1:]
    assert [job.finished_ts for job in jobs] == finished
    assert [job.id for job in jobs] == [binlog.ddl_job_id for binlog in prewrites]
    assert [job.origin for job in jobs] == [binlog.origin for binlog in prewrites]


def test_the_fence_is_up_for_the_first_and_the_last_of_them(
    etcd: CountingEtcd, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, fences = History.append, []

    def noting(self: History, *jobs: DdlJob, **more: Any) -> None:
        fences.append(etcd.keys[PENDING_KEY])
        append(self, *jobs, **more)

    monkeypatch.setattr(History, "append", noting)
    writer.ddl.execute(creates(*range(1, 101)))
    assert len(fences) == 2
    assert fences[0] == fences[1]
    assert fences[0].value.split()[0] == b"101"
    assert PENDING_KEY not in etcd.keys


def test_one_statement_that_cannot_be_done_leaves_all_undone(writer: Writer) -> None:
    statements = [*creates(1, 2), ("ALTER TABLE d.absent ADD COLUMN a INT", None)]
    with pytest.raises(NeedsOperator, match="absent"):
        writer.ddl.execute(statements)
    assert writer.tables() == []
    assert len(writer.prewrites) == 1


def test_a_statement_may_build_on_one_before_it(writer: Writer) -> None:
    add = ("ALTER TABLE d.t1 ADD COLUMN a INT", origin(2))
    writer.ddl.execute([*creates(1), add])
    (found,) = writer.schemas.catalog().tables("d")
    assert [column.name for column in found[1].columns] == ["id", "a"]


@pytest.mark.fault(
    "the history refuses the second of two runs of DDL that share a fence",
    "the first run is done, the second is rolled back; asked again, only that is done",
    cases="1",
)
def test_what_was_recorded_before_a_failure_is_not_done_again(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, runs = History.append, []

    def refusing(self: History, *jobs: DdlJob, **more: Any) -> None:
        runs.append(len(jobs))
        if len(runs) == 2:
            raise Retryable("not recorded", Code.DDL_ROLLED_BACK)
        append(self, *jobs, **more)

    statements = creates(*range(1, 71))
    with monkeypatch.context() as patched:
        patched.setattr(History, "append", refusing)
        with pytest.raises(Retryable, match="not recorded"):
            writer.ddl.execute(statements)
    assert runs == [50, 20]
    assert sorted(writer.undone) == [binlog.start_ts for binlog in writer.sent()[51:]]
    assert writer.tables() == [f"t{n}" for n in range(1, 51)]
    assert len(writer.ddl.execute(statements)) == 20
    assert writer.tables() == [f"t{n}" for n in range(1, 71)]
