import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import outbox
from penstock.errors import Malformed, NeedsOperator
from penstock.outbox import TABLE, Fenced, settle
from penstock.ts import compose

START_TS, COMMIT_TS = compose(1_000, 0), compose(1_001, 0)
KEY = outbox.new_key("shop")


@pytest.fixture
def open_database(tmp_path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "shop.db", timeout=0))
        return opened[-1]

    outbox.create_table(connect())
    yield connect
    for connection in opened:
        connection.close()


OpenDatabase = Callable[[], sqlite3.Connection]


def test_a_committed_row_is_found_and_an_absent_one_is_undecided(
    open_database: OpenDatabase,
) -> None:
    writer, pump = open_database(), open_database()
    assert settle(pump, TABLE, KEY, START_TS, fence=False) is None
    outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    assert settle(pump, TABLE, KEY, START_TS, fence=False) is None
    writer.commit()
    for fence in (False, True):
        assert settle(pump, TABLE, KEY, START_TS, fence=fence) == COMMIT_TS


def test_what_is_found_was_written_to_so_that_it_is_durable(open_database: OpenDatabase) -> None:
    writer, pump = open_database(), open_database()
    outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    writer.commit()
    settle(pump, TABLE, KEY, START_TS, fence=True)
    assert writer.execute(f"SELECT asked FROM {TABLE}").fetchone() == (1,)
    assert not pump.in_transaction


def test_a_fence_keeps_a_late_writer_out_indefinitely(open_database: OpenDatabase) -> None:
    writer, pump = open_database(), open_database()
    assert settle(pump, TABLE, KEY, START_TS, fence=True) == 0
    with pytest.raises(Fenced, match="took too long"):
        outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    writer.rollback()
    for fence in (False, True):
        assert settle(pump, TABLE, KEY, START_TS, fence=fence) == 0


def test_no_fence_gets_in_beside_a_row_that_is_about_to_be_committed(
    open_database: OpenDatabase,
) -> None:
    writer, pump = open_database(), open_database()
    outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        settle(pump, TABLE, KEY, START_TS, fence=True)
    writer.commit()
    assert settle(pump, TABLE, KEY, START_TS, fence=True) == COMMIT_TS


@pytest.mark.parametrize("asked_at", range(5))
@pytest.mark.parametrize("writer_ends", ["commits", "rolls back"])
def test_writer_and_pump_agree_whenever_the_pump_asks(
    open_database: OpenDatabase, asked_at: int, writer_ends: str
) -> None:
    writer, pump = open_database(), open_database()
    writer.execute("CREATE TABLE item (id INTEGER)")
    verdicts: list[int] = []

    def ask(now: int) -> None:
        if now == asked_at:
            try:
                found = settle(pump, TABLE, KEY, START_TS, fence=True)
            except sqlite3.OperationalError:
                return
            assert found is not None
            verdicts.append(found)

    ask(0)
    wrote = True
    try:
        ask(1)
        writer.execute("INSERT INTO item VALUES (1)")
        ask(2)
        outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
        ask(3)
        if writer_ends == "rolls back":
            raise ZeroDivisionError
        writer.commit()
    except (Fenced, ZeroDivisionError):
        writer.rollback()
        wrote = False
    ask(4)
    final = settle(pump, TABLE, KEY, START_TS, fence=True)
    assert all(verdict == final for verdict in verdicts)
    assert final == (COMMIT_TS if wrote else 0)
    assert pump.execute("SELECT count(*) FROM item").fetchone() == (int(wrote),)


def test_a_key_that_was_used_twice_is_not_taken_for_an_answer(open_database: OpenDatabase) -> None:
    writer, pump = open_database(), open_database()
    outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    writer.commit()
    with pytest.raises(Malformed, match="a key of its own"):
        settle(pump, TABLE, KEY, START_TS + 1, fence=True)


def test_a_purge_leaves_what_a_pump_may_still_ask_about(open_database: OpenDatabase) -> None:
    writer = open_database()
    keys = [outbox.new_key("shop") for _ in range(4)]
    outbox.put(writer, TABLE, keys[0], START_TS, COMMIT_TS)
    outbox.put(writer, TABLE, keys[1], START_TS + 1, COMMIT_TS + 1)
    outbox.put(writer, TABLE, keys[2], compose(1_000, 2), 0)
    outbox.put(writer, TABLE, keys[3], compose(90_000, 0), 0)
    writer.commit()

    def left() -> set[bytes]:
        return {key for (key,) in writer.execute(f"SELECT prewrite_key FROM {TABLE}")}

    assert outbox.purge(writer, TABLE, checkpoint_ts=COMMIT_TS, fences_older_than_s=60) == 1
    assert left() == set(keys[1:])
    later_ts = compose(100_000, 0)
    assert outbox.purge(writer, TABLE, checkpoint_ts=later_ts, fences_older_than_s=60) == 2
    assert left() == {keys[3]}


def test_rows_that_come_as_mappings_are_read_too(open_database: OpenDatabase) -> None:
    connection = open_database()
    outbox.put(connection, TABLE, KEY, START_TS, COMMIT_TS)
    connection.commit()
    connection.row_factory = sqlite3.Row
    assert settle(connection, TABLE, KEY, START_TS, fence=True) == COMMIT_TS
    connection.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    assert settle(connection, TABLE, KEY, START_TS, fence=True) == COMMIT_TS


def test_keys_are_new_and_name_their_outbox() -> None:
    assert outbox.new_key("shop") != outbox.new_key("shop")
    assert outbox.name_in(outbox.new_key("crm.eu-1")) == "crm.eu-1"
    assert len(outbox.new_key("x" * 200)) <= outbox.KEY_BYTES_MAX
    for other in (b"", b"a primary key of TiDB", b"outbox/shop/", KEY + b"0", KEY.upper()):
        assert outbox.name_in(other) is None
    for name in ("", "a/b", "ü", "x" * 201):
        with pytest.raises(NeedsOperator, match="letters, digits"):
            outbox.new_key(name)


def test_what_is_no_name_of_a_table_is_refused(open_database: OpenDatabase) -> None:
    for name in ("", "a`b", "a.b.c", "a; DROP TABLE b"):
        with pytest.raises(NeedsOperator, match="no table can be called"):
            outbox.create_table(open_database(), name)
    with pytest.raises(NeedsOperator, match="sqlite3 or PyMySQL"):
        outbox.begin(object())
