"""From a relay log's events to what a writer does: rows, ends of transactions, statements. Pure.

    MySQL      GTID  BEGIN  map rows map rows …  XID | COMMIT              GTID  DDL
    MariaDB    GTID  map rows …  XID | COMMIT                  GTID (standalone)  DDL
    both       BEGIN …, a DDL without GTID (servers without GTIDs)
    payload    GTID  one event that holds BEGIN … XID, compressed
    XA         GTID  XA START  rows  XA END  XA_PREPARE   …later…   GTID  XA COMMIT | XA ROLLBACK
    made from a SELECT    GTID  CREATE TABLE  rows  XID: the statement comes out first, then rows

Rows come out as they come in, so that no transaction is held here, but for those that XA prepared:
they wait for their XA COMMIT, and `restart` says from where events must come again for them.
Transactions that ended at or before `done` then come again too; none of their rows is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events import Event, Rows, StatementPart, decode_event
from pumpclient.mysql.events.compressed import TransactionPayload
from pumpclient.mysql.events.description import FormatDescription
from pumpclient.mysql.events.frame import Checksum, read_header
from pumpclient.mysql.events.gtids import Gtid
from pumpclient.mysql.events.mariadb import GtidFlag, MariadbGtidEvent
from pumpclient.mysql.events.notes import Incident
from pumpclient.mysql.events.query import Query
from pumpclient.mysql.events.transactions import XaPrepare, Xid
from pumpclient.mysql.events.types import EventType
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.events import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TABLE_ID_SIZE, TableMap
from pumpclient.mysql.translate.outputs import Finished, Output, Statement, TableChanges
from pumpclient.mysql.translate.sql import dialect_of
from pumpclient.mysql.translate.transcode import Transcoder
from pumpclient.mysql.translate.xa import Prepared, PreparedRows, read_statement

_KEPT_MAX = 4096
_WORD_BYTES = 64
_PREPARED_XA = int(GtidFlag.PREPARED_XA)  # A plain number: this is asked for each transaction.

Choose = Callable[[TableMap], Transcoder | None]
"""A table's transcoder as of now, None for one whose rows nobody wants; asked once for each map."""


@dataclass(slots=True)
class _Open:
    """The transaction that is open."""

    begin: Location
    gtid: str = ""
    is_standalone: bool = False
    has_begun: bool = False
    prepared: Prepared | None = None
    """Where rows wait, from XA START on."""
    has_rows: bool = False


