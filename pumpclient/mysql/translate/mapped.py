"""Which table a number in rows events means, and the transcoders that are kept for all tables."""

from __future__ import annotations

from collections.abc import Callable

from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER_SIZE, Checksum
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.events import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TableMap
from pumpclient.mysql.translate.outputs import TableChanges
from pumpclient.mysql.translate.transcode import Transcoder

_KEPT_MAX = 4096

Choose = Callable[[TableMap], Transcoder | None]
"""A table's transcoder as of now, None for one whose rows nobody wants; asked once for each map."""


class MappedTables:
    """Follows TABLE_MAPs; numbers hold until a statement ends, transcoders until `forget`."""

    def __init__(self, choose: Choose, id_size: int) -> None:
        """Know no table yet."""
        self._choose = choose
        self._id_size = id_size
        self._rest_at = HEADER_SIZE + id_size
        self._no_table = NO_TABLE.to_bytes(id_size, "little")
        self._kept: dict[bytes, Transcoder | None] = {}
        self.read_with(Checksum.NONE)
        self.statement_is_over()

    def read_with(self, checksum: Checksum) -> None:
        """Note whether events have a checksum behind them from here on."""
        self._cut = -CHECKSUM_SIZE if checksum else None

    def forget(self) -> None:
        """Ask for all transcoders anew."""
        self._kept.clear()
        self.statement_is_over()

    def statement_is_over(self) -> None:
        """Forget which table a number means."""
        self._of_id: dict[bytes, Transcoder | None] = {self._no_table: None}

    def take_map(self, event: bytes, flavor: Flavor, *, is_wanted: bool) -> None:
        """Take a TABLE_MAP; rows of one that is not wanted are not looked at."""
        number, rest = event[HEADER_SIZE : self._rest_at], event[self._rest_at : self._cut]
        if not is_wanted:
            self._of_id[number] = None
        elif rest in self._kept:
            self._of_id[number] = self._kept[rest]
        else:
            body = event[HEADER_SIZE : self._cut]
            made = self._choose(TableMap.decode(body, flavor, id_size=self._id_size))
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._of_id[number] = self._kept[rest] = made

    def rows(self, type_: int, event: bytes) -> TableChanges | None:
        """Return what a rows event does, None when nobody wants it.

        Raises `KeyError` when no TABLE_MAP told its table, and what transcoders raise.
        """
        body = event[HEADER_SIZE : self._cut]
        transcoder = self._of_id[body[: self._id_size]]
        if body[self._id_size] & STMT_END:
            self.statement_is_over()
        if transcoder is None:
            return None
        return TableChanges(transcoder, transcoder.changes(type_, body))
