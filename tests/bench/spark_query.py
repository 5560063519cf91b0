"""A history in two Pumps, read by a streaming query over all that is available.

    Pumps ×2 ──> tasks of local[2] ──> Spark's sink `noop`

The table is that of sysbench, and each transaction has the four changes of `oltp_write_only` five
times. The baseline is a query whose source makes up rows of the same columns and size, as many in
each micro-batch: what Spark and Python's data source API cost by themselves. Both times begin with
the start of the query and include that of its Python processes.
"""

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.local.cluster import Cluster
from pumpclient import PumpClient
from tests.bench.rig import Figure, sized
from tests.kit.servers.fix_spark import local_session

TRANSACTIONS = sized(40_000, 1_600)
EVENTS = 5
WRITERS = 16
TASK_ROWS = 25_000
END_S_MAX = 600.0
_DDL = "CREATE TABLE t (id BIGINT PRIMARY KEY, k INT, c CHAR(120), pad CHAR(60), KEY (k))"
_COLUMNS = "id BIGINT, k INT, c STRING, pad STRING, _kind STRING, _commit_ts BIGINT,"
_COLUMNS += " _start_ts BIGINT, _seq BIGINT"
_TEXT = "-".join(["68487932199"] * 10)


class MadeUp(DataSource):  # type: ignore[misc]
    """The format `made-up`: `rows` rows, `batch` in each micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "made-up"

    def schema(self) -> str:
        return _COLUMNS

    def streamReader(self, schema: StructType) -> "MadeUpReader":  # noqa: N802
        return MadeUpReader(int(self.options["rows"]), int(self.options["batch"]))


class MadeUpReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Rows numbered from 0."""

    def __init__(self, rows: int, batch: int) -> None:
        self._rows, self._batch = rows, batch

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"row": min(start["row"] + self._batch, self._rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        firsts = range(start["row"], end["row"], TASK_ROWS)
        return [InputPartition(range(at, min(at + TASK_ROWS, end["row"]))) for at in firsts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ids = partition.value
        numbers, count = pa.array(ids, pa.int64()), len(ids)
        yield pa.record_batch(
            {
                "id": numbers,
                "k": pa.array(ids, pa.int32()),
                "c": pa.repeat(_TEXT, count),
                "pad": pa.repeat(_TEXT[:59], count),
                "_kind": pa.repeat("update_postimage", count),
                "_commit_ts": numbers,
                "_start_ts": numbers,
                "_seq": numbers,
            }
        )


def measure(home: Path) -> Iterator[Figure]:
    """Yield the rows/s of a query that catches up."""
    with Cluster(home, with_drainer=False) as cluster, local_session(home, MadeUp) as spark:
        rows = _write(cluster.etcd.url)
        made = spark.readStream.format("penstock").option("etcd", cluster.etcd.url)
        seconds, batches = _ended(made.option("table", "bench.t"), home / "ours", rows)
        trivial = spark.readStream.format("made-up").option("rows", rows)
        trivial = trivial.option("batch", -(-rows // batches))
        baseline_s, _ = _ended(trivial, home / "trivial", rows)
    detail = {
        "rows": rows,
        "transactions": TRANSACTIONS,
        "micro_batches": batches,
        "seconds": round(seconds, 1),
        "baseline": "a source that makes up its rows as Arrow batches",
    }
    yield Figure("spark.query.catchup", rows / seconds, "rows/s", rows / baseline_s, detail)


def _write(etcd_url: str) -> int:
    """Write the history; return the number of its rows, two for each update."""
    with PumpClient.connect(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE bench")
        client.execute_ddl(_DDL, schema="bench")
        with ThreadPoolExecutor(WRITERS) as pool:
            return sum(pool.map(lambda number: _work(client, number), range(WRITERS)))


def _work(client: PumpClient, number: int) -> int:
    dice, rows = random.Random(number), 0
    table = {at * WRITERS + number: _row(at * WRITERS + number, dice) for at in range(500)}
    with client.begin("bench") as txn:
        txn.insert_many("t", table.values())
    for _ in range(TRANSACTIONS // WRITERS):
        with client.begin("bench") as txn:
            for first, second, gone in (dice.sample(sorted(table), 3) for _ in range(EVENTS)):
                for key in (first, second):
                    before, table[key] = table[key], _row(key, dice)
                    txn.update("t", before, table[key])
                txn.delete("t", table[gone])
                table[gone] = _row(gone, dice)
                txn.insert("t", table[gone])
            rows += EVENTS * 6
    return rows + len(table)


def _row(key: int, dice: random.Random) -> dict[str, Any]:
    noise = f"{dice.randrange(10**11):011d}"
    return {"id": key, "k": dice.randrange(100_000), "c": noise + _TEXT[11:], "pad": _TEXT[:59]}


def _ended(reader: Any, checkpoint: Path, rows: int) -> tuple[float, int]:
    """Run a query over all that is available; return its seconds and its micro-batches."""
    writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
    begun_s = time.perf_counter()
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(int(END_S_MAX)), query.lastProgress
    seconds = time.perf_counter() - begun_s
    found = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sum(found) == rows, (found, rows)
    return seconds, len(found)
