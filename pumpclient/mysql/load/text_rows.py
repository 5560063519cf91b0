"""Converts the rows that a server sends for a SELECT to a binlog's row bytes or to an INSERT.

    packet   length (3 bytes), number (1), payload; a row of 16 MiB and more comes in several
    payload  for each column its length and its text; FB for NULL
             length: one byte up to FA, or FC + 2, FD + 3, FE + 8 bytes
    end      FE and less than 9 bytes; an error starts with FF

The reading code is generated per table: ASCII text is copied without making values. Other text is
inspected, because servers sometimes send text that is not UTF-8.

For an INSERT (`sql_rows`):

    NULL              NULL
    integers          as they are, like DECIMAL, BIT, ENUM and SET, which are numbers here
    float, double     quoted: a bare -0 is an integer, which has no sign
    text, times, JSON quoted, with quotes and backslashes doubled; JSON with decimals that no double
                      prints is written by `jsonb`
    bytes             the same after _binary, or they would be checked as text

JSON loses the types of times and bytes. A server returns the type of a nested scalar only for a
known path (JSON_TYPE). This needs another query for each row, and a table without a key cannot name
the row in it. The text is exact; the Drainer and `verify` compare texts.

Generated columns are neither read nor written.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.codes import Code
from penstock.datum import values
from penstock.datum.jsonb import literal_of_text
from penstock.datum.rows.fields import STRING_TYPES, TIME_TYPES, integer_range
from penstock.datum.rows.row_codec import (
    EMPTY_ROW,
    RowCodec,
    Stored,
    handle_parts,
    handle_position,
    stored_columns,
)
from penstock.datum.times import Held
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import PUBLIC, ColumnInfo, MysqlType, TableInfo
from pumpclient.changes import next_row_id
from pumpclient.mysql.rows.rows_event import blocks
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.datums import NUMBER_NAMES, begins_of, number_expression
from pumpclient.mysql.translate.transcode import null_refused

INTEGERS = frozenset(
    {MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG}
)
AS_NUMBER = frozenset({MysqlType.YEAR, MysqlType.BIT, MysqlType.ENUM, MysqlType.SET})
_FLOATS = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})
_SHORT = 251
_SHOWN_BYTES = 32
_INT_FLAG, _UINT_FLAG = bytes([values.VARINT_FLAG]), bytes([values.UVARINT_FLAG])
PACKET_BYTES_MAX = 0xFFFFFF
_SIZE = struct.Struct("<I").unpack_from
_NULL = b"\x00"

ReadRows = Callable[[bytes, int, list[bytes]], tuple[int, bool]]
"""Takes bytes, the offset of the first packet, and a list for the rows.

Returns the offset of the first packet that is incomplete or has no fast path, and whether the end
of all rows was reached.
"""


def selected(column: ColumnInfo) -> str:
    """Return the expression that selects a column's exact value in a uniform form."""
    name = quote_name(column.name)
    if column.tp in AS_NUMBER:
        return f"{name} + 0"
    if column.tp is MysqlType.FLOAT:
        return f"{name} * 1e0"  # As text a FLOAT has six digits only.
    return name


@dataclass(frozen=True, slots=True)
class TextRows:
    """The reader of one version of one table."""

    columns: tuple[str, ...]
    """Expressions to select, in this order."""
    read: ReadRows
    row: Callable[[bytes], bytes]
    """Encodes one row's whole payload like `read`."""


def text_rows(table: TableInfo) -> TextRows:
    """Return the reader of a table; raises `Malformed` for a type that no row can hold."""
    handle = handle_position(table)
    # An integer handle is selected first, because it is first in a row.
    stored = sorted(stored_columns(table), key=lambda each: each.position != handle)
    columns = tuple(selected(each.column) for each in stored)
    names: dict[str, object] = {"join": b"".join, "empty": EMPTY_ROW, **NUMBER_NAMES}
    if handle_parts(table):
        # A common handle's columns may be cut; the codec handles this.
        names["by_values"] = _by_values(table, stored)
        pieces, whole = [f"v{n}" for n in range(len(stored))], "by_values(({}))"
        return TextRows(columns, *compiled(table.name, pieces, whole, names))
    if handle is None:
        first = "int_datum(rowid())"
        names |= {"int_datum": values.int_datum, "rowid": next_row_id}
    else:
        first = number_expression("int(v0)", _INT_FLAG, "handle(v0)", shift=1)
        names["handle"] = _handle
    known = int(handle is not None)
    pieces = [_piece(n, stored[n], names) for n in range(known, len(stored))]
    whole = f"{first} + (join(({{}})) or empty)"
    return TextRows(columns, *compiled(table.name, pieces, whole, names, known))


