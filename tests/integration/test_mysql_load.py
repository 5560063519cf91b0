"""Tables of a real server reach another one whole, once, and as they were at one moment."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from penstock_local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.load.loader import Load
from pumpclient.mysql.load.state import read_state
from tests.kit.mysql import load_process
from tests.kit.servers.binlog_server import MYSQL, AnyBinlogServer, on_servers
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_replication import Nodes, Replication
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
