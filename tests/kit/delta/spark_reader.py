"""Spark with Delta's own reader, in a Java beside the test, at the versions that it is made for.

That is another Spark than a Drainer's, so no Python is ours there: what it reads it writes as plain
Parquet files.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.servers.java_process import JavaProcess

_OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch",
           "sun.util.calendar")  # fmt: skip
"""Packages of Java that Spark reaches into."""
_SETTINGS = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.snapshotPartitions": "1",
}


class SparkReader(JavaProcess):
    """A Java with Spark and Delta; use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what the Java needs, and for what it has read."""
        opened = (f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)
        super().__init__(folder, "delta-spark", "-Xmx512m", f"-Djava.io.tmpdir={folder}", *opened)
        self._folder = folder
        self._reads = 0
        builder = self.jvm.org.apache.spark.sql.SparkSession.builder()
        for name, value in {**_SETTINGS, "spark.sql.warehouse.dir": f"{folder}/tables"}.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()

    def read(self, table: Path, version: int | None = None) -> pa.Table:
        self._reads += 1
        found = self._folder / f"read-{self._reads}"
        reader = self._spark.read().format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", str(version))
        reader.load(str(table)).write().parquet(str(found))
        return pq.read_table(found)
