"""Assembles a relay log's events to rows, ends of transactions and statements.

Pure.

    MySQL      GTID  BEGIN  map rows map rows …  XID | COMMIT              GTID  DDL
    MariaDB    GTID  map rows …  XID | COMMIT                  GTID (standalone)  DDL
    both       BEGIN …, a DDL without GTID (servers without GTIDs)
    payload    GTID  one event that holds BEGIN … XID, compressed
    XA         GTID  XA START  rows  XA END  XA_PREPARE   …later…   GTID  XA COMMIT | XA ROLLBACK
    made from a SELECT    GTID  CREATE TABLE  rows  XID: the statement comes out first, then rows

Rows are yielded as they arrive, so that no transaction is held here, except rows that XA prepared:
these wait for their XA COMMIT, and `restart` is the place from which events must be read again for
them. Transactions that ended at or before `done` are then repeated as well; their rows are ignored.

Events that report changes of data outside of rows stop the assembler.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events import StatementPart, decode_event
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    read_header,
)
from pumpclient.mysql.events.transactions import (
    MARIADB_BEGIN,
    GtidFlag,
    Incident,
    Query,
    TransactionPayload,
    XaPrepare,
    mysql_gtid_of,
)
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.rows_event import LAYOUTS
from pumpclient.mysql.translate.outputs import (
    Choose,
    FindEffects,
    Finished,
    IsSkipped,
    MappedTables,
    Output,
    Refused,
    RowsOutput,
    SkippedRows,
    Statement,
    TableChanges,
    Undone,
)
from pumpclient.mysql.translate.statement_text import dialect_of


def _loss(event: Incident | StatementPart, place: Location) -> NeedsOperator:
    if isinstance(event, Incident):
        return NeedsOperator(
            f"the server says at {place} that its binlog lacks changes: {event}",
            "compare the tables, load them again, and begin after this place",
            Code.BINLOG_INCOMPLETE,
        )
    return NeedsOperator(
        f"{event.type.name} at {place}: LOAD DATA in statement format",
        "set the server's binlog_format to ROW and reconnect its clients",
        Code.BINLOG_INCOMPLETE,
    )


_STATEMENT = re.compile(rb"^XA\s+(\w+)\s+(.*?)(\s+ONE\s+PHASE)?\s*$", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(rb"X'([0-9a-f]*)'(?:\s*,\s*X'([0-9a-f]*)'(?:\s*,\s*(\d+))?)?", re.IGNORECASE)


@dataclass(slots=True)
class Prepared:
    """The rows of one XA transaction."""

    begin: Location
    rows: list[RowsOutput] = field(default_factory=list)
    bytes: int = 0


def read_statement(statement: bytes) -> tuple[bytes, bytes | None]:
    """Return an XA statement's verb in capitals and its normalized name, None for none."""
    found = _STATEMENT.match(statement)
    if found is None:
        return b"", None
    name = _NAME.match(found[2])
    if name is None:
        return found[1].upper(), None
    parts = name[1].lower(), (name[2] or b"").lower(), int(name[3] or 1)
    return found[1].upper(), b"X'%b',X'%b',%d" % parts


_WORD_BYTES = 64
_PREPARED_XA = int(GtidFlag.PREPARED_XA)  # A plain number: it is used in each transaction.
_STANDALONE = int(GtidFlag.STANDALONE)
_TYPE_AT = 4
_TABLE_MAP, _XID = int(EventType.TABLE_MAP), int(EventType.XID)
_MARIADB_GTID, _ANNOTATE_ROWS = int(EventType.MARIADB_GTID), int(EventType.ANNOTATE_ROWS)
_XID_SIZE = 8
_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})
_OF_SESSION = int(EventFlag.THREAD_SPECIFIC)


@dataclass(slots=True)
class _Open:
    begin: Location
    gtid: str = ""
    has_begun: bool = False
    prepared: Prepared | None = None
    """Where rows wait, from XA START on."""
    has_rows: bool = False
    has_followed_rows: bool = False
    """Whether it has rows that are not skipped."""


