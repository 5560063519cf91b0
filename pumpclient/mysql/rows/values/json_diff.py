"""Partial updates of JSON (`binlog_row_value_options=PARTIAL_JSON`): a list of changes to apply.

    1   operation: 0 replace, 1 insert, 2 remove
    n   path, length-encoded length in front: `$.name[0]."a b"`
    n   the new value as binary JSON, length in front; not when removing

They change, one after the other, the value that the image before has. A path that leads nowhere is
malformed: the server wrote a change that it had made itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import IntEnum

from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.rows.values.json_binary import malformed, read_json

_LEG = re.compile(r'\s*(?:\.\s*("(?:[^"\\]|\\.)*"|[^\s."\[]+)|\[\s*(\d+)\s*\])')


class Operation(IntEnum):
    """What a change does at its path."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `value` means nothing when removing."""

    operation: Operation
    path: str
    value: object = None


def read_changes(data: bytes) -> list[Change]:
    """Return the changes of a partial value; raise `Malformed` when it holds none."""
    body = BodyReader(data, "partial JSON")
    changes = []
    while body.left:
        number = body.uint(1)
        if number not in list(Operation):
            raise body.malformed(f"operation {number} is unknown")
        path = body.text(body.packed())
        value = None
        if number != Operation.REMOVE:
            value = read_json(body.take(body.packed()))
        changes.append(Change(Operation(number), path, value))
    return changes


def path_legs(path: str) -> list[str | int]:
    """Return names and indexes of a path; raise `Malformed` for what is none."""
    legs: list[str | int] = []
    if path[:1] != "$":
        raise malformed(f"path {path!r} does not begin with $")
    at = 1
    while at < len(path):
        match = _LEG.match(path, at)
        if match is None:
            raise malformed(f"path {path!r} cannot be read")
        name, index = match.groups()
        try:
            legs.append(int(index) if name is None else _unquoted(name))
        except ValueError as error:
            raise malformed(f"path {path!r}: {error}") from error
        at = match.end()
    return legs


def _unquoted(name: str) -> str:
    return str(json.loads(name, strict=False)) if name[0] == '"' else name


def apply_changes(value: object, changes: list[Change]) -> object:
    """Return `value`, which is changed in place, after all changes."""
    for change in changes:
        legs = path_legs(change.path)
        if not legs:
            if change.operation is not Operation.REPLACE:
                raise malformed(f"{change.operation.name} of the whole value")
            value = change.value
            continue
        parent = value
        for leg in legs[:-1]:
            parent = _step(parent, leg, change)
        _apply(parent, legs[-1], change)
    return value


def _step(parent: object, leg: str | int, change: Change) -> object:
    if isinstance(parent, dict) and leg in parent:
        return parent[leg]
    if isinstance(parent, list) and isinstance(leg, int) and leg < len(parent):
        return parent[leg]
    raise malformed(f"path {change.path!r} leads nowhere")


def _apply(parent: object, leg: str | int, change: Change) -> None:
    if change.operation is Operation.INSERT:
        _insert(parent, leg, change)
        return
    _step(parent, leg, change)
    assert isinstance(parent, (dict, list)), "it has this member"
    if change.operation is Operation.REPLACE:
        parent[leg] = change.value  # type: ignore[index]
    else:
        del parent[leg]  # type: ignore[arg-type]


def _insert(parent: object, leg: str | int, change: Change) -> None:
    if isinstance(parent, list) and isinstance(leg, int):
        parent.insert(leg, change.value)
        return
    if not isinstance(parent, dict) or not isinstance(leg, str) or leg in parent:
        raise malformed(f"nothing can be inserted at {change.path!r}")
    parent[leg] = change.value
    ordered = sorted(parent.items(), key=lambda item: key_order(item[0]))
    parent.clear()
    parent.update(ordered)


def key_order(key: str) -> tuple[int, bytes]:
    """Return what the keys of an object are sorted by."""
    raw = key.encode()
    return len(raw), raw
