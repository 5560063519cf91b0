"""What a DDL statement says, as frozen values without a catalog's knowledge.

Places (`start`, `end`) are offsets into `Source.text`. An `Edit` replaces the text between two
places; statements are run downstream as written, but for their edits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to stand between two places instead of what stands there."""

    start: int
    end: int
    text: str


def edited(text: str, start: int, end: int, edits: Iterable[Edit]) -> str:
    """Return `text[start:end]` with those edits that lie within it."""
    out: list[str] = []
    at = start
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if start <= edit.start and edit.end <= end:
            assert edit.start >= at, "edits must not overlap"
            out += [text[at : edit.start], edit.text]
            at = edit.end
    return "".join([*out, text[at:end]]).strip()


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table's name as written."""

    schema: str | None
    name: str
    start: int
    end: int


class ValueKind(Enum):
    """What kind of value stands after DEFAULT."""

    NULL = auto()
    NUMBER = auto()
    TEXT = auto()
    HEX = auto()
    BITS = auto()
    NOW = auto()
    EXPRESSION = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """A default: a literal, the current time (`text` is its fsp), or an expression."""

    kind: ValueKind
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charset:
    """A character set and collation as written, either may be absent."""

    charset: str | None = None
    collate: str | None = None
    end: int = -1
    """Where a missing COLLATE would go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """A column's type: its name in capitals, numbers or names in parentheses, attributes."""

    name: str
    numbers: tuple[int, ...] = ()
    elems: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    binary: bool = False
    charset: Charset = Charset()


class Place(Enum):
    """Where a column goes."""

    LAST = auto()
    FIRST = auto()
    AFTER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """One column of a key; `length` is a prefix, -1 the whole column."""

    name: str
    length: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDef:
    """A key; `implied` is one that a foreign key asks for when no other key serves it."""

    name: str | None
    parts: tuple[KeyPart, ...]
    unique: bool = False
    primary: bool = False
    fulltext: bool = False
    implied: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDef:
    """A column as written; keys written inline are in `keys`."""

    name: str
    type: TypeSpec
    not_null: bool | None = None
    default: Value | None = None
    on_update_now: bool = False
    auto_increment: bool = False
    generated: str = ""
    stored: bool = False
    comment: str = ""
    keys: tuple[KeyDef, ...] = ()
    place: Place = Place.LAST
    after: str = ""
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Table options that Penstock tracks; `end` is where the written ones stop."""

    charset: Charset = Charset()
    comment: str | None = None
    end: int = -1


# One operation of an ALTER TABLE.


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ADD COLUMN, or several in parentheses."""

    columns: tuple[ColumnDef, ...]


@dataclass(frozen=True, slots=True)
class DropColumn:
    """DROP COLUMN."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """MODIFY or CHANGE: `old` becomes `column`."""

    old: str
    column: ColumnDef
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """RENAME COLUMN."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class AddKey:
    """ADD INDEX, UNIQUE, PRIMARY KEY, or a foreign key's index."""

    key: KeyDef


@dataclass(frozen=True, slots=True)
class DropKey:
    """DROP INDEX or DROP CONSTRAINT; the latter may name what is not tracked (`lenient`)."""

    name: str
    if_exists: bool = False
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class DropPrimary:
    """DROP PRIMARY KEY."""


@dataclass(frozen=True, slots=True)
class RenameKey:
    """RENAME INDEX."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN SET DEFAULT; None is DROP DEFAULT."""

    name: str
    default: Value | None


@dataclass(frozen=True, slots=True)
class RenameTo:
    """RENAME TO."""

    ref: TableRef


@dataclass(frozen=True, slots=True)
class SetOptions:
    """COMMENT, DEFAULT CHARSET and options that are not tracked."""

    options: TableOptions


@dataclass(frozen=True, slots=True)
class Convert:
    """CONVERT TO CHARACTER SET; no charset means the schema's."""

    charset: Charset
    start: int
    """Where the name of the character set starts."""


@dataclass(frozen=True, slots=True)
class Untracked:
    """What changes neither rows nor the tracked schema; `tuning` says how to alter, not what."""

    tuning: bool = False


Operation: TypeAlias = (
    AddColumns
    | DropColumn
    | ChangeColumn
    | RenameColumn
    | AddKey
    | DropKey
    | DropPrimary
    | RenameKey
    | SetDefault
    | RenameTo
    | SetOptions
    | Convert
    | Untracked
)


@dataclass(frozen=True, slots=True)
class Part:
    """One operation and where it stands; one that came to nothing downstream has `dead`."""

    operation: Operation
    start: int
    end: int


# Statements.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What every statement has: its place, and edits that do not depend on the catalog."""

    start: int = 0
    end: int = 0
    edits: tuple[Edit, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema(Statement):
    """CREATE DATABASE."""

    name: str
    if_not_exists: bool
    charset: Charset


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSchema(Statement):
    """ALTER DATABASE; without a name, the current one."""

    name: str | None
    charset: Charset


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchema(Statement):
    """DROP DATABASE."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable(Statement):
    """CREATE TABLE with columns."""

    ref: TableRef
    if_not_exists: bool
    columns: tuple[ColumnDef, ...]
    keys: tuple[KeyDef, ...]
    options: TableOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLike(Statement):
    """CREATE TABLE LIKE."""

    ref: TableRef
    if_not_exists: bool
    like: TableRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTables(Statement):
    """DROP TABLE or DROP VIEW."""

    refs: tuple[TableRef, ...]
    if_exists: bool
    views: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTable(Statement):
    """TRUNCATE TABLE."""

    ref: TableRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTables(Statement):
    """RENAME TABLE, one or several."""

    pairs: tuple[tuple[TableRef, TableRef], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable(Statement):
    """ALTER TABLE."""

    ref: TableRef
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatement(Statement):
    """CREATE INDEX or DROP INDEX: an ALTER TABLE in other words."""

    ref: TableRef
    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView(Statement):
    """CREATE VIEW, or ALTER VIEW (`must_exist`)."""

    ref: TableRef
    or_replace: bool
    must_exist: bool
    if_not_exists: bool
    select_start: int
