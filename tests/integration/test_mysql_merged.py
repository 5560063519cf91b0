"""Tables of two servers replicated into one of a third, whose DDL comes in different orders."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from pumpclient.mysql.source import command
from pumpclient.mysql.verify import command as verify
from tests.kit.fakes.replica import Replica
from tests.kit.servers.binlog_server import BinlogServer
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, SHARDS_AS_ONE, SourceProcess
from tests.kit.wait import eventually

pytestmark = pytest.mark.thorough

CONFIG = f"""
    shard-mode = "optimistic"
{SHARDS_AS_ONE}"""
Rows = list[tuple[Any, ...]]


class Shard:
    """One server with one of the tables, and its source."""

    def __init__(self, server: SqlServer, number: int, folder: Path, etcd_url: str) -> None:
        name = f"db-{number}"
        self.server = server
        self.table = f"shop_{number}.orders_{number}"
        self.source = SourceProcess(folder / name, etcd_url, server, CONFIG, source_id=name)
        server.run(
            f"CREATE DATABASE shop_{number} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            f"CREATE TABLE {self.table} (id BIGINT PRIMARY KEY, item INT, note VARCHAR(20))",
        )

    def run(self, *statements: str) -> None:
        """Run statements about the table `T`."""
        self.server.run(*(re.sub(r"\bT\b", self.table, sql) for sql in statements))

    def ask(self, *words: str) -> str:
        return command.ask([*words, "--status-addr", self.source.address])


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    server = BinlogServer(tmp_path_factory.mktemp("shard"), 2, "--binlog-row-metadata=FULL")
    server.install()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def replica(nodes: Nodes, mariadb: MariadbServer, tmp_path: Path) -> Replica:
    pumps = [nodes.add_pump()]
    return Replica(nodes.etcd, nodes.url, pumps, mariadb, tmp_path / "drainer")


@pytest.fixture
def shards(
    replica: Replica,
    etcd_server: EtcdServer,
    followed: SqlServer,
    second: BinlogServer,
    tmp_path: Path,
) -> Iterator[tuple[Shard, Shard]]:
    """One table on each of two servers; both sources are started, and create their table."""
    second.drop_user_databases()
    second.reset_binlog()
    url = etcd_server.url
    a, b = (Shard(s, n, tmp_path, url) for n, s in enumerate((followed, second)))
    with ExitStack() as stopping:
        for shard in (a, b):
            stopping.callback(shard.source.stop)
            shard.source.start()
        yield a, b


@pytest.mark.fault(
    "two servers' tables become one, altered in different orders; a type, a TRUNCATE that"
    " cannot be",
    "rows lacking a column have its default; the source stops with a hint, continues as decided",
    cases="5",
)
def test_two_servers_tables_become_one_in_any_order_of_alters_and_a_conflict_stops(
    replica: Replica, shards: tuple[Shard, Shard]
) -> None:
    a, b = shards

    def orders(columns: str = "*") -> Rows:
        return brought(replica, shards, columns)

    a.run("INSERT INTO T VALUES (1, 10, 'a'), (3, 30, 'a')")
    b.run("INSERT INTO T VALUES (2, 20, 'b'), (4, 40, 'b')", "DELETE FROM T WHERE id = 4")
    assert orders() == [(1, 10, "a"), (2, 20, "b"), (3, 30, "a")]
    added_later(a, b, orders)
    dropped(a, b, orders)
    assert replica.columns("shop.orders") == ["id", "item", "note", "price", "who"]
    conflicting(a, b, orders)
    assert replica.tables("shop") == {"orders"}


def brought(replica: Replica, shards: tuple[Shard, Shard], columns: str = "*") -> Rows:
    """Return the rows downstream once it has all that both servers have."""
    for shard in shards:
        shard.source.catch_up(shard.server)
    replica.follow()
    return replica.rows("shop.orders", columns)


def added_later(a: Shard, b: Shard, orders: Any) -> None:
    """One adds columns, the other does so later: meanwhile its rows have their defaults."""
    more = "ADD COLUMN price DECIMAL(5,2) NOT NULL DEFAULT 1.5", "ADD COLUMN who VARCHAR(9)"
    a.run(f"ALTER TABLE T {', '.join(more)}")
    a.run("INSERT INTO T VALUES (5, 50, 'a', 2.25, 'me')", "UPDATE T SET price = 9 WHERE id = 1")
    b.source.kill()  # What it left comes again under the altered table.
    b.run("INSERT INTO T VALUES (6, 60, 'b')", "UPDATE T SET item = 21 WHERE id = 2")
    b.source.start()
    given = [(r[0], r[1], str(r[3]), r[4]) for r in orders()]
    assert given == [
        (1, 10, "9.00", None),
        (2, 21, "1.50", None),
        (3, 30, "1.50", None),
        (5, 50, "2.25", "me"),
        (6, 60, "1.50", None),
    ]
    b.run(f"ALTER TABLE T {more[0]}", "INSERT INTO T VALUES (8, 80, 'b', 3)")
    b.run(f"ALTER TABLE T {more[1]}", "INSERT INTO T VALUES (10, 100, 'b', 4, 'you')")
    b.run("UPDATE T SET price = price + 1")
    even = [(r[0], str(r[1]), r[2]) for r in orders("id, price, who") if r[0] % 2 == 0]
    assert even == [(10, "5.00", "you"), (2, "2.50", None), (6, "2.50", None), (8, "4.00", None)]


def dropped(a: Shard, b: Shard, orders: Any) -> None:
    """One drops a column: it stays for the other's rows, and for those that no one changes."""
    a.run("ALTER TABLE T DROP COLUMN note", "INSERT INTO T (id, item) VALUES (7, 70)")
    a.run("UPDATE T SET item = 11 WHERE id = 1", "DELETE FROM T WHERE id = 5")
    b.run("UPDATE T SET note = 'still' WHERE id = 2")
    found = {row[0]: row[1:] for row in orders("id, item, note")}
    assert {n: found[n] for n in (1, 2, 3, 7)} == {
        1: (11, None), 2: (21, "still"), 3: (30, "a"), 7: (70, None),
    }  # fmt: skip
    assert 5 not in found
    b.run("ALTER TABLE T DROP COLUMN note", "INSERT INTO T (id, item) VALUES (12, 120)")
    assert (12, 120) in orders("id, item")


