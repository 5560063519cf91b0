"""A key of a table in the making, and how much of a column it holds."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ddl.charsets.charsets import char_bytes_max
from penstock.ddl.syntax.elements import KeyPart
from penstock.ddl.tables.shapes import GEOMETRIES, POINT_BYTES, TEXT_TYPES
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, MysqlType

KEY_BYTES_MAX = 3072


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftKey:
    """A key by column names; id 0 until it gets one."""

    id: int = 0
    name: str
    parts: tuple[KeyPart, ...]
    unique: bool = False
    primary: bool = False
    fulltext: bool = False
    spatial: bool = False


def part_bytes(column: ColumnInfo, length: int) -> int:
    """Return how many bytes a column, or a prefix of it, takes in a key at most."""
    if column.tp is MysqlType.GEOMETRY and length != -1:
        return length
    if column.tp not in TEXT_TYPES or column.tp in (MysqlType.ENUM, MysqlType.SET):
        return 8
    return (column.flen if length == -1 else length) * char_bytes_max(column.charset)


def geometry_prefix(key: DraftKey, part: KeyPart, column: ColumnInfo) -> int:
    """Return the prefix as MariaDB keeps it: -1 in a SPATIAL index, else always one.

    Raises NeedsOperator for what a server refuses, and for keys that would tell rows apart by
    their geometries.
    """
    is_geometry = column.tp is MysqlType.GEOMETRY
    if key.spatial:
        if len(key.parts) > 1 or part.length != -1 or not (is_geometry and column.is_not_null):
            raise NeedsOperator(
                f"the SPATIAL index {key.name!r} is over something else",
                hint="it takes one geometry that is NOT NULL",
            )
        return -1
    if key.unique or key.fulltext:
        raise NeedsOperator(
            f"index {key.name!r} over the geometry {column.name!r}",
            hint="make the key of other columns, and a SPATIAL index for this one",
        )
    if GEOMETRIES[column.decimal] == "POINT":
        return POINT_BYTES
    return KEY_BYTES_MAX if part.length == -1 else part.length
