"""Transcodes rows events to the row bytes of a table's binlogs, without values in between.

    image   v1 v2 v3                       for each image, by generated code
    pieces  (id1 datum1, id2 datum2, …)    each column's id and datum, None for NULL
    insert  handle, pieces except the handle's and NULLs that read as NULL
    update  all pieces before, all pieces after, with NULLs        delete  all pieces

The layout is `penstock.datum.rows.row_codec`'s: `RowCodec` reads the bytes made here, and makes
them itself where no fast path exists (keys over parts of columns, partial updates).

Of a system-versioned table only current rows are followed:

    the server does      and logs                                      here
    INSERT               insert (…, end of time)                       insert
    UPDATE               update (…, end of time) → (…, end of time)    update
                         insert (as it was, …, now)                    nothing
    DELETE               update (…, end of time) → (…, now)            delete
    DELETE HISTORY       delete (…, before now)                        nothing

An update that changes only the start of its row's time is also ignored.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from penstock.codes import Code
from penstock.datum import values
from penstock.datum.rows.fields import TIME_TYPES
from penstock.datum.rows.row_codec import EMPTY_ROW, ROW_ID, RowCodec, handle_parts, handle_position
from penstock.datum.times import Held
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType
from pumpclient.changes import next_row_id
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.rows_decoder import UNREADABLE, Decoder, unreadable
from pumpclient.mysql.rows.rows_event import HEAD_AT, Kind, Made, RowsEvent, read_rows, usual_heads
from pumpclient.mysql.rows.table_map import TableMap
from pumpclient.mysql.translate.column_mapping import NULL, Pairing, paired
from pumpclient.mysql.translate.datums import datum_reading

_ENDS_OF_TIME = frozenset({"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999"})
"""ROW END of a current row in UTC: before MariaDB 11.5 or with 32-bit seconds, and since 11.5."""

Step = tuple[MutationType, list[bytes]]


def current_steps(
    kind: Kind, row_ends: Sequence[str | None], rows: Sequence[bytes]
) -> tuple[list[Step], int]:
    """Return an event's changes of current rows, in its order, and the number of historical rows.

    `row_ends` and `rows` are those of all its images. Raises `Malformed` for a historical row that
    becomes current, which no server does.
    """
    are_current = [end in _ENDS_OF_TIME for end in row_ends]
    if kind is not Kind.UPDATE:
        kept = [row for row, stays in zip(rows, are_current, strict=True) if stays]
        done = MutationType.INSERT if kind is Kind.INSERT else MutationType.DELETE
        return [(done, kept)] if kept else [], len(rows) - len(kept)
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    pairs = zip(rows[::2], rows[1::2], are_current[::2], are_current[1::2], strict=True)
    changes = list(_changes(pairs))
    steps = [
        (done, [row for _, row in group if row]) for done, group in groupby(changes, itemgetter(0))
    ]
    return [step for step in steps if step[1]], len(rows) // 2 - len(changes)


def _changes(
    pairs: Iterator[tuple[bytes, bytes, bool, bool]],
) -> Iterator[tuple[MutationType, bytes]]:
    for before, after, was_current, is_current in pairs:
        if was_current and is_current:
            yield MutationType.UPDATE, before + after if before != after else b""
        elif was_current:
            yield MutationType.DELETE, before
        elif is_current:
            raise Malformed(
                "a row of its history becomes current",
                "compare the table here with it there",
                Code.TABLE_DIFFERS,
            )


EncodedChanges = tuple[MutationType, list[bytes]]
"""A rows event's kind of change, and each row in the bytes that a binlog carries."""

_Pieces = tuple[bytes | None, ...]
_Read = TypeVar("_Read")


