"""A catalog to run DDL against in tests, as a writer and the history would."""

import itertools
from collections.abc import Iterable, Iterator

from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.schema.model import DdlJob, TableInfo


class DdlSession:
    """Plans statements with `d` as current database and applies what they come to."""

    def __init__(self, *statements: str) -> None:
        self.catalog = Catalog()
        self.history: list[DdlJob] = []
        self.changes: list[SchemaChange] = []
        self._ids = itertools.count(1)
        self.run("CREATE DATABASE d", *statements)

    def plan(self, sql: str, schema: str | None = "d") -> list[DdlJob]:
        return plan_ddl(sql, schema, self.catalog, lambda: next(self._ids))

    @staticmethod
    def planned(sql: str, schema: str | None, catalog: Catalog, ids: Iterator[int]) -> list[DdlJob]:
        return plan_ddl(sql, schema, catalog, lambda: next(ids))

    def run(self, *statements: str) -> list[DdlJob]:
        jobs: list[DdlJob] = []
        for sql in statements:
            for job in self.plan(sql):
                self.changes.append(self.catalog.apply(job))
                jobs.append(job)
        self.history += jobs
        return jobs

    def table(self, name: str = "t", schema: str = "d") -> TableInfo:
        found = self.catalog.table(schema, name)
        assert found is not None, f"{schema}.{name} does not exist"
        return found


def check_invariants(catalog: Catalog) -> None:
    seen: set[int] = set()
    for schema, table in catalog.tables():
        assert catalog.table(schema, table.name) == table
        assert catalog.table_by_id(table.id) == (schema, table)
        assert table.id not in seen
        seen.add(table.id)
        assert [c.offset for c in table.columns] == list(range(len(table.columns)))
        assert _distinct(c.id for c in table.columns)
        assert _distinct(i.id for i in table.indexes)
        assert _distinct(c.name.lower() for c in table.columns)
        assert _distinct(i.name.lower() for i in table.indexes)
        assert all(0 < c.id <= table.max_column_id for c in table.columns)
        assert all(0 < i.id <= table.max_index_id for i in table.indexes)
        assert not (table.pk_is_handle and table.is_common_handle)
        for index in table.indexes:
            assert index.columns
            for part in index.columns:
                assert table.columns[part.offset].name == part.name


def _distinct(values: Iterable[object]) -> bool:
    listed = list(values)
    return len(set(listed)) == len(listed)
