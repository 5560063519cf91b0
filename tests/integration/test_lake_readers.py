"""Each state that a lake promises is, to readers that are not ours, what a MariaDB held then."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from operator import itemgetter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from tests.kit.delta.spark_reader import SparkReader
from tests.kit.servers.fix_drainer import DrainerFactory
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.workloads import forty_types
from tests.kit.workloads.forty_types import HIGHEST, LOWEST, NOTHING

pytestmark = pytest.mark.slow

Rows = Counter[frozenset[tuple[str, object]]]
"""Rows by the names of their columns, each as often as it is there."""
State = dict[tuple[str, str], Rows]
"""The rows of all tables, by schema and name."""
Reader = Callable[[Path, int | None], pa.Table]


class Phases:
    """What is written, in phases: random rows, forty types with their extremes, and DDL."""

    def __init__(self, replication: Replication) -> None:
        self._writer = replication.begin(seed=11)
        self._client: PumpClient = replication.client
        for sql in forty_types.DDL:
            self._client.execute_ddl(sql)
        self._kinds: dict[int, dict[str, object]] = {}

    def __iter__(self) -> Iterator[int]:
        """Write one phase after the other; yield the last commit_ts of each."""
        for write in (self._insert, self._exchange, self._widen, self._truncate, self._rename,
                      self._drop):  # fmt: skip
            write()
            yield self._writer.transact(40)

    def _insert(self) -> None:
        for row in (LOWEST, HIGHEST, NOTHING, (4, *HIGHEST[1:])):
            self._put(dict(zip(("id", *forty_types.NAMES), row, strict=True)))

    def _exchange(self) -> None:
        low, high, null = (self._kinds[key] for key in (1, 2, 3))
        self._put({**low, "id": 2})
        self._put({**high, "id": 3})
        self._put({**null, "id": 1})

    def _widen(self) -> None:
        self._client.execute_ddl("ALTER TABLE kinds.t ADD COLUMN added INT DEFAULT 7")
        self._client.execute_ddl("ALTER TABLE kinds.t MODIFY c01 BIGINT")
        for row in self._kinds.values():
            row["added"] = 7
        self._put({**self._kinds[2], "c01": 2**40, "added": None})

    def _truncate(self) -> None:
        self._writer.execute_ddl("TRUNCATE TABLE shop.note")
        self._writer.notes.clear()
        self._client.execute_ddl("CREATE TABLE kinds.late (id INT PRIMARY KEY, at TIMESTAMP(6))")
        with self._client.begin("kinds") as txn:
            for number in range(2000):
                at = f"2026-11-{number % 28 + 1:02} 03:04:05.{number:06}"
                txn.insert("late", {"id": number, "at": at})

    def _rename(self) -> None:
        self._client.execute_ddl("ALTER TABLE kinds.t RENAME COLUMN c07 TO amount")
        for row in self._kinds.values():
            row["amount"] = row.pop("c07")
        self._put({**self._kinds[1], "amount": -7})

    def _drop(self) -> None:
        self._client.execute_ddl("ALTER TABLE kinds.t DROP COLUMN c05")
        for row in self._kinds.values():
            del row["c05"]
        with self._client.begin("kinds") as txn:
            txn.delete("t", self._kinds.pop(4))

    def _put(self, row: dict[str, object]) -> None:
        """Insert a row of the forty types, or change the one with its key."""
        key = int(str(row["id"]))
        with self._client.begin("kinds") as txn:
            if key in self._kinds:
                txn.update("t", self._kinds[key], row)
            else:
                txn.insert("t", row)
        self._kinds[key] = row


def held_by(server: SqlServer) -> State:
    """Return what a MariaDB holds now, values as the guide says that a lake has them."""
    tables: dict[tuple[str, str], list[tuple[str, str, int | None]]] = {}
    for schema, table, name, kind, digits in server.query(
        "SELECT table_schema, table_name, column_name, data_type, numeric_precision FROM"
        " information_schema.columns WHERE table_schema IN ('shop', 'kinds')"
    ):
        tables.setdefault((schema, table), []).append((name, kind, digits))
    state: State = {}
    for (schema, table), columns in tables.items():
        chosen = ", ".join(expression(*column) for column in columns)
        found = server.query(
            f"SELECT {chosen} FROM `{schema}`.`{table}`", init_command="SET time_zone = '+00:00'"
        )
        state[schema, table] = Counter(
            frozenset(
                (name, in_lake(value, kind))
                for value, (name, kind, _) in zip(row, columns, strict=True)
            )
            for row in found
        )
    return state


def expression(name: str, kind: str, digits: int | None) -> str:
    """Return what to select for a column: text, where a lake has a string."""
    if kind == "time" or (kind == "decimal" and digits is not None and digits > 38):
        return f"CAST(`{name}` AS CHAR)"
    return f"CAST(`{name}` AS DOUBLE)" if kind == "float" else f"`{name}`"


def in_lake(value: object, kind: str) -> object:
    """Return a value as a lake has it: dates that are none are NULL."""
    if kind in ("date", "datetime", "timestamp") and not isinstance(value, date):
        return None
    if kind == "timestamp" and isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return value


def rows_of(table: pa.Table) -> Rows:
    return Counter(frozenset(row.items()) for row in table.to_pylist())


def with_pyarrow(table: Path, version: int | None) -> pa.Table:
    return DeltaTable(str(table), version=version).to_pyarrow_table()


def with_datafusion(table: Path, version: int | None) -> pa.Table:
    query = QueryBuilder().register("found", DeltaTable(str(table), version=version))
    return pa.table(query.execute("SELECT * FROM found").read_all())


def with_polars(table: Path, version: int | None) -> pa.Table:
    return pl.read_delta(str(table), version=version).to_arrow()


def state_at(commit_ts: int, lake: Path, read: Reader) -> State:
    """Return the state that a lake promises for a commit_ts, found as its guide says."""
    rows = read(lake / "_penstock/versions", None).to_pylist()
    last = max((row for row in rows if row["commit_ts"] <= commit_ts), key=itemgetter("commit_ts"))
    return {
        (each["schema"], each["table"]): rows_of(
            read(lake / each["schema"] / each["table"], each["version"])
        )
        for each in last["tables"]
    }


def test_each_reader_finds_at_each_moment_what_a_mariadb_held_then(
    replication: Replication,
    drainer_factory: DrainerFactory,
    mariadb: MariadbServer,
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    drainers = [
        replication.start(mariadb, pumps=2),
        drainer_factory(replication.url, f"delta://{lake}?interval=200ms"),
    ]
    held: dict[int, State] = {}
    for last_ts in Phases(replication):
        for drainer in drainers:
            drainer.wait_until(last_ts)
        replication.check()
        # No one writes now, so this is what holds until the next phase.
        held[replication.client.session.oracle.get_ts()] = held_by(mariadb)
    for drainer in drainers:
        assert drainer.stop() == 0
    assert len(held) == 6  # Five earlier states, and the newest.
    (tmp_path / "spark").mkdir()
    with SparkReader(tmp_path / "spark") as spark:
        readers: dict[str, Reader] = {
            "deltalake as Arrow": with_pyarrow,
            "deltalake with DataFusion": with_datafusion,
            "Polars": with_polars,
            "Spark": spark.read,
        }
        for commit_ts, state in held.items():
            for reader, read in readers.items():
                assert state_at(commit_ts, lake, read) == state, f"{reader} at {commit_ts}"
