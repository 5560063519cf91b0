"""A streaming query of Spark ends, or loses what it needs: each change is in its sink once, or the
query says why it cannot go on."""

import os
import random
import sqlite3
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deploy.examples import lake_query
from deploy.examples.lake_query import append_once
from penstock.local.process import ServerProcess
from penstock.local.upstream import Sysbench
from pumpclient import Options, PumpClient
from tests.integration.test_spark_source import put, shop
from tests.integration.test_spark_stream import MakeQuery, make_query
from tests.integration.test_stream import PURGING, purge
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer
from tests.kit.servers.fix_copies import Trio, lose_disk
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_source import SourceRig
from tests.kit.servers.fix_spark import kill_tree, session_environment
from tests.kit.wait import eventually

__all__ = ["make_query", "shop"]

pytestmark = [pytest.mark.fault, pytest.mark.alone]

MakePump = Callable[..., PumpProcess]
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
WAIT_S = 120.0
KILLS = int(os.environ.get("PENSTOCK_KILLS", "20"))


class Sinks:
    """A Delta table and a database that a query writes; it may end after it wrote one or both."""

    def __init__(self, folder: Path) -> None:
        self.lake = str(folder / "lake")
        self._database = sqlite3.connect(folder / "sink.db", check_same_thread=False)
        self._database.execute("CREATE TABLE batch (number INTEGER PRIMARY KEY)")
        self._database.execute("CREATE TABLE line (commit_ts INTEGER, seq INTEGER, id INTEGER)")
        self.ends_after = ""

    def take(self, rows: Any, number: int) -> None:
        append_once(self.lake, "query", rows, number)
        self._end("lake")
        lines = [(row["_commit_ts"], row["_seq"], row["id"]) for row in rows.collect()]
        with self._database as database:
            found = database.execute("INSERT OR IGNORE INTO batch VALUES (?)", (number,))
            if found.rowcount:
                database.executemany("INSERT INTO line VALUES (?, ?, ?)", lines)
        self._end("both")

    def _end(self, place: str) -> None:
        if self.ends_after == place:
            raise KeyError(f"the query ends after {place}")

    def ids(self) -> tuple[list[int], list[int]]:
        lines = DeltaTable(self.lake).to_pyarrow_table().sort_by("_commit_ts")
        found = self._database.execute("SELECT id FROM line ORDER BY commit_ts, seq")
        return lines["id"].to_pylist(), [number for (number,) in found]


@pytest.mark.fault(
    "a streaming query ends between the commit of its sink and the commit of its offset",
    "after a restart each change is in the Delta table and in the database of foreachBatch once",
    cases="2",
)
def test_a_query_that_ends_before_its_offset_is_stored_repeats_nothing(
    make_query: MakeQuery, shop: PumpClient, tmp_path: Path
) -> None:
    sinks = Sinks(tmp_path)
    query = make_query(maxTransactionsPerTrigger=2)
    query.take = sinks.take
    for number in range(4):
        put(shop, number)
    for place in ("lake", "both"):
        sinks.ends_after = place
        with pytest.raises(Exception, match=f"the query ends after {place}"):
            query.run()
        put(shop, 4 if place == "lake" else 5)
    sinks.ends_after = ""
    query.run()
    assert sinks.ids() == (list(range(6)), list(range(6)))


@pytest.mark.fault(
    "a Pump purges binlogs after the offset of a streaming query",
    "the query ends with an error that says so; it writes nothing after the gap",
    cases="1",
)
def test_a_purge_past_the_offset_is_an_error_and_never_a_gap(
    make_query: MakeQuery, etcd_url: str, pump_factory: MakePump
) -> None:
    pump = pump_factory(etcd_url, **PURGING)
    query = make_query()
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name TEXT)")
        put(client, 0)
        assert query.run() == [[(0, "nut", "insert")]]
        for number in range(1, 8):
            put(client, number, name="x" * 30_000)
        eventually(lambda: "purged (0, " in purge(pump), WAIT_S)
        with pytest.raises(Exception, match="are purged"):
            query.run()
        assert query.batches == []


