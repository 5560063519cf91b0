"""Messages: an encoder's output, and many messages as columns that are sent together.

    column     type                   meaning
    commit_ts  uint64                 the transaction's or DDL's; it never falls
    to         string                 the destination, in the output's notation
    key        large_binary or null   for outputs whose messages have one
    value      large_binary or null   the message
    headers    map<string, binary>    for outputs whose messages have any

The values are contiguous in memory, so an output that only appends them writes all in one call. A
few small messages stay rows and are sent as JSON, because setting up columns costs more. The starts
of transactions are not sent; the receiver adds them beside the columns.

`Encoder` is the interface of every format. An encoder is a pure function of its arguments. It gets
a whole transaction, or slice after slice if the transaction is too large for memory; and each DDL
separately. Filters, routes and loop-back have already decided which rows it gets, and the names of
tables and columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from drainer.task.work_unit import (
    FEW,
    FEW_BYTES,
    TransactionStart,
    arrow_stream,
    bytes_of,
    few_encoded,
    reading,
)
from penstock.schema.model import TableInfo

if TYPE_CHECKING:  # It imports the grammar of DDL, and tasks only encode rows.
    from penstock.ddl import SchemaChange

_SCHEMA = pa.schema(
    [
        ("commit_ts", pa.uint64()),
        ("to", pa.string()),
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)

_FEW_MAGIC = b"PSTMSFEW"

Headers = Sequence[tuple[str, bytes]]
Row = tuple[int, str, bytes | None, bytes | None, Headers]
"""A message by its columns."""
Ends = np.ndarray[Any, np.dtype[np.int64]]

WHOLE = "whole"
"""Header of a message that has only a row's key: the full message, to be stored elsewhere."""


class Message(NamedTuple):
    """One message; every output uses the value, and only some use the other fields.

    The value is None if the message says that its key is deleted, for outputs with such messages.
    """

    value: bytes | None
    key: bytes | None = None
    to: str = ""
    headers: Headers = ()


