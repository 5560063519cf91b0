"""Which table a number in rows events means, and the transcoders that are kept for all tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER_SIZE, Checksum
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.rows_event import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TableMap, names_of
from pumpclient.mysql.translate.outputs import RowsLeftOut, TableChanges
from pumpclient.mysql.translate.refused import Refused
from pumpclient.mysql.translate.transcoding.row_counter import LeftOutRows
from pumpclient.mysql.translate.transcoding.sequences import SequenceRows
from pumpclient.mysql.translate.transcoding.transcode import Transcoder

_KEPT_MAX = 4096

Choose = Callable[[TableMap], Transcoder | SequenceRows | None]
"""A table's transcoder as of now, None for one whose rows nobody wants; asked once for each map."""

IsLeftOut = Callable[[str, str], bool]
"""Whether rows of a table, by schema and name, are counted instead of being followed."""


def nothing_left_out(schema: str, table: str) -> bool:
    """Leave no table out."""
    return False


class MappedTables:
    """Follows TABLE_MAPs; numbers hold until a statement ends, transcoders until `forget`."""

    def __init__(
        self, choose: Choose, id_size: int, is_left_out: IsLeftOut = nothing_left_out
    ) -> None:
        """Know no table yet."""
        self._choose = choose
        self._is_left_out = is_left_out
        self._id_size = id_size
        self._rest_at = HEADER_SIZE + id_size
        self._no_table = NO_TABLE.to_bytes(id_size, "little")
        self._kept: dict[bytes, Transcoder | SequenceRows | LeftOutRows | None] = {}
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
        self._of_id: dict[bytes, Transcoder | SequenceRows | LeftOutRows | None]
        self._of_id = {self._no_table: None}

    def take_map(self, event: bytes, flavor: Flavor, *, is_wanted: bool) -> None:
        """Take a TABLE_MAP; rows of one that is not wanted are not looked at."""
        number, rest = event[HEADER_SIZE : self._rest_at], event[self._rest_at : self._cut]
        if not is_wanted:
            self._of_id[number] = None
        elif rest in self._kept:
            self._of_id[number] = self._kept[rest]
        else:
            made = self._made(event[HEADER_SIZE : self._cut], flavor)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._of_id[number] = self._kept[rest] = made

    def leave_out(self, event: bytes, flavor: Flavor) -> None:
        """Take a TABLE_MAP whose rows, until the statement ends, are counted only."""
        made = self._left_out(event[HEADER_SIZE : self._cut], flavor)
        self._of_id[event[HEADER_SIZE : self._rest_at]] = made

    def name_of(self, event: bytes) -> tuple[str, str] | None:
        """Return the schema and table that a TABLE_MAP names, None for one that is damaged."""
        try:
            return names_of(event[HEADER_SIZE : self._cut], self._id_size)
        except Malformed:
            return None

    def _made(self, body: bytes, flavor: Flavor) -> Transcoder | SequenceRows | LeftOutRows | None:
        if self._is_left_out(*names_of(body, self._id_size)):
            return self._left_out(body, flavor)
        return self._choose(TableMap.decode(body, flavor, id_size=self._id_size))

    def _left_out(self, body: bytes, flavor: Flavor) -> LeftOutRows:
        decode = partial(TableMap.decode, body, flavor, id_size=self._id_size)
        return LeftOutRows(names_of(body, self._id_size), decode, self._id_size)

    def rows(
        self, type_: int, event: bytes, is_skipped: Callable[[], bool] = bool
    ) -> tuple[TableChanges | RowsLeftOut, ...] | None:
        """Return what a rows event does, None when no one wants it.

        Raises `KeyError` when no TABLE_MAP named its table. What its transcoder raises is raised
        as `Refused`, unless `is_skipped` then says that the event is to be left out.
        """
        body = event[HEADER_SIZE : self._cut]
        transcoder = self._of_id[body[: self._id_size]]
        if body[self._id_size] & STMT_END:
            self.statement_is_over()
        if transcoder is None:
            return None
        if isinstance(transcoder, LeftOutRows):
            return (RowsLeftOut(transcoder.name, transcoder.count(type_, body)),)
        try:
            if isinstance(transcoder, SequenceRows):
                transcoder.take(type_, body)
                return None
            if transcoder.is_versioned:
                return tuple(
                    TableChanges(transcoder, each) for each in transcoder.steps(type_, body)
                )
            return (TableChanges(transcoder, transcoder.changes(type_, body)),)
        except NeedsOperator as error:
            found = transcoder.table_map
            name = found.schema, found.table
            if not is_skipped():
                raise Refused(error, name) from error
            counter = LeftOutRows(name, lambda: found, self._id_size)
            return (RowsLeftOut(name, counter.count(type_, body)),)
