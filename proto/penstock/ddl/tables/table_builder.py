"""Builds a table: columns and keys under change, until `finish` makes them a `TableInfo`.

CREATE TABLE fills an empty builder (`create_table`), ALTER TABLE changes a full builder (`alter`).
`finish` keeps the invariants that the rest of Penstock relies on:

    columns[i].offset == i; no two columns or indexes share a name (letter case aside) or an id;
    ids only grow: `max_column_id` and `max_index_id` include dropped columns and indexes;
    key flags follow from the keys as in MySQL: PRI_KEY on every column of the primary key,
    UNIQUE_KEY on the column of a one-column unique key, MULTIPLE_KEY on the first of any other;
    a primary key of one whole integer column is the handle and has no index entry
    (`pk_is_handle`), any other primary key has one and is also the handle (`is_common_handle`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from penstock.codes import Code
from penstock.ddl.charsets import char_bytes_max, resolve
from penstock.ddl.syntax.lexer import RESERVED, Kind, read
from penstock.ddl.syntax.statements import ColumnDef, CreateTable, KeyDef, KeyPart, PartitionBy
from penstock.ddl.tables.column_types import (
    GEOMETRIES,
    INTEGER_TYPES,
    LARGE_TYPES,
    POINT_BYTES,
    TEXT_TYPES,
    build_column,
)
from penstock.ddl.tables.partitioning import partitioned
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import (
    ColumnFlag,
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    MysqlType,
    SchemaInfo,
    TableInfo,
)

KEY_BYTES_MAX = 3072


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBuilder:
    """A key by column names; id 0 until it is assigned."""

    id: int = 0
    name: str
    parts: tuple[KeyPart, ...]
    unique: bool = False
    primary: bool = False
    fulltext: bool = False
    spatial: bool = False


def part_bytes(column: ColumnInfo, length: int) -> int:
    """Return the maximum bytes that a column, or a prefix of it, takes in a key."""
    if column.tp is MysqlType.GEOMETRY and length != -1:
        return length
    if column.tp not in TEXT_TYPES or column.tp in (MysqlType.ENUM, MysqlType.SET):
        return 8
    return (column.flen if length == -1 else length) * char_bytes_max(column.charset)


def geometry_prefix(key: KeyBuilder, part: KeyPart, column: ColumnInfo) -> int:
    """Return the prefix as MariaDB keeps it: -1 in a SPATIAL index, else always a length.

    Raises NeedsOperator for a key that a server refuses, and for keys that would distinguish rows
    by their geometries.
    """
    is_geometry = column.tp is MysqlType.GEOMETRY
    if key.spatial:
        if len(key.parts) > 1 or part.length != -1 or not (is_geometry and column.is_not_null):
            raise NeedsOperator(
                f"the SPATIAL index {key.name!r} is over something else",
                "it takes one geometry that is NOT NULL",
                Code.DDL_DEFINITION,
            )
        return -1
    if key.unique or key.fulltext:
        raise NeedsOperator(
            f"index {key.name!r} over the geometry {column.name!r}",
            "make the key of other columns, and a SPATIAL index for this one",
            Code.DDL_DEFINITION,
        )
    if GEOMETRIES[column.decimal] == "POINT":
        return POINT_BYTES
    return KEY_BYTES_MAX if part.length == -1 else part.length


KEY_COLUMNS_MAX = 16
_KEY_FLAGS = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY


@dataclass(slots=True, kw_only=True)
class TableBuilder:
    """A table under change."""

    table: TableInfo
    context: DdlContext | None = None
    """The session of the statement."""
    columns: list[ColumnInfo] = field(default_factory=list)
    keys: list[KeyBuilder] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)
    """Names of indexes over expressions."""
    unnamed: list[tuple[KeyDef, str]] = field(default_factory=list)
    """Keys without a written name, also keys that foreign keys asked for, with their names."""

    @classmethod
    def of(cls, table: TableInfo, context: DdlContext | None = None) -> TableBuilder:
        builder = cls(
            table=table,
            context=context,
            columns=list(table.columns),
            expressions=list(table.expression_indexes),
        )
        primary = table.primary_key
        indexes = list(table.indexes)
        if primary is not None and primary not in indexes:
            indexes.insert(0, primary)
        for index in indexes:
            parts = tuple(KeyPart(name=c.name, length=c.length) for c in index.columns)
            whole = {
                column.tp
                for part in parts
                if part.length == -1 and (column := builder.column(part.name)) is not None
            }
            builder.keys.append(
                KeyBuilder(
                    id=index.id,
                    name=index.name,
                    parts=parts,
                    unique=index.unique,
                    primary=index.primary,
                    # Only a FULLTEXT index can look like this, which `IndexInfo` does not say,
                    fulltext=not index.unique
                    and (not LARGE_TYPES.isdisjoint(whole) or builder._is_too_long(parts)),
                    # and only a SPATIAL one: other keys over a geometry have a prefix.
                    spatial=MysqlType.GEOMETRY in whole,
                )
            )
        return builder

    def _is_too_long(self, parts: Sequence[KeyPart]) -> bool:
        columns = [(c, p.length) for p in parts if (c := self.column(p.name)) is not None]
        return sum(part_bytes(c, length) for c, length in columns) > KEY_BYTES_MAX

    def column(self, name: str) -> ColumnInfo | None:
        wanted = name.lower()
        return next((c for c in self.columns if c.name.lower() == wanted), None)

    def key(self, name: str) -> KeyBuilder | None:
        wanted = name.lower()
        return next((k for k in self.keys if k.name.lower() == wanted), None)

    def new_column_id(self) -> int:
        """Return a column id that this table has never used."""
        self.table = replace(self.table, max_column_id=self.table.max_column_id + 1)
        return self.table.max_column_id

    def add_keys(self, keys: Sequence[KeyDef]) -> None:
        """Add keys in their order; keys implied by foreign keys come last, if they are needed."""
        for key in map(self._with_period, keys):
            if not key.implied:
                self._add_key(key)
        for key in keys:
            if key.implied and not self._serves(key):
                self._add_key(key)

    def _with_period(self, key: KeyDef) -> KeyDef:
        if not any(part.is_period for part in key.parts):
            return key
        name, start, end = (*self.table.own_period, "", "", "")[:3]
        parts: list[KeyPart] = []
        for part in key.parts:
            if part.is_period and part.name.lower() != name.lower():
                raise self.refuse(f"period {part.name!r} does not exist", "check the name")
            ends = (KeyPart(name=end), KeyPart(name=start))
            parts += ends if part.is_period else (part,)
        return replace(key, parts=tuple(parts))

    def has_expression(self, name: str) -> bool:
        return name.lower() in {each.lower() for each in self.expressions}

    def _add_key(self, key: KeyDef) -> None:
        name = "PRIMARY" if key.primary else key.name or self._free_name(key)
        if self.key(name) is not None or self.has_expression(name):
            what = "a second primary key" if key.primary else f"a second index {name!r}"
            raise self.refuse(what, "drop the first or choose another name")
        if name.upper() == "PRIMARY" and not key.primary:
            raise self.refuse("an index called PRIMARY", "choose another name")
        if key.implied or (key.name is None and not key.primary):
            self.unnamed.append((key, name))
        if key.is_over_expression:
            self.expressions.append(name)
            return
        self.keys.append(
            KeyBuilder(
                name=name,
                parts=key.parts,
                unique=key.unique or key.primary,
                primary=key.primary,
                fulltext=key.fulltext,
                spatial=key.spatial,
            )
        )

    def _free_name(self, key: KeyDef) -> str:
        """Return the name MySQL chooses: the first column's, with _2, _3 … if it is taken."""
        column = self.column(key.parts[0].name)
        base = column.name if column is not None else key.parts[0].name
        if key.parts[0].is_expression:
            base = "functional_index"
        taken = {k.name.lower() for k in self.keys} | {name.lower() for name in self.expressions}
        if base.lower() not in taken and base.upper() != "PRIMARY":
            return base
        return next(n for i in range(2, 1000) if (n := f"{base}_{i}").lower() not in taken)

    def _serves(self, foreign: KeyDef) -> bool:
        wanted = [p.name.lower() for p in foreign.parts]
        return any(
            [p.name.lower() for p in key.parts[: len(wanted)]] == wanted
            and all(p.length == -1 for p in key.parts[: len(wanted)])
            and not (key.fulltext or key.spatial)
            # Of a unique key that is too long for an index, MariaDB stores a hash.
            and not (key.unique and self._is_too_long(key.parts))
            for key in self.keys
        )

    def check_bounds(self, what: str, names: Collection[str]) -> None:
        """Refuse anything that names a column of SYSTEM_TIME, which is omitted here."""
        bounds = {name.lower() for name in self.table.period} & {name.lower() for name in names}
        if bounds:
            raise self.refuse(
                f"{what} names {min(bounds)!r}, a column of SYSTEM_TIME, which is left out here",
                "replace the statement by one without it",
            )

    def refuse(self, problem: str, hint: str) -> NeedsOperator:
        return NeedsOperator(f"table {self.table.name!r}: {problem}", hint, Code.DDL_DEFINITION)

    def finish(self) -> TableInfo:
        """Return the table; raise NeedsOperator for anything that MySQL would reject."""
        self._check_columns()
        self._place_columns()
        indexes = tuple(self._index(key) for key in self.keys)
        self._flag_columns(indexes)
        self._check_auto_increment(indexes)
        primary = next((i for i in indexes if i.primary), None)
        is_handle = (
            primary is not None
            and len(primary.columns) == 1
            and self.columns[primary.columns[0].offset].tp in INTEGER_TYPES
        )
        if is_handle:
            indexes = tuple(i for i in indexes if not i.primary)
        numbered = []
        for index in indexes:
            if index.id == 0:
                next_id = self.table.max_index_id + 1
                self.table = replace(self.table, max_index_id=next_id)
                index = replace(index, id=next_id)
            numbered.append(index)
        return replace(
            self.table,
            columns=tuple(self.columns),
            indexes=tuple(numbered),
            expression_indexes=tuple(self.expressions),
            pk_is_handle=is_handle,
            is_common_handle=primary is not None and not is_handle,
        )

    def _check_columns(self) -> None:
        if not self.columns:
            raise self.refuse("no column is left", "drop the table instead")
        seen: set[str] = set()
        for column in self.columns:
            if column.name.lower() in seen:
                raise self.refuse(f"a second column {column.name!r}", "choose another name")
            seen.add(column.name.lower())
            self._check_default(column)

    def _check_default(self, column: ColumnInfo) -> None:
        """Refuse a default that is another column's value if that column does not exist."""
        tokens = read(column.default or "").tokens if column.default_is_expr else ()
        is_name = len(tokens) == 2 and tokens[0].upper not in (*RESERVED, "CURRENT_ROLE")
        if (
            is_name
            and tokens[0].kind in (Kind.WORD, Kind.QUOTED)
            and not self.column(tokens[0].text)
        ):
            raise self.refuse(f"column {tokens[0].text!r} does not exist", "check the name")

    def _place_columns(self) -> None:
        primary = next((k for k in self.keys if k.primary), None)
        solid = {p.name.lower() for p in primary.parts} if primary is not None else set()
        for i, column in enumerate(self.columns):
            flag = column.flag & ~_KEY_FLAGS
            if column.name.lower() in solid:
                flag |= ColumnFlag.NOT_NULL
            self.columns[i] = replace(column, offset=i, flag=flag)

    def _index(self, key: KeyBuilder) -> IndexInfo:
        parts = tuple(self._index_column(key, part) for part in key.parts)
        if len({p.offset for p in parts}) < len(parts):
            raise self.refuse(f"index {key.name!r} has a column twice", "list it once")
        if len(parts) > KEY_COLUMNS_MAX:
            raise self.refuse(f"index {key.name!r} is too wide", f"{KEY_COLUMNS_MAX} is the limit")
        size = sum(part_bytes(self.columns[p.offset], p.length) for p in parts)
        hashed = key.unique and not key.primary  # MariaDB keeps a hash of values that are too long.
        if size > KEY_BYTES_MAX and not (key.fulltext or hashed):
            raise self.refuse(
                f"index {key.name!r} takes {size} bytes",
                f"{KEY_BYTES_MAX} is the limit: use prefixes",
            )
        return IndexInfo(
            id=key.id, name=key.name, columns=parts, unique=key.unique, primary=key.primary
        )

    def _index_column(self, key: KeyBuilder, part: KeyPart) -> IndexColumn:
        column = self.column(part.name)
        if column is None:
            self.check_bounds(f"index {key.name!r}", {part.name})
            raise self.refuse(
                f"index {key.name!r} names column {part.name!r}, which does not exist",
                "add the column first",
            )
        if column.tp is MysqlType.JSON:
            raise self.refuse(f"an index over JSON column {column.name!r}", "index a part of it")
        if key.primary and column.is_generated and not column.generated_stored:
            raise self.refuse("a virtual column in the primary key", "make it STORED")
        if key.spatial or column.tp is MysqlType.GEOMETRY:
            length = geometry_prefix(key, part, column)
        else:
            length = -1 if key.fulltext else self._prefix(key, part, column)
        return IndexColumn(name=column.name, offset=column.offset, length=length)

    def _prefix(self, key: KeyBuilder, part: KeyPart, column: ColumnInfo) -> int:
        """Return the prefix as MySQL keeps it: none where it is the whole column.

        For a long text, a server that accepted the statement keeps as much as fits into an index.
        """
        large = column.tp in LARGE_TYPES
        whole = part_bytes(column, part.length)
        if self.context is not None and not key.unique and whole > KEY_BYTES_MAX:
            return KEY_BYTES_MAX // char_bytes_max(column.charset)
        if part.length == -1:
            if large and not (key.unique and not key.primary):
                raise self.refuse(
                    f"index {key.name!r} holds {column.name!r} without a prefix length",
                    "TEXT and BLOB columns need one",
                )
            return -1
        if column.tp not in TEXT_TYPES or column.tp in (MysqlType.ENUM, MysqlType.SET):
            raise self.refuse(f"a prefix of {column.name!r}, which is no text", "index it whole")
        if not large and part.length > column.flen:
            raise self.refuse(f"a prefix longer than {column.name!r}", "make it shorter")
        return -1 if not large and part.length == column.flen else part.length

    def _flag_columns(self, indexes: Sequence[IndexInfo]) -> None:
        for index in indexes:
            if index.primary:
                for part in index.columns:
                    self._flag(part.offset, ColumnFlag.PRI_KEY)
            elif index.unique and len(index.columns) == 1:
                self._flag(index.columns[0].offset, ColumnFlag.UNIQUE_KEY)
            else:
                self._flag(index.columns[0].offset, ColumnFlag.MULTIPLE_KEY)

    def _flag(self, offset: int, flag: ColumnFlag) -> None:
        column = self.columns[offset]
        self.columns[offset] = replace(column, flag=column.flag | flag)

    def _check_auto_increment(self, indexes: Sequence[IndexInfo]) -> None:
        counting = [c for c in self.columns if ColumnFlag.AUTO_INCREMENT in c.flag]
        # It leads a key, except with MyISAM and similar engines, which count for each value before
        # it.
        keyed = {part.offset for index in indexes for part in index.columns}
        if len(counting) > 1 or any(c.offset not in keyed for c in counting):
            raise self.refuse("an AUTO_INCREMENT column out of place", "one per table, in a key")


