"""The table map: the table that a number denotes until the statement ends, and its row layout.

    6   table id; 4 where its post-header length is 6
    2   flags
    1   length, the schema's name, a zero
    1   length, the table's name, a zero
    n   how many columns, length-encoded
    …   a type for each column (1), see `WireType`
    n   bytes of metadata, length-encoded; then 0 to 2 bytes for each column
    …   a bit for each column, lowest first: it may be NULL
    …   optional fields, which `binlog_row_metadata` chooses

A server repeats the same map, with another id, before each statement: decoders are cached under
`body[TABLE_ID_SIZE:]`.

Each optional field is a type (1), a length (length-encoded) and a value. Numbers are
length-encoded; columns are counted among those of a field's kind only, or among all where it says
"column".

    1   SIGNEDNESS           bits, first is highest: numeric column is unsigned
    2   DEFAULT_CHARSET      collation of most texts, then pairs: text column, its collation
    3   COLUMN_CHARSET       a collation for each text column
    4   COLUMN_NAME          length and name for each column
    5   SET_STR_VALUE        for each SET: how many labels, then length and label of each
    6   ENUM_STR_VALUE       the same for each ENUM
    7   GEOMETRY_TYPE        a number for each GEOMETRY
    8   SIMPLE_PRIMARY_KEY   columns of the primary key
    9   PRIMARY_KEY_WITH_PREFIX   pairs: column, characters of it (0: all)
    10  ENUM_AND_SET_DEFAULT_CHARSET, 11 ENUM_AND_SET_COLUMN_CHARSET    as 2 and 3
    12  COLUMN_VISIBILITY    bits as in 1, for each column
    13  VECTOR_DIMENSION     a number for each VECTOR

Both servers count YEAR among the numeric columns. MariaDB counts GEOMETRY among the texts; MySQL
counts VECTOR among the texts. Labels are texts of the column's own charset in MySQL, and UTF-8 in
MariaDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Self

from penstock.codes import Code
from penstock.ddl.charsets import Charset, charset_named, charset_of_collation, collation_name
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import BodyReader
from pumpclient.mysql.gtid import Flavor

BINARY = 63
"""The collation id of bytes that are not text."""


def charset_name(collation_id: int) -> str:
    """Return the charset of a collation; raise `NeedsOperator` for an id that is unknown."""
    return charset_of_collation(collation_name(collation_id))


def charset_of(collation_id: int) -> Charset:
    """Return the charset of a collation; raise `NeedsOperator` for an unknown id."""
    return charset_named(charset_name(collation_id))


class WireType(IntEnum):
    """A column's type; ENUM and SET arrive as STRING, marked in their metadata."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140  # MariaDB.
    VARCHAR_COMPRESSED = 141  # MariaDB.
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_METADATA_SIZES = {
    **dict.fromkeys(
        (
            WireType.FLOAT, WireType.DOUBLE, WireType.TIMESTAMP2, WireType.DATETIME2,
            WireType.TIME2, WireType.JSON, WireType.BLOB, WireType.TINY_BLOB, WireType.MEDIUM_BLOB,
            WireType.LONG_BLOB, WireType.GEOMETRY, WireType.VECTOR, WireType.BLOB_COMPRESSED,
        ), 1),
    **dict.fromkeys(
        (
            WireType.VARCHAR, WireType.VAR_STRING, WireType.STRING, WireType.ENUM, WireType.SET,
            WireType.BIT, WireType.NEWDECIMAL, WireType.VARCHAR_COMPRESSED,
        ), 2),
}  # fmt: skip
_LITTLE_ENDIAN = {WireType.VARCHAR, WireType.VAR_STRING, WireType.VARCHAR_COMPRESSED}
_NUMERIC = {
    WireType.TINY, WireType.SHORT, WireType.INT24, WireType.LONG, WireType.LONGLONG,
    WireType.NEWDECIMAL, WireType.FLOAT, WireType.DOUBLE, WireType.YEAR,
}  # fmt: skip
_TEXTUAL = {
    WireType.STRING, WireType.VAR_STRING, WireType.VARCHAR, WireType.BLOB, WireType.TINY_BLOB,
    WireType.MEDIUM_BLOB, WireType.LONG_BLOB, WireType.VARCHAR_COMPRESSED,
    WireType.BLOB_COMPRESSED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column; None stands for a property that the server did not send (`binlog_row_metadata`).

    `length` is the maximum of bytes for STRING, and the bytes of a value for ENUM and SET;
    `metadata` is as on the wire, a number. `declared` is a MariaDB type that comes as STRING: uuid,
    inet4, inet6.
    """

    type: WireType
    metadata: int = 0
    is_nullable: bool = True
    is_unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[str, ...] | None = None
    geometry: int | None = None
    is_visible: bool | None = None
    dimension: int | None = None
    declared: str | None = None

    @property
    def real_type(self) -> WireType:
        """The wire type, with ENUM and SET told apart from STRING; `Malformed` if unknown."""
        return self._string()[0] if self.type is WireType.STRING else self.type

    @property
    def length(self) -> int:
        return self._string()[1]

    def _string(self) -> tuple[WireType, int]:
        high, low = self.metadata >> 8, self.metadata & 0xFF
        if not high:
            return WireType.STRING, low
        if high & 0x30 != 0x30:
            # Lengths past 255 keep their two top bits, inverted, in the type's byte.
            return wire_type(high | 0x30), low | ((high & 0x30) ^ 0x30) << 4
        return wire_type(high), low

    @property
    def is_numeric(self) -> bool:
        """Return whether the SIGNEDNESS field covers this column."""
        return self.type in _NUMERIC

    def is_textual(self, flavor: Flavor) -> bool:
        """Return whether the charset fields cover this column."""
        if self.type is WireType.GEOMETRY:
            return flavor is Flavor.MARIADB
        if self.type is WireType.VECTOR:
            return flavor is Flavor.MYSQL
        return self.real_type in _TEXTUAL

    @property
    def is_choice(self) -> bool:
        return self.real_type in (WireType.ENUM, WireType.SET)


def wire_type(number: int) -> WireType:
    """Return the type of that number; raise `Malformed` when there is none."""
    try:
        return WireType(number)
    except ValueError:
        raise Malformed(
            f"column type {number} is unknown",
            "a newer version of Penstock may know it",
            Code.ROWS_EVENT,
        ) from None


def metadata_size(type_: WireType) -> int:
    return _METADATA_SIZES.get(type_, 0)


def read_metadata(type_: WireType, raw: bytes) -> int:
    """Return a column's metadata as a number: lengths are little-endian, pairs keep their order."""
    return int.from_bytes(raw, "little" if type_ in _LITTLE_ENDIAN else "big")


PrimaryKey = tuple[tuple[int, int], ...]
"""Pairs of column index and characters of a prefix, 0 for the whole column."""

_WHAT = "TABLE_MAP's optional metadata"


class OptionalField(IntEnum):
    """The numbers of the optional fields."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_LABELS = 5
    ENUM_LABELS = 6
    GEOMETRY_TYPE = 7
    SIMPLE_PRIMARY_KEY = 8
    PREFIXED_PRIMARY_KEY = 9
    CHOICE_DEFAULT_CHARSET = 10
    CHOICE_COLUMN_CHARSET = 11
    VISIBILITY = 12
    VECTOR_DIMENSION = 13


def read_optional(
    body: BodyReader, columns: list[Column], flavor: Flavor
) -> tuple[list[Column], PrimaryKey | None]:
    fields: dict[int, BodyReader] = {}
    while body.left:
        number = body.uint(1)
        if number not in list(OptionalField) or number in fields:
            raise body.malformed(f"optional field {number} is unknown or comes twice")
        fields[number] = BodyReader(body.take(body.packed()), _WHAT)
    known = _ColumnFields(columns, flavor)
    key: PrimaryKey | None = None
    # Labels are read in the order of numbers, but need the charsets of 10 and 11.
    for number in sorted(fields, key=lambda n: (n in _LABELS, n)):
        field = fields[number]
        if number in _KEYS:
            key = _read_key(field, len(columns), has_prefix=number == _KEYS[1])
        else:
            known.read(OptionalField(number), field)
        field.finish()
    return known.columns, key


_LABELS = (OptionalField.SET_LABELS, OptionalField.ENUM_LABELS)
_KEYS = (OptionalField.SIMPLE_PRIMARY_KEY, OptionalField.PREFIXED_PRIMARY_KEY)


def _read_key(field: BodyReader, width: int, *, has_prefix: bool) -> PrimaryKey:
    key = []
    while field.left:
        index = field.packed()
        if index >= width:
            raise field.malformed(f"a primary key of column {index} among {width}")
        key.append((index, field.packed() if has_prefix else 0))
    return tuple(key)


def _indexes(columns: Iterable[Column], test: Callable[[Column], bool]) -> list[int]:
    return [n for n, column in enumerate(columns) if test(column)]


class _ColumnFields:
    """The columns while their fields are read."""

    def __init__(self, columns: list[Column], flavor: Flavor) -> None:
        self.columns = list(columns)
        self._flavor = flavor
        self.numeric = _indexes(columns, lambda c: c.is_numeric)
        self.textual = _indexes(columns, lambda c: c.is_textual(flavor))
        self.choices = _indexes(columns, lambda c: c.is_choice)

    def of(self, type_: WireType) -> list[int]:
        return _indexes(self.columns, lambda c: c.real_type is type_)

    def _set(self, index: int, **known: object) -> None:
        self.columns[index] = replace(self.columns[index], **known)  # type: ignore[arg-type]

    def read(self, number: OptionalField, field: BodyReader) -> None:
        every = list(range(len(self.columns)))
        bits = {OptionalField.SIGNEDNESS: "is_unsigned", OptionalField.VISIBILITY: "is_visible"}
        numbers = {
            OptionalField.COLUMN_CHARSET: ("collation", self.textual),
            OptionalField.CHOICE_COLUMN_CHARSET: ("collation", self.choices),
            OptionalField.GEOMETRY_TYPE: ("geometry", self.of(WireType.GEOMETRY)),
            OptionalField.VECTOR_DIMENSION: ("dimension", self.of(WireType.VECTOR)),
        }
        if number in bits:
            is_sign = number is OptionalField.SIGNEDNESS
            self._bits(bits[number], self.numeric if is_sign else every, field)
        elif number in numbers:
            self._numbers(*numbers[number], field)
        elif number is OptionalField.COLUMN_NAME:
            for index in every:
                self._set(index, name=field.text(field.packed()))
        elif number in _LABELS:
            is_set = number is OptionalField.SET_LABELS
            for index in self.of(WireType.SET if is_set else WireType.ENUM):
                self._labels(index, field)
        else:
            is_simple = number is OptionalField.DEFAULT_CHARSET
            self._default_charset(self.textual if is_simple else self.choices, field)

    def _bits(self, name: str, indexes: list[int], field: BodyReader) -> None:
        bits = field.take((len(indexes) + 7) // 8)
        for n, index in enumerate(indexes):
            self._set(index, **{name: bool(bits[n >> 3] & 0x80 >> (n & 7))})

    def _numbers(self, name: str, indexes: list[int], field: BodyReader) -> None:
        for index in indexes:
            self._set(index, **{name: field.packed()})

    def _default_charset(self, indexes: list[int], field: BodyReader) -> None:
        default = field.packed()
        for index in indexes:
            self._set(index, collation=default)
        while field.left:
            n, collation = field.packed(), field.packed()
            if n >= len(indexes):
                raise field.malformed(f"a charset of text column {n} among {len(indexes)}")
            self._set(indexes[n], collation=collation)

    def _labels(self, index: int, field: BodyReader) -> None:
        labels = []
        for _ in range(field.packed()):
            raw = field.take(field.packed())
            try:
                labels.append(label_text(raw, self.columns[index].collation, self._flavor))
            except UnicodeDecodeError as error:
                raise field.malformed(f"label {raw!r}: {error}") from error
        self._set(index, labels=tuple(labels))


def label_text(raw: bytes, collation: int | None, flavor: Flavor) -> str:
    if flavor is Flavor.MARIADB or collation is None:
        return raw.decode("utf-8")
    charset = charset_of(collation)
    return raw.decode("latin-1") if charset.is_binary else charset.decode(raw)


Name = tuple[str, str]
"""Schema and table, as named on the server."""

TABLE_ID_SIZE = 6
NO_TABLE = 0xFFFFFF
"""The table id of rows events that only end a statement."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table's number and the layout of its rows."""

    table_id: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    primary_key: PrimaryKey | None = None
    flavor: Flavor = Flavor.MYSQL
    flags: int = 0

    @classmethod
    def decode(cls, data: bytes, flavor: Flavor, *, id_size: int = TABLE_ID_SIZE) -> Self:
        """Decode an event body; raise `Malformed` if it is invalid."""
        body = BodyReader(data, "TABLE_MAP")
        table_id, flags = body.uint(id_size), body.uint(2)
        schema, table = _name(body), _name(body)
        types = [wire_type(number) for number in body.take(body.packed())]
        metadata = BodyReader(body.take(body.packed()), "TABLE_MAP's metadata")
        nullable = body.take((len(types) + 7) // 8)
        columns = [
            Column(
                type_,
                read_metadata(type_, metadata.take(metadata_size(type_))),
                is_nullable=bool(nullable[n >> 3] >> (n & 7) & 1),
            )
            for n, type_ in enumerate(types)
        ]
        metadata.finish()
        columns, key = read_optional(body, columns, flavor)
        return cls(table_id, schema, table, tuple(columns), key, flavor, flags)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def completed(self, declared: Mapping[int, Mapping[str, Any]]) -> Self:
        """Return the map with the properties of the table's definition, by column index.

        A server that logs little (`binlog_row_metadata` MINIMAL or NO_LOG) omits signs, charsets,
        names and labels; no server distinguishes uuid, inet4 and inet6 from bytes. The keys are
        fields of `Column`; the given values override the server's.
        """
        columns = [
            replace(column, **declared[n]) if n in declared else column
            for n, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns))


def names_of(body: bytes, id_size: int = TABLE_ID_SIZE) -> tuple[str, str]:
    """Return schema and table of a body, whether or not the rest of it can be decoded."""
    reader = BodyReader(body, "TABLE_MAP", at=id_size + 2)
    return _name(reader), _name(reader)


def _name(body: BodyReader) -> str:
    name = body.text(body.uint(1))
    if body.uint(1):
        raise body.malformed(f"name {name!r} does not end with a zero")
    return name
