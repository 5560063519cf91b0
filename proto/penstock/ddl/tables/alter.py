"""Applies the operations of an ALTER TABLE to a table definition.

As in MySQL, all operations refer to the table before the statement, and run in this order, however
they are written: columns are dropped and changed, then added and moved (from left to right); then
keys are dropped, are renamed and follow their columns, then keys are added. So columns may swap
names, and a new key may name a new column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from penstock.ddl.charsets import char_bytes_max, resolve
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind, Token, quote_name, read
from penstock.ddl.tables.column_types import LARGE_TYPES, TEXT_TYPES, build_column, large_type
from penstock.ddl.tables.default_values import (
    convert,
    default_of,
    has_computed_origin,
    origin_of,
    zero_text,
)
from penstock.ddl.tables.table_builder import KeyBuilder, TableBuilder, check_primary, nullable_of
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType, SchemaInfo, TableInfo

_BESIDE_GEOMETRY = TEXT_TYPES | {MysqlType.JSON, MysqlType.GEOMETRY}
"""Types that a geometry may be converted to, or from."""


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
        effect, is_lenient = _effect(part.operation)
        if _skipped(table, part.operation) or (is_lenient and effect in done):
            continue
        live.append(part)
        done |= {effect} if effect is not None else set()
    return tuple(live)


def _effect(operation: ast.Operation) -> tuple[tuple[str, str] | None, bool]:
    """Return the object that an operation adds or drops, None for none or several.

    The second result is whether it may exist, or be missing.
    """
    match operation:
        case ast.AddColumns((column,)):
            return ("ADD COLUMN", column.name.lower()), column.if_not_exists
        case ast.DropColumn(name, if_exists):
            return ("DROP COLUMN", name.lower()), if_exists
        case ast.KeyDef():
            return ("ADD KEY", operation.wanted_name.lower()), operation.if_not_exists
        case ast.DropKey(name, if_exists):
            return ("DROP KEY", name.lower()), if_exists
    return None, False


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


def altered(
    table: TableInfo,
    operations: Sequence[ast.Operation],
    schema: SchemaInfo,
    context: DdlContext | None = None,
) -> tuple[TableInfo, list[tuple[ast.KeyDef, str]]]:
    """Return the table after the operations, and keys that have no written name.

    An operation that MySQL would refuse raises NeedsOperator.
    """
    builder = TableBuilder.of(table, context)
    actions = gather(builder, operations)
    _apply_options(builder, actions, schema)
    names = _apply_columns(builder, actions)
    builder.columns = [
        replace(c, flag=c.flag | ColumnFlag.NOT_NULL) if c.name.lower() in actions.solid else c
        for c in builder.columns
    ]
    period = tuple(names.get(name.lower(), name) for name in builder.table.own_period[1:])
    period = (*builder.table.own_period[:1], *period)
    builder.table = replace(builder.table, own_period=period)
    _apply_keys(builder, actions, names)
    builder.add_keys(actions.keys)
    defined = [*actions.changed.values(), *(each for _, each in actions.placed)]
    check_primary(builder, nullable_of(defined))
    return builder.finish(), builder.unnamed


def _apply_options(builder: TableBuilder, actions: Actions, schema: SchemaInfo) -> None:
    table = builder.table
    for options in actions.options:
        given = options.charset
        owner = schema if given.is_default else table
        charset, collate = resolve(given, (owner.charset, owner.collate))
        comment = options.comment
        table = replace(
            table,
            charset=charset,
            collate=collate,
            comment=table.comment if comment is None else comment,
        )
    if actions.convert is not None:
        charset, collate = resolve(actions.convert.charset, (schema.charset, schema.collate))
        table = replace(table, charset=charset, collate=collate)
        builder.columns = [converted(c, charset, collate) for c in builder.columns]
    builder.table = table


def converted(column: ColumnInfo, charset: str, collate: str) -> ColumnInfo:
    """Return a text column in another character set; other columns are returned unchanged.

    Like MySQL, it enlarges a TEXT whose characters may take more bytes than before.
    """
    if column.tp not in TEXT_TYPES or (
        column.is_binary and column.tp not in (MysqlType.ENUM, MysqlType.SET)
    ):
        return column
    tp, flen, flag = column.tp, column.flen, column.flag
    if column.tp in LARGE_TYPES:
        before, after = char_bytes_max(column.charset), char_bytes_max(charset)
        if after > before:
            tp, flen = large_type(min(flen * after // before, 0xFFFFFFFF))
    if charset == "binary":
        flag |= ColumnFlag.BINARY
    return replace(column, tp=tp, flen=flen, flag=flag, charset=charset, collate=collate)


def _as_converted(builder: TableBuilder, actions: Actions, column: ColumnInfo) -> ColumnInfo:
    """Return a column that the same statement defines, after its CONVERT TO.

    It overrules the definition's own character set, except `binary`; here nothing grows.
    """
    if actions.convert is None or column.tp not in TEXT_TYPES or column.charset == "binary":
        return column
    charset, collate = builder.table.charset, builder.table.collate
    binary = ColumnFlag.BINARY if charset == "binary" else ColumnFlag(0)
    return replace(column, charset=charset, collate=collate, flag=column.flag | binary)


def _apply_columns(builder: TableBuilder, actions: Actions) -> dict[str, str]:
    _check_generated(builder, actions)
    moving = {key for key, _ in actions.placed if key is not None}
    kept: list[ColumnInfo] = []
    moved: dict[str, ColumnInfo] = {}
    names: dict[str, str] = {}
    defined_before = {c.id for c in builder.columns if c.name.lower() not in actions.changed}
    for column in builder.columns:
        key = column.name.lower()
        if key in actions.dropped:
            continue
        after = _changed(builder, actions, column)
        names[key] = after.name
        if key in moving:
            moved[key] = after
        else:
            kept.append(after)
    for old, definition in actions.placed:
        column = moved[old] if old is not None else _added(builder, actions, definition)
        _insert(builder, kept, column, definition)
    builder.columns = [
        _with_names(column, names) if column.id in defined_before else column for column in kept
    ]
    return names


def _changed(builder: TableBuilder, actions: Actions, column: ColumnInfo) -> ColumnInfo:
    key = column.name.lower()
    definition = actions.changed.get(key)
    if definition is not None:
        column = _as_converted(builder, actions, _redefined(builder, column, definition))
    if key in actions.renamed:
        column = replace(column, name=actions.renamed[key])
    if key in actions.defaults:
        column = _with_default(builder, column, actions.defaults[key])
    return column


def _redefined(builder: TableBuilder, before: ColumnInfo, definition: ast.ColumnDef) -> ColumnInfo:
    inherited = (builder.table.charset, builder.table.collate)
    after = build_column(definition, before.id, inherited, builder.context)
    if before.is_generated != after.is_generated or (
        before.is_generated and before.generated_stored != after.generated_stored
    ):
        raise builder.refuse(
            f"column {before.name!r} turning from or into a generated one",
            "drop it and add it again",
        )
    types = {before.tp, after.tp}
    if MysqlType.GEOMETRY in types and not types <= _BESIDE_GEOMETRY:
        raise builder.refuse(
            f"column {before.name!r} turning from or into a geometry", "add another column"
        )
    if before.origin_default is None:
        return replace(after, origin_is_expr=before.origin_is_expr)
    origin = convert(after, before.origin_default)
    if origin is None and after.is_not_null:
        origin = zero_text(after)
    return replace(after, origin_default=origin)


def _with_default(builder: TableBuilder, column: ColumnInfo, value: ast.Value | None) -> ColumnInfo:
    is_null = value is not None and value.kind is ast.ValueKind.NULL
    if is_null and column.is_not_null:
        raise builder.refuse(f"DEFAULT NULL for {column.name!r}", "it is NOT NULL")
    if value is not None and (column.is_generated or ColumnFlag.AUTO_INCREMENT in column.flag):
        raise builder.refuse(f"a default for {column.name!r}", "its values come by themselves")
    return default_of(column, value, builder.context)


def _added(builder: TableBuilder, actions: Actions, definition: ast.ColumnDef) -> ColumnInfo:
    inherited = (builder.table.charset, builder.table.collate)
    primary = {p.name.lower() for key in actions.keys if key.primary for p in key.parts}
    column = build_column(definition, builder.new_column_id(), inherited, builder.context)
    column = _as_converted(builder, actions, column)
    if column.name.lower() in primary:
        column = replace(column, flag=column.flag | ColumnFlag.NOT_NULL)
    if column.name.lower() in actions.defaults:
        column = _with_default(builder, column, actions.defaults[column.name.lower()])
    return replace(
        column, origin_default=origin_of(column), origin_is_expr=has_computed_origin(column)
    )


def _insert(
    builder: TableBuilder, columns: list[ColumnInfo], column: ColumnInfo, definition: ast.ColumnDef
) -> None:
    at = len(columns)
    if definition.after == "":
        at = 0
    elif definition.after is not None:
        wanted = definition.after.lower()
        before = [i for i, c in enumerate(columns) if c.name.lower() == wanted]
        if not before:
            builder.check_bounds("AFTER", {definition.after})
            raise builder.refuse(f"AFTER {definition.after!r} names no column", "check the name")
        at = before[0] + 1
    columns.insert(at, column)


def _check_generated(builder: TableBuilder, actions: Actions) -> None:
    """Refuse to drop columns that a remaining generated column is computed from."""
    for definition in (*actions.changed.values(), *(each for _, each in actions.placed)):
        names = names_in(definition.generated) if definition.generated else set()
        builder.check_bounds(f"column {definition.name!r}", names)
    for column in builder.columns:
        key = column.name.lower()
        expression = column.generated_expr
        if not expression or key in actions.dropped or key in actions.changed:
            continue
        lost = actions.dropped & names_in(expression)
        if lost:
            raise builder.refuse(
                f"column {min(lost)!r} is part of the generated column {column.name!r}",
                "drop the generated column first",
            )


def names_in(expression: str) -> set[str]:
    """Return the names in an expression, except functions, in lower case."""
    return {token.text.lower() for token in _name_tokens(expression)}


def _name_tokens(expression: str) -> list[Token]:
    return [
        token
        for token, after in pairwise(read(expression).tokens)
        if token.kind in (Kind.WORD, Kind.QUOTED) and after.text != "("
    ]


def _with_names(column: ColumnInfo, names: dict[str, str]) -> ColumnInfo:
    edits = [
        ast.Edit(token.start, token.end, quote_name(new))
        for token in _name_tokens(column.generated_expr)
        if (new := names.get(token.text.lower(), "")).lower() not in ("", token.text.lower())
    ]
    text = column.generated_expr
    return (
        replace(column, generated_expr=ast.edited(text, 0, len(text), edits)) if edits else column
    )


def _replaced(builder: TableBuilder, actions: Actions, names: dict[str, str]) -> set[str]:
    """Return the columns whose names go to new columns, so that servers disagree about indexes.

    For a dropped column MySQL would move the index over; MariaDB fails half of the time. For a
    renamed column MariaDB moves it where the new column stands before it.
    """
    added = {d.name.lower() for old, d in actions.placed if old is None}
    order = [column.name.lower() for column in builder.columns]
    overtaken = {
        name
        for name in added & names.keys()
        if order.index(name) < order.index(names[name].lower())
    }
    return overtaken | (added & actions.dropped)


def _apply_keys(builder: TableBuilder, actions: Actions, names: dict[str, str]) -> None:
    kept: list[KeyBuilder] = []
    replaced = _replaced(builder, actions, names)
    for key in builder.keys:
        if key.name.lower() in actions.keys_dropped:
            continue
        if any(part.name.lower() in replaced for part in key.parts):
            raise builder.refuse(
                f"index {key.name!r} is over a column whose name a new one takes",
                "use two statements, or drop the index as well",
            )
        parts = tuple(
            _part(builder, part, names[part.name.lower()])
            for part in key.parts
            if part.name.lower() in names
        )
        if len(parts) < len(key.parts) and key.unique and parts:
            raise builder.refuse(
                f"a column of the unique index {key.name!r} is dropped",
                "drop the index first: what is left of it might not be unique",
            )
        name = actions.keys_renamed.get(key.name.lower(), key.name)
        if (name.upper() == "PRIMARY") != key.primary:  # Also if its columns are dropped as well.
            raise builder.refuse("an index called PRIMARY", "choose another name")
        if parts:
            kept.append(replace(key, parts=parts, name=name))
    builder.keys = kept
    builder.expressions = [
        actions.keys_renamed.get(name.lower(), name)
        for name in builder.expressions
        if name.lower() not in actions.keys_dropped
    ]
    lowered = [k.name.lower() for k in kept] + [name.lower() for name in builder.expressions]
    if len(set(lowered)) < len(lowered):
        raise builder.refuse("two indexes of the same name", "choose another name")


def _part(builder: TableBuilder, part: ast.KeyPart, name: str) -> ast.KeyPart:
    """Return a key part for the column's new form: an outgrown prefix becomes the whole."""
    column = builder.column(name)
    assert column is not None, name
    length = part.length
    text = column.tp in TEXT_TYPES and column.tp not in (MysqlType.ENUM, MysqlType.SET)
    if column.tp is MysqlType.GEOMETRY:
        return ast.KeyPart(name=name, length=length)
    if not text or (column.tp not in LARGE_TYPES and length >= column.flen):
        length = -1
    return ast.KeyPart(name=name, length=length)
