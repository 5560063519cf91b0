"""Collations: which of them the downstream has, and which it uses in place of missing ones.

DDL names all its collations. Collations that the downstream has are passed unchanged; for the rest
`collation_substitutes` in `penstock.ddl.rewrite` has the nearest ones. Each substitute in use is
logged once and shown in the status. A key decides which rows are one row. A unique key therefore
takes *fine* substitutes only, and if the downstream has none, the DDL is rejected before it runs.
The upsert's guard stops the Drainer where a substitute still differs, for letters that one of the
two servers does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pymysql.constants import ER
from pymysql.err import MySQLError

from penstock.codes import Code
from penstock.ddl.charsets import charset_of_collation
from penstock.ddl.rewrite.collation_substitutes import (
    SUBSTITUTE_CHARSETS,
    Substitute,
    aliases,
    recollated,
    substitutes,
)
from penstock.ddl.tables.column_types import TEXT_TYPES
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, IndexInfo, TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

log = logging.getLogger(__name__)

MAP, STOP = "map", "stop"
POLICIES = (MAP, STOP)

_FULL_NAMES = (
    "SELECT full_collation_name FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
)
_KeyPart = tuple[IndexInfo, ColumnInfo]


class Collations:
    """One downstream's collations, read once, when a DDL first needs them."""

    def __init__(self, policy: str) -> None:
        """`policy` is `map` or `stop`."""
        self._policy = policy
        self._there: frozenset[str] = frozenset()
        self._charsets: frozenset[str] = frozenset()
        self._in_use: Mapping[str, str] = {}

    @property
    def in_use(self) -> Mapping[str, str]:
        """The substitute for each missing collation met so far; callable from any thread."""
        return self._in_use

    def look_at(self, connection: Any, tables: Iterable[TableInfo]) -> None:
        self._ask(connection)
        for name in {c.collate for table in tables for c in _texts(table)}:
            if not self._has(name) and (found := self._nearest(name, fine=False)) is not None:
                self._note(name, found.name)

    def query_of(self, connection: Any, change: SchemaChange, query: str) -> str:
        """Return the statement of a DDL with collations that the downstream has.

        Raises `NeedsOperator` for a collation without substitute.
        """
        self._ask(connection)
        in_keys = self._checked_keys(change)
        return self._recollated(query, in_keys)

    def clause_of(self, connection: Any, charset: str, collation: str) -> str:
        self._ask(connection)
        return self._recollated(f"CHARACTER SET {charset} COLLATE {collation}", frozenset())

    # --- details ---------------------------------------------------------------------------

    def _ask(self, connection: Any) -> None:
        if self._there:
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT collation_name FROM information_schema.COLLATIONS")
            names = {str(name) for (name,) in cursor.fetchall()}
            try:
                cursor.execute(_FULL_NAMES)
                names |= {str(name) for (name,) in cursor.fetchall()}
            except MySQLError as error:
                if error.args[0] != ER.BAD_FIELD_ERROR:
                    raise  # Only newer MariaDBs have names without their charset, and this column.
        self._charsets = frozenset(map(charset_of_collation, names))
        self._there = frozenset(names)

    def _has(self, name: str) -> bool:
        return not name or name in self._there or any(a in self._there for a in aliases(name))

    def _nearest(self, name: str, *, fine: bool) -> Substitute | None:
        for each in substitutes(name):
            if self._has(each.name) and (each.is_fine or not fine):
                return each
        return None

    def _recollated(self, sql: str, in_keys: frozenset[str]) -> str:
        def collation(name: str) -> str:
            if name in self._there or not name:
                return name
            for alias in aliases(name):
                if alias in self._there:
                    return alias
            found = self._nearest(name, fine=name in in_keys)
            if found is None:
                return name  # Not a collation, or one that only the server knows.
            if self._policy == STOP:
                raise _stopped(name, found.name)
            self._note(name, found.name)
            return next((a for a in aliases(found.name) if a in self._there), found.name)

        def charset(name: str) -> str:
            return name if name in self._charsets else SUBSTITUTE_CHARSETS.get(name, name)

        return recollated(sql, collation, charset)

    def _note(self, name: str, substitute: str) -> None:
        if self._in_use.get(name) == substitute:
            return
        self._in_use = {**self._in_use, name: substitute}
        log.warning(
            "the downstream has no collation %s: its columns have %s there, which may compare and"
            " sort some texts otherwise",
            name,
            substitute,
        )

    def _checked_keys(self, change: SchemaChange) -> frozenset[str]:
        """Return missing collations of unique-key columns; refuse DDL that would lose rows."""
        lacking = set()
        for schema, before, after in _changed(change):
            old = set(_unique_texts(before)) if before else set()
            old_columns = {c.id for c in before.columns} if before else set()
            for index, column in _unique_texts(after):
                if (index, column) in old or self._has(column.collate):
                    continue
                # An existing column already has the nearest one, fine or not.
                nearest = self._nearest(column.collate, fine=False)
                is_kept = column.id in old_columns
                usable = nearest if is_kept else self._nearest(column.collate, fine=True)
                if nearest is not None and (usable is None or not usable.is_fine):
                    raise _coarse(f"{schema}.{after.name}", index, column, nearest.name)
                lacking.add(column.collate)
        return frozenset(lacking)


def _texts(table: TableInfo) -> Iterator[ColumnInfo]:
    return (c for c in table.columns if c.tp in TEXT_TYPES and not c.is_binary)


def _unique_texts(table: TableInfo) -> Iterator[_KeyPart]:
    primary = table.primary_key
    for index in {i for i in (*table.indexes, primary) if i is not None and i.unique}:
        for part in index.columns:
            column = table.columns[part.offset]
            if column.tp in TEXT_TYPES and not column.is_binary:
                yield index, column


def _changed(change: SchemaChange) -> Iterator[tuple[str, TableInfo | None, TableInfo]]:
    yield from ((schema, None, table) for schema, table in change.created)
    yield from change.altered
    yield from ((schema, before, after) for _, before, schema, after in change.renamed)


def _stopped(name: str, substitute: str) -> NeedsOperator:
    return NeedsOperator(
        f"the downstream has no collation {name}",
        hint=f'set apply.collations = "map" to have {substitute} in its place, or run another'
        " statement instead: penstock drainer ddl replace",
        code=Code.SINK_DDL,
    )


def _coarse(table: str, index: IndexInfo, column: ColumnInfo, substitute: str) -> NeedsOperator:
    return NeedsOperator(
        f"{table}: {column.name!r} is in the unique key {index.name!r}, and the downstream has no"
        f" collation {column.collate}; {substitute}, which comes nearest, takes texts for equal"
        " that upstream tells apart, so rows would be lost",
        hint="give the column upstream a collation that both servers have, such as utf8mb4_bin, or"
        " run the statement with a finer one instead: penstock drainer ddl replace",
        code=Code.SINK_DDL,
    )
