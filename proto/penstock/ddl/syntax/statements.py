"""DDL statements as frozen values, passed from the parser to the planner, without a catalog.

Three layers, in this order: the elements (names, types, defaults, columns, keys, options), the
operations of ALTER TABLE, which include CREATE INDEX and DROP INDEX, and the statements. They are
in one module because they are one grammar: it is over 500 lines long and has no logic.

Places (`start`, `end`) are offsets into `Source.text`. An `Edit` replaces the text between two
places; a statement runs downstream as written, except for its edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from penstock.schema.model import DdlType


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement for the text between two places.

    With a `flavor` it is for servers of that kind only, which lack the feature `what`.
    """

    start: int
    end: int
    text: str
    flavor: Flavor | None = field(default=None, compare=False)
    what: str = field(default="", compare=False)


class Flavor(Enum):
    """A kind of server, by the syntax it can read."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"
    TIDB = "TiDB"


SEQUENCE_DEFAULTS = "sequences as defaults"
"""A feature that MySQL lacks and a TiDB has."""


def edited(text: str, start: int, end: int, edits: Iterable[Edit]) -> str:
    out: list[str] = []
    at = start
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if start <= edit.start and edit.end <= end:
            assert edit.start >= at, "edits must not overlap"
            out += [text[at : edit.start], edit.text]
            at = edit.end
    return "".join([*out, text[at:end]]).strip()


def left_out(items: Sequence[tuple[int, int, bool]]) -> list[Edit]:
    """Return edits that remove items from a comma-separated list.

    Each item has its start, its end and whether it stays; at least one item must stay.
    """
    edits: list[Edit] = []
    before = -1
    for n, (start, end, stays) in enumerate(items):
        if not stays:
            edits.append(Edit(start, items[n + 1][0], "") if before < 0 else Edit(before, end, ""))
        before = end if stays or before >= 0 else -1
    return edits


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table's name as written; for a database, `name` is empty."""

    schema: str | None
    name: str
    start: int
    end: int


class ValueKind(Enum):
    """The kind of value after DEFAULT."""

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
    has_charset: bool = False
    """A text with an explicit character set: `_utf8mb4'…'`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharsetClause:
    """A character set and collation as written; either may be missing."""

    charset: str | None = None
    collate: str | None = None
    end: int = -1
    """The place of a missing COLLATE."""
    is_default: bool = False
    """CHARACTER SET DEFAULT is written: the schema's."""
    collate_is_default: bool = False
    """COLLATE DEFAULT is written: the built-in default of servers."""

    @property
    def says_nothing(self) -> bool:
        return self.charset is None and self.collate is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """A column's type: its name in capitals, numbers or names in parentheses, attributes."""

    name: str
    numbers: tuple[int, ...] = ()
    elems: tuple[Value, ...] = ()
    """The labels of ENUM and SET; those in hexadecimal are bytes of the column's charset."""
    unsigned: bool = False
    zerofill: bool = False
    binary: bool = False
    charset: CharsetClause = CharsetClause()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """One column of a key; `length` is a prefix, -1 the whole column."""

    name: str
    length: int = -1
    is_expression: bool = False
    period_at: tuple[int, int] = (-1, -1)
    """Place of a written period WITHOUT OVERLAPS, which stands for its two columns."""

    @property
    def is_period(self) -> bool:
        return self.period_at != (-1, -1)


@dataclass(frozen=True, slots=True)
class Reference:
    """The clause REFERENCES; its actions are in capitals: `ON DELETE CASCADE`."""

    table: TableRef
    columns: tuple[str, ...]
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDef:
    """A key; an `implied` key is required by a foreign key when no other key serves it.

    As an operation: ADD INDEX, UNIQUE, PRIMARY KEY, or a foreign key's index.
    """

    name: str | None
    parts: tuple[KeyPart, ...]
    unique: bool = False
    primary: bool = False
    fulltext: bool = False
    spatial: bool = False
    implied: bool = False
    name_at: int = -1
    """The place of a missing name, -1 where the key itself is not written."""
    at: int = -1
    """The place for the text of an implied key, or of a key that is written with its column."""
    inline: Edit | None = None
    """The edit that removes such a key from its column."""
    if_not_exists: bool = False
    reference: Reference | None = None
    """Set for a foreign key."""
    is_check: bool = False
    is_remark: bool = False
    """A CHECK that is NOT ENFORCED."""

    @property
    def wanted_name(self) -> str:
        """The name that IF NOT EXISTS checks, "" where no key can have it."""
        if self.primary:
            return "PRIMARY"
        return self.name or ("" if self.implied else self.parts[0].name)

    @property
    def is_over_expression(self) -> bool:
        """True when only the server that runs it can compute the key's values."""
        return any(part.is_expression for part in self.parts)


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
    after: str | None = None
    """The column before it; "" is FIRST, None the end of the table."""
    if_not_exists: bool = False
    reference: Reference | None = None
    """An inline REFERENCES, which is omitted downstream."""
    is_bound: bool = False
    """ROW START or ROW END of a system-versioned table."""
    is_versioned: bool = False
    """WITH SYSTEM VERSIONING is written in it, which makes the table versioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Table options that Penstock tracks; `end` is the end of the written options.

    As an operation: COMMENT, DEFAULT CHARSET and options that are not tracked.
    """

    charset: CharsetClause = CharsetClause()
    comment: str | None = None
    end: int = -1


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ADD COLUMN, or several columns in parentheses."""

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
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropKey:
    """DROP INDEX or DROP CONSTRAINT; the latter may name an untracked constraint (`lenient`)."""

    name: str
    if_exists: bool = False
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class DropPrimary:
    """DROP PRIMARY KEY."""


@dataclass(frozen=True, slots=True)
class AlterKey:
    """ALTER INDEX: whether an optimizer may use it."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameKey:
    """RENAME INDEX."""

    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN SET DEFAULT; None is DROP DEFAULT. `at` is the place of the default."""

    name: str
    default: Value | None
    if_exists: bool = False
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RenameTo:
    """RENAME TO."""

    ref: TableRef


@dataclass(frozen=True, slots=True)
class Convert:
    """CONVERT TO CHARACTER SET; no charset means the schema's."""

    charset: CharsetClause
    start: int
    """Where the name of the character set starts."""


