"""The outputs of a stream: rows, ends of transactions, statements, skipped events, refusals.

`MappedTables` makes outputs of rows events: it tracks the tables that the numbers in them denote,
and caches their transcoders. Rows of a skipped table are counted without being decoded. A table may
be skipped because its TABLE_MAP, its types or its images cannot be followed. Therefore only the
facts that a count needs are required of an event: not a column's sign, charset or name, nor
complete images. If even the count is impossible, the result is an event with an unknown number of
rows.

Rows of a MariaDB's sequence show the allocated numbers. NEXTVAL logs a row of its sequence when it
allocates a cache of numbers: the first number after the cache. The rows that got these numbers have
them in their images, so nothing depends on the sequence until the application moves to the
downstream. Then its next number must not be already allocated. A DDL for every such row would be
too much: with NOCACHE one for each number. Therefore a DDL is made only when the numbers pass the
downstream's reservation, and it reserves many more:

    upstream     1 … 1000 in a cache     next 1001
    downstream   RESTART WITH 101001     nothing to do until the upstream comes to 101001

So the downstream is ahead, never behind: it skips numbers, and gives none twice. A sequence that
restarts at its end (CYCLE) does not promise this upstream either, and gets its number unchanged.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from penstock.codes import Code
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import Malformed, NeedsOperator, PenstockError
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    BodyReader,
    Checksum,
    EventType,
)
from pumpclient.mysql.events.transactions import Query
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.rows_decoder import PARTIAL_JSON, Decoder
from pumpclient.mysql.rows.rows_event import (
    LAYOUTS,
    NO_FOREIGN_KEY_CHECKS,
    STMT_END,
    Kind,
    Reading,
    ReadRows,
    RowsEvent,
    bitmap_size,
    read_rows,
)
from pumpclient.mysql.rows.table_map import (
    NO_TABLE,
    TABLE_ID_SIZE,
    Name,
    TableMap,
    WireType,
    names_of,
)
from pumpclient.mysql.translate.foreign_keys import Effects
from pumpclient.mysql.translate.statement_text import Dialect
from pumpclient.mysql.translate.transcode import EncodedChanges, Transcoder


class Refused(NeedsOperator):
    """An event at `place` cannot be followed; `tables` are the server's tables it concerns.

    An override that names the place, or one of the tables, lets the source continue.
    """

    def __init__(
        self,
        error: NeedsOperator,
        *tables: Name,
        place: Location | None = None,
        is_statement: bool = False,
    ) -> None:
        super().__init__(error.problem, hint=error.hint, code=error.code)
        self.tables = tables
        self.place = place
        self.is_statement = is_statement


def place_text(place: Location) -> str:
    return f"{place.file}:{place.position}"


class TableChanges(NamedTuple):
    """The rows of one event, in the transaction that is open."""

    transcoder: Transcoder
    changes: EncodedChanges


class SkippedRows(NamedTuple):
    """A skipped event of the open transaction; `rows` is None where they cannot be counted.

    `table` is None for an event without a table.
    """

    table: tuple[str, str] | None
    rows: int | None


class Cascaded(NamedTuple):
    """Foreign keys may have changed rows of tables by the changes of a parent's rows.

    The rows are the parents', by the table that may have been changed.
    """

    rows: Mapping[Name, int]


class Undone(NamedTuple):
    """All rows since the last end are skipped on an operator's request."""


class Finished(NamedTuple):
    """All rows since the last `Finished` are a transaction; without rows only time moves."""

    begin: Location
    end: Location
    gtid: str
    timestamp_s: int


class Statement(NamedTuple):
    """A QUERY that does more than frame a transaction: DDL, or an unexpected statement."""

    query: Query
    dialect: Dialect
    begin: Location
    end: Location
    gtid: str
    timestamp_s: int
    is_of_session: bool = False
    """It used a temporary table, or another object that only its session has."""


RowsOutput = TableChanges | SkippedRows | Cascaded
Output = RowsOutput | Undone | Finished | Statement


