"""What XA prepared: rows that wait for an XA COMMIT, which may come many transactions later."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from penstock.errors import NeedsOperator
from pumpclient.mysql.events.transactions import XaId
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.translate.outputs import RowsLeftOut, TableChanges

_STATEMENT = re.compile(rb"^XA\s+(\w+)\s+(.*?)(\s+ONE\s+PHASE)?\s*$", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(rb"X'([0-9a-f]*)'(?:\s*,\s*X'([0-9a-f]*)'(?:\s*,\s*(\d+))?)?", re.IGNORECASE)


@dataclass(slots=True)
class Prepared:
    """The rows of one XA transaction."""

    begin: Location
    rows: list[TableChanges | RowsLeftOut] = field(default_factory=list)
    bytes: int = 0


class PreparedRows:
    """All that wait, by name; holds no more than `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[bytes, Prepared] = {}

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def begins(self) -> list[Location]:
        """Where those that wait began."""
        return [each.begin for each in self._waiting.values()]

    def add(self, prepared: Prepared, made: TableChanges | RowsLeftOut) -> None:
        """Let rows of an open transaction wait; raise `NeedsOperator` when they are too many."""
        prepared.rows.append(made)
        if isinstance(made, TableChanges):
            prepared.bytes += sum(map(len, made.changes[1]))
        waiting = sum(each.bytes for each in self._waiting.values()) + prepared.bytes
        if waiting > self._bytes_max:
            raise NeedsOperator(
                f"{waiting} bytes of rows wait for an XA COMMIT, the oldest since"
                f" {min([*self.begins, prepared.begin])}; more than {self._bytes_max} are not kept",
                hint="end what XA RECOVER lists on the server, or raise the bound",
            )

    def keep(self, xid: XaId, prepared: Prepared) -> None:
        """Keep a transaction that is prepared."""
        name = b"X'%b',X'%b',%d" % (
            xid.global_id.hex().encode(), xid.branch.hex().encode(), xid.format,
        )  # fmt: skip
        self._waiting[name] = prepared

    def end(self, name: bytes) -> Prepared | None:
        """Return and forget what waits under a name, None when nothing does."""
        return self._waiting.pop(name, None)


def read_statement(statement: bytes) -> tuple[bytes, bytes | None]:
    """Return an XA statement's verb in capitals and the name in one spelling, None for no name."""
    found = _STATEMENT.match(statement)
    if found is None:
        return b"", None
    name = _NAME.match(found[2])
    if name is None:
        return found[1].upper(), None
    parts = name[1].lower(), (name[2] or b"").lower(), int(name[3] or 1)
    return found[1].upper(), b"X'%b',X'%b',%d" % parts
