"""Recognises transactions that must be skipped because they are known.

A transaction is known by the GTID or the time in its first event, or because the load covers it.
The tables of a load with several attempts have different places (`pumpclient.mysql.load`). Until
the binlog has passed the last place, rows and statements that a table's load already covers are
skipped.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.events.files import listed_gtids
from pumpclient.mysql.events.frame import HEADER, Checksum, EventType, body_of
from pumpclient.mysql.events.transactions import MARIADB_BEGIN, mysql_gtid_of
from pumpclient.mysql.gtid import (
    Flavor,
    GtidSet,
    MariadbGtid,
    MariadbGtidSet,
    parse_gtid_set,
    union,
)
from pumpclient.mysql.load.state import Floor, Floors
from pumpclient.mysql.protocol.address import RELOAD_ALL
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.state.checkpoint import Checkpoint, changed_within_load
from pumpclient.mysql.translate.ddl_pieces import Translation

log = logging.getLogger(__name__)

_BEGINS = frozenset(
    {EventType.MARIADB_GTID, EventType.GTID, EventType.GTID_TAGGED, EventType.ANONYMOUS_GTID}
)
_KEPT = frozenset(
    {
        EventType.FORMAT_DESCRIPTION,
        EventType.ROTATE,
        EventType.STOP,
        EventType.PREVIOUS_GTIDS,
        EventType.GTID_LIST,
        EventType.BINLOG_CHECKPOINT,
    }
)


class KnownTransactions:
    """Tells for each event whether it belongs to a skipped transaction."""

    def __init__(self, gtids: GtidSet | None, since_s: int) -> None:
        """Skip the transactions in `gtids`, and all before the first at or after `since_s`.

        With neither, nothing is skipped.
        """
        self._gtids = gtids
        self._since_s = since_s
        self._skips = since_s > 0
        self.count = 0

    @property
    def is_needed(self) -> bool:
        return self._gtids is not None or self._since_s > 0

    def is_skipped(self, event: bytes, checksum: Checksum) -> bool:
        """Take the next event; return whether it is skipped."""
        timestamp_s, type_, _, _, _, _ = HEADER.unpack_from(event)
        if type_ in _BEGINS:
            if self._since_s and timestamp_s >= self._since_s:
                self._since_s = 0
            self._skips = self._since_s > 0 or self._has(type_, event, checksum)
            self.count += self._skips
        return self._skips and type_ not in _KEPT

    def _has(self, type_: int, event: bytes, checksum: Checksum) -> bool:
        gtids = self._gtids
        if gtids is None or type_ == EventType.ANONYMOUS_GTID:
            return False
        if type_ == EventType.MARIADB_GTID:
            assert isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
            server_id, sequence, domain, _ = MARIADB_BEGIN.unpack_from(event)
            return MariadbGtid(domain, server_id, sequence) in gtids
        assert not isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
        found = mysql_gtid_of(type_, event, checksum)
        return found is not None and found in gtids


LISTS = (int(EventType.GTID_LIST), int(EventType.PREVIOUS_GTIDS))
"""The types of events that list the transactions of all earlier files."""


class SeenGtids:
    """Grows with each transaction, and with the list at a file's start."""

    def __init__(self, text: str, flavor: Flavor) -> None:
        self._flavor = flavor
        self._gtids: GtidSet = parse_gtid_set(text, flavor)

    def __str__(self) -> str:
        return str(self._gtids)

    def copy(self) -> GtidSet:
        return self._gtids.copy()

    def clear(self) -> None:
        """Forget all GTIDs, because the server's history starts again."""
        self._gtids = parse_gtid_set("", self._flavor)

    def add(self, gtid: str) -> None:
        if isinstance(self._gtids, MariadbGtidSet):
            self._gtids.add(MariadbGtid(*map(int, gtid.split("-"))))
        else:
            self._gtids = self._gtids.union(type(self._gtids).parse(gtid))

    def add_list(self, type_: int, event: bytes, checksum: Checksum) -> None:
        """Add the GTIDs of all earlier files, which were all replicated or skipped."""
        self._gtids = union(self._gtids, listed_gtids(type_, body_of(event, checksum)))


class CatchUp:
    """The part of the binlog that was loaded; `at` is the end of the event that is being read."""

    def __init__(self, floors: Floors, checkpoint: Checkpoint) -> None:
        """Start after `checkpoint`; raise `NeedsOperator` for the floors of another load."""
        self._floors = floors
        self.at = checkpoint.place
        is_same_epoch = checkpoint.epoch == floors.epoch
        if checkpoint.is_within_load and not (is_same_epoch and floors.after == checkpoint.loaded):
            raise NeedsOperator(
                f"the source is at {checkpoint.done}, its load has rows up to {checkpoint.loaded},"
                " and the file in data-dir that says of which tables is missing or is of another"
                " load: these rows would come twice",
                f"put the source's .load.json back as it was after the load; or {RELOAD_ALL}",
                Code.SOURCE_STATE_DAMAGED,
            )
        self.is_active = is_same_epoch and _floor(self.at) < floors.highest

    def has(self, *tables: Name) -> bool:
        return self.is_active and self._floors.has(tables, _floor(self.at))

    def without_loaded(self, translation: Translation) -> Translation:
        if not self.is_active:
            return translation
        left = tuple(piece for piece in translation.pieces if not self.has(*piece.tables))
        if len(left) == len(translation.pieces):
            return translation
        log.info("a statement up to %s is in the load already", self.at)
        return replace(translation, pieces=left)

    def passed(self) -> bool:
        """Note the end of a transaction; True while tables must be looked up again."""
        was_active = self.is_active
        if was_active and _floor(self.at) >= self._floors.highest:
            self.is_active = False
            log.info("the binlog has passed the load: the tables are of one moment from here on")
        return was_active

    def check_over(self) -> None:
        """Raise `NeedsOperator` if another history starts before the load was passed."""
        if self.is_active:
            raise changed_within_load()


def _floor(place: Location) -> Floor:
    return place.file.number, place.position
