"""Foreign keys that change rows below the binlog, and the tables that a parent's change reaches.

Pure. `ForeignKeys` follows the keys along the stream, and never knows too few of them: a key stays
until `pumpclient.mysql.source.ddl.cascades` replaces all of them, and a rename that leaves a doubt
counts in each way. A key that is gone only causes a comparison without a difference.

    parent's row deleted           ON DELETE CASCADE   children deleted: their children likewise
                                   ON DELETE SET NULL  the key's columns of children updated
    a referenced column updated    ON UPDATE …         the key's columns of children updated: tables
                                                       that refer to these columns likewise
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    CreateTable,
    DropSchema,
    DropTables,
    KeyDef,
    Operation,
    Reference,
    RenameColumn,
    RenameTables,
    RenameTo,
    Statement,
    TableRef,
    TruncateTable,
)
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.statement_text import Dialect

_CASCADE = "CASCADE"
_BELOW_BINLOG = (_CASCADE, "SET NULL")
_INLINE_SINCE = {Flavor.MARIADB: 100500, Flavor.MYSQL: 90000}
"""Older versions accept a REFERENCES within a column's definition, and ignore it."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key with its table on the server; `key` is its name or columns.

    Column names are in lower case; none are given where they are not known.
    """

    table: Name
    key: str
    actions: tuple[str, ...]
    columns: tuple[str, ...] = ()
    parent: Name = ("", "")
    referenced: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{'.'.join(self.table)}: {self.key} {' '.join(self.actions)}"

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the key that `asdict` and JSON have made fields of."""
        made: dict[str, Any] = {
            name: each if name == "key" else tuple(each) for name, each in fields.items()
        }
        return cls(**made)

    def action(self, event: str) -> str:
        """Return the action on the children after a DELETE or UPDATE; empty for none."""
        start = f"ON {event} "
        found = (each.removeprefix(start) for each in self.actions if each.startswith(start))
        return next(found, "")


def cascades_of_table(table: Name, create_table: str) -> list[Cascade]:
    """Return a table's keys from its SHOW CREATE TABLE, which writes none inline.

    Raises `NeedsOperator` for an unreadable definition.
    """
    if not any(action in create_table for action in _BELOW_BINLOG):
        return []
    return [each for statement in parse(create_table)[1] for each in _of(table, statement, False)]


def heeds_inline(dialect: Dialect) -> bool:
    return dialect.version >= _INLINE_SINCE[dialect.flavor]


def cascades_of_statement(table: Name, sql: str, dialect: Dialect) -> list[Cascade]:
    statements = parse(sql)[1]
    return [each for one in statements for each in _of(table, one, heeds_inline(dialect))]


def _of(table: Name, statement: Statement, takes_inline: bool) -> Iterator[Cascade]:
    keys: list[KeyDef] = []
    columns: list[ColumnDef] = []
    if isinstance(statement, CreateTable):
        keys += statement.keys
        columns += statement.columns
    elif isinstance(statement, AlterTable):
        for part in statement.parts:
            _gather(part.operation, keys, columns)
    found: list[tuple[str, tuple[str, ...], Reference | None]] = []
    for key in keys:
        names = tuple(part.name for part in key.parts)
        found.append((key.name or f"FOREIGN KEY ({', '.join(names)})", names, key.reference))
    if takes_inline:
        found += [(f"column {each.name}", (each.name,), each.reference) for each in columns]
    for name, own, refers in found:
        if refers is not None and (actions := _below_binlog(refers.actions)):
            parent = _named(refers.table, table[0])
            yield Cascade(table, name, actions, _lower(own), parent, _lower(refers.columns))


def _gather(operation: Operation, keys: list[KeyDef], columns: list[ColumnDef]) -> None:
    if isinstance(operation, KeyDef):
        keys.append(operation)
    elif isinstance(operation, AddColumns):
        columns += operation.columns
    elif isinstance(operation, ChangeColumn):
        columns.append(operation.column)


