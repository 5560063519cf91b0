"""The outbox in a real MariaDB: its locks and its primary key decide, no matter who is first."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from penstock import outbox
from penstock.cluster.node_registry import Registry
from penstock.errors import NeedsOperator, Retryable
from penstock.outbox import TABLE, Fenced, settle
from penstock.ts import compose
from pump.cluster.sql_resolver import Database, opener
from pumpclient.outbox import Outbox
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import pull_until

START_TS, COMMIT_TS = compose(1_000, 0), compose(1_001, 0)


@pytest.fixture
def connect(mariadb: MariadbServer) -> Iterator[Callable[..., Any]]:
    mariadb.query("CREATE DATABASE shop")
    opened = []

    def make(**options: Any) -> Any:
        opened.append(mariadb.connect(database="shop", **{"autocommit": False, **options}))
        return opened[-1]

    outbox.create_table(make())
    make().query("CREATE TABLE item (id INT PRIMARY KEY, stock INT)")
    yield make
    for connection in opened:
        if connection.open:
            connection.close()


@pytest.fixture
def database(mariadb: MariadbServer, connect: Any) -> Iterator[Database]:
    shown, open_connection = opener(f"{mariadb.url}shop", timeout_s=5)
    assert mariadb.password not in shown
    found = Database(shown, TABLE, open_connection)
    yield found
    found.close()


def test_the_primary_key_decides_which_of_two_is_first(connect: Any, database: Database) -> None:
    writer = connect()
    first, second = outbox.new_key("shop"), outbox.new_key("shop")
    assert database.settle(first, START_TS, fence=False) is None
    outbox.put(writer, TABLE, first, START_TS, COMMIT_TS)
    assert database.settle(first, START_TS, fence=False) is None
    writer.commit()
    assert database.settle(first, START_TS, fence=True) == COMMIT_TS
    assert database.settle(second, START_TS, fence=True) == 0
    with pytest.raises(Fenced):
        outbox.put(writer, TABLE, second, START_TS, COMMIT_TS)
    writer.rollback()


@pytest.mark.parametrize("table", [TABLE, f"shop.{TABLE}"])
def test_an_outbox_without_transactions_is_refused_by_pump_and_writer(
    connect: Any, database: Database, table: str
) -> None:
    writer, key = connect(), outbox.new_key("shop")
    writer.query(f"ALTER TABLE {TABLE} ENGINE=MyISAM")
    with pytest.raises(NeedsOperator, match="engine MyISAM"):
        Database("", table, connect).settle(key, START_TS, fence=True)
    with pytest.raises(NeedsOperator, match="engine MyISAM"):
        Outbox(table=table)._write(writer, key, START_TS, COMMIT_TS)
    writer.query(f"ALTER TABLE {TABLE} ENGINE=InnoDB")
    assert database.settle(key, START_TS, fence=True) == 0


@pytest.mark.parametrize("ending", ["commit", "rollback", "killed"])
def test_a_fence_waits_for_a_row_that_is_about_to_be_committed(
    connect: Any, database: Database, mariadb: MariadbServer, ending: str
) -> None:
    writer, key = connect(), outbox.new_key("shop")
    outbox.put(writer, TABLE, key, START_TS, COMMIT_TS)
    with pytest.raises(Retryable, match="the writer has its outbox row in"):
        database.settle(key, START_TS, fence=True)
    if ending == "killed":
        mariadb.query(f"KILL {writer.thread_id()}")
    else:
        getattr(writer, ending)()

    def answer() -> int | None:
        try:
            return database.settle(key, START_TS, fence=True)
        except Retryable:  # The server is still rolling back.
            return None

    eventually(lambda: answer() is not None)
    assert answer() == (COMMIT_TS if ending == "commit" else 0)


@pytest.mark.fault(
    "Prewrite without a Commit: racing with the fence, 60 rounds", "both agree in each", cases="60"
)
@pytest.mark.thorough
def test_writers_and_fences_that_race_never_disagree(connect: Any, database: Database) -> None:
    rounds = 60
    keys = [outbox.new_key("shop") for _ in range(rounds)]
    wrote, fenced = [False] * rounds, [0] * rounds
    barrier = threading.Barrier(2)
    connection = connect()

    def write() -> None:
        for i, key in enumerate(keys):
            barrier.wait(30)
            time.sleep(i % 6 * 0.0005)
            try:
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO item VALUES (%s, 1)", (i,))
                outbox.put(connection, TABLE, key, START_TS + i, COMMIT_TS + i)
                connection.commit()
                wrote[i] = True
            except Fenced:
                connection.rollback()

    thread = threading.Thread(target=write)
    thread.start()
    for i, key in enumerate(keys):
        barrier.wait(30)
        while True:
            try:
                found = database.settle(key, START_TS + i, fence=True)
            except Retryable:
                continue
            assert found is not None
            fenced[i] = found
            break
    thread.join(30)
    assert [ts > 0 for ts in fenced] == wrote
    items = connect()
    with items.cursor() as cursor:
        cursor.execute("SELECT id FROM item ORDER BY id")
        assert [i for (i,) in cursor.fetchall()] == [i for i in range(rounds) if wrote[i]]


def test_a_database_that_restarts_is_asked_again(
    connect: Any, database: Database, mariadb: MariadbServer
) -> None:
    writer, key = connect(), outbox.new_key("shop")
    outbox.put(writer, TABLE, key, START_TS, COMMIT_TS)
    writer.commit()
    assert database.settle(key, START_TS, fence=True) == COMMIT_TS
    mariadb.kill()
    with pytest.raises(Retryable, match="does not answer"):
        database.settle(key, START_TS, fence=True)
    mariadb.start()

    def answers() -> bool:
        try:
            return database.settle(key, START_TS, fence=True) == COMMIT_TS
        except Retryable:
            return False

    eventually(answers)


@pytest.mark.parametrize("cursor", [pymysql.cursors.Cursor, pymysql.cursors.DictCursor])
@pytest.mark.parametrize("autocommit", [False, True])
def test_any_connection_of_pymysql_will_do(connect: Any, cursor: Any, autocommit: bool) -> None:
    connection, key = connect(cursorclass=cursor, autocommit=autocommit), outbox.new_key("shop")
    assert not outbox.in_transaction(connection)
    outbox.begin(connection)
    assert outbox.in_transaction(connection)
    outbox.put(connection, TABLE, key, START_TS, COMMIT_TS)
    connection.rollback()
    assert not outbox.in_transaction(connection)
    outbox.begin(connection)
    outbox.put(connection, TABLE, key, START_TS, COMMIT_TS)
    connection.commit()
    assert settle(connection, TABLE, key, START_TS, fence=True) == COMMIT_TS
    assert outbox.purge(connection, TABLE, checkpoint_ts=COMMIT_TS, fences_older_than_s=1) == 1


def test_commit_timestamps_follow_the_order_of_a_rows_changes(
    connect: Any, mariadb: MariadbServer, nodes: Nodes
) -> None:
    url = f"shop={mariadb.url}shop".replace(",", "%2C")
    pump = nodes.add_pump(resolver_kind="sql", resolver_url=url)
    box = Outbox("shop")
    commits: list[tuple[int, int]] = []
    client = nodes.connect()
    client.execute_ddl("CREATE DATABASE shop")
    client.execute_ddl("CREATE TABLE shop.item (id INT PRIMARY KEY, stock INT)")
    setup = connect()
    with box.transaction(client, setup, "shop") as txn, setup.cursor() as cursor:
        cursor.execute("INSERT INTO item VALUES (1, 0)")
        txn.insert("item", {"id": 1, "stock": 0})

    def count_up(connection: Any) -> None:
        for _ in range(20):
            with box.transaction(client, connection, "shop") as txn:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT stock FROM item WHERE id = 1 FOR UPDATE")
                    (stock,) = cursor.fetchone()
                    cursor.execute("UPDATE item SET stock = %s WHERE id = 1", (stock + 1,))
                txn.update("item", {"id": 1, "stock": stock}, {"stock": stock + 1})
            commits.append((stock, txn.commit_ts or 0))

    threads = [threading.Thread(target=count_up, args=(connect(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(commits) == 60
    stamps = [commit_ts for _, commit_ts in sorted(commits)]
    assert stamps == sorted(stamps)
    found = pull_until(pump.addr, Registry(nodes.etcd).cluster_id(), stamps[-1])
    assert set(stamps) <= {commit_ts for commit_ts, _ in found}

    refused = box.transaction(client, setup, "shop").__enter__()
    refused.insert("item", {"id": 2, "stock": 0})
    setup.query("CREATE TABLE other (id INT)")  # Commits, as any DDL does in MySQL.
    with pytest.raises(NeedsOperator, match="DDL out of it"):
        refused.__exit__(None, None, None)
