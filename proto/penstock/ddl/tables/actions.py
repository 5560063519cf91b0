"""Sorts the operations of ALTER TABLE by the objects they change, and checks them first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.ddl.syntax import statements as ast
from penstock.ddl.tables.table_builder import TableBuilder
from penstock.schema.model import TableInfo


@dataclass(slots=True)
class Actions:
    """The operations by kind, names in lower case."""

    dropped: set[str] = field(default_factory=set)
    changed: dict[str, ast.ColumnDef] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, ast.Value | None] = field(default_factory=dict)
    """Also of columns that the same statement adds."""
    placed: list[tuple[str | None, ast.ColumnDef]] = field(default_factory=list)
    keys: list[ast.KeyDef] = field(default_factory=list)
    keys_dropped: set[str] = field(default_factory=set)
    keys_renamed: dict[str, str] = field(default_factory=dict)
    solid: set[str] = field(default_factory=set)
    """Columns that become NOT NULL, by their names after the statement."""
    convert: ast.Convert | None = None
    options: list[ast.TableOptions] = field(default_factory=list)


def gather(builder: TableBuilder, operations: Sequence[ast.Operation]) -> Actions:
    """Sort the operations by kind; raise for a missing object, or one changed twice."""
    actions = Actions()
    touched: list[str] = []
    for operation in operations:
        touched += _sort_in(builder, actions, operation)
    added = {column.name.lower() for old, column in actions.placed if old is None}
    for name in actions.defaults.keys() - added:
        _known_column(builder, name)
    twice = {t for t in touched if touched.count(t) > 1}
    if twice:
        raise builder.refuse(f"{min(twice)} is changed twice", "use two statements")
    return actions


def _sort_in(builder: TableBuilder, actions: Actions, operation: ast.Operation) -> list[str]:
    """Sort one operation in; return the names it changes, so that duplicates are detected."""
    match operation:
        case ast.AddColumns(columns):
            for column in columns:
                actions.placed.append((None, column))
                actions.keys += column.keys
        case ast.ChangeColumn(old, column):
            key = _known_column(builder, old)
            actions.changed[key] = column
            actions.keys += column.keys
            if column.after is not None:
                actions.placed.append((key, column))
            return [f"column {key}"]
        case ast.DropColumn(name):
            actions.dropped.add(_known_column(builder, name))
            return [f"column {name.lower()}"]
        case ast.RenameColumn(old, new):
            actions.renamed[_known_column(builder, old)] = new
            return [f"column {old.lower()}"]
        case ast.SetDefault(name, default):
            actions.defaults[name.lower()] = default
            return [f"column {name.lower()}"]
        case _:
            return _sort_in_option(builder, actions, operation)
    return []


def _sort_in_option(builder: TableBuilder, actions: Actions, operation: ast.Operation) -> list[str]:
    match operation:
        case ast.OwnPeriod(period):
            builder.table = replace(builder.table, own_period=period)
            actions.solid |= {name.lower() for name in period[1:]}
        case ast.Convert():
            actions.convert = operation
            return ["the character set"]
        case ast.TableOptions(charset=given):
            actions.options.append(operation)
            return ["the character set"] if given.charset or given.is_default else []
        case _:
            return _sort_in_key(builder, actions, operation)
    return []


def _sort_in_key(builder: TableBuilder, actions: Actions, operation: ast.Operation) -> list[str]:
    match operation:
        case ast.KeyDef():
            actions.keys.append(operation)
        case ast.DropPrimary():
            actions.keys_dropped.add(_known_key(builder, "PRIMARY"))
            return ["the primary key"]
        case ast.DropKey(name):
            actions.keys_dropped.add(_known_key(builder, name))
            return [f"index {name.lower()}"]
        case ast.RenameKey(old, new):
            name = _known_key(builder, old)
            actions.keys_renamed[name] = new
            return ["the primary key" if name == "primary" else f"index {name}"]
    return []


def _known_column(builder: TableBuilder, name: str) -> str:
    if builder.column(name) is None:
        raise builder.refuse(f"column {name!r} does not exist", "check the name")
    return name.lower()


def _known_key(builder: TableBuilder, name: str) -> str:
    if builder.key(name) is None and not builder.has_expression(name):
        raise builder.refuse(f"index {name!r} does not exist", "check the name")
    return name.lower()


def live_parts(table: TableInfo, parts: Sequence[ast.Part]) -> tuple[ast.Part, ...]:
    """Return the operations, except those that IF [NOT] EXISTS makes ineffective."""
    live: list[ast.Part] = []
    done: set[tuple[str, str]] = set()
    for part in parts:
        effect = _effect(part.operation)
        if _skipped(table, part.operation) or (effect in done and _is_lenient(part.operation)):
            continue
        live.append(part)
        done |= {effect} if effect is not None else set()
    return tuple(live)


def _effect(operation: ast.Operation) -> tuple[str, str] | None:
    """Return the object that an operation adds or drops, None for none or several."""
    match operation:
        case ast.AddColumns((column,)):
            return "ADD COLUMN", column.name.lower()
        case ast.DropColumn(name):
            return "DROP COLUMN", name.lower()
        case ast.KeyDef():
            return "ADD KEY", operation.wanted_name.lower()
        case ast.DropKey(name):
            return "DROP KEY", name.lower()
    return None


def _is_lenient(operation: ast.Operation) -> bool:
    match operation:
        case ast.AddColumns((column,)):
            return column.if_not_exists
        case ast.KeyDef():
            return operation.if_not_exists
        case ast.DropColumn() | ast.DropKey():
            return operation.if_exists
    return False


def _skipped(table: TableInfo, operation: ast.Operation) -> bool:
    """Return whether IF [NOT] EXISTS makes an operation ineffective on the current table."""
    builder = TableBuilder.of(table)
    match operation:
        case ast.AddColumns(columns):
            known = [c for c in columns if c.if_not_exists and builder.column(c.name) is not None]
            if any(builder.key(key.wanted_name) is None for c in known for key in c.keys):
                # MariaDB still adds the key.
                raise builder.refuse(
                    "a key of a column that is there already", "add the key by ADD KEY alone"
                )
            return len(known) == len(columns)
        case (
            ast.DropColumn(name, if_exists=True)
            | ast.ChangeColumn(name, if_exists=True)
            | ast.RenameColumn(name, if_exists=True)
            | ast.SetDefault(name, if_exists=True)
        ):
            return builder.column(name) is None
        case ast.RenameKey(name, if_exists=True) | ast.AlterKey(name, if_exists=True):
            return builder.key(name) is None and not builder.has_expression(name)
        case ast.DropKey(name, if_exists=True):
            is_there = builder.key(name) is not None or builder.has_expression(name)
            return not is_there and (not operation.lenient or _has(table, name) is False)
        case ast.KeyDef() as key:
            name = key.wanted_name
            is_there = builder.key(name) is not None or builder.has_expression(name)
            is_known = key.implied and bool(key.name) and _has(table, key.name or "") is True
            return key.if_not_exists and (is_there or is_known)
        case ast.Untracked(absent=absent, present=present):
            gone = bool(absent) and _has(table, absent) is False
            return gone or (bool(present) and _has(table, present) is True)
    return False


def _has(table: TableInfo, constraint: str) -> bool | None:
    if table.constraints is None or constraint.isdecimal():
        return None  # A number is the name of a foreign key that a MariaDB since 12.1 chose.
    return constraint.lower() in (name.lower() for name in table.constraints)
