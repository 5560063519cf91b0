"""DDL statements as frozen values, as the parser hands them to the planner."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ddl.syntax.elements import (
    Charset,
    ColumnDef,
    Edit,
    ForeignEdit,
    KeyDef,
    TableOptions,
    TableRef,
)
from penstock.ddl.syntax.operations import Operation, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What every statement has: its place, edits that do not depend on the catalog, and names.

    `refs` are all tables and databases named in it, but for those within a view's SELECT.
    """

    start: int = 0
    end: int = 0
    edits: tuple[Edit, ...] = ()
    foreign: tuple[ForeignEdit, ...] = ()
    """How it reads on servers of one flavor only, see `rewrite/foreign.py`."""
    refs: tuple[TableRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema(Statement):
    """CREATE DATABASE."""

    name: str
    if_not_exists: bool
    charset: Charset
    or_replace: bool = False


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
    or_replace: bool = False
    partitions: tuple[str, ...] | None = ()
    """Names, None where they are not known."""
    period: tuple[str, ...] = ()
    """As `TableInfo` has it."""


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
