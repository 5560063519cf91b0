"""A few small rows, which go to a task as JSON, become the SQL and the messages of columns."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.task import held_unit, work_unit
from drainer.task.events.event_unit import (
    CANAL_JSON,
    DEBEZIUM,
    FEW_MAGIC,
    MAXWELL,
    TIDB_BINLOG,
    TIDB_BINLOG_FILE,
    Encoding,
    encoded_units,
)
from drainer.task.events.messages import Message, Messages
from drainer.task.sql.literals import MYSQL, SQLITE
from drainer.task.work_unit import Batch, TableRows
from penstock.errors import Malformed
from tests.kit.workloads.changes import CASES, Case, Upstream, histories, play

FORMATS = (CANAL_JSON, DEBEZIUM, MAXWELL, TIDB_BINLOG, TIDB_BINLOG_FILE)
SLOW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def batches(case: Case, data: st.DataObject) -> list[Batch]:
    """Return a history of two tables of one case, in transactions of three changes or fewer."""
    displaces = data.draw(st.booleans())
    made = []
    upstreams = [Upstream(case.table) for _ in range(2)]
    for steps in data.draw(histories(case, 30)):
        tables = []
        for number, upstream in enumerate(upstreams):
            changes = play(case, upstream, steps[number::2])
            rows = pa.array([row for _, row in changes], pa.binary())
            numbers = np.arange(len(changes), dtype=np.int32) // 3
            kinds = bytes(kind for kind, _ in changes)
            named = case.table.renamed(f"t'{number}")
            tables.append(TableRows("a`b", named, kinds, rows, numbers))
        stamps = [(471 << 50) + number for number in range(10)]
        made.append(Batch(1, tables, displaces, commit_ts=stamps[:1] if displaces else stamps))
    if displaces:  # It is a slice of one transaction.
        for batch in made:
            for table in batch.tables:
                table.transactions[:] = 0
    return made


def both(make: Any) -> tuple[Any, Any]:
    """Return what `make` makes of a few rows, and of the same rows as columns."""
    few = make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_unit, "FEW", 0)
        return few, make()


@pytest.mark.parametrize("case", CASES, ids=str)
@SLOW
@given(data=st.data())
def test_a_few_rows_become_the_sql_of_columns(case: Case, data: st.DataObject) -> None:
    dialect = data.draw(st.sampled_from([MYSQL, SQLITE]))
    for batch in batches(case, data):
        if not sum(len(each.rows) for each in batch.tables):
            continue
        few, columns = both(lambda batch=batch: held_unit.held_unit(batch, dialect))
        assert few != columns
        made = held_unit.answered(held_unit.answer(few))
        assert made == held_unit.answered(held_unit.answer(columns))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=str)
@SLOW
@given(data=st.data())
def test_a_few_rows_become_the_messages_of_columns(
    case: Case, format_: str, data: st.DataObject
) -> None:
    encoding = Encoding(format_, topic="{schema}.{table}", partition="key")
    for batch in batches(case, data):
        few, columns = both(lambda batch=batch: encoded_units(batch, encoding, 1))
        assert all(unit.startswith(FEW_MAGIC) for unit in few)
        sent = [Messages.decode(held_unit.answer(unit)) for unit in few]
        expected = [Messages.decode(held_unit.answer(unit)) for unit in columns]
        assert [each for messages in sent for each in messages] == [
            each for messages in expected for each in messages
        ]


@given(st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary(), st.text()), min_size=1))
def test_a_few_messages_have_the_same_columns_as_many(
    drawn: list[tuple[bytes | None, bytes | None, str]],
) -> None:
    headers = (("whole", b"\xff\0"), ("é", b""))
    made = [Message(value, key, to, headers[: len(to)]) for value, key, to in drawn]
    stamps = [2**64 - 1 - len(made) + at for at in range(len(made))]
    few = Messages.at(stamps, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drainer.task.events.messages.FEW", 0)
        columns = Messages.at(stamps, made)
    for messages in (
        few,
        columns,
        Messages.decode(few.encode()),
        Messages.decode(columns.encode()),
    ):
        assert list(messages) == list(zip(stamps, made, strict=True))
        assert messages.commit_ts.tolist() == stamps
        assert messages.destinations() == columns.destinations()
        whole, ends = messages.joined()
        assert bytes(whole) == b"".join(each.value or b"" for each in made)
        assert messages.value_bytes == len(whole)
        assert ends.tolist() == np.cumsum([len(each.value or b"") for each in made]).tolist()


def test_no_message_is_sent_and_has_empty_columns() -> None:
    none = Messages.decode(Messages.of(()).encode())
    assert (len(none), list(none), none.destinations()) == (0, [], [])
    assert (len(none.commit_ts), len(none.joined()[0]), len(none.joined()[1])) == (0, 0, 0)


@pytest.mark.parametrize("rows", [99, 100])
@pytest.mark.parametrize("size", [1, 1000])
def test_many_rows_and_large_rows_are_sent_as_columns(rows: int, size: int) -> None:
    case = CASES[0]
    upstream = Upstream(case.table)
    upstream.insert(tuple(values[-1] for values in case.values))
    (_, row) = upstream.changes[0]
    data = pa.array([row + bytes(size)] * rows, pa.binary())
    table = TableRows("s", case.table, bytes(rows), data, np.zeros(rows, np.int32))
    batch = Batch(1, [table], commit_ts=[1])
    (unit,) = encoded_units(batch, Encoding(CANAL_JSON), 1)
    assert unit.startswith(FEW_MAGIC) == (rows == 99 and size == 1)


@given(st.binary(max_size=60))
def test_a_few_rows_from_elsewhere_are_refused(data: bytes) -> None:
    for magic in (FEW_MAGIC, b"PSTBAFEW"):
        for content in (data, json.dumps({"tables": "x" + data.hex()}).encode()):
            with pytest.raises(Malformed):
                held_unit.answer(magic + content)
    with pytest.raises(Malformed):
        Messages.decode(b"PSTMSFEW" + data)
