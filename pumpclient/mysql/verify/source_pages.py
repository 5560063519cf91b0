"""The pages of a running source: which tables foreign keys may have changed, and how far it is.

Argument of `penstock verify --repair --source-status`. A note is shown once all up to its place is
committed. Then, in this order:

    1  the notes are read, each with the place of its last change: E is the last of all
    2  the upstream shows E to new snapshots, although a binlog has it before its engine does
    3  the downstream is beyond E (`ts_beyond` of the upstream's end)
    4  tables are compared, and repaired from the upstream

After E, every change of these tables is in the stream with the whole row, or makes a new note. So a
row downstream is right, or will be, once it was seen equal to the upstream's after 3 and after the
last repair that wrote it: the upstream's changes since then are still to come. The same holds for a
row that changed in the upstream while it was compared. A repair that overwrites a newer row is seen
as a difference by the comparison that follows it. A note with a later place than E stays. Without
3, a comparison proves nothing: the stream may still have an INSERT of a child whose parent was
deleted at E. Then only rows that the upstream does not have are deleted, which lets a Drainer
continue that meets such a row, and no note ends.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.settings.setting import check_address
from pumpclient.mysql.protocol.server import BinlogPlace

_TIMEOUT_S = 60.0


class SourcePages:
    """The pages at an address; `notes` and `gtids` are as of the last `read`."""

    def __init__(self, address: str) -> None:
        check_address("addr", address)
        self.address = address
        self.notes: dict[str, str] = {}
        """The last place of each table to repair. Skipped tables are not among them."""
        self.gtids = ""

    def read(self) -> None:
        found = self._answer("GET", "/status")
        skipped = {table for table, each in found["left_out"].items() if each["is_whole"]}
        cascaded: Mapping[str, Mapping[str, Any]] = found["cascaded"]
        self.notes = {
            table: note["last"] for table, note in cascaded.items() if table not in skipped
        }
        self.gtids = found["gtids"]

    def ts_beyond(self, end: BinlogPlace) -> int:
        """Return a timestamp above the commit_ts of all up to `end`; 0 while not all is committed.

        Raises `Retryable` if the source does not answer.
        """
        found = self._answer("GET", "/reached")
        return int(found["ts"]) if tuple(found["place"]) >= end.floor else 0

    def repaired(self, table: str) -> None:
        """End a table's note, unless it was changed after its last place was read."""
        self._answer(
            "POST", f"/repaired/{quote(table, safe='')}/{quote(self.notes[table], safe='')}"
        )

    def _answer(self, method: str, path: str) -> Any:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Retryable(
                f"no source answers at {self.address}: {error!r}", Code.NODE_AWAY
            ) from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise Retryable(f"the source at {self.address}: {text.strip()}", Code.NODE_REFUSES)
        return json.loads(text) if method == "GET" else text
