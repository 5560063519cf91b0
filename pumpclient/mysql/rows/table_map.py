"""The table map: the table that a number denotes until the statement ends, and its row layout.

    6   table id
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
    10  ENUM_AND_SET_DEFAULT_CHARSET, 11 ENUM_AND_SET_COLUMN_CHARSET    as 2 and 3

Skipped are 7 GEOMETRY_TYPE, 8 SIMPLE_PRIMARY_KEY, 9 PRIMARY_KEY_WITH_PREFIX, 12 COLUMN_VISIBILITY
and 13 VECTOR_DIMENSION.

Both servers count YEAR among the numeric columns. MariaDB counts GEOMETRY among the texts; MySQL
counts VECTOR among the texts. Labels are texts of the column's own charset in MySQL, and UTF-8 in
MariaDB.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, Self

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
    is_unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[str, ...] | None = None
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


_LABELS = {OptionalField.SET_LABELS: WireType.SET, OptionalField.ENUM_LABELS: WireType.ENUM}
_OF_TEXTS = (OptionalField.DEFAULT_CHARSET, OptionalField.COLUMN_CHARSET)
_OF_CHOICES = (OptionalField.CHOICE_DEFAULT_CHARSET, OptionalField.CHOICE_COLUMN_CHARSET)
_ORDER = (OptionalField.SIGNEDNESS, OptionalField.COLUMN_NAME, *_OF_TEXTS, *_OF_CHOICES, *_LABELS)
"""Labels need the charsets of their columns."""


def _with_optional(body: BodyReader, columns: list[Column], flavor: Flavor) -> list[Column]:
    fields: dict[int, BodyReader] = {}
    while body.left:
        number = body.uint(1)
        if number not in list(OptionalField) or number in fields:
            raise body.malformed(f"optional field {number} is unknown or comes twice")
        fields[number] = BodyReader(body.take(body.packed()), _WHAT)
    columns = list(columns)
    for number in _ORDER:
        if (field := fields.get(number)) is not None:
            for index, known in _read_optional(number, field, columns, flavor):
                columns[index] = replace(columns[index], **known)
            field.finish()
    return columns


def _read_optional(
    number: OptionalField, field: BodyReader, columns: list[Column], flavor: Flavor
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index of a column, and a property that the field has of it."""
    if number is OptionalField.SIGNEDNESS:
        numeric = [n for n, column in enumerate(columns) if column.is_numeric]
        bits = field.take((len(numeric) + 7) // 8)
        for n, index in enumerate(numeric):
            yield index, {"is_unsigned": bool(bits[n >> 3] & 0x80 >> (n & 7))}
    elif number is OptionalField.COLUMN_NAME:
        for index in range(len(columns)):
            yield index, {"name": field.text(field.packed())}
    elif number in _LABELS:
        for index, column in enumerate(columns):
            if column.real_type is _LABELS[number]:
                count = field.packed()
                labels = tuple(_label(field, column.collation, flavor) for _ in range(count))
                yield index, {"labels": labels}
    else:
        counted = [c.is_choice if number in _OF_CHOICES else c.is_textual(flavor) for c in columns]
        indexes = [n for n, is_counted in enumerate(counted) if is_counted]
        yield from _charsets(field, indexes, has_default=number in (_OF_TEXTS[0], _OF_CHOICES[0]))


def _charsets(
    field: BodyReader, indexes: list[int], *, has_default: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    if not has_default:
        yield from ((index, {"collation": field.packed()}) for index in indexes)
        return
    default = field.packed()
    yield from ((index, {"collation": default}) for index in indexes)
    while field.left:
        n, collation = field.packed(), field.packed()
        if n >= len(indexes):
            raise field.malformed(f"a charset of text column {n} among {len(indexes)}")
        yield indexes[n], {"collation": collation}


def _label(field: BodyReader, collation: int | None, flavor: Flavor) -> str:
    raw = field.take(field.packed())
    try:
        if flavor is Flavor.MARIADB or collation is None:
            return raw.decode("utf-8")
        charset = charset_of(collation)
        return raw.decode("latin-1") if charset.is_binary else charset.decode(raw)
    except UnicodeDecodeError as error:
        raise field.malformed(f"label {raw!r}: {error}") from error


Name = tuple[str, str]
"""Schema and table, as named on the server."""

TABLE_ID_SIZE = 6
_NAMES_AT = TABLE_ID_SIZE + 2
NO_TABLE = 0xFFFFFF
"""The table id of rows events that only end a statement."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table and the layout of its rows."""

    schema: str
    table: str
    columns: tuple[Column, ...]

    @classmethod
    def decode(cls, data: bytes, flavor: Flavor) -> Self:
        """Decode an event body; raise `Malformed` if it is invalid."""
        body = BodyReader(data, "TABLE_MAP", at=_NAMES_AT)
        schema, table = _name(body), _name(body)
        types = [wire_type(number) for number in body.take(body.packed())]
        metadata = BodyReader(body.take(body.packed()), "TABLE_MAP's metadata")
        body.take((len(types) + 7) // 8)
        columns = []
        for type_ in types:
            # Lengths are little-endian, pairs keep their order.
            order: Literal["little", "big"] = "little" if type_ in _LITTLE_ENDIAN else "big"
            raw = metadata.take(metadata_size(type_))
            columns.append(Column(type_, int.from_bytes(raw, order)))
        metadata.finish()
        return cls(schema, table, tuple(_with_optional(body, columns, flavor)))

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


def names_of(body: bytes) -> Name:
    """Return schema and table of a body, whether or not the rest of it can be decoded."""
    reader = BodyReader(body, "TABLE_MAP", at=_NAMES_AT)
    return _name(reader), _name(reader)


def _name(body: BodyReader) -> str:
    name = body.text(body.uint(1))
    if body.uint(1):
        raise body.malformed(f"name {name!r} does not end with a zero")
    return name
