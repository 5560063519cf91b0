"""Single fields of the JSON that TiDB writes for tables and jobs; what is absent has a default.

What is of another type raises `ValueError`, which the reader of the whole turns into `Malformed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def name_to_json(name: str) -> Json:
    """Return a name as it is written, and in lower case."""
    return {"O": name, "L": name.lower()}


def name_from_json(written: Mapping[str, Any]) -> str:
    """Return a name as it was given."""
    return text(written, "O")


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a string, empty when it is absent."""
    value = fields.get(name) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r} and not a string")
    return value


def number(fields: Mapping[str, Any], name: str, absent: int = 0) -> int:
    """Return a whole number."""
    value = fields.get(name, absent)
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value!r} and not a whole number")
    return value


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return a truth, false when it is absent."""
    return bool(fields.get(name, False))


def strings(values: Sequence[str] | None) -> tuple[str, ...]:
    """Return a list of strings, empty when it is absent."""
    return tuple(values or ())
