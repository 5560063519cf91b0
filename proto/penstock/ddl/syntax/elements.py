"""The pieces of DDL statements as frozen values: names, types, defaults, columns, keys, options.

`operations` and `statements` are made of them; none knows the catalog. Places (`start`, `end`) are
offsets into `Source.text`. An `Edit` replaces the text between two places; a statement runs
downstream as written, but for its edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to stand between two places instead of what stands there."""

    start: int
    end: int
    text: str


class Flavor(Enum):
    """A kind of server, by what it can read."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"


@dataclass(frozen=True, slots=True)
class ForeignEdit:
    """How a statement reads on a server that lacks something, and what that is."""

    flavor: Flavor
    edit: Edit
    what: str


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


def left_out(items: Sequence[tuple[int, int, bool]]) -> list[Edit]:
    """Return what leaves items out of a list with commas, each with its start, end and whether it
    stays; at least one does.
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
    """A table's name as written; a database's has no table's `name`."""

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
    is_default: bool = False
    """CHARACTER SET DEFAULT is written: what the schema has."""
    collate_is_default: bool = False
    """COLLATE DEFAULT is written: what servers were built with."""

    @property
    def says_nothing(self) -> bool:
        """True when neither a character set nor a collation is named."""
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
    is_expression: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDef:
    """A key; `implied` is one that a foreign key asks for when no other key serves it."""

    name: str | None
    parts: tuple[KeyPart, ...]
    unique: bool = False
    primary: bool = False
    fulltext: bool = False
    spatial: bool = False
    implied: bool = False
    at: int = -1
    """Where the text of an implied key would go."""
    if_not_exists: bool = False
    actions: tuple[str, ...] = ()
    """What a foreign key asks for, in capitals: `ON DELETE CASCADE`."""
    is_check: bool = False
    is_remark: bool = False
    """A CHECK that is NOT ENFORCED."""

    @property
    def wanted_name(self) -> str:
        """The name that IF NOT EXISTS asks for, "" where no key can have it."""
        if self.primary:
            return "PRIMARY"
        return self.name or ("" if self.implied else self.parts[0].name)

    @property
    def is_over_expression(self) -> bool:
        """True when only the server that runs it knows what the key holds."""
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
    place: Place = Place.LAST
    after: str = ""
    if_not_exists: bool = False
    actions: tuple[str, ...] = ()
    """What an inline REFERENCES asks for, which is left out downstream."""
    is_bound: bool = False
    """ROW START or ROW END of a system-versioned table."""
    is_versioned: bool = False
    """WITH SYSTEM VERSIONING is written in it, which makes the table versioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Table options that Penstock tracks; `end` is where the written ones stop."""

    charset: Charset = Charset()
    comment: str | None = None
    end: int = -1
