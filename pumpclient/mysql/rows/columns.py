"""What a TABLE_MAP says of a column: its type on the wire, and what more the server told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock.errors import Malformed
from pumpclient.mysql.gtid import Flavor


class WireType(IntEnum):
    """A column's type; ENUM and SET come as STRING and say so in their metadata."""

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
    """One column; None stands for what the server did not tell (`binlog_row_metadata`).

    `length` is of STRING the bytes at most, of ENUM and SET the bytes of a value; `metadata` is
    as on the wire, a number. `declared` is a MariaDB type that comes as STRING: uuid, inet4, inet6.
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
        """The type with ENUM and SET told from STRING; an unknown one is malformed."""
        return self._string()[0] if self.type is WireType.STRING else self.type

    @property
    def length(self) -> int:
        """The bytes that STRING's metadata tells."""
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
        """Tell whether SIGNEDNESS counts this column."""
        return self.type in _NUMERIC

    def is_textual(self, flavor: Flavor) -> bool:
        """Tell whether the charset fields count this column."""
        if self.type is WireType.GEOMETRY:
            return flavor is Flavor.MARIADB
        if self.type is WireType.VECTOR:
            return flavor is Flavor.MYSQL
        return self.real_type in _TEXTUAL

    @property
    def is_choice(self) -> bool:
        """Tell whether this is an ENUM or a SET."""
        return self.real_type in (WireType.ENUM, WireType.SET)


def wire_type(number: int) -> WireType:
    """Return the type of that number; raise `Malformed` when there is none."""
    try:
        return WireType(number)
    except ValueError:
        raise Malformed(
            f"column type {number} is unknown", hint="a newer version of Penstock may know it"
        ) from None


def metadata_size(type_: WireType) -> int:
    """Return how many bytes of the TABLE_MAP's metadata belong to a column."""
    return _METADATA_SIZES.get(type_, 0)


def read_metadata(type_: WireType, raw: bytes) -> int:
    """Return a column's metadata as a number: lengths are little-endian, pairs keep their order."""
    return int.from_bytes(raw, "little" if type_ in _LITTLE_ENDIAN else "big")
