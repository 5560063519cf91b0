"""Spark with Delta's own reader, in a Java beside the test, at the versions that it is made for.

That is another Spark than a Drainer's, so no Python is ours there: what it reads it writes as plain
Parquet files.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from deploy.local.kafka import jars_of
from drainer.spark.java import use_java

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


class SparkReader:
    """A Java with Spark and Delta; use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what the Java needs, and for what it has read."""
        self._folder = folder
        self._reads = 0
        jars = jars_of("delta-spark")
        (py4j,) = jars.glob("py4j-*.jar")
        port, token = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{jars}/*",
            javaopts=[
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Djava.io.tmpdir={folder}",
                *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
            ],
            java_path=str(use_java(folder) / "bin" / "java"),
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=subprocess.DEVNULL,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )
        java: Any = self._gateway.jvm
        builder = java.org.apache.spark.sql.SparkSession.builder()
        for name, value in {**_SETTINGS, "spark.sql.warehouse.dir": f"{folder}/tables"}.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spark.stop()
        self._gateway.shutdown()

    def read(self, table: Path, version: int) -> pa.Table:
        """Return a Delta table at a version."""
        self._reads += 1
        found = self._folder / f"read-{self._reads}"
        reader = self._spark.read().format("delta").option("versionAsOf", str(version))
        reader.load(str(table)).write().parquet(str(found))
        return pq.read_table(found)
