"""Column types: converts a written column to a `ColumnInfo` with type, length, flags and charset.

    written                     tp           flen (default)            decimal
    TINYINT … BIGINT            1 2 9 3 8    4 6 9 11 20 (unsigned: 3 5 8 10 20)   0
    BOOL                        1            1                         0
    FLOAT, FLOAT(p ≤ 24)        4            12                        -1, or as written
    DOUBLE, REAL, FLOAT(p > 24) 5            22                        -1, or as written
    DECIMAL                     0xf6         10, at most 65            0, at most 38
    BIT                         16           1, at most 64             0
    YEAR                        13           4; 2 if written           0
    DATE                        10           10                        0
    DATETIME, TIMESTAMP         12 7         19, or 20 + fsp           fsp
    TIME                        11           10, or 11 + fsp           fsp
    CHAR, BINARY                0xfe         1, at most 255            0
    VARCHAR, VARBINARY          15           as written, ≤ 65532 bytes 0
    TINY/–/MEDIUM/LONG TEXT     f9 fc fa fb  bytes the type can hold   0
    ENUM, SET                   f7 f8        longest name; all joined  0
    JSON                        0xf5         4294967295                0
    GEOMETRY, POINT, …          0xff         4294967295                WKB's number, GEOMETRY's is 0
    UUID                        0xfe         36, a text in ascii       0
    INET4, INET6                15           15, 39, a text in ascii   0

Types of bytes (BINARY, BLOB …) have the codes of text. Types that are not text have character set
and collation `binary`, like in TiDB, and so have geometries; JSON has `utf8mb4`. BIT and YEAR are
unsigned, ZEROFILL makes a number unsigned. A TIMESTAMP is nullable and without a default unless
written, the rule of `explicit_defaults_for_timestamp`.
"""

from __future__ import annotations

from penstock.codes import Code
from penstock.ddl.charsets import (
    char_bytes_max,
    charset_named,
    connection_charset,
    literal_in,
    resolve,
)
from penstock.ddl.syntax.statements import ColumnDef, TypeSpec, ValueKind
from penstock.ddl.tables.default_values import default_of
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType

INTEGERS = {
    "TINYINT": (MysqlType.TINY, 4),
    "SMALLINT": (MysqlType.SHORT, 6),
    "MEDIUMINT": (MysqlType.INT24, 9),
    "INT": (MysqlType.LONG, 11),
    "BIGINT": (MysqlType.LONGLONG, 20),
}
_TIMES = {
    "DATETIME": (MysqlType.DATETIME, 19),
    "TIMESTAMP": (MysqlType.TIMESTAMP, 19),
    "TIME": (MysqlType.DURATION, 10),
}
_LARGE = {
    "TINY": (MysqlType.TINY_BLOB, 0xFF),
    "": (MysqlType.BLOB, 0xFFFF),
    "MEDIUM": (MysqlType.MEDIUM_BLOB, 0xFFFFFF),
    "LONG": (MysqlType.LONG_BLOB, 0xFFFFFFFF),
}
_STRINGS = {
    "CHAR": MysqlType.STRING,
    "BINARY": MysqlType.STRING,
    "VARCHAR": MysqlType.VARCHAR,
    "VARBINARY": MysqlType.VARCHAR,
}
INTEGER_TYPES = frozenset(tp for tp, _ in INTEGERS.values())
LARGE_TYPES = frozenset(tp for tp, _ in _LARGE.values())
TEXT_TYPES = frozenset({*_STRINGS.values(), *LARGE_TYPES, MysqlType.ENUM, MysqlType.SET})
GEOMETRIES = (
    "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON",
    "GEOMETRYCOLLECTION",
)  # fmt: skip
"""Each at the number that WKB has for it; the first type accepts all kinds."""
POINT_BYTES = 25
"""SRID, byte order, number and two coordinates: the bytes in a key over a POINT."""
NUMERIC = frozenset({*INTEGERS, "DECIMAL", "FLOAT", "DOUBLE"})
VARCHAR_BYTES_MAX = 65532
"""MariaDB's: a longer column is a TEXT or BLOB if its sql_mode is lax. MySQL stops at 65535."""
SCALE_MAX = 38
"""MariaDB's; MySQL stops at 30."""
NATIVE = {
    "UUID": (MysqlType.STRING, 36),
    "INET4": (MysqlType.VARCHAR, 15),
    "INET6": (MysqlType.VARCHAR, 39),
}
"""MariaDB's types whose values are texts here."""
CHAR_MAX = 255

