"""Tracks the names of a table's partitions, and applies operations on them.

No row depends on them. They are tracked so that a statement about a missing partition is found
before it is in the stream, and not by a server that runs it. `TableInfo.partitions` is

    None    not known: the table's history does not give the names, or it has subpartitions
    ()      the table is not partitioned
    names   in their order

Names are compared case-insensitively. Names that a server generates are p0, p1 and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.syntax.statements import Operation, PartitionBy, Partitions
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType, TableInfo

Names = tuple[str, ...]


def made_up(first: int, count: int) -> Names:
    """Return the names that a server generates for partitions, by number."""
    return tuple(f"p{i}" for i in range(first, first + count))


def partitioned(table: TableInfo, operations: Iterable[Operation]) -> TableInfo:
    """Return the table with its partitions after the operations.

    Raises `NeedsOperator` for a partition that does not exist, or already exists.
    """
    for operation in operations:
        if isinstance(operation, PartitionBy):
            _check_distinct(table, operation.names or ())
            table = replace(table, partitions=operation.names)
        elif isinstance(operation, Partitions):
            table = replace(table, partitions=_after(table, operation))
    return table


def without(table: TableInfo) -> TableInfo:
    return replace(table, partitions=None if table.partitions is None else ())


def _after(table: TableInfo, operation: Partitions) -> Names | None:
    before = table.partitions
    if before is None:
        return None
    if not before:
        raise _unfit(table, "it is not partitioned", "partition it first")
    named = _known(table, before, operation)
    if operation.type in (DdlType.DROP_PARTITION, DdlType.CONVERT_PARTITION):
        left = tuple(name for name in before if name.lower() not in named)
        if not left:
            raise _unfit(table, "it would be left without a partition", "drop the table")
        return left
    if operation.type in (DdlType.ADD_PARTITION, DdlType.CONVERT_TABLE):
        return _added(table, before, operation)
    if operation.into:
        return _reorganized(table, before, named, operation.into)
    if operation.count:
        if operation.count >= len(before):
            raise _unfit(table, "it would be left without a partition", "coalesce fewer")
        return before[: -operation.count]
    return before


def _known(table: TableInfo, before: Sequence[str], operation: Partitions) -> set[str]:
    there = {name.lower() for name in before}
    named = {name.lower() for name in operation.names}
    missing = [name for name in operation.names if name.lower() not in there]
    if missing and not operation.lenient:
        raise _unfit(table, f"it has no partition {missing[0]!r}", "check the name")
    return named & there


def _added(table: TableInfo, before: Names, operation: Partitions) -> Names | None:
    added = operation.into or made_up(len(before), operation.count)
    if operation.lenient and {n.lower() for n in before} & {n.lower() for n in added}:
        return None  # The server decides which of them were added.
    _check_distinct(table, before + added)
    return before + added


def _reorganized(table: TableInfo, before: Names, named: set[str], into: Names) -> Names:
    places = [i for i, name in enumerate(before) if name.lower() in named]
    if places != list(range(places[0], places[0] + len(places))):
        raise _unfit(table, "they do not stand side by side", "reorganize neighbours")
    head, tail = before[: places[0]], before[places[-1] + 1 :]
    _check_distinct(table, head + into + tail)
    return head + into + tail


def _check_distinct(table: TableInfo, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise _unfit(table, f"a second partition {name!r}", "choose another name")
        seen.add(name.lower())


def _unfit(table: TableInfo, problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(f"table {table.name!r}: {problem}", hint, Code.DDL_DEFINITION)
