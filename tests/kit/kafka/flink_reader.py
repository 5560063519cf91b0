"""Flink's own readers of canal-json, Debezium JSON and Maxwell JSON, in a Java beside the test.

What a Flink task would run for `'format' = 'canal-json'` is called directly, without a Flink.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.servers.java_process import JavaProcess

Row = tuple[Any, ...]


class Changed(NamedTuple):
    """One row of a changelog; `kind` is +I, -U, +U or -D."""

    kind: str
    row: Row


class FlinkReader(JavaProcess):
    """A Java with Flink's classes; use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what the Java needs."""
        super().__init__(folder, "flink", "-Xmx128m")

    def read(
        self, form: str, columns: Mapping[str, str], messages: Iterable[bytes | None]
    ) -> list[Changed]:
        """Return what a Flink table of these columns and SQL types reads; raise what Flink does.

        `form` is a format as a sink's URL has it.
        """
        reader = self._reader(form, columns)
        found: list[Changed] = []
        for message in messages:
            rows = self.jvm.java.util.ArrayList()
            functions = self.jvm.org.apache.flink.api.common.functions.util
            reader.deserialize(message, functions.ListCollector(rows))
            for row in rows:
                values = tuple(_value(row.getField(at)) for at in range(row.getArity()))
                found.append(Changed(row.getRowKind().shortString(), values))
        return found

    def _reader(self, form: str, columns: Mapping[str, str]) -> Any:
        flink = self.jvm.org.apache.flink
        types = flink.table.types
        text = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        row = types.logical.utils.LogicalTypeParser.parse(f"ROW<{text}>", loader)
        data = types.utils.TypeConversions.fromLogicalToDataType(row)
        info = flink.table.runtime.typeutils.InternalTypeInfo.of(row)
        json = flink.formats.json
        sql = flink.formats.common.TimestampFormat.SQL
        nothing = self.jvm.java.util.ArrayList()
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