Shape = tuple[MysqlType, int, int]


def refuse(column: ColumnDef, problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(f"column {column.name!r}: {problem}", hint, Code.DDL_DEFINITION)


def shape_of(column: ColumnDef, charset: str) -> Shape:
    spec = column.type
    name = spec.name
    _check_numbers(column)
    if name in INTEGERS:
        tp, flen = INTEGERS[name]
        if spec.unsigned and name != "BIGINT":
            flen -= 1
        return tp, (spec.numbers[0] if spec.numbers else 0) or flen, 0
    if name in NATIVE:
        return (*NATIVE[name], 0)
    if name in _TIMES:
        tp, flen = _TIMES[name]
        fsp = spec.numbers[0] if spec.numbers else 0
        if fsp > 6:
            raise refuse(column, "times have at most 6 decimals", "choose 0 to 6")
        return tp, flen + (1 + fsp if fsp else 0), fsp
    if name in _STRINGS:
        return _string_shape(column, charset)
    if name.endswith(("TEXT", "BLOB")):
        if spec.numbers:
            # TEXT(n) is the smallest of the four that holds n characters of any kind.
            return (*large_type(spec.numbers[0] * char_bytes_max(charset)), 0)
        return (*_LARGE[name[:-4]], 0)
    if name in ("ENUM", "SET"):
        return _names_shape(column, charset)
    return _number_shape(column)


_NUMBERS_MAX = {
    **dict.fromkeys((*INTEGERS, *_TIMES, *_STRINGS, "TEXT", "BLOB", "BIT", "YEAR"), 1),
    "DECIMAL": 2,
    "FLOAT": 2,
    "DOUBLE": 2,
}


def _check_numbers(column: ColumnDef) -> None:
    spec = column.type
    if len(spec.numbers) > _NUMBERS_MAX.get(spec.name, 0):
        raise refuse(column, f"too many numbers after {spec.name}", "see MySQL's data types")
    if spec.name in INTEGERS and spec.numbers and spec.numbers[0] > CHAR_MAX:
        raise refuse(column, "the display width is above 255", "leave it out")


def _number_shape(column: ColumnDef) -> Shape:
    spec = column.type
    fixed: dict[str, Shape] = {
        "BOOL": (MysqlType.TINY, 1, 0),
        "SERIAL": (MysqlType.LONGLONG, 20, 0),
        "DATE": (MysqlType.DATE, 10, 0),
        "YEAR": (MysqlType.YEAR, 2 if spec.numbers == (2,) else 4, 0),
        "JSON": (MysqlType.JSON, 0xFFFFFFFF, 0),
    }
    if spec.name in GEOMETRIES:
        return MysqlType.GEOMETRY, 0xFFFFFFFF, GEOMETRIES.index(spec.name)
    if spec.name in fixed:
        return fixed[spec.name]
    if spec.name == "BIT":
        bits = (spec.numbers[0] if spec.numbers else 0) or 1
        if not 1 <= bits <= 64:
            raise refuse(column, "BIT has 1 to 64 bits", "choose a length in that range")
        return MysqlType.BIT, bits, 0
    if spec.name == "DECIMAL":
        return _decimal_shape(column)
    assert spec.name in ("FLOAT", "DOUBLE"), spec.name
    return _float_shape(column)


def _decimal_shape(column: ColumnDef) -> Shape:
    digits, scale = (*column.type.numbers, *(10, 0)[len(column.type.numbers) :])
    if digits == 0:
        digits = 10
    if not (digits <= 65 and scale <= SCALE_MAX and scale <= digits):
        raise refuse(
            column,
            f"DECIMAL({digits},{scale}) is out of range",
            f"at most 65 digits, {SCALE_MAX} of them decimals, and no more decimals than digits",
        )
    return MysqlType.NEWDECIMAL, digits, scale


def _float_shape(column: ColumnDef) -> Shape:
    spec = column.type
    if len(spec.numbers) == 2:
        flen, decimal = spec.numbers
        if not (flen <= 255 and decimal <= 30 and decimal <= flen):
            raise refuse(column, f"{spec.name}({flen},{decimal}) is out of range", "at most 255,30")
        tp = MysqlType.FLOAT if spec.name == "FLOAT" else MysqlType.DOUBLE
        return tp, flen, decimal
    if spec.numbers and (spec.name == "DOUBLE" or spec.numbers[0] > 53):
        raise refuse(column, f"{spec.name} with this length", "write DOUBLE or FLOAT alone")
    if spec.name == "DOUBLE" or (spec.numbers and spec.numbers[0] > 24):
        return MysqlType.DOUBLE, 22, -1
    return MysqlType.FLOAT, 12, -1


def _string_shape(column: ColumnDef, charset: str) -> Shape:
    spec = column.type
    tp = _STRINGS[spec.name]
    if tp is MysqlType.STRING:
        flen = spec.numbers[0] if spec.numbers else 1
        if flen > CHAR_MAX:
            raise refuse(column, f"{spec.name} is longer than {CHAR_MAX}", "use VARCHAR or TEXT")
        return tp, flen, 0
    if not spec.numbers:
        raise refuse(column, f"{spec.name} without a length", "give it a length")
    if spec.numbers[0] * char_bytes_max(charset) > VARCHAR_BYTES_MAX:
        raise refuse(
            column,
            f"{spec.name}({spec.numbers[0]}) takes more than {VARCHAR_BYTES_MAX} bytes",
            "use TEXT or BLOB",
        )
    return tp, spec.numbers[0], 0


def large_type(size_bytes: int) -> tuple[MysqlType, int]:
    """Return the smallest BLOB type that holds this size, and its capacity in bytes."""
    for tp, flen in _LARGE.values():
        if size_bytes <= flen:
            return tp, flen
    raise NeedsOperator(
        "a TEXT or BLOB above 4 GiB", "choose a smaller length", Code.DDL_DEFINITION
    )


def _names_shape(column: ColumnDef, charset: str) -> Shape:
    names = elems_of(column, charset)
    if not names:
        raise refuse(column, f"{column.type.name} without names", "list its names")
    if len(set(names)) < len(names):  # The collation decides whether letter case counts.
        raise refuse(column, "the same name twice", "list every name once")
    if column.type.name == "ENUM":
        return MysqlType.ENUM, max(map(len, names)), 0
    if len(names) > 64 or any("," in n for n in names):
        raise refuse(column, "a SET of this kind", "at most 64 names, none with a comma")
    return MysqlType.SET, sum(map(len, names)) + len(names) - 1, 0


def elems_of(column: ColumnDef, charset: str, context: DdlContext | None = None) -> tuple[str, ...]:
    """Return the names of an ENUM or SET as MySQL keeps them: without spaces at the end.

    A name is converted to the character set of its session, then to that of the column.
    """
    encoding, of_session = charset_named(charset), connection_charset(context)
    names = []
    for each in column.type.elems:
        text = literal_in(encoding, each)
        if each.kind is ValueKind.TEXT and of_session is not None:
            text = of_session.kept(text)
        names.append(encoding.kept(text).rstrip(" "))
    return tuple(names)


_COUNTING = frozenset({*INTEGERS, "SERIAL", "FLOAT", "DOUBLE"})


def build_column(
    column: ColumnDef, column_id: int, inherited: tuple[str, str], context: DdlContext | None = None
) -> ColumnInfo:
    """Return the column as the catalog keeps it, at offset 0 and without key flags.

    `inherited` is the table's character set and collation, `context` the session. A column that
    MySQL would refuse raises NeedsOperator.
    """
    spec = column.type
    _check_attributes(column)
    charset, collate = _charset(spec, inherited)
    tp, flen, decimal = _lax_shape(column, charset, context) or shape_of(column, charset)
    info = ColumnInfo(
        id=column_id,
        name=column.name,
        offset=0,
        tp=tp,
        flag=_flags(column, tp, charset),
        flen=flen,
        decimal=decimal,
        charset=charset,
        collate=collate,
        elems=elems_of(column, charset, context),
        generated_expr=column.generated,
        generated_stored=column.stored,
        comment=column.comment,
        native=spec.name if spec.name in NATIVE else "",
    )
    return default_of(info, column.default, context)


def _lax_shape(column: ColumnDef, charset: str, context: DdlContext | None) -> Shape | None:
    """Return the TEXT or BLOB that a non-strict session makes of an overlong VARCHAR."""
    modes = None if context is None else context.sql_mode
    if modes is None or modes & {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}:
        return None
    spec = column.type
    size_bytes = spec.numbers[0] * char_bytes_max(charset) if len(spec.numbers) == 1 else 0
    if spec.name not in ("VARCHAR", "VARBINARY") or size_bytes <= VARCHAR_BYTES_MAX:
        return None
    return (*large_type(size_bytes), 0)


def _check_attributes(column: ColumnDef) -> None:
    spec = column.type
    if (spec.unsigned or spec.zerofill) and spec.name not in NUMERIC:
        raise refuse(column, f"{spec.name} cannot be UNSIGNED", "leave UNSIGNED and ZEROFILL out")
    if column.generated and (
        column.default is not None or column.auto_increment or column.on_update_now
    ):
        raise refuse(column, "a generated column has no default", "leave the default out")
    if column.auto_increment and spec.name not in _COUNTING:
        raise refuse(column, f"{spec.name} AUTO_INCREMENT", "make it a number")
    if column.auto_increment and column.default is not None:
        raise refuse(column, "AUTO_INCREMENT with a default", "leave the default out")
    if column.on_update_now and spec.name not in ("DATETIME", "TIMESTAMP"):
        raise refuse(column, "ON UPDATE needs a time", "make it DATETIME or TIMESTAMP")
    null = column.default is not None and column.default.kind is ValueKind.NULL
    if null and column.not_null:
        raise refuse(column, "NOT NULL with DEFAULT NULL", "drop one of the two")


def _is_text(spec: TypeSpec) -> bool:
    return spec.name in ("ENUM", "SET", "CHAR", "VARCHAR") or spec.name.endswith("TEXT")


def _charset(spec: TypeSpec, inherited: tuple[str, str]) -> tuple[str, str]:
    if spec.name == "JSON":
        return "utf8mb4", "utf8mb4_bin"
    if spec.name in NATIVE:
        return "ascii", "ascii_bin"
    if not _is_text(spec):
        if spec.charset.charset not in (None, "binary"):
            raise NeedsOperator(
                f"{spec.name} takes no character set", "leave CHARACTER SET out", Code.CHARSET
            )
        return "binary", "binary"
    charset, collate = resolve(spec.charset, inherited)
    if spec.binary and spec.charset.collate is None and charset != "binary":
        collate = f"{charset}_bin"
    return charset, collate


def _flags(column: ColumnDef, tp: MysqlType, charset: str) -> ColumnFlag:
    spec = column.type
    wanted = {
        ColumnFlag.NOT_NULL: bool(column.not_null),
        ColumnFlag.UNSIGNED: spec.unsigned or spec.name in ("SERIAL", "BIT", "YEAR"),
        ColumnFlag.ZEROFILL: spec.zerofill or spec.name == "YEAR",
        ColumnFlag.AUTO_INCREMENT: column.auto_increment,
        ColumnFlag.ON_UPDATE_NOW: column.on_update_now,
        ColumnFlag.BLOB: tp in LARGE_TYPES,
        ColumnFlag.ENUM: tp is MysqlType.ENUM,
        ColumnFlag.SET: tp is MysqlType.SET,
        ColumnFlag.BINARY: tp in TEXT_TYPES and charset == "binary",
    }
    now = column.default is not None and column.default.kind is ValueKind.NOW
    if tp is MysqlType.TIMESTAMP and (now or column.on_update_now):
        wanted[ColumnFlag.TIMESTAMP] = True
    flag = ColumnFlag(0)
    for one, is_set in wanted.items():
        flag |= one if is_set else ColumnFlag(0)
    return flag
