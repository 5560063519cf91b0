"""Rows events: the header, and the function that reads the images of one table.

The header gives the table, the columns of the images, and their offset:

6   table id
2   flags
2   version 2 only: bytes of extra data, these two included; then the data
n   how many columns, length-encoded
…   a bit for each column, lowest first: the images have it; an update has this twice
…   images to the end; in MariaDB's compressed events one compressed block of them

image           a bit for each column that it has (NULL), then the values that are not NULL
insert, delete  one image a row; an update has two, the row before and after
partial update  before the second image: value options (length-encoded); when they have bit 0,
                a bit for each JSON column of the table: its value is a list of changes

A `Reading` is the layout of a column's value in an image, and the expression that decodes it. Every
type of MySQL and MariaDB has one of two layouts:

    fixed       `codes` of struct, little-endian: "q"; "H", "b" for three bytes; "5s" for raw bytes
    prefixed    a length of `prefix` bytes, then that many bytes

`expression` makes the value from the result of struct or the slice: `{0}` stands for the first
item, `{1}` for the second. `names` are the functions and tables it uses. A generator that wants
another result (a transcoder) takes shape and size from here and brings its own expression.

`read_rows` generates a function for one table. It reads all images of a rows event and returns
their rows as tuples. Each image takes one of two paths. When nothing is NULL, adjacent values of
fixed size, and the length of the prefixed value after them, come from a single call of struct. When
something is NULL, every column is read separately. Unwanted columns are skipped without making
values.

Generated source beats closures called column by column: a call costs as much as reading a number.
Offsets only grow, and slices never reach past the end, so one comparison for each image shows
whether bytes were missing.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self

from pumpclient.mysql.events.frame import ROWS_TYPES, BodyReader, EventType, pack_number, pack_uint
from pumpclient.mysql.events.transactions import decompress_block
from pumpclient.mysql.rows.table_map import TABLE_ID_SIZE

STMT_END = 0x1
"""The flag of a statement's last rows event: all table ids become invalid after it."""
NO_FOREIGN_KEY_CHECKS = 0x2
"""The flag of rows that a session changed with foreign_key_checks = 0."""
HEAD_AT = TABLE_ID_SIZE + 2
"""Offset after table id and flags."""
_EXTRA_SIZE = 2


class Kind(Enum):
    """How a rows event changes its rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Layout(NamedTuple):
    """The layout of an event's body, by its type."""

    kind: Kind
    has_extra: bool
    is_compressed: bool
    is_partial: bool = False


def _layout(type_: EventType) -> Layout:
    name = type_.name
    kind = next(kind for kind in Kind if kind.name in name.replace("WRITE", "INSERT"))
    has_extra = not (name.startswith("PRE_GA") or name.endswith("V1"))
    return Layout(kind, has_extra, "COMPRESSED" in name, name.startswith("PARTIAL"))


LAYOUTS: dict[int, Layout] = {type_: _layout(type_) for type_ in ROWS_TYPES}
"""Every type of rows event."""


def bitmap_size(count: int) -> int:
    return (count + 7) // 8


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """A decoded rows event; `images` are not compressed.

    `before` and `after` are bitmaps as numbers: the columns that the images have. An insert has
    only `after`, a delete only `before`; the missing bitmap is None.
    """

    type: EventType
    width: int
    before: int | None
    after: int | None
    images: bytes

    @classmethod
    def decode(cls, type_: EventType, data: bytes) -> Self:
        """Decode an event body; raise `Malformed` if it is invalid."""
        layout = LAYOUTS[type_]
        body = BodyReader(data, type_.name, at=HEAD_AT)
        if layout.has_extra:
            size = body.uint(_EXTRA_SIZE)
            if size < _EXTRA_SIZE:
                raise body.malformed(f"{size} bytes of extra data, which counts itself")
            body.take(size - _EXTRA_SIZE)
        width = body.packed()
        mask = (1 << width) - 1 if width <= body.left * 8 else 0
        bitmaps = [
            body.uint(bitmap_size(width)) & mask for _ in range(1 + (layout.kind is Kind.UPDATE))
        ]
        images = body.rest()
        if layout.is_compressed:
            images = decompress_block(images)
        before = None if layout.kind is Kind.INSERT else bitmaps[0]
        after = None if layout.kind is Kind.DELETE else bitmaps[-1]
        return cls(type_, width, before, after, images)

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.type]

    @property
    def is_whole(self) -> bool:
        """Whether the images have all columns, and all of each value."""
        full = (1 << self.width) - 1
        return {self.before, self.after} <= {None, full} and not self.layout.is_partial