@dataclass(frozen=True, slots=True)
class Untracked:
    """A change of neither rows nor the tracked schema; `tuning` controls only how to alter.

    `absent` is a constraint that is dropped IF EXISTS, `present` one added IF NOT EXISTS.
    """

    tuning: bool = False
    absent: str = ""
    present: str = ""


@dataclass(frozen=True, slots=True)
class Partitions:
    """An operation on partitions, by the job's type.

    `table` is the other table, which gets a partition's rows, becomes a partition or is made of
    one. `names` are partitions that must exist, unless `lenient`; `into` are new partitions;
    `count` is the number of partitions added or dropped without a name.
    """

    type: DdlType
    table: TableRef | None = None
    names: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    count: int = 0
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class OwnPeriod:
    """ADD or DROP PERIOD FOR a name of the user's; `period` as in `TableInfo`, () drops it.

    Its columns become NOT NULL.
    """

    period: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """PARTITION BY, with the partitions' names as far as they are known; () removes them."""

    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Versioning:
    """ADD or DROP SYSTEM VERSIONING; `names` are those of its columns, which ADD PERIOD gives.

    () is DROP; None is ADD SYSTEM VERSIONING, which adds the columns if the table has none.
    """

    names: tuple[str, ...] | None


Operation: TypeAlias = (
    AddColumns
    | DropColumn
    | ChangeColumn
    | RenameColumn
    | KeyDef
    | DropKey
    | DropPrimary
    | AlterKey
    | RenameKey
    | SetDefault
    | RenameTo
    | TableOptions
    | Convert
    | Untracked
    | OwnPeriod
    | Partitions
    | PartitionBy
    | Versioning
)


@dataclass(frozen=True, slots=True)
class Part:
    """One operation and its place; `dead` marks an operation without effect downstream."""

    operation: Operation
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The parts of every statement: its place, edits that do not depend on the catalog, and names.

    `refs` are all tables and databases named in it, except those within a view's SELECT.
    """

    start: int = 0
    end: int = 0
    edits: tuple[Edit, ...] = ()
    foreign: tuple[Edit, ...] = ()
    """Changes for servers of one flavor only, see `rewrite/foreign.py`."""
    json: tuple[Edit, ...] = ()
    """Changes for servers on which JSON is a text with a CHECK."""
    refs: tuple[TableRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema(Statement):
    """CREATE DATABASE."""

    name: str
    if_not_exists: bool
    charset: CharsetClause
    or_replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSchema(Statement):
    """ALTER DATABASE; without a name, the current one."""

    name: str | None
    charset: CharsetClause


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
    or_replace: bool = False
    partitions: tuple[str, ...] | None = ()
    """Names, None where they are not known."""
    period: tuple[str, ...] = ()
    own_period: tuple[str, ...] = ()
    """As `TableInfo` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateLike(Statement):
    """CREATE TABLE LIKE."""

    ref: TableRef
    if_not_exists: bool
    like: TableRef
    or_replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTables(Statement):
    """DROP TABLE, DROP VIEW or DROP SEQUENCE; `kind` is the word."""

    refs: tuple[TableRef, ...]
    if_exists: bool
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTable(Statement):
    """TRUNCATE TABLE."""

    ref: TableRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTables(Statement):
    """RENAME TABLE, one or several."""

    pairs: tuple[tuple[TableRef, TableRef], ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable(Statement):
    """ALTER TABLE."""

    ref: TableRef
    parts: tuple[Part, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatement(Statement):
    """CREATE INDEX or DROP INDEX: an ALTER TABLE in other words."""

    ref: TableRef
    operation: Operation
    or_replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSequence(Statement):
    """CREATE SEQUENCE."""

    ref: TableRef
    or_replace: bool
    if_not_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSequence(Statement):
    """ALTER SEQUENCE."""

    ref: TableRef
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView(Statement):
    """CREATE VIEW, or ALTER VIEW (`must_exist`)."""

    ref: TableRef
    or_replace: bool
    must_exist: bool
    if_not_exists: bool
    select_start: int
