"""What every sink promises about a batch that takes several transactions."""

import contextlib
import threading
from typing import Any

import pymysql
import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import ForeignKey, InDoubt, RowStatement, Split, Transaction
from penstock.errors import NeedsOperator
from tests.contract.test_sink import SERVERS, Downstream, Shop, downstream, shop

__all__ = ["downstream", "shop"]  # Fixtures.

START = Checkpoint(7, 0)


def statement(downstream: Downstream, verb: str, row: int) -> RowStatement:
    table = downstream.table("t")
    sql = {
        "insert": f"INSERT INTO {table} VALUES ({row},{row})",
        "replace": f"REPLACE INTO {table} VALUES ({row},{row})",
        "update": f"UPDATE {table} SET v = {row} WHERE id = {row}",
        "delete": f"DELETE FROM {table} WHERE id = {row}",
        "too long": f"INSERT INTO {table} VALUES ({row},{1 << 40})",
        "too many": f"INSERT INTO {table} (id, w) VALUES ({row},1)",
    }[verb]
    return RowStatement(sql.encode(), f"shop.t id = {row}")


def inserts(downstream: Downstream, *rows: int) -> Transaction:
    return [statement(downstream, "insert", row) for row in rows]


def test_queues_and_the_last_transaction_arrive_with_the_checkpoint(shop: Shop) -> None:
    downstream, sink = shop
    point = downstream.point()
    queues = [[inserts(downstream, i), inserts(downstream, i + 1)] for i in range(0, 20, 2)]
    assert not sink.apply_split(
        Split(queues, inserts(downstream, 20), safe=False), point, START
    ).count
    assert downstream.ids() == list(range(21))
    stored = downstream.open().load_checkpoint()
    assert stored == point
    assert not stored.is_between


def test_a_queue_that_fails_names_its_row_and_leaves_a_checkpoint_that_says_in_between(
    shop: Shop,
) -> None:
    downstream, sink = shop
    before = downstream.add(sink, 5)
    point = downstream.point()
    queues = [[inserts(downstream, 1)], [inserts(downstream, 5)]]
    with pytest.raises(NeedsOperator, match=r"shop\.t id = 5"):
        sink.apply_split(Split(queues, inserts(downstream, 6), safe=False), point, START)
    stored = downstream.open().load_checkpoint()
    assert stored is not None
    assert (stored.commit_ts, stored.applying_ts) == (before.commit_ts, point.commit_ts)
    assert stored.is_between
    assert not stored.consistent
    assert 6 not in downstream.ids()


def test_in_between_stays_on_record_until_it_is_passed(shop: Shop) -> None:
    downstream, sink = shop
    point = downstream.point()
    failing = Split([[inserts(downstream, 1, 1)]], [], safe=False)
    far = Checkpoint(point.commit_ts + 10, 1)
    with pytest.raises(NeedsOperator):
        sink.apply_split(failing, far, START)
    next_run = downstream.open()
    next_run.load_checkpoint()
    next_run.save_checkpoint(Checkpoint(point.commit_ts + 1, 1, consistent=True))
    stored = downstream.open().load_checkpoint()
    assert stored == Checkpoint(point.commit_ts + 1, 1, applying_ts=far.commit_ts)
    next_run.save_checkpoint(Checkpoint(far.commit_ts, 1, consistent=True))
    assert downstream.open().load_checkpoint() == Checkpoint(far.commit_ts, 1, consistent=True)


def test_a_fresh_downstream_says_where_it_started(downstream: Downstream) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    missing = RowStatement(b"DELETE FROM nowhere.at_all", "nowhere")
    with pytest.raises(NeedsOperator):
        sink.apply_split(Split([[[missing]]], [], safe=False), Checkpoint(9, 1), START)
    assert downstream.open().load_checkpoint() == Checkpoint(7, 0, applying_ts=9)


@pytest.mark.fault(
    "a row is deleted downstream by hand",
    "counted, named in the log; not in safe mode",
    cases="2 + 1",
)
def test_rows_that_are_not_there_are_counted_and_named_but_not_in_the_safe_form(shop: Shop) -> None:
    downstream, sink = shop
    downstream.add(sink, 1)
    gone = [statement(downstream, verb, row) for verb in ("update", "delete") for row in (8, 9)]
    # An update that changes nothing has found its row all the same.
    found = statement(downstream, "update", 1)
    split = Split([[[gone[0], found]], [[gone[1]]]], [*gone[2:], found], safe=False)
    missed = sink.apply_split(split, downstream.point(), START)
    assert (missed.count, sorted(set(missed.examples))) == (4, ["shop.t id = 8", "shop.t id = 9"])
    split = Split([[gone]], gone, safe=True)
    assert not sink.apply_split(split, downstream.point(), START).count