class Assembler:
    """Follows one source's events; pass each event once, in order, from a transaction's start.

    After a `Statement` that changed tables, and whenever they change here, call `forget_tables`
    before the next event.
    """

    def __init__(
        self,
        choose: Choose,
        *,
        done: Location | None = None,
        prepared_bytes_max: int = 64 << 20,
        is_table_skipped: IsSkipped = lambda schema, table: False,
        is_skipped: Callable[[Location], bool] = lambda place: False,
        effects: FindEffects = lambda name: None,
    ) -> None:
        """Start outside of a transaction; those that ended at or before `done` are not repeated.

        Rows of skipped tables are counted. `is_skipped` takes the end of an event that cannot be
        followed, and tells whether an operator wants to skip that event. With `effects`, rows of
        parents come with a `Cascaded`.
        """
        self._tables = MappedTables(choose, is_table_skipped, effects)
        self._is_skipped = is_skipped
        self._done = done
        self._read_with(Checksum.NONE)
        self._dialect = dialect_of("")
        self._open: _Open | None = None
        self._prepared_bytes_max = prepared_bytes_max
        self._prepared: dict[bytes, Prepared] = {}
        """The XA transactions that wait for their end, by name."""

    @property
    def restart(self) -> Location | None:
        """The position to reread from after a restart now; None means from the last end."""
        if self._open is None and not self._prepared:
            return None
        begins = [each.begin for each in self._prepared.values()]
        if self._open is not None:
            begins.append(self._open.begin)
        return min(begins, default=None)

    def forget_tables(self) -> None:
        self._tables.forget()

    def take(self, begin: Location, end: Location, event: bytes) -> Iterator[Output]:
        """Yield the outputs of an event between two places.

        Raises `Malformed` for a damaged event, and `Refused` for an event that cannot be followed.
        """
        return self._taken(begin, end, (event,))

    def take_run(self, begin: Location, events: Sequence[bytes]) -> Iterator[Output]:
        """Yield the outputs of consecutive events of a file, the first at `begin`.

        Raises as `take` does. `forget_tables` may be called between two outputs.
        """
        return self._taken(begin, None, events)

    def _taken(
        self, begin: Location, end: Location | None, events: Sequence[bytes]
    ) -> Iterator[Output]:
        """Take events that end at `end`, or each after the one before.

        The most frequent events are handled here, without decoding them completely or making
        unneeded places: a transaction of four rows has fourteen events.
        """
        at = begin.position
        for event in events:
            here, at = at, at + len(event)
            type_ = event[_TYPE_AT] if len(event) >= HEADER_SIZE else 0
            if type_ == _ANNOTATE_ROWS:
                continue  # A statement's text, for people.
            if type_ == _TABLE_MAP:
                self._table_map(event, begin, here, end)
            elif type_ in LAYOUTS:
                made = self._rows(type_, event, begin, here, end)
                if made is not None:
                    yield from made
            elif type_ == _XID and len(event) == self._xid_size:
                timestamp_s = int.from_bytes(event[:_TYPE_AT], "little")
                yield from self._ended(begin.at(here), end or begin.at(at), timestamp_s)
            elif type_ == _MARIADB_GTID and len(event) >= MARIADB_BEGIN.size:
                server, sequence, domain, flags = MARIADB_BEGIN.unpack_from(event)
                place = begin.at(here)
                prepared = Prepared(place) if flags & _PREPARED_XA else None
                gtid = f"{domain}-{server}-{sequence}"
                self._open = _Open(place, gtid, not flags & _STANDALONE, prepared)
            elif type_ in _GTIDS:
                gtid = str(mysql_gtid_of(type_, event, self._checksum) or "")
                self._open = _Open(begin.at(here), gtid)
            else:
                yield from self._decoded(begin.at(here), end or begin.at(at), event)

    def _decoded(self, begin: Location, end: Location, event: bytes) -> Iterator[Output]:
        header = read_header(event)
        decoded = decode_event(event, self._checksum, header)
        if isinstance(decoded, Query):
            yield from self._query(decoded, begin, end, header)
        elif isinstance(decoded, TransactionPayload):
            yield from self._payload(decoded, begin, end)
        elif isinstance(decoded, XaPrepare):
            yield from self._xa_prepare(decoded, begin, end, header.timestamp_s)
        elif isinstance(decoded, FormatDescription):
            self._read_with(decoded.checksum)
            self._dialect = dialect_of(decoded.server_version)
            self._tables.statement_is_over()
        elif decoded is not None:
            self._refuse(end, _loss(decoded, begin))
            yield SkippedRows(None, None)

    def _read_with(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._tables.read_with(checksum)
        self._xid_size = HEADER_SIZE + _XID_SIZE + (CHECKSUM_SIZE if checksum else 0)

    def _payload(
        self, payload: TransactionPayload, begin: Location, end: Location
    ) -> Iterator[Output]:
        """Take the events of a payload, which have neither checksums nor positions."""
        checksum = self._checksum
        self._read_with(Checksum.NONE)
        try:
            for inner in payload.events():
                yield from self.take(begin, end, inner)
        finally:
            self._read_with(checksum)

    def _table_map(self, event: bytes, begin: Location, at: int, end: Location | None) -> None:
        if self._open is None:
            self._open = _Open(begin.at(at), has_begun=True)
        is_wanted = self._done is None or not self._is_done()
        try:
            self._tables.take_map(event, self._dialect.flavor, is_wanted=is_wanted)
        except NeedsOperator as error:
            name, end = self._tables.name_of(event), end or begin.at(at + len(event))
            if name is None:
                raise Refused(error, place=end) from error
            if not self._is_skipped(end):
                raise Refused(error, name, place=end) from error
            self._tables.leave_out(event, self._dialect.flavor)

    def _rows(
        self, type_: int, event: bytes, begin: Location, at: int, end: Location | None
    ) -> tuple[RowsOutput, ...] | None:
        """Return an event's rows; None if they are not wanted, empty before an XA COMMIT."""
        if self._open is None:
            self._open = _Open(begin.at(at), has_begun=True)
        try:
            made = self._tables.rows(
                type_, event, lambda: self._is_skipped(end or begin.at(at + len(event)))
            )
        except Refused as error:
            error.place = end or begin.at(at + len(event))
            raise
        except KeyError:
            raise Malformed(
                f"rows at {begin.at(at)} of a table that no TABLE_MAP named",
                "begin at the start of a transaction",
                Code.ROWS_EVENT,
            ) from None
        if made is None:
            return None
        self._open.has_rows = True
        for each in made:
            self._open.has_followed_rows |= isinstance(each, TableChanges)
            if self._open.prepared is not None:
                self._hold(self._open.prepared, each)
        return made if self._open.prepared is None else None

    def _hold(self, prepared: Prepared, made: RowsOutput) -> None:
        """Hold rows of an XA transaction; raise `NeedsOperator` when they are too many."""
        prepared.rows.append(made)
        if isinstance(made, TableChanges):
            prepared.bytes += sum(map(len, made.changes[1]))
        waiting = [*self._prepared.values(), prepared]
        size, bytes_max = sum(each.bytes for each in waiting), self._prepared_bytes_max
        if size > bytes_max:
            raise NeedsOperator(
                f"{size} bytes of rows wait for an XA COMMIT, the oldest since"
                f" {min(each.begin for each in waiting)}; more than {bytes_max} are not kept",
                "end what XA RECOVER lists on the server, or raise the bound",
                Code.XA_PREPARED,
            )

    def _is_done(self) -> bool:
        """Return whether the open transaction was already applied; False for XA."""
        is_open = self._open is not None and self._open.prepared is None
        return bool(is_open and self._done and self._open and self._open.begin < self._done)

    def _ended(self, begin: Location, end: Location, timestamp_s: int) -> Iterator[Output]:
        ended = self._open or _Open(begin)
        self._open = None
        self._tables.statement_is_over()
        if self._done is None or end > self._done:
            self._done = None  # Nothing after this was done.
            yield Finished(ended.begin, end, ended.gtid, timestamp_s)

    def _query(
        self, query: Query, begin: Location, end: Location, header: Header
    ) -> Iterator[Output]:
        timestamp_s = header.timestamp_s
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
            if self._open.has_followed_rows:
                self._refuse(end, NeedsOperator(
                    f"a ROLLBACK at {begin} follows rows that were logged, as servers do it"
                    " when tables without transactions are among them: some stayed, some did not",
                    "run ALTER TABLE … ENGINE = InnoDB on the server, stop the source, then"
                    " run `penstock source reload --all --config FILE` and start it",
                    Code.ENGINE_WITHOUT_TRANSACTIONS,
                ))  # fmt: skip
                yield Undone()
            if b"TO" not in words[1:3]:
                yield from self._ended(begin, end, timestamp_s)
        elif first != b"SAVEPOINT":
            yield from self._statement(query, begin, end, header)

    def _statement(
        self, query: Query, begin: Location, end: Location, header: Header
    ) -> Iterator[Output]:
        assert self._open is not None, "the caller opened one"
        ends_open = query.statement.rstrip()[-_WORD_BYTES:].upper().split()[-2:]
        if ends_open == [b"START", b"TRANSACTION"]:
            self._open.has_begun = True
        opened = self._open
        if self._done is None or end > self._done:
            yield Statement(
                query,
                self._dialect,
                opened.begin,
                end,
                opened.gtid,
                header.timestamp_s,
                bool(header.flags & _OF_SESSION),
            )
        if not opened.has_begun:
            self._open = None
            self._tables.statement_is_over()

    def _xa(
        self, query: Query, begin: Location, end: Location, timestamp_s: int
    ) -> Iterator[Output]:
        assert self._open is not None, "the caller opened one"
        verb, name = read_statement(query.statement)
        if verb in (b"START", b"BEGIN"):
            self._open.has_begun = True
            self._open.prepared = self._open.prepared or Prepared(self._open.begin)
        elif verb in (b"COMMIT", b"ROLLBACK") and name is not None:
            prepared = self._prepared.pop(name, None)
            own = self._open.prepared if prepared is None and self._open.has_rows else prepared
            if verb == b"COMMIT" and own is None and not self._was_done(end):
                self._refuse(end, NeedsOperator(
                    f"XA COMMIT {name.decode()} at {begin}: its rows are before the place where"
                    " this source began",
                    "begin before its XA PREPARE, or compare the tables and skip this place",
                    Code.XA_PREPARED,
                ))  # fmt: skip
                yield SkippedRows(None, None)
            if verb == b"COMMIT" and own is not None and not self._was_done(end):
                yield from own.rows
            yield from self._ended(begin, end, timestamp_s)
        elif verb != b"END":
            self._refuse(end, NeedsOperator(
                f"{query.statement[:80]!r} at {begin} is no XA statement that is known",
                "skip this place",
                Code.XA_PREPARED,
            ))  # fmt: skip
            yield SkippedRows(None, None)

    def _refuse(self, end: Location, error: NeedsOperator) -> None:
        if not self._is_skipped(end):
            raise Refused(error, place=end)

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
            self._prepared[event.name] = prepared
        yield from self._ended(begin, end, timestamp_s)
