"""Tables of a real server reach another one whole, once, and as they were at one moment."""

import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.fence import DdlFence
from penstock.cluster.history import History
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.journal import Journal
from pumpclient.mysql.load import loader
from pumpclient.mysql.load.loader import Load
from pumpclient.mysql.load.readers import SnapshotSession
from pumpclient.mysql.load.state import read_state
from tests.integration.test_mysql_source import downstream
from tests.kit.mysql import load_process
from tests.kit.servers.binlog_server import MARIADB, MYSQL, AnyBinlogServer, on_servers
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.servers.fix_source import LONG_S, rows_of
from tests.kit.wait import eventually, present

NAMES = ("types", "many", "pair", "loose", "o%n``e", "empty", "part", "choice", "invalid")


@dataclass
class Pair:
    """Two servers and what is between them."""

    source: AnyBinlogServer
    target: SqlServer
    drainer: DrainerProcess
    client: PumpClient
    etcd_url: str

    def settle(self) -> None:
        """Wait until the target has everything that was committed."""
        with self.client.begin("mark") as txn:
            txn.insert("mark", {"id": self.client._session.oracle.get_ts()})
        self.drainer.wait_until(txn.commit_ts or 0)

    def sums(self, server: SqlServer) -> dict[str, object]:
        return {n: server.query(f"CHECKSUM TABLE shop.`{n}` EXTENDED")[0][1] for n in NAMES}


@pytest.fixture
def pair(replication: Replication, sink_server: SqlServer, source_server: AnyBinlogServer) -> Pair:
    replication.add_pump()
    drainer = replication.drain_into(sink_server.url)
    client = replication.connect()
    client.execute_ddl("CREATE DATABASE mark")
    client.execute_ddl("CREATE TABLE mark.mark (id BIGINT PRIMARY KEY)")
    return Pair(source_server, sink_server, drainer, client, replication.url)


@pytest.mark.fault(
    "the load is killed within a table",
    "tables that are done stay, the others come again at a new snapshot; checksums of all"
    " types and kinds of key are equal",
    cases="1",
)
@pytest.mark.parametrize("kind", on_servers(MYSQL))
def test_a_killed_load_continues_and_ends_equal_with_every_type_and_kind_of_key(
    pair: Pair, tmp_path: Path
) -> None:
    pair.source.run(*load_process.statements())
    state = tmp_path / "state" / "load.json"
    begun = pair.source.end()
    killed = load_process.spawn(pair.source, pair.etcd_url, state, rate_bytes_per_s=400_000)

    def loaded() -> set[str]:
        found = json.loads(state.read_text())["loaded"] if state.exists() else []
        return {table for _, table, *_ in found}

    try:
        eventually(lambda: "choice" in loaded() and len(loaded()) > 3, 120)
    finally:
        killed.kill()
        killed.wait()
    first = present(read_state(state))
    assert not first.is_complete
    assert ("shop", "many") not in first.loaded
    # Changes between the attempts: a loaded table keeps its floor, the others get a later one.
    pair.source.run(
        "DELETE FROM shop.many WHERE id < 300", "UPDATE shop.pair SET v = 1 WHERE b = 5",
        "CREATE TABLE shop.late (id INT PRIMARY KEY)",
    )  # fmt: skip
    said: list[str] = []
    options = load_process.options()
    load = Load(pair.source.address, pair.client, state, options, say=said.append)
    done = load.run(load_process.SOURCE, 1)
    assert done.is_complete
    assert done.attempt == 2
    assert done.start is not None
    assert (done.start.file, done.start.position) == begun
    assert any("shop.many was not done" in line for line in said)
    assert any("100 %" in line for line in said), said
    at_first, later = (done.loaded["shop", name].floor for name in ("choice", "many"))
    assert at_first < later == done.loaded["shop", "late"].floor
    pair.settle()
    assert pair.sums(pair.source) == pair.sums(pair.target)
    assert load.run(load_process.SOURCE, 1) == done  # Nothing is left to do.
    other = Load(pair.source.address, pair.client, tmp_path / "other.json", options)
    with pytest.raises(NeedsOperator, match="there already"):
        other.run("db-2", 1)