class Assembler:
    """Follows one source's events; give it each event once, in order, from a transaction's start.

    After a `Statement` that changed tables, and whenever they change here, call `forget_tables`
    before the next event.
    """

    def __init__(
        self,
        choose: Choose,
        *,
        done: Location | None = None,
        prepared_bytes_max: int = 64 << 20,
        id_size: int = TABLE_ID_SIZE,
    ) -> None:
        """Begin outside of a transaction; what ended at or before `done` is not done again."""
        self._choose = choose
        self._done = done
        self._id_size = id_size
        self._checksum = Checksum.NONE
        self._dialect = dialect_of("")
        self._open: _Open | None = None
        self._prepared = PreparedRows(prepared_bytes_max)
        self._kept: dict[bytes, Transcoder | None] = {}
        self._of_id: dict[bytes, Transcoder | None] = {}
        self._statement_is_over()

    @property
    def restart(self) -> Location | None:
        """From where events must come again after a restart now; None: from the last end."""
        begins = self._prepared.begins
        if self._open is not None:
            begins.append(self._open.begin)
        return min(begins, default=None)

    def forget_tables(self) -> None:
        """Ask for all transcoders anew."""
        self._kept.clear()
        self._statement_is_over()

    def take(self, begin: Location, end: Location, event: bytes) -> Iterator[Output]:
        """Yield what an event between two places leads to.

        Raises `Malformed` for a damaged one, and `NeedsOperator` for what cannot be followed.
        """
        header = read_header(event)
        decoded = decode_event(event, self._checksum, header)
        if isinstance(decoded, Rows):
            yield from self._rows(decoded, begin)
        elif isinstance(decoded, Xid):
            yield from self._ended(begin, end, header.timestamp_s)
        elif isinstance(decoded, Query):
            yield from self._query(decoded, begin, end, header.timestamp_s)
        elif isinstance(decoded, MariadbGtidEvent):
            self._open = _Open(
                begin,
                str(decoded.gtid(header.server_id)),
                is_standalone=decoded.is_standalone,
                has_begun=not decoded.is_standalone,
                prepared=Prepared(begin) if decoded.flags & _PREPARED_XA else None,
            )
        elif isinstance(decoded, Gtid):
            self._open = _Open(begin, str(decoded.gtid or ""))
        elif isinstance(decoded, TransactionPayload):
            yield from self._payload(decoded, begin, end)
        elif isinstance(decoded, XaPrepare):
            yield from self._xa_prepare(decoded, begin, end, header.timestamp_s)
        elif isinstance(decoded, FormatDescription):
            self._checksum = decoded.checksum
            self._dialect = dialect_of(decoded.server_version)
            self._statement_is_over()
        else:
            _refuse_losses(decoded, begin)

    def _payload(
        self, payload: TransactionPayload, begin: Location, end: Location
    ) -> Iterator[Output]:
        """Take the events within one; they have no checksums and no places of their own."""
        checksum, self._checksum = self._checksum, Checksum.NONE
        try:
            for inner in payload.events():
                yield from self.take(begin, end, inner)
        finally:
            self._checksum = checksum

    def _rows(self, event: Rows, begin: Location) -> Iterator[Output]:
        if self._open is None:
            self._open = _Open(begin, has_begun=True)
        body, number = event.body, event.body[: self._id_size]
        if event.type is EventType.TABLE_MAP:
            self._of_id[number] = None if self._is_done() else self._transcoder(body)
            return
        try:
            transcoder = self._of_id[number]
        except KeyError:
            raise Malformed(
                f"rows at {begin} of a table that no TABLE_MAP told",
                hint="begin at the start of a transaction",
            ) from None
        if body[self._id_size] & STMT_END:
            self._statement_is_over()
        if transcoder is None:
            return
        made = TableChanges(transcoder, transcoder.changes(event.type, body))
        self._open.has_rows = True
        if self._open.prepared is None:
            yield made
        else:
            self._prepared.add(self._open.prepared, made)

    def _is_done(self) -> bool:
        """Tell whether the open transaction was brought in before; XA's wait all the same."""
        is_open = self._open is not None and self._open.prepared is None
        return bool(is_open and self._done and self._open and self._open.begin < self._done)

    def _transcoder(self, body: bytes) -> Transcoder | None:
        rest = body[self._id_size :]
        try:
            return self._kept[rest]
        except KeyError:
            flavor = self._dialect.flavor
            made = self._choose(TableMap.decode(body, flavor, id_size=self._id_size))
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[rest] = made
            return made

    def _statement_is_over(self) -> None:
        """Forget which table a number means; transcoders are kept."""
        self._of_id = {NO_TABLE.to_bytes(self._id_size, "little"): None}

    def _ended(self, begin: Location, end: Location, timestamp_s: int) -> Iterator[Output]:
        ended = self._open or _Open(begin)
        self._open = None
        self._statement_is_over()
        if self._done is None or end > self._done:
            yield Finished(ended.begin, end, ended.gtid, timestamp_s)

    def _query(
        self, query: Query, begin: Location, end: Location, timestamp_s: int
    ) -> Iterator[Output]:
        if self._open is None:
            self._open = _Open(begin)
        words = query.statement[:_WORD_BYTES].upper().split()
        first = words[0] if words else b""
        if first == b"XA":
            yield from self._xa(query, begin, end, timestamp_s)
        elif words in ([b"BEGIN"], [b"START", b"TRANSACTION"]):
            self._open.has_begun = True
        elif first == b"COMMIT":
            yield from self._ended(begin, end, timestamp_s)
        elif first == b"ROLLBACK":
            if self._open.has_rows:
                raise NeedsOperator(
                    f"a ROLLBACK at {begin} stands behind rows that were logged, as servers do it"
                    " when tables without transactions are among them: some stayed, some did not",
                    hint="compare these tables, and use InnoDB for all of them",
                )
            if b"TO" not in words[1:3]:
                yield from self._ended(begin, end, timestamp_s)
        elif first != b"SAVEPOINT":
            yield from self._statement(query, begin, end, timestamp_s)

    def _statement(
        self, query: Query, begin: Location, end: Location, timestamp_s: int
    ) -> Iterator[Output]:
        """Pass a statement on: the whole transaction, unless BEGIN or a GTID said otherwise."""
        assert self._open is not None, "the caller opened one"
        ends_open = query.statement.rstrip()[-_WORD_BYTES:].upper().split()[-2:]
        if ends_open == [b"START", b"TRANSACTION"]:
            self._open.has_begun = True
        told = self._open
        if self._done is None or end > self._done:
            yield Statement(query, self._dialect, told.begin, end, told.gtid, timestamp_s)
        if not told.has_begun:
            self._open = None
            self._statement_is_over()

    def _xa(
        self, query: Query, begin: Location, end: Location, timestamp_s: int
    ) -> Iterator[Output]:
        assert self._open is not None, "the caller opened one"
        verb, name = read_statement(query.statement)
        if verb in (b"START", b"BEGIN"):
            self._open.has_begun = True
            self._open.prepared = self._open.prepared or Prepared(self._open.begin)
        elif verb in (b"COMMIT", b"ROLLBACK") and name is not None:
            prepared = self._prepared.end(name)
            own = self._open.prepared if prepared is None and self._open.has_rows else prepared
            if verb == b"COMMIT" and own is None and not self._was_done(end):
                raise NeedsOperator(
                    f"XA COMMIT {name.decode()} at {begin}: its rows are before the place where"
                    " this source began",
                    hint="begin before its XA PREPARE, or compare the tables and skip this place",
                )
            if verb == b"COMMIT" and own is not None and not self._was_done(end):
                yield from own.rows
            yield from self._ended(begin, end, timestamp_s)
        elif verb != b"END":
            raise NeedsOperator(
                f"{query.statement[:80]!r} at {begin} is no XA statement that is known",
                hint="skip this place, or give statements to run instead",
            )

    def _was_done(self, end: Location) -> bool:
        return self._done is not None and end <= self._done

    def _xa_prepare(
        self, event: XaPrepare, begin: Location, end: Location, timestamp_s: int
    ) -> Iterator[Output]:
        prepared = self._open.prepared if self._open is not None else None
        if prepared is None:
            prepared = Prepared(self._open.begin if self._open is not None else begin)
        if event.one_phase:
            if not self._was_done(end):
                yield from prepared.rows
        else:
            self._prepared.keep(event.xid, prepared)
        yield from self._ended(begin, end, timestamp_s)


def _refuse_losses(event: Event, place: Location) -> None:
    """Raise `NeedsOperator` for events that say that changes are not in rows here."""
    if isinstance(event, Incident):
        raise NeedsOperator(
            f"the server says at {place} that its binlog lacks changes: {event}",
            hint="compare the tables, load them anew, and begin behind this place",
        )
    if isinstance(event, StatementPart):
        raise NeedsOperator(
            f"{event.type.name} at {place}: LOAD DATA in statement format",
            hint="set the server's binlog_format to ROW and reconnect its clients",
        )
