"""DDL of tables that are replicated into one: which statement runs downstream, and when.

The downstream table has the columns and indexes of all its sources, so that rows of all of them
fit:

    a source joins      it must have nothing that the others do not have; nothing runs
    adds a column, …    the first source's statement runs; the same from the others is already done
    drops one           nothing runs until the last source drops it
    changes one         the first source's statement runs; the others may be one change behind
    TRUNCATE, DROP      would also affect the rows of the others: refused, as is RENAME COLUMN
    all untracked       (comments, engines, partitions, foreign keys) runs each time

The answer follows only from the current tables; no other state is kept. A statement of which only a
part must run is refused. A refusal raises NeedsOperator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.routes import Constants
from penstock.schema.model import PUBLIC, ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo

Item = tuple[str, str]
_KEY_FLAGS = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY


class Vote(Enum):
    """The consequence of one difference."""

    RUN = auto()
    DONE = auto()
    WAIT = auto()


def stable_id(*names: str) -> int:
    """Return an id for these names, the same for all sources and runs."""
    joined = "\0".join(name.lower() for name in names)
    return int.from_bytes(blake2b(joined.encode(), digest_size=7).digest(), "big") | 1 << 56


def routed_table(schema: str, name: str, table: TableInfo, constants: Constants = ()) -> TableInfo:
    """Return a table as it is known downstream: ids of table and indexes follow from the names.

    Columns keep their ids, because rows carry them. Sources whose rows get other `constants` are
    separate tables here, and one table downstream. Raises `NeedsOperator` when a source has such a
    column.
    """
    for column, _ in constants:
        if table.column(column) is not None:
            raise NeedsOperator(
                f"a route adds the column {column!r} to rows of {table.name!r}, which has one",
                "extract into a column of another name",
                Code.ROUTE_CONFLICT,
            )
    indexes = tuple(replace(i, id=stable_id("index", i.name)) for i in table.indexes)
    return replace(
        table,
        id=stable_id(schema, name, *(f"={text}" for _, text in constants)),
        name=name,
        constants=constants,
        indexes=indexes,
        max_column_id=0,
        max_index_id=0,
        comment="",
        partitions=None,
    )


def check_newcomer(name: str, table: TableInfo, others: Sequence[TableInfo]) -> None:
    """Raise `NeedsOperator` unless a new source fits the table of the other sources."""
    known: dict[Item, Any] = {}
    for other in others:
        known.update(_items(other))
    for item, shape in _items(table).items():
        if known.get(item) != shape:
            raise _unfit(name, f"a new source has another {item[0]} {item[1]!r} than the others")
    lacking = known.keys() - _items(table).keys()
    for other in others:
        for column in other.columns:
            if ("column", column.name.lower()) in lacking and _is_demanding(column):
                raise _unfit(
                    name, f"a new source lacks column {column.name!r}, which needs a value"
                )


def runs_alter(name: str, before: TableInfo, after: TableInfo, others: Sequence[TableInfo]) -> bool:
    old, new = _items(before), _items(after)
    shapes = [_items(other) for other in others]
    votes = {
        item: _vote(name, item, old.get(item), new.get(item), [s.get(item) for s in shapes])
        for item in old.keys() | new.keys()
        if old.get(item) != new.get(item)
    }
    for item, vote in votes.items():
        _check_rows_fit(name, item, vote, before if item not in new else after, shapes)
    asked = set(votes.values())
    if Vote.RUN in asked and len(asked) > 1:
        found = ", ".join(f"{kind} {thing!r}" for kind, thing in sorted(votes))
        raise _unfit(name, f"only a part of the change ({found}) can be made while sources differ")
    return not asked or Vote.RUN in asked


def united(table: TableInfo, others: Iterable[TableInfo]) -> TableInfo:
    """Return a table with the additional columns and indexes of its fellow sources.

    All ids follow from names, so that a column has the same id in all sources.
    """
    columns: dict[str, ColumnInfo] = {}
    indexes: dict[str, IndexInfo] = {}
    for each in (table, *others):
        for column in each.columns:
            columns.setdefault(column.name.lower(), column)
        for index in each.indexes:
            indexes.setdefault(index.name.lower(), index)
    placed = {
        name: replace(column, id=stable_id("column", name), offset=offset)
        for offset, (name, column) in enumerate(columns.items())
    }

    def part(each: IndexColumn) -> IndexColumn:
        return replace(each, offset=placed[each.name.lower()].offset)

    return replace(
        table,
        columns=tuple(placed.values()),
        indexes=tuple(
            replace(index, id=stable_id("index", name), columns=tuple(map(part, index.columns)))
            for name, index in indexes.items()
        ),
    )


def _items(table: TableInfo) -> dict[Item, Any]:
    found: dict[Item, Any] = {}
    for c in table.columns:
        if c.state == PUBLIC:
            found["column", c.name.lower()] = (
                c.tp, c.flag & ~_KEY_FLAGS, c.flen, c.decimal, c.charset, c.collate, c.elems,
                c.default, c.default_is_expr, c.generated_expr, c.generated_stored,
            )  # fmt: skip
    keys = [i for i in table.indexes if i.state == PUBLIC and not i.primary]
    primary = table.primary_key
    for index in [*keys, *([primary] if primary else [])]:
        parts = tuple((part.name.lower(), part.length) for part in index.columns)
        label = "primary" if index.primary else index.name.lower()
        found["index", label] = (index.unique, parts)
    return found


def _vote(name: str, item: Item, old: Any, new: Any, others: Sequence[Any]) -> Vote:
    there = [each for each in others if each is not None]
    if new is None:
        return Vote.WAIT if there else Vote.RUN
    if any(each not in (old, new) for each in there):
        raise _unfit(name, f"sources have different shapes of {item[0]} {item[1]!r}")
    return Vote.DONE if new in there else Vote.RUN


def _check_rows_fit(
    name: str, item: Item, vote: Vote, table: TableInfo, shapes: Sequence[dict[Item, Any]]
) -> None:
    column = table.column(item[1]) if item[0] == "column" else None
    if column is None or not _is_demanding(column):
        return
    if vote is Vote.WAIT or (vote is Vote.RUN and any(item not in s for s in shapes)):
        raise _unfit(name, f"column {column.name!r} is NOT NULL, without default, and not in all")


def _is_demanding(column: ColumnInfo) -> bool:
    auto = ColumnFlag.AUTO_INCREMENT in column.flag
    return column.is_not_null and column.default is None and not auto and not column.is_generated


def _unfit(name: str, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"several tables are replicated into {name}, and {why}",
        "change the downstream's table by hand so that rows of all sources fit, and let"
        " this DDL be tracked only (ignore-txn-commit-ts)",
        Code.ROUTE_CONFLICT,
    )