def usual_heads(width: int) -> dict[int, tuple[Kind, bytes, int]]:
    """Return, by type, the bytes at `HEAD_AT` of the usual event, and the offset of its images.

    It has `width` columns. Its images have all of them, and are neither compressed nor partial; it
    has no extra data.
    """
    columns = pack_number(width)
    bitmap = pack_uint((1 << width) - 1, bitmap_size(width))
    heads = {}
    for type_, layout in LAYOUTS.items():
        if not layout.is_compressed and not layout.is_partial:
            extra = pack_uint(_EXTRA_SIZE, _EXTRA_SIZE) if layout.has_extra else b""
            bitmaps = bitmap * (1 + (layout.kind is Kind.UPDATE))
            head = extra + columns + bitmaps
            heads[type_] = layout.kind, head, HEAD_AT + len(head)
    return heads


PREFIX_CODES = {1: ("B",), 2: ("H",), 3: ("H", "B"), 4: ("I",)}
_UINT_CODES = {
    1: ("B",), 2: ("H",), 3: ("H", "B"), 4: ("I",), 5: ("I", "B"), 6: ("I", "H"),
    7: ("I", "H", "B"), 8: ("Q",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """One column's shape and value; exactly one of `codes` and `prefix` is set."""

    expression: str
    codes: tuple[str, ...] = ()
    prefix: int = 0
    names: Mapping[str, object] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.prefix or struct.calcsize("<" + "".join(self.codes))

    def value(self, *raw: str) -> str:
        return self.expression.format(*raw)


def fixed(codes: str | tuple[str, ...], expression: str = "{0}", **names: object) -> Reading:
    return Reading(expression, (codes,) if isinstance(codes, str) else codes, names=names)


def prefixed(prefix: int, expression: str = "{0}", **names: object) -> Reading:
    return Reading(expression, prefix=prefix, names=names)


def joined(codes: tuple[str, ...]) -> str:
    parts, shift = [], 0
    for n, code in enumerate(codes):
        parts.append(f"{{{n}}} << {shift}" if shift else f"{{{n}}}")
        shift += 8 * struct.calcsize("<" + code)
    return " | ".join(parts) if len(parts) == 1 else f"({' | '.join(parts)})"


def unsigned(size: int) -> Reading:
    codes = _UINT_CODES[size]
    return fixed(codes, joined(codes))


def big_endian(size: int) -> Reading:
    return fixed(f"{size}s", "from_bytes({0}, 'big')", from_bytes=int.from_bytes)


ReadRows = Callable[[bytes, int], list[Any]]
"""Takes bytes and the offset of the images, which reach to the end; returns a row for each image.

Raises IndexError, struct.error, ValueError or ArithmeticError for bytes that are not images.
"""


UNROLLED_MAX = 64
"""The columns whose code is compiled at once: compiling takes up to 70 KB of memory a column."""


def blocks(columns: range) -> list[range]:
    """Divide columns into those of one function each; the first may be empty."""
    return [columns[n : n + UNROLLED_MAX] for n in range(0, max(len(columns), 1), UNROLLED_MAX)]


class _Source:
    def __init__(
        self, readings: Sequence[Reading], wanted: frozenset[int], names: dict[str, object]
    ) -> None:
        self.lines: list[str] = []
        self.names = names
        self._readings = readings
        self._wanted = wanted
        for index in sorted(wanted):
            self.names.update(readings[index].names)

    def add(self, indent: int, *lines: str) -> None:
        self.lines += [" " * 4 * indent + line for line in lines]

    def run(self, indent: int, columns: Sequence[int]) -> None:
        """Read values of fixed size and, if the last is prefixed, that value, all not NULL.

        Leaves `p` after them and the values in variables, `v` and the column's index.
        """
        codes: list[str] = []
        targets: list[str] = []
        after: list[str] = []
        length = ""
        for index in columns:
            reading = self._readings[index]
            parts = reading.codes or PREFIX_CODES[reading.prefix]
            if not reading.prefix and index not in self._wanted:
                codes.append(f"{reading.size}x")
                continue
            raw = [f"r{index}_{n}" for n in range(len(parts))]
            codes += parts
            if reading.prefix:
                targets += raw
                length = joined(parts).format(*raw)
                raw = ["d[q:p]"]
            elif reading.expression == "{0}":
                targets.append(f"v{index}")
                continue
            else:
                targets += raw
            if index in self._wanted:
                after.append(f"v{index} = {reading.value(*raw)}")
        self._unpack(indent, codes, targets, length)
        self.add(indent, *after)

    def _unpack(self, indent: int, codes: list[str], targets: list[str], length: str) -> None:
        """Emit a read of `codes` into `targets`; a prefixed value of `length` starts at `q`."""
        layout = struct.Struct("<" + "".join(codes))
        if codes == ["B"]:
            self.add(indent, f"{targets[0]} = d[p]")
        elif targets:
            name = f"unpack_{layout.format[1:]}"
            self.names[name] = layout.unpack_from
            self.add(indent, f"{', '.join(targets)}, = {name}(d, p)")
        if length:
            self.add(indent, f"q = p + {layout.size}; p = q + {length}")
        else:
            self.add(indent, f"p += {layout.size}")

    def block(self, indent: int, columns: range) -> None:
        """Read all of the columns; `nulls` has a bit for each of them, lowest first."""
        self.add(indent, "if not nulls:")
        begin = columns.start
        for index in columns:
            if self._readings[index].prefix or index == columns[-1]:
                self.run(indent + 1, range(begin, index + 1))
                begin = index + 1
        self.add(indent, "else:")
        for number, index in enumerate(columns):
            self.add(indent + 1, f"if nulls & {1 << number}: v{index} = None", "else:")
            self.run(indent + 2, [index])

    def compile(self, name: str) -> None:
        exec(compile("\n".join(self.lines), f"<rows of {name}>", "exec"), self.names)


@dataclass(frozen=True, slots=True)
class Made:
    """The replacement for tuples as rows; `names` are the names that its expressions use.

    `whole` is over `v0`, `v1` … of the wanted columns' indexes, none of them NULL. `nulls` is a
    function's name, which gets the tuple when there are NULLs. The names must differ from the
    function's own variables, which `read_rows` shows.
    """

    whole: str
    nulls: str
    names: Mapping[str, object] = field(default_factory=dict)


def read_rows(
    readings: Sequence[Reading], wanted: Sequence[int], name: str, made: Made | None = None
) -> ReadRows:
    """Compile a function that reads the `wanted` columns, in that order, from full images."""
    values = f"({''.join(f'v{index}, ' for index in wanted)})"
    made = made or Made(values, "")  # In parentheses the tuple is itself.
    names: dict[str, object] = {"bits": int.from_bytes, **made.names}
    of = readings, frozenset(wanted), names
    size, mask = bitmap_size(len(readings)), (1 << len(readings)) - 1
    bits = "d[p]" if size == 1 else f"bits(d[p:p + {size}], 'little')"
    first, *others = blocks(range(len(readings)))
    source = _Source(*of)
    source.add(0, "def rows(d, p):", "    end = len(d); out = []", "    while p < end:")
    source.add(2, f"nulls = {bits} & {mask}", f"p += {size}")
    source.block(2, first)
    for block in others:
        found = "".join(f"v{index}, " for index in block if index in of[1])
        part = _Source(*of)
        part.add(0, f"def part{block.start}(d, p, nulls):")
        part.block(1, block)
        part.add(1, f"return p, {found}")
        part.compile(name)
        nulls = f"nulls >> {block.start} & {(1 << len(block)) - 1}"
        source.add(2, f"p, {found}= part{block.start}(d, p, {nulls})")
    source.add(2, f"made = {made.nulls}({values}) if nulls else {made.whole}")
    source.add(2, "if p > end: raise IndexError('the last image is cut')", "out.append(made)")
    source.add(1, "return out")
    source.compile(name)
    return names["rows"]  # type: ignore[return-value]