def compiled(
    name: str, pieces: Sequence[str], whole: str, names: dict[str, object], known: int = 0
) -> tuple[ReadRows, Callable[[bytes], bytes]]:
    """Return `read` and `row` of `TextRows`.

    The expression `whole` makes a row; `{}` in it stands for the list of the `pieces`, which are an
    expression for each column after the `known` first. The columns' texts are `v0`, `v1` and so on,
    None for NULL.
    """
    names = {"long": _long, "size": _SIZE, **names}
    first, *others = blocks(range(known + len(pieces)))
    lines, made = _lines(first), "".join(f"{each}, " for each in pieces[: len(first) - known])
    for block in others:
        part = f"part{block.start}"
        some = "".join(f"{each}, " for each in pieces[block.start - known : block.stop - known])
        text = [f"def {part}(d, c):", *_lines(block), f"return c, ({some})"]
        exec(compile("\n    ".join(text), f"<text rows of {name}>", "exec"), names)
        lines.append(f"c, x{block.start} = {part}(d, c)")
        made += f"*x{block.start}, "
    expression = whole.format(made)
    lines = [
        "def read(d, p, out):",
        "    end = len(d) - 4; add = out.append",
        "    while p <= end:",
        f"        n = size(d, p)[0] & {PACKET_BYTES_MAX}",
        "        q = p + 4 + n",
        f"        if q > end + 4 or n == {PACKET_BYTES_MAX}: break",
        "        c = p + 4",
        "        if d[c] >= 254 and (d[c] == 255 or n < 9): return p, True",
        *(" " * 8 + line for line in lines),
        f"        add({expression})",
        "        p = q",
        "    return p, False",
        "def row(d):",
        "    c = 0",
        *(" " * 4 + line for line in lines),
        f"    return {expression}",
    ]
    exec(compile("\n".join(lines), f"<text rows of {name}>", "exec"), names)
    return names["read"], names["row"]  # type: ignore[return-value]


def _lines(columns: range) -> list[str]:
    return [
        line
        for n in columns
        for line in (
            "n = d[c]; c += 1",
            f"if n < 251: v{n} = d[c:c + n]; c += n",
            f"elif n == 251: v{n} = None",
            f"else: v{n}, c = long(d, c, n)",
        )
    ]


