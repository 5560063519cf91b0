"""The optional fields behind a TABLE_MAP, which `binlog_row_metadata` chooses.

Each is a type (1), a length (length-encoded) and a value. Numbers are length-encoded; columns are
counted among those of a field's kind only, or among all where it says "column".

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

Both count YEAR among the numeric columns. MariaDB counts GEOMETRY among the texts; MySQL counts
VECTOR among the texts. Labels are texts of the column's own charset in MySQL, and UTF-8 in MariaDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import IntEnum

from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.charsets import charset_of
from pumpclient.mysql.rows.columns import Column, WireType

PrimaryKey = tuple[tuple[int, int], ...]
"""Pairs of column index and characters of a prefix, 0 for the whole column."""

_WHAT = "TABLE_MAP's optional metadata"


class OptionalField(IntEnum):
    """The fields' numbers."""

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
    """Return the columns with all that the rest of `body` tells of them, and the primary key."""
    fields: dict[int, BodyReader] = {}
    while body.left:
        number = body.uint(1)
        if number not in list(OptionalField) or number in fields:
            raise body.malformed(f"optional field {number} is unknown or comes twice")
        fields[number] = BodyReader(body.take(body.packed()), _WHAT)
    told = _Told(columns, flavor)
    key: PrimaryKey | None = None
    # Labels are read in the order of numbers, but need the charsets of 10 and 11.
    for number in sorted(fields, key=lambda n: (n in _LABELS, n)):
        field = fields[number]
        if number in _KEYS:
            key = _read_key(field, len(columns), has_prefix=number == _KEYS[1])
        else:
            told.read(OptionalField(number), field)
        field.finish()
    return told.columns, key


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


class _Told:
    """The columns while their fields are read."""

    def __init__(self, columns: list[Column], flavor: Flavor) -> None:
        self.columns = list(columns)
        self._flavor = flavor
        self.numeric = _indexes(columns, lambda c: c.is_numeric)
        self.textual = _indexes(columns, lambda c: c.is_textual(flavor))
        self.choices = _indexes(columns, lambda c: c.is_choice)

    def of(self, type_: WireType) -> list[int]:
        return _indexes(self.columns, lambda c: c.real_type is type_)

    def _set(self, index: int, **told: object) -> None:
        self.columns[index] = replace(self.columns[index], **told)  # type: ignore[arg-type]

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
    """Return a label's text."""
    if flavor is Flavor.MARIADB or collation is None:
        return raw.decode("utf-8")
    charset = charset_of(collation)
    return raw.decode("latin-1") if charset.is_binary else charset.decode(raw)
