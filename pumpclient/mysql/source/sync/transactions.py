"""The transactions of a run: which are skipped as known, and how the others are gathered.

A transaction is known by the GTID or the time in its first event, or because the load covers it.
The tables of a load with several attempts have different places (`pumpclient.mysql.load`). Until
the binlog has passed the last place, rows and statements that a table's load already covers are
skipped.

Rows are gathered into transactions, and transactions into groups of bounded count and size. Pure,
except for the file that holds a transaction's rows when they are many.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.rules import RowPolicy
from penstock.wire.binlog import MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.delivery.group_commit import PendingTransaction
from pumpclient.mysql.events.frame import HEADER, Checksum, EventType
from pumpclient.mysql.events.transactions import MARIADB_BEGIN, mysql_gtid_of
from pumpclient.mysql.gtid import GtidSet, MariadbGtid, MariadbGtidSet
from pumpclient.mysql.load.state import LoadState
from pumpclient.mysql.protocol.server import RELOAD_ALL
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.translate.ddl_pieces import Translation
from pumpclient.options import Options
from pumpclient.rows import Table

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


class CatchUp:
    """The part of the binlog that was loaded; `at` is the end of the event that is being read."""

    def __init__(self, load: LoadState | None, checkpoint: Checkpoint) -> None:
        """Start after `checkpoint`; raise `NeedsOperator` for the state of another load."""
        self.at = checkpoint.place
        is_same = load is not None and load.epoch == checkpoint.epoch
        loaded = load.loaded if load is not None and is_same else {}
        if checkpoint.is_within_load and not (
            load is not None and is_same and load.after == checkpoint.loaded
        ):
            raise NeedsOperator(
                f"the source is at {checkpoint.done}, its load has rows up to {checkpoint.loaded},"
                " and the file in data-dir that says of which tables is missing or is of another"
                " load: these rows would come twice",
                f"put the source's .load.json back as it was after the load; or {RELOAD_ALL}",
                Code.SOURCE_STATE_DAMAGED,
            )
        self._floors = {name: place.floor for name, place in loaded.items()}
        self._highest = max(self._floors.values(), default=(0, 0))
        self.is_active = _floor(self.at) < self._highest

    def has(self, *tables: Name) -> bool:
        """Return whether the load covers an event of these tables that ends at `at`.

        A database is a table named "". Raises `NeedsOperator` when that is true for only some of
        several tables, as for a RENAME between two attempts.
        """
        if not self.is_active:
            return False
        place = _floor(self.at)
        loaded = {place <= self._floors.get(name, (0, 0)) for name in tables}
        if len(loaded) > 1:
            names = ", ".join(f"{schema}.{table}" for schema, table in tables)
            raise NeedsOperator(
                f"a statement at {place} on {names} is loaded for a part of these tables",
                "the load was begun again after it; stop the source and load once more"
                " (penstock source reload --all), without such statements meanwhile",
                Code.LOAD_NOT_CONTINUED,
            )
        return loaded == {True}

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
        if was_active and _floor(self.at) >= self._highest:
            self.is_active = False
            log.info("the binlog has passed the load: the tables are of one moment from here on")
        return was_active


def _floor(place: Location) -> tuple[int, int]:
    return place.file.number, place.position


_BYTES_MAX = 4 << 20


class Gatherer:
    """The group that is being made, and the transaction that is open after it."""

    def __init__(self, count_max: int, options: Options) -> None:
        """A group has at most `count_max` transactions and little more than `_BYTES_MAX` bytes."""
        self._count_max = count_max
        # The rows in memory must fit into one message, whatever their frames add to them.
        self._spill_bytes = options.spill_bytes // 4
        self._spill_dir = options.spill_dir
        self._group: list[PendingTransaction] = []
        self._group_bytes = 0
        self._open: ChangeSet | None = None
        self._open_bytes = 0
        self._in_memory_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._group) >= self._count_max or self._group_bytes >= _BYTES_MAX

    @property
    def is_large(self) -> bool:
        return self._open is not None and self._open.spool_file is not None

    def add(
        self, table: Table, policy: RowPolicy, kind: MutationType, rows: Sequence[bytes]
    ) -> None:
        if not policy.takes_all:
            rows = policy.passing(kind, rows)
        if not rows:
            return
        if self._open is None:
            self._open = ChangeSet(self._spill_bytes, self._spill_dir)
        changes = self._open.tables.get(table.info.id)
        if changes is None:
            changes = self._open.tables[table.info.id] = Changes(table)
        if kind is MutationType.INSERT:
            changes.inserted += rows
        elif kind is MutationType.UPDATE:
            changes.updated += rows
        else:
            changes.deleted += rows
        count = len(rows)
        if count == 1:  # Most events of a server that many sessions write to.
            changes.sequence.append(kind)
            size = len(rows[0])
        else:
            changes.sequence += [kind] * count
            size = sum(map(len, rows))
        self._open_bytes += size
        self._in_memory_bytes += size
        if self._in_memory_bytes > self._spill_bytes:
            self._open.spool_all()
            self._in_memory_bytes = 0

    def finish(self, origin: Origin) -> bool:
        """End the open transaction; drop it and return False if it has no rows."""
        changes, self._open = self._open, None
        if changes is not None:
            self._group.append(PendingTransaction(changes, origin))
            self._group_bytes += self._open_bytes
        self._open_bytes = self._in_memory_bytes = 0
        return changes is not None

    def take(self) -> list[PendingTransaction]:
        group, self._group, self._group_bytes = self._group, [], 0
        return group

    def undo(self) -> dict[tuple[str, str], int]:
        """Forget the open transaction; return how many rows it had of each table."""
        found = {} if self._open is None else self._open.tables
        counts = {
            (each.table.schema_name, each.table.info.name): len(each.sequence)
            for each in found.values()
        }
        self.drop_open()
        return counts

    def drop_open(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
        self._open_bytes = self._in_memory_bytes = 0

    def close(self) -> None:
        for each in self._group:
            each.changes.close()
        self._group = []
        self.drop_open()
