"""The shop of `outbox.py` with SQLAlchemy: objects of a session and Penstock's rows, both or none.

    pump --resolver-kind sql --resolver-url shop=sqlite:////tmp/shop.db &
    python -m deploy.examples.outbox_session --database sqlite:////tmp/shop.db

The essential line is `OUTBOX.transaction(client, session, "shop")`: its end flushes the session and
commits both. For MySQL the database is `mysql+pymysql://user:password@host:port/shop`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from deploy.examples.outbox import create_tables
from pumpclient import PumpClient
from pumpclient.outbox import Outbox

OUTBOX = Outbox("shop")


class Tables(DeclarativeBase):
    """The shop's own tables."""


class Item(Tables):
    """An item in stock."""

    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Tables):
    """The order of an item by a customer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[int]


def stock_up(client: PumpClient, session: Session, number: int, stock: int) -> None:
    with OUTBOX.transaction(client, session, "shop") as txn:
        session.add(Item(id=number, stock=stock))
        txn.insert("item", {"id": number, "stock": stock})


def order(client: PumpClient, session: Session, number: int, item_id: int) -> None:
    """Sell one item and record the order; raise `ValueError` if it is sold out."""
    with OUTBOX.transaction(client, session, "shop") as txn:
        # The lock under which the value before is read; a database without row locks, such as
        # SQLite, is locked as a whole by the block.
        item = session.get_one(Item, item_id, with_for_update=True)
        if item.stock == 0:
            raise ValueError(f"item {item_id} is sold out")  # Both sides roll back.
        txn.update("item", {"id": item.id, "stock": item.stock}, {"stock": item.stock - 1})
        item.stock -= 1
        session.add(Order(id=number, item=item_id))
        txn.insert("orders", {"id": number, "item": item_id})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", default="sqlite:///shop.db")
    parser.add_argument("--etcd-urls", default="127.0.0.1:2379")
    parser.add_argument("--orders", type=int, default=10)
    asked = parser.parse_args(argv)
    engine = create_engine(asked.database)
    Tables.metadata.create_all(engine)
    with PumpClient.connect(asked.etcd_urls) as client, Session(engine) as session:
        create_tables(client)
        OUTBOX.create_table(session)
        if session.get(Item, 1) is None:
            stock_up(client, session, number=1, stock=1_000_000)
        last = session.scalar(select(func.coalesce(func.max(Order.id), 0))) or 0
        session.commit()  # The values read must not be used in the next transaction.
        for number in range(last + 1, last + 1 + asked.orders):
            order(client, session, number, item_id=1)
    engine.dispose()
    print(f"{asked.orders} orders after number {last}")


if __name__ == "__main__":
    main()
