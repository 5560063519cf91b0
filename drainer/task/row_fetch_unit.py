"""Fetch unit: a batch whose rows a task fetches from the Pumps, and the task's answer.

The unit (little-endian; its first bytes are not those of an Arrow stream, see `work_unit.py`):

    | part      | bytes | content                                                         |
    |-----------|-------|-----------------------------------------------------------------|
    | magic     | 8     | `PSTFETCH`                                                      |
    | header    | 4 + n | a length, then JSON: all fields of `FetchUnit` but the two below |
    | commit_ts | 8 k   | of each transaction, in the order of the merge                  |
    | owners    | 2 k   | the index of its Pump in the header                             |

The answer is a byte 0 and a text if a Pump could not be reached; else a byte 1, the length of a
JSON and the JSON of `Facts` with the lengths of the encoded `Statements` that follow it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drainer.differences.skipped import Counts, from_lists, to_lists
from drainer.task.work_unit import Statements, undecodable
from penstock.filters import FilterConfig
from penstock.filters.table_lists import TableFilter

MAGIC = b"PSTFETCH"
CATALOGS_KEPT = 8
"""The number of catalogs that a task caches; the Drainer relies on fewer."""

_LENGTH = struct.Struct("<I")
_AWAY, _MADE = b"\x00", b"\x01"
_UNREADABLE = (ValueError, LookupError, TypeError, struct.error)

Made = list[tuple[bool, Statements]]
"""The SQL of table after table, and whether its rows can conflict with others."""


@dataclass(slots=True)
class RemoteTransactions:
    """Transactions in commit order, the Pump of each, and their total size.

    Those that are `ignored` are only counted.
    """

    commit_ts: list[int] = field(default_factory=list)
    pumps: list[str] = field(default_factory=list)
    bytes: int = 0
    ignored: list[int] = field(default_factory=list)

    def add(self, commit_ts: int, pump: str, size: int, *, is_ignored: bool = False) -> None:
        if is_ignored:
            self.ignored.append(commit_ts)
        self.commit_ts.append(commit_ts)
        self.pumps.append(pump)
        self.bytes += size


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """A task's fixed settings: the routing of rows, and the access to Pumps.

    `pem` are the paths of CA, certificate and key on the executor's host; None without TLS.
    """

    filters: FilterConfig
    lists: Sequence[TableFilter] = ()
    protected: frozenset[str] = frozenset()
    source_id: str = ""
    channel_id: int | None = None
    pem: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchUnit:
    """One batch for one task; `catalog` is the number of the schema with which it is read."""

    batch_id: int
    dialect: str
    displaces: bool
    catalog: int
    cluster_id: int
    drainer_id: str
    addresses: Sequence[str]
    commit_ts: Any
    owners: Any
    ignored: Sequence[int] = ()

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in _HEADER_FIELDS}
        header = json.dumps(fields).encode()
        stamps = np.asarray(self.commit_ts, "<i8").tobytes()
        owners = np.asarray(self.owners, "<u2").tobytes()
        return b"".join([MAGIC, _LENGTH.pack(len(header)), header, stamps, owners])

    @classmethod
    def decode(cls, data: bytes) -> FetchUnit:
        """Return the unit in `data`; raise `Malformed`."""
        try:
            header, at = _json(data, len(MAGIC))
            count, rest = divmod(len(data) - at, 10)
            if rest or not data.startswith(MAGIC):
                raise ValueError(f"{rest} bytes too many")
            stamps = np.frombuffer(data, "<i8", count, at)
            owners = np.frombuffer(data, "<u2", count, at + 8 * count)
            return cls(**header, commit_ts=stamps, owners=owners)
        except _UNREADABLE as error:
            raise undecodable("fetch unit", error) from error


_HEADER_FIELDS = (
    "batch_id", "dialect", "displaces", "catalog", "cluster_id", "drainer_id", "addresses",
    "ignored",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The Drainer's information about a batch whose rows it never saw."""

    rows: int = 0
    kinds: dict[int, int] = field(default_factory=dict)
    """Changes by their `MutationType`."""
    skipped: Counts = field(default_factory=Counts)


class Away(Exception):
    """A Pump could not be reached, or not for long enough: send the unit again."""


def encode_away(problem: str) -> bytes:
    return _AWAY + problem.encode()


def encode_made(made: Made, facts: Facts) -> bytes:
    parts = [each.encode() for _, each in made]
    units = [(meets, len(part)) for (meets, _), part in zip(made, parts, strict=True)]
    seen = {"rows": facts.rows, "kinds": facts.kinds, "skipped": to_lists(facts.skipped)}
    header = json.dumps({**seen, "units": units}).encode()
    return b"".join([_MADE, _LENGTH.pack(len(header)), header, *parts])


def decode_made(data: bytes) -> tuple[Made, Facts]:
    """Decode a task's answer; raise `Away`, or `Malformed` for an invalid answer."""
    if data.startswith(_AWAY):
        raise Away(data[1:].decode("utf-8", "replace"))
    try:
        header, at = _json(data, 1)
        view, made = memoryview(data), []
        for meets, length in header.pop("units"):
            made.append((bool(meets), Statements.decode(view[at : at + length])))
            at += length
        header["skipped"] = Counts(from_lists(header["skipped"]))
        header["kinds"] = {int(kind): count for kind, count in header["kinds"].items()}
        return made, Facts(**header)
    except _UNREADABLE as error:
        raise undecodable("answer of a task", error) from error


def _json(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    return json.loads(data[begin : begin + length]), begin + length
