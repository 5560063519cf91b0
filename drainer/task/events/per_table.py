"""Per table: caches an encoder's compiled form of each table version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.schema.model import TableInfo

T = TypeVar("T")

_KEPT_MAX = 1024


class PerTable(Generic[T]):
    """Compiles once for each table version."""

    def __init__(self, compiled: Callable[[str, TableInfo], T]) -> None:
        self._compiled = compiled
        self._known: dict[tuple[str, int], tuple[TableInfo, T]] = {}

    def of(self, schema: str, table: TableInfo) -> T:
        """Return the compiled table version, cached by identity since hashing takes longer."""
        known = self._known.get((schema, id(table)))
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[schema, id(table)] = table, self._compiled(schema, table)
        return known[1]
