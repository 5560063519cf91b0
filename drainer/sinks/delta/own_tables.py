"""Own tables of a lake: the checkpoint, and the version of each table at a commit_ts.

_penstock/checkpoint   cluster_id string, checkpoint string        one row
_penstock/versions     commit_ts long, committed_at timestamp,
                       tables array<struct<schema, table, version>>
_penstock/ddl          commit_ts long, commit_time timestamp,
                       schema string, statement string             in a change log
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake

from drainer.sinks.delta.lake import (
    OWN,
    Lake,
    LogWatch,
    Place,
    configuration,
    create_delta,
    is_delta,
    sync_commit,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator

_TIME = pa.timestamp("us", "UTC")
_TABLE = pa.struct([("schema", pa.string()), ("table", pa.string()), ("version", pa.int64())])
_SCHEMAS = {
    "checkpoint": pa.schema([("cluster_id", pa.string()), ("checkpoint", pa.string())]),
    "versions": pa.schema(
        [("commit_ts", pa.int64()), ("committed_at", _TIME), ("tables", pa.list_(_TABLE))]
    ),
    "ddl": pa.schema(
        [("commit_ts", pa.int64()), ("commit_time", _TIME), ("schema", pa.string()),
         ("statement", pa.string())]
    ),
}  # fmt: skip
ONCE = CommitProperties(max_commit_retries=0)


class OwnTable:
    """One of these tables; it is created at its first write."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.path = lake.folder / OWN / name
        self._lake = lake
        self._schema = _SCHEMAS[name]
        self._open: DeltaTable | None = None
        self._watch = LogWatch(self.path)
        self._is_there = False

    def opened(self) -> DeltaTable | None:
        if not self._watch.is_same():
            self._open = None  # It was removed or replaced: read the current table.
        if self._open is not None:
            self._open.update_incremental()
        elif is_delta(self.path):
            self._open = DeltaTable(self.path)
        if self._open is not None:
            self._is_there = True
            self._watch.note(self._open.version())
        return self._open

    def forget(self) -> None:
        self._open = None

    def write(self, rows: list[dict[str, Any]], mode: Any, properties: CommitProperties) -> None:
        table = self.opened()
        if table is None and self._is_there:
            raise self._changed("removed")
        if table is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._open = table = create_delta(self.path, self._schema, ONCE, configuration(0))
        made = pa.Table.from_pylist(rows, self._schema)
        write_deltalake(table, made, mode=mode, commit_properties=properties)
        if not self._watch.is_same():
            raise self._changed("replaced")
        sync_commit(self.path, table.version())
        self.noted()

    def add_once(self, commit_ts: int, row: dict[str, Any]) -> None:
        """Append the row of a commit_ts unless it exists."""
        table = self.opened()
        through = None if table is None else table.transaction_version(self._lake.app)
        if through is None or through < commit_ts:
            row = {"commit_ts": commit_ts, **row}
            self.write([row], "append", self._lake.properties(commit_ts))

    def _changed(self, how: str) -> NeedsOperator:
        return NeedsOperator(
            f"the Delta table {self.path} was {how} while the Drainer wrote the lake",
            "put the folder of the lake back as it was; or begin with an empty folder",
            Code.DELTA_TABLE,
        )

    def noted(self) -> None:
        """Record the table's last version as the version expected next time."""
        assert self._open is not None, "it has just been written"
        self._is_there = True
        self._watch.note(self._open.version())


class VersionsTable(OwnTable):
    """For each commit_ts that a batch or a DDL ended at, the versions of all tables."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, "versions")

    def last(self) -> dict[Place, int]:
        """Return the versions of the last row; empty if there is no row."""
        found = self._query("SELECT tables FROM versions ORDER BY commit_ts DESC LIMIT 1")
        tables = found[0]["tables"] if found else []
        return {(each["schema"], each["table"]): each["version"] for each in tables}

    def add(self, commit_ts: int, versions: Mapping[Place, int]) -> None:
        tables = [{"schema": s, "table": t, "version": v} for (s, t), v in sorted(versions.items())]
        self.add_once(commit_ts, {"committed_at": datetime.now(UTC), "tables": tables})

    def oldest(self) -> dict[Place, int]:
        """Return the oldest version of each table that a row names."""
        found = self._query(
            "SELECT t['schema'] AS s, t['table'] AS n, min(t['version']) AS v"
            " FROM (SELECT unnest(tables) AS t FROM versions) GROUP BY 1, 2"
        )
        return {(each["s"], each["n"]): each["v"] for each in found}

    def expire(self, before: datetime) -> None:
        """Remove rows of states that ended before `before`, except the last of them."""
        rows = self._query("SELECT commit_ts, committed_at FROM versions")
        ended = [row["commit_ts"] for row in rows if row["committed_at"] < before]
        table = self.opened()
        if table is not None and len(ended) > 1:
            table.delete(f"commit_ts < {max(ended)}", commit_properties=ONCE)

    def _query(self, sql: str) -> list[dict[str, Any]]:
        table = self.opened()
        if table is None:
            return []
        stream = QueryBuilder().register("versions", table).execute(sql)
        return list(pa.RecordBatchReader.from_stream(stream).read_all().to_pylist())
