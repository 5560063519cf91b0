"""The operations of ALTER TABLE as frozen values; CREATE INDEX and DROP INDEX are such too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.ddl.syntax.elements import Charset, ColumnDef, KeyDef, TableOptions, TableRef, Value
from penstock.schema.model import DdlType


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
    if_exists: bool = False


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
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN SET DEFAULT; None is DROP DEFAULT."""

    name: str
    default: Value | None
    if_exists: bool = False


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


@dataclass(frozen=True, slots=True)
class Partitions:
    """An operation on partitions, by the job's type.

    `table` is the other table, which gets a partition's rows, becomes a partition or is made of
    one. `names` are partitions that must be there, unless `lenient`; `into` are those that come
    instead or besides; `count` is how many come or go without a name.
    """

    type: DdlType
    table: TableRef | None = None
    names: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    count: int = 0
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class AddPeriod:
    """ADD PERIOD FOR a name of one's own, which makes its columns NOT NULL."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """PARTITION BY, with the partitions' names as far as they are known; () removes them."""

    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Versioning:
    """System versioning comes or goes; `names` are those of its columns, which ADD PERIOD gives.

    () is DROP; None is ADD SYSTEM VERSIONING, by which a table without such columns gets them.
    """

    names: tuple[str, ...] | None


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
    | AddPeriod
    | Partitions
    | PartitionBy
    | Versioning
)


@dataclass(frozen=True, slots=True)
class Part:
    """One operation and where it stands; one that came to nothing downstream has `dead`."""

    operation: Operation
    start: int
    end: int