def _long(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    width = {252: 2, 253: 3, 254: 8}.get(size)
    if width is None:
        raise Malformed(
            f"a column begins with {size:#x}", "the connection lost bytes", Code.SERVER_AWAY
        )
    begin = at + width
    end = begin + int.from_bytes(data[at:begin], "little")
    return data[begin:end], end


def _piece(n: int, each: Stored, names: dict[str, object]) -> str:
    """Return the expression of a column's id and datum, and add the names that it uses."""
    names[f"null{n}"], names[f"e{n}"] = _null_piece(each), _encoder(each)
    if each.column.tp in INTEGERS:
        is_unsigned = each.column.is_unsigned
        head = each.header + (_UINT_FLAG if is_unsigned else _INT_FLAG)
        below = integer_range(each.column)[1] + 1
        shift = 0 if is_unsigned else 1
        made = number_expression(f"int(v{n})", head, f"e{n}(v{n})", shift=shift, below=below)
    elif each.column.tp in STRING_TYPES:
        names[f"begin{n}"] = begins_of(each.header)
        is_plain = "" if each.column.is_binary else f" and v{n}.isascii()"
        is_quick = f"len(v{n}) < {_SHORT}{is_plain}"
        made = f"begin{n}[len(v{n})] + v{n} if {is_quick} else e{n}(v{n})"
    else:
        made = f"e{n}(v{n})"
    return f"({made}) if v{n} is not None else null{n}()"


def _handle(text: bytes) -> bytes:
    number = int(text)
    # The handle is signed whatever the column is: large unsigned keys are negative handles.
    return values.int_datum(number - (1 << 64) if number > values.INT64_MAX else number)


def _null_piece(stored: Stored) -> Callable[[], bytes]:
    def piece() -> bytes:
        if stored.omits_null:
            return b""
        if stored.column.is_not_null and not stored.column.is_generated:
            raise null_refused(stored.column.name)
        return stored.header + _NULL

    return piece


def _encoder(stored: Stored) -> Callable[[bytes], bytes]:
    header, encode, value_of = stored.header, stored.field.encode, _value_of(stored.column)
    return lambda text: header + encode(value_of(text))


def _value_of(column: ColumnInfo) -> Callable[[bytes], object]:
    if column.tp in INTEGERS or column.tp in AS_NUMBER:
        return int
    if column.tp in _FLOATS:
        return float
    if column.tp in STRING_TYPES:
        return (lambda text: text) if column.is_binary else _text_of(column)
    if column.tp in TIME_TYPES:
        return lambda text: Held(text, "ascii")
    return lambda text: text.decode()


def _text_of(column: ColumnInfo) -> Callable[[bytes], object]:
    """Return the text reader; a server sends half of a surrogate pair as three bytes."""

    def value(text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise NeedsOperator(
                f"column {column.name!r} ({column.sql_type}): 0x{text[:_SHOWN_BYTES].hex()} is not"
                f" valid UTF-8 (byte {error.start})",
                "correct the value on the server, or make the column VARBINARY there, which"
                " keeps its bytes; then load again",
                Code.ROWS_EVENT,
            ) from error

    return value


def _by_values(
    table: TableInfo, stored: Sequence[Stored]
) -> Callable[[tuple[bytes | None, ...]], bytes]:
    codec = RowCodec(table)
    width = len(table.columns)
    slots = [(each.position, _value_of(each.column)) for each in stored]

    def row(texts: tuple[bytes | None, ...]) -> bytes:
        out: list[object] = [None] * width
        for (position, value_of), text in zip(slots, texts, strict=True):
            if text is not None:
                out[position] = value_of(text)
        return codec.encode_insert(out, rowid=next_row_id())

    return row


_BARE = INTEGERS | AS_NUMBER | {MysqlType.NEWDECIMAL}


@dataclass(frozen=True, slots=True)
class SqlRows:
    """The reader of one table's rows, and the part of an INSERT before the rows."""

    reader: TextRows
    head: bytes
    is_known_by_key: bool
    """True when a duplicate key can only be a row that this load has sent."""

    def insert(self, rows: list[bytes]) -> bytes:
        return self.head + b",".join(rows)


def sql_rows(table: TableInfo, target: Name) -> SqlRows:
    columns = [c for c in table.columns if c.state == PUBLIC and not c.is_generated]
    pieces = [_expression(f"v{n}", column) for n, column in enumerate(columns)]
    names: dict[str, object] = {"join": b",".join, "null": b"NULL", "json": _json}
    read, row = compiled(table.name, pieces, "b'(' + join(({})) + b')'", names)
    listed = ",".join(quote_name(column.name) for column in columns)
    full_name = quote_path(*target)
    head = f"INSERT INTO {full_name} ({listed}) VALUES ".encode()  # noqa: S608
    reader = TextRows(tuple(map(selected, columns)), read, row)
    return SqlRows(reader, head, table.primary_key is not None)


def _json(text: bytes) -> bytes:
    return literal_of_text(text.decode()).encode()


def _expression(text: str, column: ColumnInfo) -> str:
    if column.tp in _BARE:
        return f"null if {text} is None else {text}"
    if column.tp is MysqlType.JSON:
        return f"null if {text} is None else json({text})"
    opened = "_binary'" if column.tp in STRING_TYPES and column.is_binary else "'"
    doubled = rf"""{text}.replace(b"\\", b"\\\\").replace(b"'", b"''")"""
    return f"""null if {text} is None else b"{opened}" + {doubled} + b"'\""""
