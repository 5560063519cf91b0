"""A `Reading`: the layout of a column's value in a row image, and the expression that decodes it.

Every type of MySQL and MariaDB has one of two layouts:

    fixed       `codes` of struct, little-endian: "q"; "H", "b" for three bytes; "5s" for raw bytes
    prefixed    a length of `prefix` bytes, then that many bytes

`expression` makes the value from the result of struct or the slice: `{0}` stands for the first
item, `{1}` for the second. `names` are the functions and tables it uses. A generator that wants
another result (a transcoder) takes shape and size from here and brings its own expression.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

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
