"""A writer does not continue where a restored etcd lacks a DDL of the stream."""

import logging
from collections.abc import Callable, Iterator

import pytest

from penstock.cluster.history import History, has_drawn
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.pb import penstock_pb2
from penstock.schema.model import DdlJob, DdlType, SchemaInfo
from pumpclient.ddl import LostDdl
from pumpclient.delivery.pump_set import Pumps
from pumpclient.delivery.selector import Selector
from pumpclient.options import Options
from pumpclient.schema import Schemas
from tests.kit.fakes.etcd import MemoryEtcd
from tests.unit.pumpclient.scripted_pump import ScriptedPump

NOW_MS = 1_764_000_000_000
Answers = dict[str, penstock_pb2.StatusReply | str]


def job(number: int) -> DdlJob:
    return DdlJob(
        id=NOW_MS + number,
        type=DdlType.CREATE_SCHEMA,
        schema_id=NOW_MS + number - 1,
        schema_name=f"s{number}",
        query=f"CREATE DATABASE s{number}",
        schema_version=number,
        schema=SchemaInfo(id=NOW_MS + number - 1, name=f"s{number}"),
        finished_ts=(NOW_MS + 10 + number) << 18,
    )


def holds(ddl: DdlJob | None = None) -> penstock_pb2.StatusReply:
    if ddl is None:
        return penstock_pb2.StatusReply(newest_ddl=penstock_pb2.NewestDdl())
    newest = penstock_pb2.NewestDdl(job_id=ddl.id, commit_ts=ddl.finished_ts, query=ddl.query)
    return penstock_pb2.StatusReply(newest_ddl=newest)


def recorded(*numbers: int) -> History:
    history = History(MemoryEtcd())
    for number in numbers:
        history.append(job(number))
    return history


def refusal(answers: Answers, history: History) -> NeedsOperator:
    with pytest.raises(NeedsOperator) as caught:
        LostDdl(lambda: answers, history).refuse()
    assert caught.value.code is Code.DDL_HISTORY
    return caught.value


@pytest.mark.fault("etcd is restored to what it was before a DDL")
def test_a_ddl_of_the_stream_that_the_history_lacks_is_named_with_both_ends() -> None:
    found = refusal({"pump-1": holds(job(1)), "pump-2": holds(job(2))}, recorded(1))
    assert f"pump pump-2 has DDL job {job(2).id}, 'CREATE DATABASE s2'" in found.problem
    assert f"ends with job {job(1).id}, 'CREATE DATABASE s1'" in found.problem
    assert f"penstock ctl lost-ddl {job(2).id}`" in found.hint
    empty = refusal({"pump-1": holds(job(2))}, recorded())
    assert "the DDL history in etcd is empty" in empty.problem


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"pump-1": holds(), "pump-2": holds()},
        {"pump-1": holds(job(1)), "pump-2": holds(job(2))},
        {"pump-1": holds(job(2)), "pump-2": "connection refused"},
        {"pump-1": penstock_pb2.StatusReply()},
    ],
)
def test_a_history_with_the_newest_ddl_is_taken(answers: Answers) -> None:
    LostDdl(lambda: answers, recorded(1, 2)).refuse()


def test_an_older_ddl_that_was_lost_before_a_newer_one_ran_stops_nobody() -> None:
    LostDdl(lambda: {"pump-1": holds(job(1)), "pump-2": holds(job(3))}, recorded(2, 3)).refuse()


def test_a_ddl_that_an_operator_gave_up_stops_nobody() -> None:
    history = recorded(1)
    history.roll_back(job(2).id)
    LostDdl(lambda: {"pump-1": holds(job(2))}, history).refuse()


def test_ddl_of_a_tidb_is_not_looked_for() -> None:
    commit_ts = NOW_MS << 18
    assert not has_drawn(4711, commit_ts)
    assert has_drawn(NOW_MS - 1000, commit_ts)
    ddl = penstock_pb2.NewestDdl(job_id=4711, commit_ts=commit_ts)
    LostDdl(lambda: {"pump-1": penstock_pb2.StatusReply(newest_ddl=ddl)}, recorded()).refuse()


def test_pumps_that_cannot_be_compared_are_logged_once_and_again_after_they_could(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Answers = {"pump-1": "connection refused", "pump-2": penstock_pb2.StatusReply()}
    lost = LostDdl(lambda: answers, recorded())
    with caplog.at_level(logging.WARNING):
        lost.refuse()
        lost.refuse()
        assert len(caplog.messages) == 2
        answers["pump-1"] = holds()
        lost.refuse()
        answers["pump-1"] = "connection refused"
        lost.refuse()
    assert [text.split(":")[0].split()[-1] for text in caplog.messages] == [
        "pump-1",
        "pump-2",
        "pump-1",
    ]


def test_a_writer_of_rows_is_stopped_before_its_first_transaction_until_it_is_decided() -> None:
    asked: list[int] = []

    def answers() -> Answers:
        asked.append(1)
        return {"pump-1": holds(job(2))}

    history = recorded(1)
    schemas = Schemas(history, LostDdl(answers, history).refuse_at_first)
    for _ in range(2):
        with pytest.raises(NeedsOperator, match="has DDL job"):
            schemas.confirm(1)
    history.roll_back(job(2).id)
    schemas.confirm(1)
    schemas.confirm(1)
    assert len(asked) == 3


@pytest.fixture
def scripted() -> Iterator[Callable[[str], ScriptedPump]]:
    made: list[ScriptedPump] = []

    def pump(name: str) -> ScriptedPump:
        made.append(ScriptedPump(name))
        return made[-1]

    yield pump
    for each in made:
        each.stop()


def test_all_pumps_that_are_online_are_asked(scripted: Callable[[str], ScriptedPump]) -> None:
    first, other = scripted("pump-1"), scripted("stranger")
    pumps = Pumps(7, Selector("range"), Options())
    addresses = {
        "pump-1": (first.address, NodeState.ONLINE),
        "pump-2": (other.address, NodeState.ONLINE),
        "pump-3": ("127.0.0.1:1", NodeState.ONLINE),
        "pump-4": ("127.0.0.1:1", NodeState.PAUSED),
    }
    try:
        pumps.follow(
            [
                NodeStatus(node_id=name, host=address, state=state)
                for name, (address, state) in addresses.items()
            ]
        )
        found = pumps.statuses()
    finally:
        pumps.close(1)
    assert found.keys() == {"pump-1", "pump-2", "pump-3"}
    assert isinstance(found["pump-1"], penstock_pb2.StatusReply)
    assert "now is stranger" in str(found["pump-2"])
    assert isinstance(found["pump-3"], str)