def conflicting(a: Shard, b: Shard, orders: Any) -> None:
    """What cannot be merged stops its source with a hint, and continues as somebody decides."""
    a.run("ALTER TABLE T ADD COLUMN size INT", "INSERT INTO T (id, size) VALUES (9, 900)")
    a.source.catch_up(a.server)
    b.run("ALTER TABLE T ADD COLUMN size VARCHAR(9) DEFAULT '1'")
    status = b.source.fails()
    assert "'size'" in status["problem"]
    assert "skip this statement" in status["hint"]
    b.run("ALTER TABLE T MODIFY size INT", "INSERT INTO T (id, size) VALUES (14, 1400)")
    b.ask("skip", "--at", status["statement"])
    assert [row for row in orders("id, size") if row[1]] == [(14, 1400), (9, 900)]
    b.run("TRUNCATE TABLE T")
    status = b.source.fails()
    assert "rows of the others too" in status["problem"]
    b.ask("replace", "ALTER TABLE shop.orders ADD COLUMN emptied INT")
    b.run("INSERT INTO T (id, item) VALUES (16, 160)")
    assert (16, 160, None) in orders("id, item, emptied")
    assert b.source.status()["lives"] > 1


@pytest.mark.slow
def test_a_table_that_several_sources_fill_is_whole_again_after_a_reload_and_a_repair(
    replica: Replica, shards: tuple[Shard, Shard]
) -> None:
    a, b = shards
    a.run("INSERT INTO T VALUES (1, 10, 'a'), (3, 30, 'a'), (5, 50, 'a')")
    b.run("INSERT INTO T VALUES (2, 20, 'b'), (4, 40, 'b')")
    assert len(brought(replica, shards)) == 5
    a.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE T SET note = 'unseen' WHERE id = 1")
    a.source.fails()
    with pytest.raises(NeedsOperator, match=r"rows of other sources too \(db-1\)") as refused:
        a.ask("reload", a.table)
    assert "--accept-gap" in refused.value.hint
    a.ask("reload", a.table, "--accept-gap")
    a.run("DELETE FROM T WHERE id = 3")
    eventually(lambda: a.source.status().get("left_out") == {}, LONG_S)
    b.run("UPDATE T SET item = 41 WHERE id = 4")
    assert {(1, 10, "unseen"), (5, 50, "a")} <= set(brought(replica, shards))
    settings = b.source.command[b.source.command.index("--config") + 1]
    arguments = ["--upstream", b.server.url, "--downstream", replica.server.url]
    arguments += ["--tables", b.table, "--source", "db-1", "--source-config", settings]
    assert verify.main([*arguments, "--wait-s", "5", "--repair", "--yes"]) == 0
    b.run("INSERT INTO T VALUES (6, 60, 'b')", "UPDATE T SET item = item + 1")
    assert brought(replica, shards) == [
        (1, 10, "unseen"), (2, 21, "b"), (4, 42, "b"), (5, 50, "a"), (6, 61, "b"),
    ]  # fmt: skip