def tables_of_one_row(server: AnyBinlogServer, count: int) -> list[str]:
    names = [f"shop.t{n:03}" for n in range(count)]
    server.run(
        "CREATE DATABASE shop",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(9))" for name in names),
        *(f"INSERT INTO {name} VALUES ({n}, 'v{n}')" for n, name in enumerate(names)),
    )
    return names


@pytest.mark.fault(
    "the load is killed while it creates 120 tables: with the DDL of some recorded and of others"
    " only prewritten, or recorded and not committed",
    "the next attempt creates all of them, once; meanwhile other writers commit",
    cases="2",
)
@pytest.mark.parametrize("kind", on_servers(MARIADB))
@pytest.mark.parametrize("failpoint", ["ddl.after_prewrites=kill@3", "ddl.before_commits=kill@2"])
def test_a_load_that_is_killed_among_the_ddl_of_many_tables_ends_with_all_of_them(
    failpoint: str, nodes: Nodes, source_server: AnyBinlogServer, tmp_path: Path
) -> None:
    pumps = [nodes.add_pump()]
    names = tables_of_one_row(source_server, 120)
    state = tmp_path / "state" / "load.json"
    with PumpClient.connect(nodes.url) as other:
        other.execute_ddl("CREATE DATABASE mark")
        other.execute_ddl("CREATE TABLE mark.mark (id BIGINT PRIMARY KEY)")

        def mark() -> None:
            with other.begin("mark") as txn:
                txn.insert("mark", {"id": other.session.oracle.get_ts()})

        killed = load_process.spawn(source_server, nodes.url, state, failpoint)
        while killed.poll() is None:
            mark()
        assert killed.returncode == -signal.SIGKILL
        assert len(other.session.schemas.catalog().tables("shop")) == 50
        mark()
        load = Load(source_server.address, other, state, load_process.options())
        assert load.run(load_process.SOURCE, 1).attempt == 2
        assert len(other.session.schemas.catalog().tables("shop")) == 120
    found = downstream(nodes.etcd, nodes.url, pumps)
    assert {name: found.rows(name) for name in names} == {
        name: rows_of(source_server, name) for name in names
    }
    assert found.repeated == 0
    assert found.origins == sorted(set(found.origins))


@pytest.mark.parametrize("kind", on_servers(MARIADB))
def test_a_load_takes_no_more_steps_for_more_tables(
    nodes: Nodes, source_server: AnyBinlogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add_pump()
    steps: Counter[str] = Counter()

    def count(home: Any, name: str) -> None:
        work = getattr(home, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            steps[name] += 1
            return work(*arguments, **named)

        monkeypatch.setattr(home, name, counted)

    # Questions to the server, fences, transactions of the history, journaled groups, saves.
    for home, name in ((SnapshotSession, "fetch"), (DdlFence, "raised"), (History, "append"),
                       (Journal, "begin"), (loader, "write_state")):  # fmt: skip
        count(home, name)
    found = []
    with PumpClient.connect(nodes.url) as client:
        for tables in (5, 45):
            source_server.run("DROP DATABASE IF EXISTS shop")
            tables_of_one_row(source_server, tables)
            options = load_process.options(save_s=LONG_S)
            load = Load(source_server.address, client, tmp_path / f"{tables}.json", options)
            assert len(load.run(f"db-{tables}", 1).rows) == tables
            found.append(dict(steps))
            steps.clear()
            client.execute_ddl("DROP DATABASE shop")
            steps.clear()
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", on_servers(MYSQL))
def test_two_tables_of_one_name_but_for_its_letter_case_are_not_loaded(
    nodes: Nodes, source_server: AnyBinlogServer, tmp_path: Path
) -> None:
    nodes.add_pump()
    for name in ("orders", "Orders"):
        source_server.run(
            "CREATE DATABASE IF NOT EXISTS shop", f"CREATE TABLE shop.{name} (id INT PRIMARY KEY)"
        )
    client = nodes.connect()
    load = Load(source_server.address, client, tmp_path / "load.json", load_process.options())
    with pytest.raises(NeedsOperator, match="letter case makes no difference"):
        load.run(load_process.SOURCE, 1)
