"""A shop with an outbox and real Pumps: an order is in both or in neither, whatever dies when."""

import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from deploy.examples import outbox as example
from penstock import outbox
from penstock.cluster.node_registry import Registry
from penstock.errors import NeedsOperator, Retryable
from penstock.local.process import python_module
from penstock.oracle.client import OracleClient
from penstock.wire.codec import decode_binlog
from pumpclient import Options, OutcomeUnknown, PumpClient
from pumpclient.delivery.session import Session
from tests.kit.crash import dying_writer
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.workloads.ledger import pull_until

pytestmark = [pytest.mark.fault, pytest.mark.alone]

STOCK = 100


class Shop:
    """The example's shop, its Pump, and what both of them know."""

    def __init__(self, etcd: Any, etcd_url: str, database: Path, pump: PumpProcess) -> None:
        self.etcd_url = etcd_url
        self.database = database
        self.pump = pump
        self.connection = example.open_database(database)
        self.client = PumpClient.connect(etcd_url, options=Options(probe_interval_s=0.3))
        self.oracle = OracleClient(etcd)
        self._cluster_id = Registry(etcd).cluster_id()
        example.create_tables(self.client)
        example.stock_up(self.client, self.connection, 1, STOCK)

    def close(self) -> None:
        self.client.close()
        self.oracle.close()
        self.connection.close()

    def order(self, number: int) -> None:
        example.order(self.client, self.connection, number, 1)

    def dies_of(self, moment: str, number: int) -> None:
        """Let a process of its own place that order and be killed at that moment of it."""
        arguments = (moment, str(self.database), self.etcd_url, str(number))
        done = subprocess.run(
            python_module("tests.kit.crash.dying_writer", *arguments), timeout=30, check=False
        )
        assert done.returncode == -9

    def streamed(self) -> list[int]:
        """Return the commit_ts of all that the Pump streams up to now, without DDL."""
        found = pull_until(self.pump.addr, self._cluster_id, self.oracle.get_ts())
        binlogs = [decode_binlog(payload) for _, payload in found]
        return [b.commit_ts for b in binlogs if not b.is_fake and not b.is_ddl]

    def orders(self) -> list[int]:
        return [n for (n,) in self.connection.execute("SELECT id FROM orders ORDER BY id")]

    def rows(self) -> list[tuple[int, int]]:
        sql = f"SELECT start_ts, commit_ts FROM {outbox.TABLE} ORDER BY start_ts"
        return self.connection.execute(sql).fetchall()


@pytest.fixture
def make_shop(nodes: Nodes, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    shops: list[Shop] = []

    def make(**settings: Any) -> Shop:
        database = tmp_path / "shop.db"
        resolver = {
            "resolver_kind": "sql",
            "resolver_url": f"shop=sqlite:///{database}",
            "resolver_fence_after_s": 1.5,
            **settings,
        }
        pump = nodes.add_pump(**resolver)
        shops.append(Shop(nodes.etcd, nodes.url, database, pump))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


MakeShop = Callable[..., Shop]


@pytest.mark.thorough
def test_the_example_runs_and_every_order_is_streamed(nodes: Nodes, tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    pump = nodes.add_pump(resolver_kind="sql", resolver_url=f"shop=sqlite:///{database}")
    arguments = ["--database", str(database), "--etcd-urls", nodes.url, "--orders", "3"]
    for last in (0, 3):
        printed = StringIO()
        with redirect_stdout(printed):
            example.main(arguments)
        assert printed.getvalue() == f"3 orders after number {last}\n"
    assert pump.status().details["transactions_resolved"] == "0"


@pytest.mark.fault(
    "Prewrite without a Commit: it has an outbox, killed after its local commit",
    "committed by the Pump in seconds, emitted once",
    cases="1",
)
def test_a_writer_that_dies_between_its_local_commit_and_the_commit_binlog_has_committed(
    make_shop: MakeShop,
) -> None:
    shop = make_shop()
    shop.order(1)
    shop.dies_of(dying_writer.BEFORE_THE_COMMIT_BINLOG, 2)
    shop.order(3)
    found = shop.streamed()
    assert shop.orders() == [1, 2, 3]
    assert shop.pump.wait_for("transaction (\\d+) is committed, says the resolver")
    assert len(found) == 4  # The stock, and the orders.
    assert {commit_ts for _, commit_ts in shop.rows()} <= set(found)


@pytest.mark.fault(
    "Prewrite without a Commit: killed before its local commit, 2 places",
    "fenced and rolled back; neither side has it",
    cases="2",
)
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(dying_writer.BEFORE_THE_ROW, marks=pytest.mark.slow),
        dying_writer.BEFORE_THE_LOCAL_COMMIT,
    ],
)
def test_a_writer_that_dies_between_the_prewrite_and_its_local_commit_has_not(
    make_shop: MakeShop, moment: str
) -> None:
    shop = make_shop()
    shop.order(1)
    shop.dies_of(moment, 2)
    shop.order(3)
    assert len(shop.streamed()) == 3
    assert shop.orders() == [1, 3]
    match = shop.pump.wait_for("transaction (\\d+) is rolled back, says the resolver")
    assert (int(match[1]), 0) in shop.rows()


