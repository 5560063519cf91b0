"""A load straight into the downstream, killed and cut off, then the binlog through the Pumps."""

import json
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.load.loader import Load
from pumpclient.mysql.load.sink import SinkOptions, lock_name
from pumpclient.mysql.protocol.server import address_in
from tests.kit.mysql import load_process
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, numbers, on_servers
from tests.kit.servers.fix_drainer import DrainerFactory
from tests.kit.servers.fix_source import LONG_S, SourceProcess
from tests.kit.wait import eventually

pytestmark = pytest.mark.thorough

SRIDS = (0, 4326, 3857, 0)
NAMES = ("types", "many", "loose", "o%n``e", "invalid", "place")
PLACES = (
    "CREATE TABLE shop.place (p POINT NOT NULL, g GEOMETRY, SPATIAL KEY (p))",
    "INSERT INTO shop.place SELECT POINT(seq, 1), IF(seq % 2, NULL, POINT(7, seq))"
    f" FROM {numbers(20)}",
)


def sums(server: SqlServer) -> dict[str, object]:
    return {n: server.query(f"CHECKSUM TABLE shop.`{n}` EXTENDED")[0][1] for n in NAMES}


def attempt(state: Path) -> int:
    return int(json.loads(state.read_text())["attempt"]) if state.exists() else 0


def is_filling(target: SqlServer, state: Path, number: int) -> bool:
    """Return whether this attempt has rows in the largest table, and not yet all."""
    if attempt(state) != number:
        return False
    try:
        count: int = target.query("SELECT COUNT(*) FROM shop.many")[0][0]
    except pymysql.err.ProgrammingError:  # It is dropped, and not yet created.
        return False
    return 0 < count < load_process.MANY


def holder(target: SqlServer, lock: str) -> int | None:
    found = target.query(f"SELECT IS_USED_LOCK('{lock}')")[0][0]
    return None if found is None else int(found)


def is_back(target: SqlServer, lock: str, killed: int | None) -> bool:
    return holder(target, lock) not in (None, killed)


def change(server: AnyBinlogServer, n: int) -> None:
    """Change rows that are loaded and rows that are not."""
    server.run(
        "USE shop", f"DELETE FROM many WHERE id = {n * 3}",
        f"UPDATE many SET k = -{n} WHERE id % 7 = {n}",
        f"INSERT INTO many VALUES ({n}000001, {n}, 'it''s \\\\', '')",
        f"UPDATE types SET v = 'n{n}', ti = '00:0{n}:00', po = POINT({n}, 0) WHERE id < 3",
        f"UPDATE place SET g = ST_GeomFromText('POINT(1 {n})', {SRIDS[n]}) WHERE ST_X(p) = {n}",
        f"DELETE FROM place WHERE ST_X(p) = {10 + n}",
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        f"INSERT INTO invalid VALUES ('2025-0{2 * n}-31', '2025-11-31')",
        f"UPDATE invalid SET t = '2024-0{2 * n}-31' WHERE d = '2024-02-30'",
        f"DELETE FROM loose WHERE a = {n} LIMIT 1", f"INSERT INTO loose VALUES ({n}, 'new')",
    )  # fmt: skip


@pytest.mark.fault(
    "a load straight into the downstream: its sessions there are killed, then the source;"
    " rows change all the while; the Drainer does not create the tables",
    "INSERTs in doubt are sent again; tables that are not done come again; equal once the"
    " binlog is in; the last stops with a hint",
    cases="3",
)
@pytest.mark.parametrize("kind", on_servers(MARIADB))
def test_a_load_into_the_sink_that_is_cut_off_and_killed_ends_equal_with_the_binlog_behind_it(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    sink_server: SqlServer,
    source_server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    url = etcd_server.url
    pump_factory(url)
    drainer = drainer_factory(url, sink_server.url)
    state = tmp_path / "source" / "db-1.load.json"
    server = source_server
    with PumpClient.connect(url) as client:
        server.run(
            *load_process.statements(), *PLACES,
            "DROP TABLE shop.pair, shop.empty, shop.part, shop.choice",
        )  # fmt: skip
        sink = SinkOptions(address_in(sink_server.url, "sink"), "no.where", applied_s=0.5)
        load = Load(server.address, client, state, load_process.options(sink=sink))
        with pytest.raises(NeedsOperator, match="has not created"):
            load.run(load_process.SOURCE, 1)
        settings: dict[str, Any] = {"mode": "all", "load_sink": sink_server.url}
        slow = {**settings, "load_rate_bytes_per_s": 60_000}
        source = SourceProcess(tmp_path / "source", url, server, **slow).start()
        try:
            eventually(lambda: is_filling(sink_server, state, 2), LONG_S)
            locks = [lock_name(client.session.pumps.cluster_id, "db-1", n) for n in range(4)]
            killed = {lock: holder(sink_server, lock) for lock in locks}
            sink_server.run(*(f"KILL {session}" for session in killed.values() if session))
            change(server, 1)
            eventually(lambda: "sent to the sink again" in source.text(), LONG_S)
            eventually(lambda: any(is_back(sink_server, *each) for each in killed.items()), LONG_S)
            assert attempt(state) == 2
        finally:
            source.kill()
        change(server, 2)
        source = SourceProcess(tmp_path / "source", url, server, **settings).start()
        try:
            eventually(lambda: json.loads(state.read_text())["is_complete"], LONG_S)
            change(server, 3)
            source.catch_up(server)
        finally:
            assert source.stop() == 0
        assert attempt(state) == 3
        assert "was not done: dropped" in source.text()
        drainer.wait_until(client.session.oracle.get_ts())
        assert sums(sink_server) == sums(server)
