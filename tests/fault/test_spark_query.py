"""A streaming query of Spark ends, or loses what it needs: each change is in its sink once, or the
query says why it cannot go on."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deploy.examples.lake_query import append_once
from pumpclient import Options, PumpClient
from tests.integration.test_spark_source import put, shop
from tests.integration.test_spark_stream import MakeQuery, make_query
from tests.integration.test_stream import PURGING, purge
from tests.kit.servers.fix_copies import Trio, lose_disk
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import eventually

__all__ = ["make_query", "shop"]

pytestmark = [pytest.mark.fault, pytest.mark.alone]

MakePump = Callable[..., PumpProcess]
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
WAIT_S = 120.0


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