def _below_binlog(actions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(action for action in actions if action.endswith(_BELOW_BINLOG))


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _named(ref: TableRef, schema: str) -> Name:
    return ref.schema or schema, ref.name


def folded(name: Name) -> Name:
    """Return a name for comparisons: servers differ in whether letter case matters."""
    schema, table = name
    return schema.lower(), table.lower()


@dataclass(frozen=True, slots=True)
class Effects:
    """The tables whose rows may change when rows of a parent do."""

    deleted: frozenset[Name]
    updated: Mapping[str, frozenset[Name]]
    """By the updated column, in lower case; "" for any column."""

    @property
    def all(self) -> frozenset[Name]:
        return self.deleted.union(*self.updated.values())


class ForeignKeys:
    """The cascading keys of a server; immutable."""

    def __init__(self, keys: Iterable[Cascade] = ()) -> None:
        self.keys = frozenset(keys)
        self._of_parent: dict[Name, list[Cascade]] = {}
        for key in self.keys:
            self._of_parent.setdefault(folded(key.parent), []).append(key)

    def effects(self, parent: Name, is_followed: Callable[[str, str], bool]) -> Effects | None:
        """Return the effects of changes of `parent` on the followed tables; None for none."""

        def followed(columns: frozenset[str] | None) -> frozenset[Name]:
            return frozenset(name for name in self._reached(parent, columns) if is_followed(*name))

        own = self._of_parent.get(folded(parent), ())
        columns = {column for key in own for column in key.referenced or ("",)}
        by_column = {each: followed(frozenset(filter(None, [each]))) for each in columns}
        updated = {column: tables for column, tables in by_column.items() if tables}
        found = Effects(followed(None), updated)
        return found if found.all else None

    def _reached(self, parent: Name, columns: frozenset[str] | None) -> set[Name]:
        """Return the tables that change after an update of columns; None stands for a delete.

        No columns stand for unknown columns.
        """
        found: set[Name] = set()
        begin = folded(parent), columns
        seen, todo = {begin}, [begin]
        while todo:
            table, changed = todo.pop()
            for key in self._of_parent.get(table, ()):
                is_delete = changed is None
                if changed and key.referenced and changed.isdisjoint(key.referenced):
                    continue
                action = key.action("DELETE" if is_delete else "UPDATE")
                if not action:
                    continue
                found.add(key.table)
                gone = is_delete and action == _CASCADE
                step = folded(key.table), None if gone else frozenset(key.columns)
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
        return found

    def after(self, statement: Statement, schema: str, dialect: Dialect) -> ForeignKeys:
        """Return the keys after a statement of the server; `schema` is its default schema."""
        keys = self.keys
        if isinstance(statement, (CreateTable, AlterTable)):
            table = _named(statement.ref, schema)
            keys |= set(_of(table, statement, heeds_inline(dialect)))
            for part in statement.parts if isinstance(statement, AlterTable) else ():
                operation = part.operation
                if isinstance(operation, RenameColumn):
                    keys = _without_column(keys, table, operation.old, operation.new)
                elif isinstance(operation, ChangeColumn):
                    keys = _without_column(keys, table, operation.old, operation.column.name)
        for old, new in _renames_in(statement, schema):
            keys = _renamed(keys, old, new)
        return self if keys == self.keys else ForeignKeys(keys)

    def __or__(self, other: ForeignKeys) -> ForeignKeys:
        return self if other.keys <= self.keys else ForeignKeys(self.keys | other.keys)


def _renamed(keys: frozenset[Cascade], old: Name, new: Name) -> frozenset[Cascade]:
    """Follow a rename. Keys that refer to the table may follow it, or keep the name."""
    own = [replace(key, table=new) if folded(key.table) == folded(old) else key for key in keys]
    moved = [replace(key, parent=new) for key in own if folded(key.parent) == folded(old)]
    return frozenset((*own, *moved))


def _without_column(
    keys: frozenset[Cascade], table: Name, old: str, new: str
) -> frozenset[Cascade]:
    """Make a column of keys unknown if it is renamed."""
    if old.lower() == new.lower():
        return keys
    name, made = old.lower(), []
    for key in keys:
        is_own = folded(key.table) == folded(table) and name in key.columns
        is_other = folded(key.parent) == folded(table) and name in key.referenced
        made.append(
            replace(
                key,
                columns=() if is_own else key.columns,
                referenced=() if is_other else key.referenced,
            )
        )
    return frozenset(made)


class CascadedTables:
    """The tables whose rows foreign keys may have changed since they were last repaired.

    The fields of a table: `since` and `last`, the places of the first and the last transaction that
    may have changed them; `since_s`, the server's time of the first; `rows`, the changed rows of
    parents. They belong to the stream, like the counts of skipped tables.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.tables = tables
        self._open: Counter[Name] = Counter()

    def add(self, rows: Mapping[Name, int]) -> None:
        """Note the rows of parents in the open transaction, by the table that may be changed."""
        self._open.update(rows)

    def drop_open(self) -> None:
        self._open.clear()

    def finish(self, place: str, timestamp_s: int) -> list[str]:
        """End the open transaction at a place; return the tables that had no note before."""
        if not self._open:
            return []
        made = dict(self.tables)
        for name, rows in self._open.items():
            label = ".".join(name)
            before = made.get(label, {"since": place, "since_s": timestamp_s, "rows": 0})
            made[label] = {**before, "last": place, "rows": before["rows"] + rows}
        new = [label for label in made if label not in self.tables]
        self.tables = made
        self._open.clear()
        return new

    def follow(
        self, statement: Statement, schema: str, is_followed: Callable[[str, str], bool]
    ) -> None:
        """Move the notes of renamed tables; forget those of dropped and emptied tables."""
        made = dict(self.tables)
        if isinstance(statement, DropSchema):
            made = {each: made[each] for each in made if not each.startswith(f"{statement.name}.")}
        elif isinstance(statement, (DropTables, TruncateTable)):
            for ref in statement.refs:
                made.pop(".".join(_named(ref, schema)), None)
        for old, new in _renames_in(statement, schema):
            # An online DDL replaces the table by a copy; downstream it stays the same table.
            note = made.pop(".".join(old), None) if is_followed(*new) else None
            if note is not None:
                made[".".join(new)] = note
        self.tables = made


def _renames_in(statement: Statement, schema: str) -> list[tuple[Name, Name]]:
    if isinstance(statement, RenameTables):
        pairs: Sequence[tuple[TableRef, TableRef]] = statement.pairs
    elif isinstance(statement, AlterTable):
        operations = [part.operation for part in statement.parts]
        pairs = [(statement.ref, each.ref) for each in operations if isinstance(each, RenameTo)]
    else:
        pairs = ()
    return [(_named(old, schema), _named(new, schema)) for old, new in pairs]
