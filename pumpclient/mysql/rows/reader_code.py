"""Generates the source of a function that reads the images of one table.

The function reads all images of a rows event and returns their rows as tuples. Each image takes one
of two paths. When nothing is NULL, adjacent values of fixed size, and the length of the prefixed
value after them, come from a single call of struct. When something is NULL, every column is read
separately. Unwanted columns are skipped without making values.

Generated source beats closures called column by column: a call costs as much as reading a number.
Offsets only grow, and slices never reach past the end, so one comparison for each image shows
whether bytes were missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pumpclient.mysql.rows.rows_event_header import bitmap_size
from pumpclient.mysql.rows.values.reading import PREFIX_CODES, Reading, joined

ReadRows = Callable[[bytes, int], list[Any]]
"""Takes bytes and the offset of the images, which reach to the end; returns a row for each image.

Raises IndexError, struct.error, ValueError or ArithmeticError for bytes that are not images.
"""


class _Source:
    """Source lines under construction, and the names they use."""

    def __init__(self, readings: Sequence[Reading], wanted: frozenset[int]) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self._readings = readings
        self._wanted = wanted
        for index in sorted(wanted):
            self.names.update(readings[index].names)

    def add(self, indent: int, line: str) -> None:
        self.lines.append(" " * 4 * indent + line)

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
        for line in after:
            self.add(indent, line)

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

    def runs(self) -> list[list[int]]:
        out: list[list[int]] = [[]]
        for index, reading in enumerate(self._readings):
            out[-1].append(index)
            if reading.prefix:
                out.append([])
        return [run for run in out if run]


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
    source = _Source(readings, frozenset(wanted))
    size, mask = bitmap_size(len(readings)), (1 << len(readings)) - 1
    bits = "d[p]" if size == 1 else f"bits(d[p:p + {size}], 'little')"
    source.add(0, "def rows(d, p):")
    source.add(1, "end = len(d); out = []")
    source.add(1, "while p < end:")
    source.add(2, f"nulls = {bits} & {mask}")
    source.add(2, f"p += {size}")
    source.add(2, "if not nulls:")
    for run in source.runs():
        source.run(3, run)
    source.add(3, f"made = {made.whole}")
    source.add(2, "else:")
    for index in range(len(readings)):
        source.add(3, f"if nulls & {1 << index}:")
        source.add(4, f"v{index} = None")
        source.add(3, "else:")
        source.run(4, [index])
    source.add(3, f"made = {made.nulls}({values})")
    source.add(2, "if p > end:")
    source.add(3, "raise IndexError('the last image is cut')")
    source.add(2, "out.append(made)")
    source.add(1, "return out")
    names = {**source.names, **made.names, "bits": int.from_bytes}
    code = compile("\n".join(source.lines), f"<rows of {name}>", "exec")
    exec(code, names)
    function: ReadRows = names["rows"]  # type: ignore[assignment]
    return function
