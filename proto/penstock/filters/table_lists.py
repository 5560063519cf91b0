"""Table lists: which schemas and tables are replicated at all, by name.

    block-allow list    do-dbs not empty     the schema must match one, else out
                        do-dbs empty         a schema in ignore-dbs is out
                        then, for tables     in do-tables: kept; in ignore-tables: out;
                                             in neither: kept if do-tables is empty
    drainer.toml        with do-dbs or do-tables, one of them must match; then ignore-tables
                        and ignore-dbs exclude

A statement about a schema alone passes the block-allow list's second half. In drainer.toml's list
it passes when a do-table is in that schema, because without its schema no table could be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.patterns import Matches, either, plain_regex
from penstock.filters.settings import FilterConfig, TablePattern

SYSTEM_SCHEMAS = frozenset(
    {
        "mysql",
        "information_schema",
        "performance_schema",
        "sys",
        "inspection_schema",
        "metrics_schema",
        "dm_heartbeat",
        "tidb_binlog",
    }
)
"""Never replicated: servers keep them for themselves, and the Drainer its checkpoint."""


class TableFilter(Protocol):
    """Decides by name; an empty table name stands for the schema itself."""

    def is_replicated(self, schema: str, table: str) -> bool: ...


_Pair = tuple[Matches, Matches]


class BlockAllowList:
    """The list of the data migration tool."""

    def __init__(self, config: FilterConfig) -> None:
        """Compile; raise `NeedsOperator` for an invalid pattern."""

        def compiled(pattern: str) -> Matches:
            return either(pattern, case_sensitive=config.case_sensitive)

        self._do_dbs = _names(config.do_dbs, compiled, "do-dbs")
        self._ignore_dbs = _names(config.ignore_dbs, compiled, "ignore-dbs")
        self._do_tables = _pairs(config.do_tables, compiled, "do-tables")
        self._ignore_tables = _pairs(config.ignore_tables, compiled, "ignore-tables")

    def is_replicated(self, schema: str, table: str) -> bool:
        if self._do_dbs:
            if not any(matches(schema) for matches in self._do_dbs):
                return False
        elif any(matches(schema) for matches in self._ignore_dbs):
            return False
        if not table:
            return True
        if _any(self._do_tables, schema, table):
            return True
        return not self._do_tables and not _any(self._ignore_tables, schema, table)


class DrainerList:
    """The lists of TiDB-Binlog's drainer.toml; letter case never matters."""

    def __init__(
        self,
        *,
        do_dbs: Iterable[str] = (),
        do_tables: Iterable[TablePattern] = (),
        ignore_dbs: Iterable[str] = (),
        ignore_tables: Iterable[TablePattern] = (),
    ) -> None:
        """Compile; raise `NeedsOperator` for an invalid pattern."""
        self._do_dbs = _names(do_dbs, plain_regex, "replicate-do-db")
        self._do_tables = _pairs(do_tables, plain_regex, "replicate-do-table")
        self._ignore_dbs = _names(ignore_dbs, plain_regex, "ignore-schemas")
        self._ignore_tables = _pairs(ignore_tables, plain_regex, "ignore-table")

    def is_replicated(self, schema: str, table: str) -> bool:
        if self._do_dbs or self._do_tables:
            in_tables = any(s(schema) and (not table or t(table)) for s, t in self._do_tables)
            if not in_tables and not any(matches(schema) for matches in self._do_dbs):
                return False
        if table and _any(self._ignore_tables, schema, table):
            return False
        return not any(matches(schema) for matches in self._ignore_dbs)


def _any(pairs: Iterable[_Pair], schema: str, table: str) -> bool:
    return any(s(schema) and t(table) for s, t in pairs)


def _names(patterns: Iterable[str], compiled: Callable[[str], Matches], key: str) -> list[Matches]:
    out = []
    for pattern in patterns:
        if not pattern or pattern == "~":
            raise NeedsOperator(f"{key} has an empty pattern", "leave it out", Code.FILTER_RULE)
        out.append(compiled(pattern))
    return out


def _pairs(
    patterns: Iterable[TablePattern], compiled: Callable[[str], Matches], key: str
) -> list[_Pair]:
    out = []
    for pattern in patterns:
        schemas = _names([pattern.db_name], compiled, f"{key}: db-name")
        tables = _names([pattern.tbl_name], compiled, f"{key}: tbl-name")
        out.append((schemas[0], tables[0]))
    return out