class Messages:
    """Messages in commit order; immutable."""

    def __init__(
        self, messages: pa.RecordBatch | list[Row], starts: Mapping[int, TransactionStart] | None
    ) -> None:
        self._rows = messages if isinstance(messages, list) else None
        self._batch = None if isinstance(messages, list) else messages
        self.starts = starts or {}
        """Starts of transactions by commit_ts, as far as known; may include others."""

    @classmethod
    def of(
        cls,
        messages: Iterable[tuple[int, Message]],
        starts: Mapping[int, TransactionStart] | None = None,
    ) -> Self:
        pairs = list(messages)
        return cls.at([commit_ts for commit_ts, _ in pairs], [each for _, each in pairs], starts)

    @classmethod
    def at(
        cls,
        commit_ts: Sequence[int],
        messages: Sequence[Message],
        starts: Mapping[int, TransactionStart] | None = None,
    ) -> Self:
        """Return messages; each has the commit_ts at the same index."""
        if len(messages) < FEW and sum(map(_size_bytes, messages)) < FEW_BYTES:
            pairs = zip(commit_ts, messages, strict=True)
            return cls([(ts, m.to, m.key, m.value, m.headers) for ts, m in pairs], starts)
        value, key, to, headers = zip(*messages, strict=True)
        return cls(_batch_of((commit_ts, to, key, value, headers)), starts)

    @property
    def _columns(self) -> pa.RecordBatch:
        if self._batch is None:
            columns = list(zip(*self._rows or (), strict=True)) or ((),) * len(_SCHEMA)
            self._batch = _batch_of(columns)
        return self._batch

    def __len__(self) -> int:
        return len(self._columns if self._rows is None else self._rows)

    def __iter__(self) -> Iterator[tuple[int, Message]]:
        for commit_ts, to, key, value, headers in self.rows():
            yield commit_ts, Message(value, key, to, tuple(headers))

    def rows(self) -> Iterator[Row]:
        """Yield plain rows, not objects, because many messages outlive a garbage collection."""
        if self._rows is not None:
            return iter(self._rows)
        *columns, headers = (self._columns.column(name) for name in _SCHEMA.names)
        has_none = not len(headers.values)
        named = repeat((), len(self)) if has_none else headers.to_pylist()
        return zip(*(column.to_pylist() for column in columns), named, strict=True)

    def destinations(self) -> list[str]:
        if self._rows is not None:
            return list(dict.fromkeys(to for _, to, *_ in self._rows))
        places: list[str] = self._columns.column("to").unique().to_pylist()
        return places

    @property
    def commit_ts(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        stamps: np.ndarray[Any, np.dtype[np.uint64]] = self._columns.column("commit_ts").to_numpy()
        return stamps

    @property
    def value_bytes(self) -> int:
        if self._rows is not None:
            return sum(len(value or b"") for _, _, _, value, _ in self._rows)
        return len(self.joined()[0])

    def joined(self) -> tuple[memoryview, Ends]:
        """Return all values concatenated, without a copy, and the end offset of each value."""
        values = self._columns.column("value")
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
        whole = memoryview(data if data is not None else b"")
        return whole[int(bounds[0]) : int(bounds[-1])], bounds[1:] - bounds[0]

    def encode(self) -> bytes:
        if self._rows is None:
            return arrow_stream(self._columns)
        return _FEW_MAGIC + few_encoded(self._rows)

    @classmethod
    def decode(cls, data: bytes, starts: Mapping[int, TransactionStart] | None = None) -> Self:
        """Decode messages that share memory with `data` if they are many; raise `Malformed`."""
        with reading("messages"):
            if data.startswith(_FEW_MAGIC):
                return cls(list(starmap(_row_of, json.loads(data[len(_FEW_MAGIC) :]))), starts)
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                if reader.schema != _SCHEMA:
                    raise ValueError(f"columns {reader.schema.names}")
                return cls(reader.read_next_batch(), starts)


def _row_of(ts: int, to: str, key: str | None, value: str | None, headers: Any) -> Row:
    of_key, of_value = (None if text is None else bytes_of(text) for text in (key, value))
    return ts, to, of_key, of_value, [(name, bytes_of(text)) for name, text in headers]


def _size_bytes(message: Message) -> int:
    return len(message.value or b"") + sum(len(data) for _, data in message.headers)


def _batch_of(columns: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


Values = tuple[Any, ...]
"""One value per column of the table, as `penstock.datum.rows.fields` reads them; times in UTC."""


class RowEvent(NamedTuple):
    """One row change: an insert has no row before, a delete no row after, an update both."""

    schema: str
    table: TableInfo
    before: Values | None
    after: Values | None


class Encoder(Protocol):
    """Makes messages; equal arguments give equal messages."""

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        """Return the messages of a transaction; `events` is not empty, each table's are contiguous.

        Raises `Malformed` for a value that the format cannot represent.
        """
        ...

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]: ...

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        """Return the messages of a DDL, whose job has the text with the downstream's names."""
        ...


class StreamEncoder(Encoder, Protocol):
    """An encoder of an output that readers follow while it grows."""

    def watermark(self, commit_ts: int) -> Message:
        """Return the watermark message: no later message is at or before `commit_ts`."""
        ...


T = TypeVar("T")

_KEPT_MAX = 1024


class PerTable(Generic[T]):
    """Compiles once for each table version."""

    def __init__(self, compiled: Callable[[str, TableInfo], T]) -> None:
        self._compiled = compiled
        self._known: dict[tuple[str, int], tuple[TableInfo, T]] = {}

    def of(self, schema: str, table: TableInfo) -> T:
        """Return the compiled table version, cached by identity since hashing takes longer."""
        known = self._known.get((schema, id(table)))
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[schema, id(table)] = table, self._compiled(schema, table)
        return known[1]