def test_another_drainer_that_takes_over_stops_the_queues_of_the_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    downstream, sink = shop
    second = downstream.open()
    begin = sink._commit  # type: ignore[attr-defined]

    def overtaken(*arguments: Any) -> None:
        begin(*arguments)
        second.load_checkpoint()
        second.save_checkpoint(arguments[-1])

    monkeypatch.setattr(sink, "_commit", overtaken)
    queues = [[inserts(downstream, 1)], [inserts(downstream, 2)]]
    with pytest.raises(NeedsOperator, match="another Drainer"):
        sink.apply_split(Split(queues, [], safe=False), downstream.point(), START)
    assert downstream.ids() == []


# --- MySQL alone ---------------------------------------------------------------------------


on_mysql = pytest.mark.parametrize("downstream", SERVERS, indirect=True)


@pytest.mark.fault(
    "a queue's commit gets no answer", "in doubt; run again in the safe form", cases="1"
)
@on_mysql
def test_a_commit_without_an_answer_is_in_doubt_unless_it_is_safe(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    downstream, sink = shop
    commit = pymysql.connections.Connection.commit
    broken: list[bool] = []

    def breaks(connection: Any) -> None:
        commit(connection)
        if threading.current_thread().name.startswith("queue") and not broken:
            broken.append(True)
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(pymysql.connections.Connection, "commit", breaks)
    point = downstream.point()
    with pytest.raises(InDoubt):
        sink.apply_split(Split([[inserts(downstream, 1)]], [], safe=False), point, START)
    again = Split([[[statement(downstream, "replace", 1)]]], [], safe=True)
    broken.clear()
    sink.apply_split(again, point, START)
    assert broken == [True]
    assert downstream.ids() == [1]


@on_mysql
def test_foreign_keys_are_read_again_after_a_ddl(shop: Shop) -> None:
    downstream, sink = shop
    assert sink.foreign_keys() == ()
    assert sink.foreign_keys() is sink.foreign_keys()
    downstream.ddl(
        sink,
        "CREATE TABLE p (a INT, b INT, PRIMARY KEY (a, b))",
        "CREATE TABLE c (id INT PRIMARY KEY, x INT, y INT,"
        " FOREIGN KEY (y, x) REFERENCES p (a, b), FOREIGN KEY (x) REFERENCES t (id))",
    )
    assert set(sink.foreign_keys()) == {
        ForeignKey("shop", "c", "shop", "p", (("y", "a"), ("x", "b"))),
        ForeignKey("shop", "c", "shop", "t", (("x", "id"),)),
    }


@pytest.mark.fault(
    "queues lock each other out; another client holds a row", "tried again, both arrive", cases="2"
)
@on_mysql
def test_queues_that_lock_each_other_out_both_arrive(shop: Shop) -> None:
    downstream, sink = shop
    downstream.add(sink, 1, 2)
    one, two = (statement(downstream, "update", row) for row in (1, 2))
    queues = [[[one, two] * 3] * 10, [[two, one] * 3] * 10]
    point = downstream.point()
    assert not sink.apply_split(Split(queues, [], safe=False), point, START).count
    assert downstream.open().load_checkpoint() == point


@on_mysql
def test_a_row_that_another_client_locks_is_waited_for(shop: Shop) -> None:
    downstream, sink = shop
    downstream.add(sink, 1)
    with contextlib.closing(downstream._server.connect(autocommit=False)) as other:
        other.query(f"SELECT * FROM {downstream.table('t')} FOR UPDATE")
        timer = threading.Timer(0.5, other.rollback)
        timer.start()
        queues = [[[statement(downstream, "delete", 1)]]]
        sink.apply_split(Split(queues, [], safe=False), downstream.point(), START)
        timer.join()
    assert downstream.ids() == []


@pytest.mark.fault(
    "a value does not fit, a column is missing, a key is there already",
    "stops, table and row named, with a hint",
    cases="3",
)
@on_mysql
@pytest.mark.parametrize(
    ("verb", "message"), [("too long", "does not fit"), ("too many", "more columns than upstream")]
)
def test_a_row_that_the_table_cannot_take_is_named_with_a_hint(
    shop: Shop, verb: str, message: str
) -> None:
    downstream, sink = shop
    for queues, last in (([[[statement(downstream, verb, 3)]]], []), ([], [verb])):
        rows = [statement(downstream, each, 3) for each in last]
        with pytest.raises(NeedsOperator, match=r"shop\.t id = 3.*" + message):
            sink.apply_split(Split(queues, rows, safe=False), downstream.point(), START)
