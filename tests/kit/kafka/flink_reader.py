"""Flink's own readers of canal-json, Debezium JSON and Maxwell JSON, in a Java beside the test.

What a Flink task would run for `'format' = 'canal-json'` is called directly, without a Flink.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from deploy.local.kafka import jars_of
from drainer.spark.java import use_java

Row = tuple[Any, ...]


class Changed(NamedTuple):
    """One row of a changelog; `kind` is +I, -U, +U or -D."""

    kind: str
    row: Row


class FlinkReader:
    """A Java with Flink's classes; use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what the Java needs."""
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        (py4j,) = Path(spark.origin).parent.glob("jars/py4j-*.jar")
        port, token = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{jars_of('flink')}/*",
            javaopts=["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            java_path=str(use_java(folder) / "bin" / "java"),
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=subprocess.DEVNULL,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )
        self._java: Any = self._gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gateway.shutdown()

    def read(
        self, form: str, columns: Mapping[str, str], messages: Iterable[bytes | None]
    ) -> list[Changed]:
        """Return what a Flink table of these columns and SQL types reads; raise what Flink does.

        `form` is a format as a sink's URL has it.
        """
        reader = self._reader(form, columns)
        found: list[Changed] = []
        for message in messages:
            rows = self._java.java.util.ArrayList()
            functions = self._java.org.apache.flink.api.common.functions.util
            reader.deserialize(message, functions.ListCollector(rows))
            for row in rows:
                values = tuple(_value(row.getField(at)) for at in range(row.getArity()))
                found.append(Changed(row.getRowKind().shortString(), values))
        return found

    def _reader(self, form: str, columns: Mapping[str, str]) -> Any:
        flink = self._java.org.apache.flink
        types = flink.table.types
        text = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        loader = self._java.java.lang.Thread.currentThread().getContextClassLoader()
        row = types.logical.utils.LogicalTypeParser.parse(f"ROW<{text}>", loader)
        data = types.utils.TypeConversions.fromLogicalToDataType(row)
        info = flink.table.runtime.typeutils.InternalTypeInfo.of(row)
        json = flink.formats.json
        sql = flink.formats.common.TimestampFormat.SQL
        nothing = self._java.java.util.ArrayList()
        name, *options = form.split("&")
        if name == "canal-json":
            canal = json.canal.CanalJsonDeserializationSchema
            made = canal.builder(data, nothing, info).setTimestampFormat(sql).build()
        elif name == "debezium":
            has_schemas = "schemas=true" in options
            made = json.debezium.DebeziumJsonDeserializationSchema(
                data, nothing, info, has_schemas, False, sql
            )
        else:
            made = json.maxwell.MaxwellJsonDeserializationSchema(data, nothing, info, False, sql)
        made.open(None)
        return made


def _value(field: Any) -> Any:
    """Return a field; texts, decimals and timestamps of Flink's own as their texts."""
    return field.toString() if hasattr(field, "toString") else field


def applied(changes: Iterable[Changed]) -> Counter[Row]:
    """Return the rows that a changelog leaves; assert that what goes was there."""
    rows: Counter[Row] = Counter()
    for kind, row in changes:
        rows[row] += 1 if kind in ("+I", "+U") else -1
        assert rows[row] >= 0, f"{kind} {row} is not there"
    return +rows
