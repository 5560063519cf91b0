"""Sequences of a MariaDB: tracks allocated numbers from rows in the binlog.

Pure. NEXTVAL logs a row of its sequence when it allocates a cache of numbers: the first number
after the cache. The rows that got these numbers have them in their images, so nothing depends on
the sequence until the application moves to the downstream. Then its next number must not be already
allocated. A DDL for every such row would be too much: with NOCACHE one for each number. Therefore a
DDL is made only when the numbers pass the downstream's reservation, and it reserves many more:

    upstream     1 … 1000 in a cache     next 1001
    downstream   RESTART WITH 101001     nothing to do until the upstream comes to 101001

So the downstream is ahead, never behind: it skips numbers, and gives none twice. A sequence that
restarts at its end (CYCLE) does not promise this upstream either, and gets its number unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.codes import Code
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import Malformed
from pumpclient.mysql.rows.rows_decoder import Decoder, decoder_for
from pumpclient.mysql.rows.table_map import TABLE_ID_SIZE, Name, TableMap

_CACHES_RESERVED = 100
_NUMBERS_RESERVED_MIN = 10_000
_COLUMNS = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment",
    "cache_size", "cycle_option", "cycle_count",
)  # fmt: skip
_UNSIGNED = ("cache_size", "cycle_option")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The fields of a sequence's row."""

    next: int
    lowest: int
    highest: int
    increment: int
    cache: int
    cycles: bool

    def reserved(self) -> int:
        if self.cycles:
            return min(max(self.next, self.lowest), self.highest)
        step = self.increment or 1  # 0 stands for the session's auto_increment_increment.
        count = max(self.cache * _CACHES_RESERVED, _NUMBERS_RESERVED_MIN)
        return min(max(self.next + step * count, self.lowest), self.highest)

    def is_within(self, reserved: int) -> bool:
        """Return whether a downstream that continues at `reserved` issues no number twice."""
        if self.cycles:
            return self.next == reserved
        return self.next >= reserved if self.increment < 0 else self.next <= reserved


class Sequences:
    """The sequences of one source whose rows this process has seen."""

    def __init__(self) -> None:
        self._reserved: dict[Name, int] = {}
        self._waiting: dict[Name, int] = {}

    def note(self, name: Name, numbers: Numbers) -> None:
        known = self._waiting.get(name, self._reserved.get(name))
        if known is None or not numbers.is_within(known):
            self._waiting[name] = numbers.reserved()

    @property
    def is_due(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Iterator[tuple[Name, str]]:
        """Yield each sequence that must reserve more, and the DDL, which then counts as run."""
        while self._waiting:
            name, number = self._waiting.popitem()
            self._reserved[name] = number
            yield name, f"ALTER SEQUENCE {quote_path(*name)} RESTART WITH {number}"


class SequenceRows:
    """Reads the rows of one sequence; used in place of a table's transcoder."""

    def __init__(
        self, table_map: TableMap, name: Name, sequences: Sequences, id_size: int = TABLE_ID_SIZE
    ) -> None:
        """`name` is the cluster's. Raise `Malformed` if the server's table is not a sequence."""
        if len(table_map.columns) != len(_COLUMNS):
            raise Malformed(
                f"{table_map.name} is a sequence here and a table of {len(table_map.columns)}"
                " columns there",
                hint="drop the sequence here, or leave the table out",
                code=Code.TABLE_DIFFERS,
            )
        declared: dict[int, dict[str, Any]] = {
            n: {"name": column, "is_unsigned": wire.is_unsigned or column in _UNSIGNED}
            for n, (column, wire) in enumerate(zip(_COLUMNS, table_map.columns, strict=True))
        }
        self.table_map = table_map.completed(declared)
        self._name = name
        self._sequences = sequences
        self._decoder: Decoder = decoder_for(self.table_map, id_size=id_size)

    def take(self, type_: int, body: bytes) -> None:
        """Record the state in an event's rows; raise `Malformed` for an invalid row."""
        for _, after in self._decoder.changes(type_, body):
            if after is not None:
                row = dict(zip(_COLUMNS, after, strict=True))
                self._sequences.note(
                    self._name,
                    Numbers(
                        int(row["next_not_cached_value"]),
                        int(row["minimum_value"]),
                        int(row["maximum_value"]),
                        int(row["increment"]),
                        int(row["cache_size"]),
                        bool(row["cycle_option"]),
                    ),
                )
