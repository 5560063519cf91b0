"""Drift: how the downstream's tables differ from the upstream's because of overrides.

    the tracked table     as upstream has it: rows are read with it, always
    its drift             by the commit_ts of the override that each part of it comes from
    masked(table)         rows are written with it: the downstream's columns and keys, no others
    stripped(table)       the table as the downstream has it: the base of further DDL

Objects that a skipped statement creates do not exist downstream, and changes for them are skipped
and counted: the rows of a table, or of a name, that it creates; the values of a column. Objects
that it drops stay. A column that it changes keeps its definition and still gets its values. A table
without a column of its row key downstream is skipped as a whole. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.ddl import adopted, successors
from penstock.schema.model import ColumnFlag, ColumnInfo, DdlJob, IndexColumn, IndexInfo, TableInfo

_NOT_THERE = 0
"""The state of a column that is neither read nor written."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A unique index that only the downstream still has; `parts` are column ids and lengths."""

    since_ts: int
    id: int
    name: str
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How one table differs downstream. Every value is the commit_ts of an override, or 0."""

    absent_ts: int = 0
    """The table does not exist: its rows are skipped."""
    key_ts: int = 0
    """The downstream table has no primary key."""
    columns: Mapping[int, int] = field(default_factory=dict)
    """Ids of the columns that the downstream table lacks."""
    forms: Mapping[int, int] = field(default_factory=dict)
    """Ids of the columns that have another definition downstream."""
    indexes: Mapping[int, int] = field(default_factory=dict)
    """Ids of the other indexes that the downstream table lacks."""
    kept: tuple[Kept, ...] = ()

    @property
    def overrides(self) -> set[int]:
        single = {self.absent_ts, self.key_ts} - {0}
        listed = (*self.columns.values(), *self.forms.values(), *self.indexes.values())
        return single.union(listed, (each.since_ts for each in self.kept))

    def lacking(self, table: TableInfo) -> list[str]:
        """Return the names of the columns whose values are skipped."""
        return [c.name for c in table.columns if c.id in self.columns]

    def converted(self, table: TableInfo) -> list[str]:
        """Return the names of the columns whose values are converted to another definition."""
        return [c.name for c in table.columns if c.id in self.forms and c.id not in self.columns]

    def without(self, override_ts: int) -> Drift:
        """Return the drift that remains when an override no longer holds."""

        def left(ids: Mapping[int, int]) -> dict[int, int]:
            return {each: ts for each, ts in ids.items() if ts != override_ts}

        return Drift(
            absent_ts=0 if self.absent_ts == override_ts else self.absent_ts,
            key_ts=0 if self.key_ts == override_ts else self.key_ts,
            columns=left(self.columns),
            forms=left(self.forms),
            indexes=left(self.indexes),
            kept=tuple(each for each in self.kept if each.since_ts != override_ts),
        )

    def carried(self, job: DdlJob, before: TableInfo, after: TableInfo) -> Drift:
        """Return the drift after a DDL that the downstream has followed as far as it can."""
        ids = successors(job, before, after)
        columns = {c.id for c in after.columns}
        keys = {i.id for i in after.indexes}

        def moved(known: Mapping[int, int], there: set[int]) -> dict[int, int]:
            named = {ids.get(each, each): ts for each, ts in known.items()}
            return {each: ts for each, ts in named.items() if each in there}

        defined = {ids.get(c.id, c.id): _definition(c) for c in before.columns}
        same = {c.id for c in after.columns if defined.get(c.id) == _definition(c)}
        kept = []
        for each in self.kept:
            parts = tuple((ids.get(part, part), length) for part, length in each.parts)
            if columns.issuperset(part for part, _ in parts):
                kept.append(replace(each, parts=parts))
        return Drift(
            absent_ts=self.absent_ts,
            key_ts=self.key_ts if after.primary_key is not None else 0,
            columns=moved(self.columns, columns),
            forms=moved(self.forms, same),
            indexes={i: ts for i, ts in self.indexes.items() if i in keys},
            kept=tuple(kept),
        )

    def masked(self, table: TableInfo) -> TableInfo:
        """Return the table for reading and writing rows, with its missing columns skipped."""
        if self is NONE:
            return table
        columns = tuple(
            replace(c, state=_NOT_THERE) if c.id in self.columns else c for c in table.columns
        )
        made = replace(table, columns=columns, indexes=self._indexes(table))
        made = replace(made, lacks_key=bool(self.key_ts))
        if made.row_key is None:
            return made
        # An upsert may conflict with it, so the sink has to know it; but upstream's key still
        # identifies rows.
        return replace(made, indexes=made.indexes + tuple(self._kept(table)))

    def stripped(self, table: TableInfo) -> TableInfo:
        """Return the table as the downstream has it."""
        if self is NONE:
            return table
        columns = tuple(c for c in table.columns if c.id not in self.columns)
        places = {c.name.lower(): i for i, c in enumerate(columns)}
        indexes = tuple(
            replace(
                index,
                columns=tuple(replace(p, offset=places[p.name.lower()]) for p in index.columns),
            )
            for index in (*self._indexes(table), *self._kept(table))
            if not (index.primary and self.key_ts)
        )
        has_key = not self.key_ts
        flags = ~ColumnFlag(0) if has_key else ~ColumnFlag.PRI_KEY
        return replace(
            table,
            columns=tuple(replace(c, offset=i, flag=c.flag & flags) for i, c in enumerate(columns)),
            indexes=indexes,
            pk_is_handle=table.pk_is_handle and has_key,
            is_common_handle=table.is_common_handle and has_key,
        )

    def _indexes(self, table: TableInfo) -> tuple[IndexInfo, ...]:
        lost = {name.lower() for name in self.lacking(table)}
        return tuple(
            index
            for index in table.indexes
            if index.id not in self.indexes
            and not any(part.name.lower() in lost for part in index.columns)
        )

    def _kept(self, table: TableInfo) -> Iterator[IndexInfo]:
        columns = {c.id: c for c in table.columns}
        for each in self.kept:
            if all(part in columns and part not in self.columns for part, _ in each.parts):
                found = [(columns[part], length) for part, length in each.parts]
                parts = tuple(
                    IndexColumn(name=c.name, offset=c.offset, length=length) for c, length in found
                )
                yield IndexInfo(id=each.id, name=each.name, columns=parts, unique=True)

    def to_json(self) -> dict[str, Any]:
        ids = {
            name: sorted(getattr(self, name).items()) for name in ("columns", "forms", "indexes")
        }
        kept = [[each.since_ts, each.id, each.name, each.parts] for each in self.kept]
        return {"absent": self.absent_ts, "key": self.key_ts, "kept": kept, **ids}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Drift:
        return cls(
            absent_ts=fields["absent"],
            key_ts=fields["key"],
            columns=dict(fields["columns"]),
            forms=dict(fields["forms"]),
            indexes=dict(fields["indexes"]),
            kept=tuple(
                Kept(ts, index_id, name, tuple((part, length) for part, length in parts))
                for ts, index_id, name, parts in fields["kept"]
            ),
        )


NONE = Drift()


def absent(override_ts: int) -> Drift:
    return Drift(absent_ts=override_ts)


def compared(
    job: DdlJob, table: TableInfo, there: TableInfo | None, override_ts: int, earlier: Drift = NONE
) -> Drift:
    """Return how `table`, as it is after `job`, differs from `there`, which the downstream has.

    A column is identified by its name and its id. Parts of `earlier` keep their own cause.
    """
    if there is None:
        return absent(earlier.absent_ts or override_ts)
    there = adopted(job, there, table)
    known = {c.name.lower(): c for c in there.columns}
    columns: dict[int, int] = {}
    forms = {c.id: earlier.forms[c.id] for c in table.columns if c.id in earlier.forms}
    for column in table.columns:
        found = known.get(column.name.lower())
        if found is None or found.id != column.id:
            columns[column.id] = earlier.columns.get(column.id, override_ts)
        elif _definition(found) != _definition(column):
            forms.setdefault(column.id, override_ts)
    key = table.row_key
    if key is not None and any(table.columns[part.offset].id in columns for part in key.columns):
        return absent(override_ts)
    primary, had = table.primary_key, there.primary_key
    has_key = primary is None or (had is not None and _body(primary) == _body(had))
    bodies = {_body(index) for index in there.indexes}
    ours = {_body(index) for index in table.indexes}
    lacking = [i for i in table.indexes if not i.primary and _body(i) not in bodies]
    ids = {c.name.lower(): c.id for c in table.columns}
    since = {each.id: each.since_ts for each in earlier.kept}
    kept = [
        Kept(
            since.get(index.id, override_ts),
            index.id,
            index.name,
            tuple((ids[part.name.lower()], part.length) for part in index.columns),
        )
        for index in there.indexes
        if index.unique and not index.primary and _body(index) not in ours
        and all(part.name.lower() in ids for part in index.columns)
    ]  # fmt: skip
    return Drift(
        key_ts=0 if has_key else earlier.key_ts or override_ts,
        columns=columns,
        forms=forms,
        indexes={i.id: earlier.indexes.get(i.id, override_ts) for i in lacking},
        kept=tuple(kept),
    )


def _body(index: IndexInfo) -> tuple[object, ...]:
    parts = tuple((part.name.lower(), part.length) for part in index.columns)
    return index.unique, index.primary, parts


def _definition(column: ColumnInfo) -> tuple[object, ...]:
    return (
        column.tp, column.flen, column.decimal, column.is_unsigned, column.charset, column.elems,
        column.generated_expr,
    )  # fmt: skip
