"""A Delta table with each change of one table, written by a streaming query of Spark.

    python -m deploy.examples.lake_query shop.orders /data/orders --etcd-urls 127.0.0.1:2379

Kill this program at any point and restart it: each change is in the Delta table once. Spark repeats
a micro-batch whose end is not in its checkpoint, and the Delta table contains the number of the
last one. The query has a name, so the Pumps keep the binlogs that it has not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import PenstockSource


def append_once(lake: str, checkpoint: str, rows: DataFrame, number: int) -> None:
    """Append a micro-batch, unless the Delta table has it; the columns may be more than before."""
    if DeltaTable.is_deltatable(lake):
        last = DeltaTable(lake).transaction_version(checkpoint)
        if last is not None and last >= number:
            return
    properties = CommitProperties(app_transactions=[Transaction(checkpoint, number)])
    write_deltalake(
        lake, rows.toArrow(), mode="append", schema_mode="merge", commit_properties=properties
    )


def start(spark: SparkSession, table: str, lake: str, etcd: str, **trigger: Any) -> Any:
    spark.dataSource.register(PenstockSource)
    changes = spark.readStream.format("penstock").option("etcd", etcd).option("table", table)
    checkpoint = f"{lake}.checkpoint"
    writer = changes.option("name", f"lake-of-{table}").load().writeStream
    writer = writer.option("checkpointLocation", checkpoint).trigger(**trigger)
    return writer.foreachBatch(partial(append_once, lake, checkpoint)).start()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table")
    parser.add_argument("lake")
    parser.add_argument("--etcd-urls", default="127.0.0.1:2379")
    asked = parser.parse_args(argv)
    spark = SparkSession.builder.appName("lake-query").getOrCreate()
    trigger = {"processingTime": "1 second"}
    start(spark, asked.table, asked.lake, asked.etcd_urls, **trigger).awaitTermination()


if __name__ == "__main__":
    main()