@pytest.mark.fault(
    "Prewrite without a Commit: only slow",
    "its local commit fails, it learns that nothing happened",
    cases="1",
)
@pytest.mark.thorough
def test_a_writer_that_was_only_slow_learns_that_nothing_happened(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(resolver_fence_after_s=0.5)
    put = outbox.put

    def sleep_before(connection: Any, *row: Any) -> None:
        connection.rollback()  # SQLite's one lock would hold up the resolver: here it may continue.
        shop.pump.wait_for("is rolled back, says the resolver")
        outbox.begin(connection)
        put(connection, *row)

    monkeypatch.setattr(outbox, "put", sleep_before)
    with pytest.raises(Retryable, match="took too long"):
        shop.order(1)
    monkeypatch.undo()
    assert shop.orders() == []
    shop.order(1)
    assert len(shop.streamed()) == 2
    assert shop.orders() == [1]


@pytest.mark.slow
def test_a_sold_out_item_changes_neither_side(make_shop: MakeShop) -> None:
    shop = make_shop()
    example.stock_up(shop.client, shop.connection, 2, 0)
    with pytest.raises(ValueError, match="sold out"):
        example.order(shop.client, shop.connection, 1, 2)
    assert shop.orders() == []
    assert len(shop.streamed()) == 2
    assert not shop.connection.in_transaction


@pytest.mark.thorough
def test_a_database_lost_during_its_commit_leaves_a_doubt_that_ends(make_shop: MakeShop) -> None:
    shop = make_shop()

    class Lost(sqlite3.Connection):
        """Commits, and loses the answer and the connection with it."""

        def commit(self) -> None:
            super().commit()
            self.close()
            raise sqlite3.OperationalError("connection lost")

    lost = sqlite3.connect(shop.database, factory=Lost)
    with pytest.raises(OutcomeUnknown, match="lost while it committed") as caught:
        example.order(shop.client, lost, 1, 1)
    assert not caught.value.wait(0)
    assert len(shop.streamed()) == 2
    shop.pump.wait_for(f"transaction {caught.value.start_ts} is committed, says the resolver")
    assert shop.orders() == [1]


@pytest.mark.slow
def test_a_commit_that_the_database_refuses_did_not_happen_and_says_so(make_shop: MakeShop) -> None:
    shop = make_shop()

    class Refusing(sqlite3.Connection):
        refusals = 1

        def commit(self) -> None:
            if self.refusals:
                self.refusals -= 1
                raise sqlite3.OperationalError("database is locked")
            super().commit()

    refusing = sqlite3.connect(shop.database, factory=Refusing)
    with pytest.raises(Retryable, match="the database did not commit: database is locked"):
        example.order(shop.client, refusing, 1, 1)
    example.order(shop.client, refusing, 1, 1)
    assert len(shop.streamed()) == 2
    assert shop.orders() == [1]
    refusing.close()


@pytest.mark.slow
def test_a_block_that_ends_its_database_transaction_itself_is_refused(make_shop: MakeShop) -> None:
    shop = make_shop()
    txn = example.OUTBOX.transaction(shop.client, shop.connection, "shop").__enter__()
    txn.insert("item", {"id": 5, "stock": 1})
    shop.connection.commit()
    with pytest.raises(NeedsOperator, match="ended within the block"):
        txn.__exit__(None, None, None)
    assert len(shop.streamed()) == 1


@pytest.mark.slow
def test_a_commit_that_no_pump_acknowledged_is_committed_all_the_same(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop()

    def unanswered(self: Session, home: Any, commit: Any, **_: Any) -> None:
        raise OutcomeUnknown("no answer", start_ts=1, commit_ts=1, wait=lambda timeout_s: False)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "commit", unanswered)
        shop.order(1)
    assert shop.orders() == [1]
    assert len(shop.streamed()) == 2
    assert len(shop.rows()) == 1  # The stock's row went along with it, its own stays.


@pytest.mark.slow
def test_rows_of_acknowledged_transactions_go_and_purge_takes_the_rest(make_shop: MakeShop) -> None:
    shop = make_shop()
    for number in range(1, 6):
        shop.order(number)
    assert len(shop.rows()) == 1
    shop.dies_of(dying_writer.BEFORE_THE_COMMIT_BINLOG, 6)
    assert len(shop.streamed()) == 7
    shop.order(7)
    assert len(shop.rows()) == 2
    checkpoint_ts = shop.oracle.get_ts()
    assert example.OUTBOX.purge(shop.connection, checkpoint_ts=checkpoint_ts) == 2


@pytest.mark.fault(
    "Prewrite without a Commit: its database is away",
    "only its own transactions wait; 50 others are committed meanwhile",
    cases="1, with 50 writes beside it",
)
@pytest.mark.thorough
def test_a_database_that_is_away_holds_up_its_own_transactions_and_no_writes(
    make_shop: MakeShop,
) -> None:
    shop = make_shop()
    aside = shop.database.with_name("aside")
    shop.dies_of(dying_writer.BEFORE_THE_COMMIT_BINLOG, 1)
    shop.connection.close()
    shop.database.rename(aside)
    shop.pump.wait_for("does not answer: unable to open database file")
    for item in range(2, 52):
        with shop.client.begin("shop") as txn:
            txn.insert("item", {"id": item, "stock": 1})
    assert shop.pump.status().details["transactions_waiting"] == "1"
    aside.rename(shop.database)
    shop.connection = sqlite3.connect(shop.database)
    assert len(shop.streamed()) == 52
    assert shop.orders() == [1]


@pytest.mark.slow
def test_orders_of_many_threads_and_a_killed_pump_are_on_both_sides_once(
    make_shop: MakeShop,
) -> None:
    shop = make_shop()
    stop = threading.Event()
    failures: list[BaseException] = []

    def sell(thread: int) -> None:
        connection = sqlite3.connect(shop.database, timeout=30)
        number = thread * 1_000
        while not stop.is_set():
            number += 1
            try:
                example.order(shop.client, connection, number, 1)
            except Retryable:
                pass  # Neither side has it.
            except ValueError:
                break  # Sold out.
            except BaseException as error:
                failures.append(error)
                break
        connection.close()

    threads = [threading.Thread(target=sell, args=(i,)) for i in range(1, 4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    shop.pump.restart()
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    sold = shop.orders()
    (left,) = shop.connection.execute("SELECT stock FROM item").fetchone()
    assert 0 < len(sold) == STOCK - left
    assert len(shop.streamed()) == 1 + len(sold)
