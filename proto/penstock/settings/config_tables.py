"""Arrays of tables in a TOML file, as tuples of dataclasses, and tables by name, as dictionaries.

    [[filter.routes]]                             routes: tuple[RouteRule, ...]
    schema-pattern = "shop_?"

    [syncer.binlog-filter-rule.no-drop]           binlog_filter_rule: dict[str, BinlogFilterRule]
    ignore-event = ["drop table"]

Keys inside are checked as those of sections are: an unknown one names its nearest neighbour.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import NeedsOperator

ReadValue = Callable[[dataclasses.Field[Any], Any, Any, str], Any]
"""(field, its type, value in the file, where that stands) to the value of the field."""


def row_type(kind: Any) -> type[Any] | None:
    """Return the dataclass that each table of a setting is, None for any other setting."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple or origin is dict:
        row = arguments[1] if origin is dict else arguments[0]
        if dataclasses.is_dataclass(row) and isinstance(row, type):
            return row
    return row_of_section(kind)


def row_of_section(kind: Any) -> type[Any] | None:
    """Return the dataclass of one table within a table, None for any other type."""
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def read_tables(kind: Any, value: Any, source: str, read: ReadValue) -> Any:
    """Return the tables of one setting; raise `NeedsOperator` for what is not right in them."""
    row = row_type(kind)
    assert row is not None, kind
    origin = typing.get_origin(kind)
    wanted = dict if origin is not tuple else list
    if not isinstance(value, wanted):
        shown = f"[[{source.rpartition(' ')[2]}]]" if wanted is list else "a table"
        raise NeedsOperator(f"{source} is {value!r}", hint=f"write it as {shown}")
    if origin is tuple:
        return tuple(_row(row, each, f"{source}[{i}]", read) for i, each in enumerate(value, 1))
    if origin is dict:
        named = dict(value)
        return {n: _row(row, each, f"{source}.{n}", read) for n, each in named.items()}
    return _row(row, value, source, read)


def _row(row: type[Any], table: Any, source: str, read: ReadValue) -> Any:
    if not isinstance(table, Mapping):
        raise NeedsOperator(f"{source} is {table!r}", hint="it must be a table")
    hints = typing.get_type_hints(row)
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(row)}
    values = {}
    for key, value in table.items():
        field = fields.get(key)
        if field is None:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(fields)}"
            raise NeedsOperator(f"{source}: unknown key {key!r}", hint=hint)
        if hints[field.name] is Any:
            values[field.name] = value
        else:
            values[field.name] = read(field, hints[field.name], value, f"{source}: {key}")
    return row(**values)