class Transcoder:
    """Turns the rows events of one source table into rows of one version of one table."""

    def __init__(
        self,
        table_map: TableMap,
        table: TableInfo,
        *,
        may_lack: bool = False,
        rowid: Callable[[], int] = next_row_id,
        on_history: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Compile; raise `NeedsOperator` naming table and columns when they do not fit.

        `on_history` gets the number of formerly current rows of a system-versioned table.
        """
        pairing = paired(table_map, table, may_lack=may_lack)
        self.table = table
        self.table_map = pairing.table_map
        self._width = len(table_map.columns)
        self._codec = RowCodec(table)
        self._pairs = pairing.pairs
        solid = {each.index for each in pairing.pairs if not each.column.is_generated}
        # Updates and deletes of newer MariaDBs omit them, and they are not written downstream.
        self._computed = frozenset(range(self._width)) - solid
        self._decoder: Decoder | None = None
        readings = [reading_of(column) for column in self.table_map.columns]
        for pair in pairing.pairs:
            readings[pair.index] = datum_reading(pair)
        self._readings = readings
        wanted = [pair.index for pair in pairing.pairs]
        self._insert = _Inserts(table, pairing, rowid, self._codec)
        self._nulls = [pair.stored.header + NULL for pair in pairing.pairs]
        self._required = self._insert.required
        has_row_id = handle_position(table) is None and not handle_parts(table)
        row_id = values.int_datum(ROW_ID) + values.int_datum(0) if has_row_id else b""
        self._end = b"".join(each.header + datum for each, datum in pairing.missing) + row_id
        names = [f"v{index}" for index in wanted]
        self._read_new = read_rows(readings, wanted, table_map.name, self._insert.made(names))
        made = _made(names, self._end, "whole", self._whole)
        self._read_whole = read_rows(readings, wanted, table_map.name, made)
        self._heads = usual_heads(self._width)
        self.is_versioned = pairing.row_end is not None
        self._on_history = on_history
        if pairing.row_end is not None:
            self._read_ends = read_rows(readings, [pairing.row_end], table_map.name)

    @property
    def columns(self) -> dict[str, int]:
        """The index in an image of each column, by its name in lower case."""
        return {pair.column.name.lower(): pair.index for pair in self._pairs}

    def steps(self, type_: int, body: bytes) -> list[EncodedChanges]:
        """Return the current rows of a system-versioned table's event, in the event's order.

        The result may have no steps. Raises as `changes` does.
        """
        return self._guarded(self._steps, type_, body)

    def changes(self, type_: int, body: bytes) -> EncodedChanges:
        """Return the rows of a whole rows event.

        Raises `Malformed` for bytes that are not rows of this table, and `NeedsOperator` when an
        image lacks columns (`binlog_row_image`), or a value does not fit its column here.
        """
        return self._guarded(self._changes, type_, body)

    def _guarded(self, read: Callable[[int, bytes], _Read], type_: int, body: bytes) -> _Read:
        try:
            return read(type_, body)
        except Malformed as error:
            found = unreadable(self.table_map, self._readings, type_, body, error)
            hint = found.hint or "compare the table here with the one there"
            raise NeedsOperator(found.problem, hint, found.code) from error
        except UNREADABLE as error:
            raise unreadable(self.table_map, self._readings, type_, body, error) from error

    def _changes(self, type_: int, body: bytes) -> EncodedChanges:
        known = self._heads.get(type_)
        if known is not None:
            kind, head, images_at = known
            if body.startswith(head, HEAD_AT):
                return self._rows(kind, body, images_at)
        return self._unusual(type_, body)

    def _steps(self, type_: int, body: bytes) -> list[EncodedChanges]:
        event = self._decoded(type_, body)
        if not event.is_whole:
            raise Malformed(
                "its images lack columns",
                "SET GLOBAL binlog_row_image = 'FULL' there",
                Code.BINLOG_INCOMPLETE,
            )
        kind = event.layout.kind
        read = self._read_new if kind is Kind.INSERT else self._read_whole
        ends = [end for (end,) in self._read_ends(event.images, 0)]
        steps, history = current_steps(kind, ends, read(event.images, 0))
        self._on_history(history)
        return steps

    def _decoded(self, type_: int, body: bytes) -> RowsEvent:
        event = RowsEvent.decode(EventType(type_), body)
        if event.width != self._width:
            raise ValueError(f"{event.width} columns where the map has {self._width}")
        return event

    def _rows(self, kind: Kind, images: bytes, at: int) -> EncodedChanges:
        if kind is Kind.INSERT:
            return MutationType.INSERT, self._read_new(images, at)
        rows = self._read_whole(images, at)
        return (MutationType.DELETE, rows) if kind is Kind.DELETE else _updates(rows)

    def _whole(self, image: _Pieces) -> bytes:
        if None in image:
            nulls = self._nulls
            for n, name in self._required.items():
                if image[n] is None:
                    raise null_refused(name)
            image = tuple(nulls[n] if piece is None else piece for n, piece in enumerate(image))
        return (b"".join(image) + self._end) or EMPTY_ROW  # type: ignore[arg-type]

    def _unusual(self, type_: int, body: bytes) -> EncodedChanges:
        event = self._decoded(type_, body)
        if event.is_whole:
            return self._rows(event.layout.kind, event.images, 0)
        if self._decoder is None:
            self._decoder = Decoder(self.table_map, self._computed)
        images: list[_Pieces] = []
        for before, after in self._decoder.changes(type_, body):
            images += [self._encoded(row) for row in (before, after) if row is not None]
        if event.layout.kind is Kind.INSERT:
            return MutationType.INSERT, [self._insert.row(image) for image in images]
        rows = [self._whole(image) for image in images]
        is_delete = event.layout.kind is Kind.DELETE
        return (MutationType.DELETE, rows) if is_delete else _updates(rows)

    def _encoded(self, row: Sequence[object]) -> _Pieces:
        return tuple(
            None
            if row[pair.index] is None
            else pair.stored.header + pair.stored.field.encode(_held(pair.column, row[pair.index]))
            for pair in self._pairs
        )


class _Inserts:
    """Makes the rows of inserts, which start with the handle."""

    def __init__(
        self, table: TableInfo, pairing: Pairing, rowid: Callable[[], int], codec: RowCodec
    ) -> None:
        pairs = pairing.pairs
        self._rowid = rowid
        self._codec = codec
        self._pairs = pairs
        always = [(s, d) for s, d in pairing.missing if d != NULL or not s.omits_null]
        self._end = b"".join(stored.header + datum for stored, datum in always)
        self._given = [
            (stored.position, stored.field.decode(datum, 0)[0])
            for stored, datum in pairing.missing
            if datum != NULL
        ]
        self._columns = len(table.columns)
        of_position = {pair.stored.position: n for n, pair in enumerate(pairs)}
        parts = handle_parts(table)
        handle = handle_position(table)
        self._nulls = [
            b"" if pair.stored.omits_null else pair.stored.header + NULL for pair in pairs
        ]
        self.required = {
            n: pair.column.name
            for n, pair in enumerate(pairs)
            if pair.column.is_not_null and not pair.column.is_generated
        }
        self._key: tuple[int, int] | None = None
        self._is_slow = bool(parts)
        if handle is not None:
            number = of_position[handle]
            if pairs[number].column.is_unsigned:
                self._is_slow = True
            else:
                self._key = number, len(pairs[number].stored.header)
        elif all(
            part.length == -1 and table.columns[part.offset].tp is not MysqlType.DURATION
            for part in parts
        ):
            self._is_slow = False
        self._parts = [
            (of_position[part.offset], len(pairs[of_position[part.offset]].stored.header))
            for part in parts
            if not self._is_slow
        ]
        self._in_parts = {n for n, _ in self._parts}

    def row(self, image: _Pieces) -> bytes:
        if self._is_slow:
            return self._by_values(image)
        if None in image:
            for n, name in self.required.items():
                if image[n] is None:
                    raise null_refused(name)
            nulls = self._nulls
            image = tuple(nulls[n] if piece is None else piece for n, piece in enumerate(image))
        pieces: list[bytes] = list(image)  # type: ignore[arg-type]
        if self._key is not None:
            number, size = self._key
            handle = pieces.pop(number)[size:]
        elif self._parts:
            handle = b"".join(pieces[n][size:] for n, size in self._parts)
            pieces = [piece for n, piece in enumerate(pieces) if n not in self._in_parts]
        else:
            handle = values.int_datum(self._rowid())
        return handle + ((b"".join(pieces) + self._end) or EMPTY_ROW)

    def made(self, names: Sequence[str]) -> Made:
        key = self._parts if self._key is None else [self._key]
        others = [name for n, name in enumerate(names) if n not in dict(key)]
        if self._is_slow or not key or not others:
            return _made([], b"", "row", self.row, names)
        handle = [f"{names[n]}[{size}:]" for n, size in key]
        return _made([*handle, *others], self._end, "row", self.row)

    def _by_values(self, image: _Pieces) -> bytes:
        row: list[object] = [None] * self._columns
        for piece, pair in zip(image, self._pairs, strict=True):
            if piece is not None:
                field = pair.stored.field
                value, _ = field.decode(piece, len(pair.stored.header))
                row[pair.stored.position] = _held(pair.column, value)
        for position, value in self._given:
            row[position] = value
        return self._codec.encode_insert(row, rowid=self._rowid())


def _held(column: ColumnInfo, value: object) -> object:
    return Held(value) if column.tp in TIME_TYPES else value


def null_refused(name: str) -> Malformed:
    return Malformed(
        f"column {name!r} is NOT NULL here and NULL there", "alter one of them", Code.TABLE_DIFFERS
    )


def _made(
    pieces: Sequence[str],
    end: bytes,
    name: str,
    function: Callable[[_Pieces], bytes],
    values: Sequence[str] = (),
) -> Made:
    listed = "".join(f"{each}, " for each in pieces or values)
    whole = f"join(({listed}{'tail, ' if end else ''}))" if pieces else f"{name}(({listed}))"
    return Made(whole, name, {"join": b"".join, "tail": end, name: function})


def _updates(rows: Sequence[bytes]) -> EncodedChanges:
    if len(rows) == 2:
        return MutationType.UPDATE, [rows[0] + rows[1]]
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    return MutationType.UPDATE, [a + b for a, b in zip(rows[::2], rows[1::2], strict=True)]
