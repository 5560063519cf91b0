"""Structured Streaming reads the changes of real Pumps by `format("penstock")`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from deploy.examples import lake_query
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from pumpclient import PumpClient
from tests.integration.test_spark_source import put, shop
from tests.kit.wait import eventually

__all__ = ["shop"]

WAIT_S = 180

pytestmark = pytest.mark.alone
STARTS_MAX = 10
"""Spark gives the Python of a query ten seconds to start, and a busy machine needs more."""


class Query:
    """One streaming query that is started again on its checkpoint."""

    def __init__(self, spark: Any, etcd_url: str, home: Path, **options: object) -> None:
        self._spark, self._home = spark, home
        self._options = {"etcd": etcd_url, "table": "shop.goods", **options}
        self._running: list[Any] = []
        self.batches: list[list[tuple[Any, ...]]] = []
        """The rows of each micro-batch: the columns of the table, and `_kind`."""
        self.take: Callable[[Any, int], None] = self._take

    def begin(self, **trigger: Any) -> Any:
        reader = self._spark.readStream.format("penstock")
        for name, value in self._options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(
            lambda rows, number: self.take(rows, number)
        )
        writer = writer.option("checkpointLocation", str(self._home)).trigger(**trigger)
        self._running.append(writer.start())
        return self._running[-1]

    def stop(self) -> None:
        for query in self._running:
            query.stop()

    def _take(self, rows: Any, number: int) -> None:
        found = rows.drop("_commit_ts", "_start_ts", "_seq").collect()
        if found:
            self.batches.append([tuple(row) for row in found])

    def run(self) -> list[list[tuple[Any, ...]]]:
        """Read what is available, and return the micro-batches of this run."""
        self.batches = []
        run_to_its_end(self.begin)
        return self.batches


def run_to_its_end(begin: Callable[..., Any]) -> None:
    """Begin a query over what is available until Spark starts it, and wait for its end."""
    for _ in range(STARTS_MAX):
        query = begin(availableNow=True)
        try:
            assert query.awaitTermination(WAIT_S), query.lastProgress
            return
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise


MakeQuery = Callable[..., Query]


@pytest.fixture
def make_query(spark_session: Any, etcd_url: str, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    """Make the test's query; it is stopped after the test."""
    made: list[Query] = []

    def make(**options: object) -> Query:
        made.append(Query(spark_session, etcd_url, tmp_path / "checkpoint", **options))
        return made[-1]

    yield make
    for query in made:
        query.stop()


def test_a_query_goes_on_from_its_checkpoint_within_its_limits(
    make_query: MakeQuery, shop: PumpClient
) -> None:
    query = make_query(maxTransactionsPerTrigger=2)
    for number in range(5):
        put(shop, 2 * number, 2 * number + 1)
    ids = [[row[0] for row in batch] for batch in query.run()]
    assert ids == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert query.run() == []
    with shop.begin("shop") as txn:
        txn.update("goods", {"id": 1, "name": "nut"}, {"id": 100})
    assert query.run() == [[(1, "nut", "update_preimage"), (100, "nut", "update_postimage")]]


def test_a_ddl_ends_a_micro_batch_and_a_restart_goes_on_with_the_new_columns(
    make_query: MakeQuery, shop: PumpClient
) -> None:
    query = make_query()
    put(shop, 1)
    running = query.begin(processingTime="0 seconds")
    eventually(lambda: query.batches == [[(1, "nut", "insert")]], within_s=WAIT_S)
    shop.execute_ddl("CREATE TABLE shop.others (id INT PRIMARY KEY)")
    put(shop, 2)
    eventually(lambda: len(query.batches) == 2, within_s=WAIT_S)
    put(shop, 3)
    shop.execute_ddl("ALTER TABLE shop.goods ADD COLUMN stock INT")
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 4, "name": "nut", "stock": 9})
    with pytest.raises(Exception, match=r"ADD COLUMN stock.*start the query again"):
        running.awaitTermination(WAIT_S)
    assert query.batches[-1] == [(3, "nut", "insert")]
    assert query.run() == [[(4, "nut", 9, "insert")]]

    shop.execute_ddl("ALTER TABLE shop.goods DROP COLUMN name")
    for _ in range(2):  # A restart does not pass it.
        with pytest.raises(Exception, match=r"'ALTER TABLE `goods` DROP COLUMN name', changes"):
            query.run()
        assert query.batches == []


def committed_ts(checkpoint: Path) -> int:
    """Return the commit_ts up to which Spark has stored that a query is done, 0 at first."""
    done = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return 0
    offset = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
    return int(json.loads(offset)["commit_ts"])


def test_a_named_query_shows_as_a_reader_and_acknowledges_what_it_has_processed(
    make_query: MakeQuery, etcd: Any, shop: PumpClient, tmp_path: Path
) -> None:
    registry = Registry(etcd)
    query = make_query(name="spark-goods")
    first_ts = put(shop, 1)
    running = query.begin(processingTime="0 seconds")

    def listed() -> Any:
        return registry.get(NodeKind.DRAINER, "spark-goods")

    eventually(lambda: len(query.batches) == 1, within_s=WAIT_S)
    assert listed().state is NodeState.READING
    last_ts = put(shop, 2)
    # Otherwise a new start repeats the micro-batch.
    eventually(lambda: committed_ts(tmp_path / "checkpoint") >= last_ts, within_s=WAIT_S)
    eventually(lambda: listed().max_commit_ts >= first_ts, within_s=WAIT_S)
    assert listed().max_commit_ts <= last_ts
    running.stop()
    eventually(lambda: listed().state is NodeState.PAUSED, within_s=WAIT_S)
    assert listed().max_commit_ts >= first_ts
    put(shop, 3)
    assert query.run() == [[(3, "nut", "insert")]]


def test_the_example_appends_each_change_once_also_after_a_repetition_and_on_a_new_checkpoint(
    spark_session: Any, etcd_url: str, shop: PumpClient, tmp_path: Path
) -> None:
    lake = str(tmp_path / "goods")
    begin = partial(lake_query.start, spark_session, "shop.goods", lake, etcd_url)
    committed = tmp_path / "goods.checkpoint" / "commits"

    def ids() -> list[int]:
        return sorted(DeltaTable(lake).to_pyarrow_table()["id"].to_pylist())

    for number in range(2):
        put(shop, number)
        run_to_its_end(begin)
    assert ids() == [0, 1]
    for each in (committed / "1", committed / ".1.crc"):
        each.unlink()  # As after a kill between the commit of the table and that of the offset.
    run_to_its_end(begin)
    assert ids() == [0, 1]
    rows = spark_session.createDataFrame([(7,)], "id INT")
    lake_query.append_once(lake, "another checkpoint", rows, 0)
    assert ids() == [0, 1, 7]
