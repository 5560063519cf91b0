"""The state of a load: its progress in a file, and the part of the binlog that it covers.

    load.json   {"version": 1, "source": "db-1", "epoch": 1, "attempt": 2, "is_complete": false,
                 "start": {"file": "mysql-bin.000002", "position": 1234, "gtids": "0-1-7"},
                 "begun": [["shop", "t"]],
                 "loaded": [["shop", "t", "mysql-bin.000002", 1234]], "rows": [["shop", "t", 5000]],
                 "started": "2026-11-21T09:30:00Z", "ended": ""}

All names are the source's. `rows`, `started` and `ended` are for people; older files lack them.
Epoch 0 is a load that was requested and has not started. For `begun` tables the target may exist;
`loaded` tables are done, with the place of their snapshot, which is their floor; a table "" is the
database itself. The file is replaced atomically, synced before and after, so it is always complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import replace_file
from penstock.wire.binlog import Origin
from pumpclient.mysql.rows.table_map import Name

Floor = tuple[int, int]
"""Number in the binlog file's name, and position."""

ASKED = 0
"""The epoch of a load that was requested and has not started."""
_VERSION = 1
_ATTEMPT_BITS = 40


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """A place in a server's binlog, and every GTID before it, as text."""

    file: str
    position: int
    gtids: str = ""

    @property
    def floor(self) -> Floor:
        return file_number(self.file), self.position


def file_number(file: str) -> int:
    return int(file.rpartition(".")[2])


@dataclass(frozen=True, slots=True)
class Floors:
    """The part of the binlog that the load already covers."""

    places: dict[Name, Floor] = field(default_factory=dict)
    epoch: int = 0
    """The load's."""

    @property
    def highest(self) -> Floor:
        """The position after which nothing is skipped any more."""
        return max(self.places.values(), default=(0, 0))

    @property
    def after(self) -> str:
        """The same as text, as a source's checkpoint has it."""
        number, position = self.highest
        return f"{number}:{position}"

    def has(self, tables: tuple[Name, ...], place: Floor) -> bool:
        """Return whether the load covers an event of these source tables that ends at `place`.

        A database is a table named "". Raises `NeedsOperator` when that is true for only some of
        several tables, as for a RENAME between two attempts.
        """
        loaded = {place <= self.places.get(name, (0, 0)) for name in tables}
        if len(loaded) > 1:
            names = ", ".join(f"{schema}.{table}" for schema, table in tables)
            raise NeedsOperator(
                f"a statement at {place} on {names} is loaded for a part of these tables",
                "the load was begun again after it; stop the source and load once more"
                " (penstock source reload --all), without such statements meanwhile",
                Code.LOAD_NOT_CONTINUED,
            )
        return loaded == {True}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """A load, as stored."""

    source: str
    epoch: int
    attempt: int = 0
    start: BinlogPlace | None = None
    begun: frozenset[Name] = frozenset()
    loaded: dict[Name, BinlogPlace] = field(default_factory=dict)
    is_complete: bool = False
    rows: dict[Name, int] = field(default_factory=dict)
    """The number of rows of each loaded table."""
    started: str = ""
    ended: str = ""

    @property
    def floors(self) -> Floors:
        return Floors({name: place.floor for name, place in self.loaded.items()}, self.epoch)

    @property
    def report(self) -> dict[str, Any]:
        tables = {f"{schema}.{table}": count for (schema, table), count in self.rows.items()}
        return {
            "started": self.started,
            "ended": self.ended,
            "is_complete": self.is_complete,
            "rows": tables,
        }

    def origin(self, number: int) -> Origin:
        assert 0 < number < 1 << _ATTEMPT_BITS
        position = self.attempt << _ATTEMPT_BITS | number
        return Origin(source=self.source, epoch=self.epoch, file=0, position=position)

    def next_attempt(self, at: BinlogPlace) -> LoadState:
        return replace(self, attempt=self.attempt + 1, start=self.start or at)


class StateFile:
    """The file; raises `Corrupt` for invalid content, `NeedsOperator` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> LoadState | None:
        try:
            fields = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise Corrupt(
                str(self._path), error.pos, f"not JSON: {error.msg}", code=Code.LOAD_NOT_CONTINUED
            ) from error
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            raise NeedsOperator(
                f"{self._path} has no version {_VERSION}",
                "use the Penstock that wrote it",
                Code.LOAD_NOT_CONTINUED,
            )
        try:
            return _state(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                str(self._path), 0, f"it lacks or garbles {error}", code=Code.LOAD_NOT_CONTINUED
            ) from error

    def write(self, state: LoadState) -> None:
        """Save durably."""
        start = state.start
        fields = {
            "version": _VERSION,
            "source": state.source,
            "epoch": state.epoch,
            "attempt": state.attempt,
            "is_complete": state.is_complete,
            "start": start and {"file": start.file, "position": start.position,
                                "gtids": start.gtids},
            "begun": sorted(map(list, state.begun)),
            "loaded": sorted([*name, at.file, at.position] for name, at in state.loaded.items()),
            "rows": sorted([*name, count] for name, count in state.rows.items()),
            "started": state.started,
            "ended": state.ended,
        }  # fmt: skip
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise NeedsOperator(
                f"{self._path} cannot be written: {error}",
                "free the disk, or its rights",
                Code.PATH_UNUSABLE,
            ) from error


def _state(fields: dict[str, Any]) -> LoadState:
    start = fields["start"]
    return LoadState(
        source=fields["source"],
        epoch=fields["epoch"],
        attempt=fields["attempt"],
        start=start and BinlogPlace(start["file"], start["position"], start["gtids"]),
        begun=frozenset((schema, table) for schema, table in fields["begun"]),
        loaded={(s, t): BinlogPlace(file, position) for s, t, file, position in fields["loaded"]},
        is_complete=fields["is_complete"],
        rows={(schema, table): count for schema, table, count in fields.get("rows", ())},
        started=fields.get("started", ""),
        ended=fields.get("ended", ""),
    )


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
