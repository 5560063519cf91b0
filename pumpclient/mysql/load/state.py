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
from pumpclient.mysql.protocol.server import BinlogPlace
from pumpclient.mysql.rows.table_map import Name

ASKED = 0
"""The epoch of a load that was requested and has not started."""
_VERSION = 1
_ATTEMPT_BITS = 40


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
    def after(self) -> str:
        """The highest floor as text, in the format of a source's checkpoint."""
        number, position = max((place.floor for place in self.loaded.values()), default=(0, 0))
        return f"{number}:{position}"

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


def read_state(path: Path) -> LoadState | None:
    """Return the stored load; raise `Corrupt` or `NeedsOperator` for invalid content."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise Corrupt(
            str(path), error.pos, f"not JSON: {error.msg}", code=Code.LOAD_NOT_CONTINUED
        ) from error
    if not isinstance(fields, dict) or fields.get("version") != _VERSION:
        raise NeedsOperator(
            f"{path} has no version {_VERSION}",
            "use the Penstock that wrote it",
            Code.LOAD_NOT_CONTINUED,
        )
    try:
        return _state(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            str(path), 0, f"it lacks or garbles {error}", code=Code.LOAD_NOT_CONTINUED
        ) from error


def write_state(path: Path, state: LoadState) -> None:
    """Save durably; raise `NeedsOperator` if the file cannot be written."""
    start = state.start
    fields = {
        "version": _VERSION,
        "source": state.source,
        "epoch": state.epoch,
        "attempt": state.attempt,
        "is_complete": state.is_complete,
        "start": start and {"file": start.file, "position": start.position, "gtids": start.gtids},
        "begun": sorted(map(list, state.begun)),
        "loaded": sorted([*name, at.file, at.position] for name, at in state.loaded.items()),
        "rows": sorted([*name, count] for name, count in state.rows.items()),
        "started": state.started,
        "ended": state.ended,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(fields, indent=1).encode())
    except OSError as error:
        raise NeedsOperator(
            f"{path} cannot be written: {error}", "free the disk, or its rights", Code.PATH_UNUSABLE
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