_CACHES_RESERVED = 100
_NUMBERS_RESERVED_MIN = 10_000
_COLUMNS = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment",
    "cache_size", "cycle_option", "cycle_count",
)  # fmt: skip
_UNSIGNED = ("cache_size", "cycle_option")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The fields of a sequence's row."""

    next: int
    lowest: int
    highest: int
    increment: int
    cache: int
    cycles: bool

    def reserved(self) -> int:
        if self.cycles:
            return min(max(self.next, self.lowest), self.highest)
        step = self.increment or 1  # 0 stands for the session's auto_increment_increment.
        count = max(self.cache * _CACHES_RESERVED, _NUMBERS_RESERVED_MIN)
        return min(max(self.next + step * count, self.lowest), self.highest)

    def is_within(self, reserved: int) -> bool:
        """Return whether a downstream that continues at `reserved` issues no number twice."""
        if self.cycles:
            return self.next == reserved
        return self.next >= reserved if self.increment < 0 else self.next <= reserved


class Sequences:
    """The sequences of one source whose rows this process has seen."""

    def __init__(self) -> None:
        self._reserved: dict[Name, int] = {}
        self._waiting: dict[Name, int] = {}

    def note(self, name: Name, numbers: Numbers) -> None:
        known = self._waiting.get(name, self._reserved.get(name))
        if known is None or not numbers.is_within(known):
            self._waiting[name] = numbers.reserved()

    @property
    def is_due(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Iterator[tuple[Name, str]]:
        """Yield each sequence that must reserve more, and the DDL, which then counts as run."""
        while self._waiting:
            name, number = self._waiting.popitem()
            self._reserved[name] = number
            yield name, f"ALTER SEQUENCE {quote_path(*name)} RESTART WITH {number}"


class SequenceRows:
    """Reads the rows of one sequence; used in place of a table's transcoder."""

    def __init__(self, table_map: TableMap, name: Name, sequences: Sequences) -> None:
        """`name` is the cluster's. Raise `Malformed` if the server's table is not a sequence."""
        if len(table_map.columns) != len(_COLUMNS):
            raise Malformed(
                f"{table_map.name} is a sequence here and a table of {len(table_map.columns)}"
                " columns there",
                "drop the sequence here, or skip the table",
                Code.TABLE_DIFFERS,
            )
        declared: dict[int, dict[str, Any]] = {
            n: {"name": column, "is_unsigned": wire.is_unsigned or column in _UNSIGNED}
            for n, (column, wire) in enumerate(zip(_COLUMNS, table_map.columns, strict=True))
        }
        self.table_map = table_map.completed(declared)
        self._name = name
        self._sequences = sequences
        self._decoder = Decoder(self.table_map)

    def take(self, type_: int, body: bytes) -> None:
        """Record the state in an event's rows; raise `Malformed` for an invalid row."""
        for _, after in self._decoder.changes(type_, body):
            if after is not None:
                number, lowest, highest, _, increment, cache, cycles, _ = map(int, after)
                numbers = Numbers(number, lowest, highest, increment, cache, bool(cycles))
                self._sequences.note(self._name, numbers)


_BINARY = 63
_UNREADABLE = (PenstockError, LookupError, ValueError, ArithmeticError, struct.error)


class RowCounter:
    """Counts the rows of a skipped table; used in place of its transcoder."""

    def __init__(self, name: Name, table_map: Callable[[], TableMap]) -> None:
        """`table_map` returns the table's TABLE_MAP, or raises if it cannot be decoded."""
        self.name = name
        self._table_map = table_map

    def count(self, type_: int, body: bytes) -> int | None:
        """Return how many rows an event changes, None when its bytes do not show it."""
        try:
            return self._count(RowsEvent.decode(EventType(type_), body))
        except _UNREADABLE:
            return None

    @cached_property
    def _readings(self) -> Sequence[Reading]:
        columns = self._table_map().columns
        return [reading_of(replace(c, is_unsigned=False, collation=_BINARY)) for c in columns]

    @cached_property
    def _json_count(self) -> int:
        return sum(column.type is WireType.JSON for column in self._table_map().columns)

    @cached_property
    def _step_whole(self) -> ReadRows:
        return read_rows(self._readings, (), ".".join(self.name))

    def _count(self, event: RowsEvent) -> int:
        if event.width != len(self._readings):
            raise ValueError(f"{event.width} columns where the map has {len(self._readings)}")
        if event.is_whole:
            count = len(self._step_whole(event.images, 0))
            return count // 2 if event.layout.kind is Kind.UPDATE else count
        images = BodyReader(event.images, f"rows of {'.'.join(self.name)}")
        count = 0
        while images.left:
            if event.before is not None:
                self._step(images, event.before)
            if event.after is not None:
                if event.layout.is_partial and images.packed() & PARTIAL_JSON:
                    images.uint(bitmap_size(self._json_count))
                self._step(images, event.after)
            count += 1
        return count

    def _step(self, images: BodyReader, present: int) -> None:
        nulls = images.uint(bitmap_size(present.bit_count()))
        for index, reading in enumerate(self._readings):
            if not present >> index & 1:
                continue
            is_null, nulls = nulls & 1, nulls >> 1
            if not is_null:
                images.take(images.uint(reading.prefix) if reading.prefix else reading.size)


Reader = Transcoder | SequenceRows | RowCounter | None


class ParentRows(RowCounter):
    """Tells whether an event can have changed rows of other tables by foreign keys.

    Used in place of the `reader` of the parent's rows, which it holds; None reads none.
    """

    def __init__(
        self, name: Name, table_map: Callable[[], TableMap], effects: Effects, reader: Reader
    ) -> None:
        super().__init__(name, table_map)
        self.reader = reader
        self._effects = effects
        self._of_any: frozenset[Name] = frozenset()
        self._by_index: dict[int, frozenset[Name]] = {}
        columns = reader.columns if isinstance(reader, Transcoder) else None
        if columns is None or (isinstance(reader, Transcoder) and reader.is_versioned):
            self._of_any = effects.all  # The updates of a system-versioned table may be deletes.
        elif effects.updated.keys() <= columns.keys():
            self._by_index = {columns[each]: names for each, names in effects.updated.items()}
        else:
            self._of_any = frozenset().union(*effects.updated.values())

    def changed(self, type_: int, body: bytes) -> Cascaded | None:
        kind = LAYOUTS[type_].kind
        if kind is Kind.INSERT or body[TABLE_ID_SIZE] & NO_FOREIGN_KEY_CHECKS:
            return None
        if kind is Kind.UPDATE and self._by_index:
            with suppress(*_UNREADABLE):
                event = RowsEvent.decode(EventType(type_), body)
                if event.is_whole:
                    rows = self._updated(self._read(event.images, 0))
                    return Cascaded(rows) if rows else None
        tables = self._effects.deleted
        if kind is Kind.UPDATE:
            tables = self._of_any.union(*self._by_index.values())
        count = self.count(type_, body) if tables else None
        return Cascaded(dict.fromkeys(tables, 1 if count is None else count)) if tables else None

    @cached_property
    def _read(self) -> ReadRows:
        return read_rows(self._readings, tuple(self._by_index), ".".join(self.name))

    def _updated(self, images: Sequence[tuple[object, ...]]) -> Mapping[Name, int]:
        rows: Counter[Name] = Counter()
        for before, after in zip(images[::2], images[1::2], strict=True):
            if before != after:
                pairs = zip(self._by_index.values(), before, after, strict=True)
                rows.update(frozenset[Name]().union(*(n for n, old, new in pairs if old != new)))
        return rows


_KEPT_MAX = 4096
_REST_AT = HEADER_SIZE + TABLE_ID_SIZE
_NO_TABLE = NO_TABLE.to_bytes(TABLE_ID_SIZE, "little")

Choose = Callable[[TableMap], Transcoder | SequenceRows | None]
"""A table's current transcoder, None if its rows are not wanted; called once for each map."""

FindEffects = Callable[[Name], Effects | None]
"""The effects of the foreign keys that refer to a table; asked once for each map."""

IsSkipped = Callable[[str, str], bool]
"""Whether rows of a table, by schema and name, are counted instead of being followed."""


class MappedTables:
    """Follows TABLE_MAPs; numbers are valid until a statement ends, transcoders until `forget`."""

    def __init__(self, choose: Choose, is_table_skipped: IsSkipped, effects: FindEffects) -> None:
        self._choose = choose
        self._is_table_skipped = is_table_skipped
        self._effects = effects
        self._kept: dict[bytes, Reader] = {}
        self.read_with(Checksum.NONE)
        self.statement_is_over()

    def read_with(self, checksum: Checksum) -> None:
        self._cut = -CHECKSUM_SIZE if checksum else None

    def forget(self) -> None:
        self._kept.clear()
        self.statement_is_over()

    def statement_is_over(self) -> None:
        self._of_id: dict[bytes, Reader]
        self._of_id = {_NO_TABLE: None}

    def take_map(self, event: bytes, flavor: Flavor, *, is_wanted: bool) -> None:
        number, rest = event[HEADER_SIZE:_REST_AT], event[_REST_AT : self._cut]
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
        """Take a TABLE_MAP whose rows are only counted until the statement ends."""
        body = event[HEADER_SIZE : self._cut]
        self._of_id[event[HEADER_SIZE:_REST_AT]] = self._as_parent(
            body, flavor, self._left_out(body, flavor)
        )

    def name_of(self, event: bytes) -> tuple[str, str] | None:
        """Return the schema and table that a TABLE_MAP names, None if it is damaged."""
        try:
            return names_of(event[HEADER_SIZE : self._cut])
        except Malformed:
            return None

    def _made(self, body: bytes, flavor: Flavor) -> Reader:
        is_skipped = self._is_table_skipped(*names_of(body))
        made = None if is_skipped else self._choose(TableMap.decode(body, flavor))
        return self._as_parent(body, flavor, self._left_out(body, flavor) if is_skipped else made)

    def _left_out(self, body: bytes, flavor: Flavor) -> RowCounter:
        decode = partial(TableMap.decode, body, flavor)
        return RowCounter(names_of(body), decode)

    def _as_parent(self, body: bytes, flavor: Flavor, reader: Reader) -> Reader:
        name = names_of(body)
        effects = self._effects(name)
        if effects is None:
            return reader
        return ParentRows(name, partial(TableMap.decode, body, flavor), effects, reader)

    def rows(
        self, type_: int, event: bytes, is_skipped: Callable[[], bool] = bool
    ) -> tuple[RowsOutput, ...] | None:
        """Return the changes of a rows event, None when they are not wanted.

        Raises `KeyError` when no TABLE_MAP named its table. Errors of its transcoder are raised as
        `Refused`, unless `is_skipped` then returns that the event must be skipped.
        """
        body = event[HEADER_SIZE : self._cut]
        transcoder = self._of_id[body[:TABLE_ID_SIZE]]
        if body[TABLE_ID_SIZE] & STMT_END:
            self.statement_is_over()
        if isinstance(transcoder, ParentRows):
            made = self._read(transcoder.reader, type_, body, is_skipped)
            cascaded = transcoder.changed(type_, body)
            return made if cascaded is None else (*(made or ()), cascaded)
        return self._read(transcoder, type_, body, is_skipped)

    def _read(
        self, transcoder: Reader, type_: int, body: bytes, is_skipped: Callable[[], bool]
    ) -> tuple[TableChanges | SkippedRows, ...] | None:
        if transcoder is None:
            return None
        if isinstance(transcoder, RowCounter):
            return (SkippedRows(transcoder.name, transcoder.count(type_, body)),)
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
            counter = RowCounter(name, lambda: found)
            return (SkippedRows(name, counter.count(type_, body)),)