@pytest.mark.fault(
    "a Pump's machine is lost while a streaming query reads, and another Pump takes its log over",
    "the query goes on: each change is there once",
    cases="1",
)
@pytest.mark.slow
def test_a_query_goes_on_when_a_lost_pump_s_log_is_taken_over(
    make_query: MakeQuery, etcd_url: str, trio: Trio
) -> None:
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name TEXT)")
        query = make_query()
        query.begin(processingTime="0 seconds")
        for number in range(20):
            put(client, number)
        eventually(lambda: bool(query.batches), WAIT_S)
        lost = trio.pumps[0]
        lose_disk(lost)
        trio.until_moved(lost)
        for number in range(20, 40):
            put(client, number)

        def seen() -> list[int]:
            return [row[0] for batch in list(query.batches) for row in batch]

        eventually(lambda: len(seen()) >= 40, WAIT_S)
        assert seen() == list(range(40))


def version(lake: Path) -> int:
    return DeltaTable(lake).version() if DeltaTable.is_deltatable(str(lake)) else -1


def played(lake: Path) -> tuple[int, int]:
    """Return the number of rows that all changes leave, and the sum of their checksums."""
    lines = DeltaTable(lake).to_pyarrow_table().sort_by([("_commit_ts", "ascending")])
    lines = lines.to_pylist()
    assert len({(line["_commit_ts"], line["_seq"]) for line in lines}) == len(lines)
    rows: dict[int, int] = {}
    for line in sorted(lines, key=lambda line: (line["_commit_ts"], line["_seq"])):
        text = "#".join(str(line[name]) for name in ("id", "k", "c", "pad"))
        if line["_kind"] in ("delete", "update_preimage"):
            assert rows.pop(line["id"]) == zlib.crc32(text.encode()), line
        else:
            assert line["id"] not in rows, line
            rows[line["id"]] = zlib.crc32(text.encode())
    return len(rows), sum(rows.values())


@pytest.mark.fault(
    "a streaming query into a Delta table is killed with its JVM under sysbench's load",
    "the changes of the Delta table leave the upstream's rows, by count and checksum; each change"
    " is there once",
    cases="20, PENSTOCK_KILLS",
)
@pytest.mark.slow
@pytest.mark.mariadb
@pytest.mark.parametrize("kind", [MARIADB])
def test_a_killed_query_of_a_sysbench_history_leaves_a_delta_table_equal_to_the_upstream(
    rig: SourceRig, source_server: AnyBinlogServer, tmp_path: Path
) -> None:
    rng, server, lake = random.Random(KILLS), source_server, tmp_path / "lake"
    source = rig.begin(server)
    sysbench = Sysbench(server, tables=1, rows=1_000)
    sysbench.prepare()
    source.catch_up(server)
    command = [sys.executable, "-m", lake_query.__name__, "sbtest.sbtest1", str(lake)]
    query = ServerProcess(
        [*command, "--etcd-urls", rig.etcd_url],
        log=tmp_path / "query.log",
        environment={**os.environ, **session_environment(tmp_path)},
    )
    load = sysbench.running(tmp_path / "sysbench.log", "--time=0", "--threads=2", "--rate=40")
    load.start()
    try:
        for _ in range(KILLS):
            before = version(lake)
            query.start()
            eventually(lambda before=before: version(lake) > before, WAIT_S)  # type: ignore[misc]
            time.sleep(2 * rng.random())  # A micro-batch takes about a second.
            kill_tree(query)
        load.stop()
        source.catch_up(server)
        query.start()
        asked = "SELECT COUNT(*), SUM(CRC32(CONCAT_WS('#', id, k, c, pad))) FROM sbtest.sbtest1"
        ((count, checksum),) = server.query(asked)
        eventually(lambda: played(lake) == (count, int(checksum)), WAIT_S)
        assert query.is_running, query.log_tail()
    finally:
        load.stop()
        kill_tree(query)
