"""The outbox with a session of SQLAlchemy: its objects and Penstock's rows, both or neither."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from deploy.examples import outbox_session as example
from penstock.cluster.node_registry import Registry
from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.outbox import TABLE
from penstock.wire.codec import decode_binlog
from pumpclient import PumpClient
from pumpclient.outbox import Outbox
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.workloads.ledger import pull_until


class Tables(DeclarativeBase):
    """The program's own tables."""


class Item(Tables):
    """What is on the shelf."""

    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    stock: Mapped[int]


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, str]]:
    """The program's database, and where a Pump finds it."""
    if request.param == "sqlite":
        url = shown = f"sqlite:///{tmp_path / 'shop.db'}"
    else:
        mariadb: MariadbServer = request.getfixturevalue("mariadb")
        mariadb.query("CREATE DATABASE shop")
        shown = f"{mariadb.url}shop"
        url = shown.replace("mysql://", "mysql+pymysql://")
    made = create_engine(url)
    Tables.metadata.create_all(made)
    yield made, shown
    made.dispose()


@pytest.fixture
def pump(nodes: Nodes, engine: tuple[Engine, str]) -> PumpProcess:
    settings = {"resolver_kind": "sql", "resolver_url": f"shop={engine[1]}"}
    return nodes.add_pump(**settings)


@pytest.fixture
def client(pump: PumpProcess, etcd_server: EtcdServer) -> Iterator[PumpClient]:
    with PumpClient.connect(etcd_server.url) as connected:
        connected.execute_ddl("CREATE DATABASE shop")
        connected.execute_ddl("CREATE TABLE shop.item (id BIGINT PRIMARY KEY, stock BIGINT)")
        yield connected


@pytest.mark.main_case("sqlite")
def test_objects_of_a_session_and_rows_are_committed_together_or_not_at_all(
    etcd: Any, engine: tuple[Engine, str], pump: PumpProcess, client: PumpClient
) -> None:
    box = Outbox("shop")
    with Session(engine[0]) as session:

        def put(
            number: int, stock: int, at_the_end: Callable[[], Any] = lambda: None
        ) -> int | None:
            with box.transaction(client, session, "shop") as txn:
                session.add(Item(id=number, stock=stock))
                txn.insert("item", {"id": number, "stock": stock})
                at_the_end()
            return txn.commit_ts

        box.create_table(session)
        first_ts = put(1, 5)
        with pytest.raises(ZeroDivisionError):
            put(2, 5, lambda: 1 // 0)
        with pytest.raises(IntegrityError):
            put(1, 6)
        with pytest.raises(NeedsOperator, match="ended within the block"):
            put(4, 1, session.commit)
        with box.transaction(client, session, "shop") as second:
            item = session.get_one(Item, 1)
            second.update("item", {"id": 1, "stock": item.stock}, {"stock": item.stock - 1})
            item.stock -= 1
    with Session(engine[0]) as session:
        found = [(each.id, each.stock) for each in session.scalars(select(Item).order_by(Item.id))]
        assert found == [(1, 4), (4, 1)]
        (kept,) = session.scalars(text(f"SELECT commit_ts FROM {TABLE}"))
    assert kept == second.commit_ts
    pulled = pull_until(pump.addr, Registry(etcd).cluster_id(), client.session.oracle.get_ts())
    binlogs = [decode_binlog(payload) for _, payload in pulled]
    committed = [each.commit_ts for each in binlogs if not each.is_fake and not each.is_ddl]
    assert committed == [first_ts, second.commit_ts]


def test_the_example_sells_the_same_in_both_and_nothing_that_is_sold_out(
    nodes: Nodes, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    settings = {"resolver_kind": "sql", "resolver_url": f"shop={url}"}
    pump = nodes.add_pump(**settings)
    asked = ["--database", url, "--etcd-urls", nodes.url, "--orders", "3"]
    example.main(asked)
    example.main(asked)
    engine = create_engine(url)
    with PumpClient.connect(nodes.url) as client, Session(engine) as session:
        example.stock_up(client, session, number=2, stock=0)
        with pytest.raises(ValueError, match="sold out"):
            example.order(client, session, 7, item_id=2)
        assert list(session.scalars(select(example.Order.id))) == [1, 2, 3, 4, 5, 6]
        assert session.get_one(example.Item, 1).stock == 1_000_000 - 6
        last_ts = client.session.oracle.get_ts()
    engine.dispose()
    pulled = pull_until(pump.addr, Registry(nodes.etcd).cluster_id(), last_ts)
    binlogs = [decode_binlog(payload) for _, payload in pulled]
    assert len([each for each in binlogs if not each.is_fake and not each.is_ddl]) == 2 + 6