def create_table(
    statement: CreateTable, table_id: int, schema: SchemaInfo, context: DdlContext | None = None
) -> tuple[TableInfo, list[tuple[KeyDef, str]]]:
    """Return the table that CREATE TABLE creates in this schema, and its unnamed keys."""
    charset, collate = resolve(statement.options.charset, (schema.charset, schema.collate))
    table = TableInfo(
        id=table_id,
        name=statement.ref.name,
        charset=charset,
        collate=collate,
        comment=statement.options.comment or "",
        period=statement.period,
        own_period=statement.own_period,
    )
    builder = TableBuilder(table=table, context=context)
    for column in statement.columns:
        built = build_column(column, builder.new_column_id(), (charset, collate), context)
        builder.columns.append(built)
    builder.add_keys(statement.keys)
    check_primary(builder, nullable_of(statement.columns))
    parts = PartitionBy(statement.partitions)
    return partitioned(builder.finish(), (parts,)), builder.unnamed


def emptied(table: TableInfo) -> TableInfo:
    """Return the table without data that only older rows need."""
    columns = [replace(c, origin_default=None, origin_is_expr=False) for c in table.columns]
    return replace(table, columns=tuple(columns))


def nullable_of(columns: Iterable[ColumnDef]) -> set[str]:
    """Return columns written as NULL; in a primary key, AUTO_INCREMENT excludes NULLs."""
    return {c.name.lower() for c in columns if c.not_null is False and not c.auto_increment}


def check_primary(builder: TableBuilder, nullable: set[str]) -> None:
    """Refuse columns written as NULL in the primary key; MariaDB makes them NOT NULL."""
    for key in builder.keys if builder.context is None else ():
        if key.primary and nullable & {p.name.lower() for p in key.parts}:
            raise builder.refuse("a primary key with NULLs", "leave NULL out of its columns")
