"""Reading: how one column's value lies in a row image, and which expression makes it.

Every type of MySQL and MariaDB is one of two shapes:

    fixed       `codes` of struct, little-endian: "q"; "H", "b" for three bytes; "5s" for raw ones
    prefixed    a length of `prefix` bytes, then that many bytes

`expression` makes the value from what struct or the slice gave: `{0}` stands for the first item,
`{1}` for the second. `names` are the functions and tables it speaks of. A generator that wants
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
        """The bytes of a fixed value; of a prefixed one, those of its length."""
        return self.prefix or struct.calcsize("<" + "".join(self.codes))

    def value(self, *raw: str) -> str:
        """Return the expression over the names of what was read."""
        return self.expression.format(*raw)


def fixed(codes: str | tuple[str, ...], expression: str = "{0}", **names: object) -> Reading:
    """Return a reading of fixed size."""
    return Reading(expression, (codes,) if isinstance(codes, str) else codes, names=names)


def prefixed(prefix: int, expression: str = "{0}", **names: object) -> Reading:
    """Return a reading of a value after its length."""
    return Reading(expression, prefix=prefix, names=names)


def joined(codes: tuple[str, ...]) -> str:
    """Return the expression of a number whose little-endian parts were read one by one."""
    parts, shift = [], 0
    for n, code in enumerate(codes):
        parts.append(f"{{{n}}} << {shift}" if shift else f"{{{n}}}")
        shift += 8 * struct.calcsize("<" + code)
    return " | ".join(parts) if len(parts) == 1 else f"({' | '.join(parts)})"


def unsigned(size: int) -> Reading:
    """Return the reading of a little-endian number of 1 to 8 bytes without a sign."""
    codes = _UINT_CODES[size]
    return fixed(codes, joined(codes))


def big_endian(size: int) -> Reading:
    """Return the reading of a big-endian number without a sign."""
    return fixed(f"{size}s", "from_bytes({0}, 'big')", from_bytes=int.from_bytes)
