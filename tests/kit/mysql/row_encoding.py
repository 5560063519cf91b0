"""Encoder of row images: the TABLE_MAP, rows events and values that a server writes.

The inverse of `pumpclient.mysql.rows`; a value's bytes follow from its column alone.
"""

import datetime as dt
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

from penstock.datum.decimals import encode_unscaled, unscaled
from pumpclient.mysql.events.frame import pack_number, pack_uint
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.column_types import fraction_size, length_size
from pumpclient.mysql.rows.json_binary import JsonChange
from pumpclient.mysql.rows.rows_event import STMT_END, RowsEvent, bitmap_size
from pumpclient.mysql.rows.table_map import (
    TABLE_ID_SIZE,
    Column,
    OptionalField,
    TableMap,
    WireType,
    charset_of,
    metadata_size,
)
from tests.kit.mysql.encoding import compress_block
from tests.kit.mysql.json_encoding import write_changes, write_json


def encode_map(
    event: TableMap, flavor: Flavor = Flavor.MYSQL, *, table_id: int = 7, more: bytes = b""
) -> bytes:
    metadata = b"".join(map(_metadata, event.columns))
    parts = [pack_uint(table_id, TABLE_ID_SIZE), bytes(2)]
    for name in (event.schema.encode(), event.table.encode()):
        parts.append(bytes([len(name)]) + name + b"\0")
    parts += [
        pack_number(len(event.columns)),
        bytes(column.type for column in event.columns),
        pack_number(len(metadata)) + metadata,
        bytes((len(event.columns) + 7) // 8),
        _optional(list(event.columns), flavor),
        more,
    ]
    return b"".join(parts)


def _metadata(column: Column) -> bytes:
    """Return a column's metadata as on the wire."""
    order = (
        "little"
        if column.type in (WireType.VARCHAR, WireType.VAR_STRING, WireType.VARCHAR_COMPRESSED)
        else "big"
    )
    return column.metadata.to_bytes(metadata_size(column.type), order)  # type: ignore[arg-type]


def string_metadata(real_type: WireType, length: int) -> int:
    """Return the metadata of a STRING column whose values have at most `length` bytes."""
    return (real_type ^ (length & 0x300) >> 4) << 8 | length & 0xFF


def _optional(columns: list[Column], flavor: Flavor) -> bytes:
    """Return the fields that say what `columns` hold; a field that lacks a column is left out."""
    every = list(range(len(columns)))
    numeric = [n for n in every if columns[n].is_numeric]
    textual = [n for n in every if columns[n].is_textual(flavor)]
    choices = [n for n in every if columns[n].is_choice]

    def of(type_: WireType) -> list[int]:
        return [n for n in every if columns[n].real_type is type_]

    values = {
        OptionalField.SIGNEDNESS: _pack_bits([columns[n].is_unsigned for n in numeric]),
        OptionalField.DEFAULT_CHARSET: _pack_charsets([columns[n].collation for n in textual]),
        OptionalField.COLUMN_NAME: _pack_names([columns[n].name for n in every]),
        OptionalField.SET_LABELS: _pack_labels(columns, of(WireType.SET), flavor),
        OptionalField.ENUM_LABELS: _pack_labels(columns, of(WireType.ENUM), flavor),
        OptionalField.CHOICE_COLUMN_CHARSET: _pack_all([columns[n].collation for n in choices]),
    }
    return b"".join(
        bytes([number]) + pack_number(len(value)) + value
        for number, value in sorted(values.items())
        if value
    )


def _pack_bits(bits: list[bool | None]) -> bytes:
    if None in bits:
        return b""
    packed = bytearray((len(bits) + 7) // 8)
    for n, bit in enumerate(bits):
        packed[n >> 3] |= (0x80 >> (n & 7)) * bool(bit)
    return bytes(packed)


def _pack_all(numbers: list[int | None]) -> bytes:
    if None in numbers:
        return b""
    return b"".join(pack_number(number) for number in numbers if number is not None)


def _pack_charsets(collations: list[int | None]) -> bytes:
    known = [collation for collation in collations if collation is not None]
    if not known or None in collations:
        return b""
    default = Counter(known).most_common(1)[0][0]
    others = [(n, c) for n, c in enumerate(known) if c != default]
    return _pack_all([default, *(number for pair in others for number in pair)])


def _pack_names(names: list[str | None]) -> bytes:
    if None in names:
        return b""
    raw = [name.encode() for name in names if name is not None]
    return b"".join(pack_number(len(name)) + name for name in raw)


def _pack_labels(columns: list[Column], indexes: list[int], flavor: Flavor) -> bytes:
    out = []
    for index in indexes:
        labels = columns[index].labels
        if labels is None:
            return b""
        raw = [_label_bytes(label, columns[index], flavor) for label in labels]
        out.append(pack_number(len(raw)) + b"".join(pack_number(len(r)) + r for r in raw))
    return b"".join(out)


def _label_bytes(label: str, column: Column, flavor: Flavor) -> bytes:
    if flavor is Flavor.MARIADB or column.collation is None:
        return label.encode()
    charset = charset_of(column.collation)
    return label.encode("latin-1") if charset.is_binary else charset.encode(label)


def encode_rows(event: RowsEvent, *, table_id: int = 7, extra: bytes = b"") -> bytes:
    layout = event.layout
    parts = [pack_uint(table_id, TABLE_ID_SIZE), pack_uint(STMT_END, 2)]
    if layout.has_extra:
        parts.append(pack_uint(len(extra) + 2, 2) + extra)
    parts.append(pack_number(event.width))
    for bitmap in (event.before, event.after):
        if bitmap is not None:
            parts.append(pack_uint(bitmap, bitmap_size(event.width)))
    parts.append(compress_block(event.images) if layout.is_compressed else event.images)
    return b"".join(parts)


def make_image(columns: Sequence[Column], row: Sequence[Any], present: int | None = None) -> bytes:
    """Return the image of a row; `present` has the bits of the columns that it has, else all."""
    nulls = count = 0
    values = []
    for index, (column, value) in enumerate(zip(columns, row, strict=True)):
        if present is not None and not present >> index & 1:
            continue
        if value is None:
            nulls |= 1 << count
        else:
            values.append(value_bytes(column, value))
        count += 1
    return nulls.to_bytes(bitmap_size(count), "little") + b"".join(values)


def make_partial_image(columns: Sequence[Column], row: Sequence[Any]) -> bytes:
    """Return a partial update's image after; a list of `JsonChange` is a JSON's changes."""
    bits = count = nulls = 0
    values = []
    for index, (column, value) in enumerate(zip(columns, row, strict=True)):
        is_partial = isinstance(value, list) and all(isinstance(v, JsonChange) for v in value)
        if column.type is WireType.JSON:
            bits |= is_partial << count
            count += 1
        if value is None:
            nulls |= 1 << index
        elif is_partial:
            values.append(_prefixed(column.metadata, write_changes(value)))
        else:
            values.append(value_bytes(column, value))
    options = pack_number(1 if bits else 0)
    partial = bits.to_bytes(bitmap_size(count), "little") if bits else b""
    head = options + partial + nulls.to_bytes(bitmap_size(len(columns)), "little")
    return head + b"".join(values)


def value_bytes(column: Column, value: Any) -> bytes:
    """Return a value as it lies in an image, its length in front included."""
    real = column.real_type
    if real in _INTEGERS:
        is_signed = not column.is_unsigned
        return int(value).to_bytes(_INTEGERS[real], "little", signed=is_signed)
    if real in _FRACTIONS:
        return _FRACTIONS[real](column.metadata, value)
    if real in _WRITERS:
        return _WRITERS[real](column, value)
    if real in (WireType.ENUM, WireType.SET):
        return int(value).to_bytes(column.length, "little")
    if real is WireType.JSON:
        return _prefixed(column.metadata, write_json(value))
    if real is WireType.VECTOR:
        return _prefixed(column.metadata, struct.pack(f"<{len(value)}f", *value))
    if real is WireType.GEOMETRY:
        return _prefixed(column.metadata, value)
    return _text(column, value)


def _prefixed(size: int, raw: bytes) -> bytes:
    return len(raw).to_bytes(size, "little") + raw


def _text(column: Column, value: Any) -> bytes:
    if column.declared is not None:
        return _prefixed(1, _DECLARED[column.declared](value).rstrip(b"\0"))
    assert column.collation is not None
    charset = charset_of(column.collation)
    data: bytes = value if charset.is_binary else charset.encode(value)
    if column.type is WireType.STRING:
        data = data.rstrip(b"\0") if charset.is_binary else data
        return _prefixed(length_size(column.length), data)
    if column.type in (WireType.VARCHAR_COMPRESSED, WireType.BLOB_COMPRESSED):
        data = compressed(data)
    is_blob = column.type.name.endswith("BLOB") or column.type is WireType.BLOB_COMPRESSED
    return _prefixed(column.metadata if is_blob else length_size(column.metadata), data)


def compressed(plain: bytes) -> bytes:
    """Return a value as a COMPRESSED column stores it."""
    if not plain:
        return plain
    size = (len(plain).bit_length() + 7) // 8
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    head = bytes([0x80 | 0x08 | size]) + len(plain).to_bytes(size, "big")
    block = head + packing.compress(plain) + packing.flush()
    return block if len(block) <= len(plain) else b"\0" + plain


def _pack_date(text: str) -> int:
    year, month, day = map(int, text.split("-"))
    return year << 9 | month << 5 | day


def _fraction(text: str, fsp: int) -> int:
    """Return the fraction of a text as it is stored."""
    digits = text.partition(".")[2]
    return int(digits[:fsp].ljust(2 * fraction_size(fsp), "0") or 0)


def _pack_clock(text: str) -> int:
    hour, minute, second = map(int, text.partition(".")[0].split(":"))
    return hour << 12 | minute << 6 | second


def _seconds(text: str) -> int:
    """Return the seconds since 1970 of a time in UTC, 0 for the zero date."""
    if text.startswith("0000"):
        return 0
    whole = dt.datetime.fromisoformat(text.partition(".")[0] + "+00:00")
    return int(whole.timestamp())


def _datetime2(fsp: int, text: str) -> bytes:
    date, clock = text.split(" ")
    year, month, day = map(int, date.split("-"))
    packed = (year * 13 + month) << 22 | day << 17 | _pack_clock(clock)
    size = fraction_size(fsp)
    number = (packed + 0x8000000000) << 8 * size | _fraction(clock, fsp)
    return number.to_bytes(5 + size, "big")


def _time2(fsp: int, text: str) -> bytes:
    size = fraction_size(fsp)
    number = _pack_clock(text.lstrip("-")) << 8 * size | _fraction(text, fsp)
    biased = (0x800000 << 8 * size) + (-number if text[0] == "-" else number)
    return biased.to_bytes(3 + size, "big")


def _timestamp2(fsp: int, text: str) -> bytes:
    size = fraction_size(fsp)
    return (_seconds(text) << 8 * size | _fraction(text, fsp)).to_bytes(4 + size, "big")


def _decimal(column: Column, value: Any) -> bytes:
    precision, scale = column.metadata >> 8, column.metadata & 0xFF
    return encode_unscaled(unscaled(Decimal(value), scale), precision, scale)[2:]


def _bit(column: Column, value: int) -> bytes:
    bits = (column.metadata & 0xFF) * 8 + (column.metadata >> 8)
    return value.to_bytes((bits + 7) // 8, "big")


_INTEGERS = {
    WireType.TINY: 1,
    WireType.SHORT: 2,
    WireType.INT24: 3,
    WireType.LONG: 4,
    WireType.LONGLONG: 8,
}
_FRACTIONS: dict[WireType, Callable[[int, str], bytes]] = {
    WireType.TIME2: _time2,
    WireType.DATETIME2: _datetime2,
    WireType.TIMESTAMP2: _timestamp2,
}
_WRITERS: dict[WireType, Callable[[Column, Any], bytes]] = {
    WireType.FLOAT: lambda _, value: struct.pack("<f", value),
    WireType.DOUBLE: lambda _, value: struct.pack("<d", value),
    WireType.NEWDECIMAL: _decimal,
    WireType.YEAR: lambda _, value: bytes([value and value - 1900]),
    WireType.BIT: _bit,
    WireType.DATE: lambda _, value: _pack_date(value).to_bytes(3, "little"),
    WireType.NEWDATE: lambda _, value: _pack_date(value).to_bytes(3, "little"),
    WireType.TIME: lambda _, value: int(value.replace(":", "")).to_bytes(3, "little", signed=True),
    WireType.DATETIME: lambda _, value: int("".join(filter(str.isdigit, value))).to_bytes(
        8, "little"
    ),
    WireType.TIMESTAMP: lambda _, value: _seconds(value).to_bytes(4, "little"),
}
_DECLARED: dict[str, Callable[[str], bytes]] = {
    "uuid": lambda text: UUID(text).bytes,
    "inet4": lambda text: IPv4Address(text).packed,
    "inet6": lambda text: IPv6Address(text).packed,
}
