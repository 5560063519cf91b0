"""Work units: the messages between the Drainer and its Spark tasks; units one way, SQL back.

A work unit is one table's share of a batch for one task. Its bytes are an Arrow IPC stream with one
record batch; the header is JSON in the metadata of the stream's schema, under `penstock`:

    column  type    meaning
    op      uint8   0 DELETE   the row's before image names a key to delete
                    1 UPSERT   the row's after image is the key's last value in the batch
                    2 ORDERED  a change of a table without row key, to be done in this order
                    3 EACH     a change that becomes a separate statement, with causality keys
                    4 SAFE     the same, in the form that may be run again
    kind    uint8   MutationType of `row`: the layout of its bytes
    row     binary  the row bytes as the writer encoded them

Small tables of one layout share a unit (`drainer.task.compaction`), which records for each of them,
in their order, how many of the deletes and of the upserts are its own.

A few small rows are sent as JSON, because setting up columns costs more: units of held rows
(`held_unit`, `event_unit`) and messages.

A row may occur in a unit twice: an update that moved a key is a DELETE of the old key and an UPSERT
of the new. Statements are sent as three counts, all lengths, then all texts (u32 LE).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.codes import Code
from penstock.errors import Malformed, PenstockError
from penstock.schema.model import TableInfo
from penstock.schema.tidb_json import table_from_json, table_to_json
from penstock.wire.binlog import Origin

_METADATA_KEY = b"penstock"
_COUNTS = struct.Struct("<III")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Decode a message between a Drainer and a task; raise `Malformed` where that fails."""
    try:
        yield
    except (
        pa.ArrowException, OSError, ValueError, LookupError, TypeError, StopIteration, struct.error
    ) as error:  # fmt: skip
        raise Malformed(
            f"undecodable {what}: {error}",
            "Drainer and Spark tasks must run the same version of Penstock",
            Code.SPARK_VERSION,
        ) from error


def arrow_stream(
    rows: pa.RecordBatch | pa.Table, header: object = None, magic: bytes = b""
) -> bytes:
    """Return `rows` as an Arrow IPC stream behind `magic`; the header is JSON in its metadata."""
    text = json.dumps(header).encode()
    schema = rows.schema.with_metadata({_METADATA_KEY: text})
    out = pa.BufferOutputStream()
    out.write(magic)
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write(rows)
    encoded: bytes = out.getvalue().to_pybytes()
    return encoded


def arrow_header(schema: pa.Schema) -> Any:
    return json.loads(schema.metadata[_METADATA_KEY])


def arrow_batch(data: bytes | memoryview, magic: bytes = b"") -> tuple[Any, pa.RecordBatch]:
    """Return the header and the only batch of an `arrow_stream`; it shares memory with `data`."""
    with pa.ipc.open_stream(pa.py_buffer(data)[len(magic) :]) as reader:
        return arrow_header(reader.schema), reader.read_next_batch()


FEW, FEW_BYTES = 100, 64 << 10
"""Fewer rows or messages, of fewer bytes, are sent as JSON."""


def few_encoded(content: object) -> bytes:
    """Return JSON; bytes are texts of as many characters, which `bytes_of` turns back."""
    return json.dumps(content, ensure_ascii=False, default=_text_of).encode()


def _text_of(data: bytes) -> str:
    return data.decode("latin-1")


def bytes_of(text: str) -> bytes:
    return text.encode("latin-1")


Link = tuple[int, tuple[int, ...]]
"""A foreign key's number, and the offsets of its columns in this table, child's or parent's."""

Member = tuple[str, str, int, int]
"""One of a unit's tables: database, name, its number of deletes, and of upserts."""


class Op(IntEnum):
    """The operation for one row of a work unit."""

    DELETE = 0
    UPSERT = 1
    ORDERED = 2
    EACH = 3
    SAFE = 4


ROWS_SCHEMA = pa.schema([("op", pa.uint8()), ("kind", pa.uint8()), ("row", pa.large_binary())])


@dataclass(frozen=True, slots=True)
class TableRows:
    """All changes of one table in a batch, in commit order; `kinds` holds `MutationType` bytes.

    `schema` is the downstream database; `rows` is an Arrow array of (large) binary. `transactions`
    numbers the transaction of each row within the batch, rising; None if the numbers are not
    needed.
    """

    schema: str
    table: TableInfo
    kinds: Any
    rows: pa.Array
    transactions: Any = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table.name}"

    def kind_array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if isinstance(self.kinds, bytes | bytearray | memoryview):
            kinds = np.frombuffer(self.kinds, np.uint8)
        else:
            kinds = np.asarray(self.kinds, np.uint8)
        assert len(kinds) == len(self.rows), "every row has one kind"
        return kinds


@dataclass(frozen=True, slots=True)
class Bounds:
    """Row counts at which another method pays; the defaults were measured."""

    rowwise_max: int = 100
    """Below so many rows of a table, processing single rows costs less than setting up columns."""
    table_rows_max: int = 5000
    """A table with so many rows is processed separately.

    Ten tables of 2,000 rows took 3 µs of CPU a row from batch to SQL one by one, and 1.6 together.
    """
    group_bytes_max: int = 8 << 20
    """The bytes of rows that are copied together."""
    statement_rows_max: int = 500


BOUNDS = Bounds()


class TransactionStart(NamedTuple):
    """When a transaction began, and its origin if another writer passed it on."""

    start_ts: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes between two checkpoints; each table occurs once for each of its versions.

    A batch that `displaces` is a slice of a transaction: its upserts remove conflicting rows.
    """

    batch_id: int
    tables: list[TableRows]
    displaces: bool = False
    commit_ts: Sequence[int] = ()
    """The commit_ts of each transaction, by its number; empty if it is not needed."""
    starts: Mapping[int, TransactionStart] = field(default_factory=dict)
    """The start of each transaction, by its commit_ts, as far as they are known."""

    @property
    def is_few(self) -> bool:
        rows = [each.rows for each in self.tables]
        return sum(map(len, rows)) < FEW and sum(each.nbytes for each in rows) < FEW_BYTES


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """One table's share of a batch for one task; the module docstring shows its rows.

    With `members` it has the changes of them all; `schema` and `name` are the first's, and `table`
    is their common definition.
    """

    batch_id: int
    part: int
    dialect: str
    schema: str
    name: str
    table: TableInfo
    rows: pa.RecordBatch
    displaces: bool = False
    links: tuple[Link, ...] = ()
    members: tuple[Member, ...] = ()

    def encode(self) -> bytes:
        header = {
            "batch": self.batch_id,
            "part": self.part,
            "dialect": self.dialect,
            "schema": self.schema,
            "name": self.name,
            "table": table_text(self.table),
            "displaces": self.displaces,
            "links": self.links,
            "members": self.members,
        }
        return arrow_stream(self.rows, header)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> WorkUnit:
        """Decode a unit whose rows share memory with `data`; raise `Malformed`."""
        with reading("work unit"):
            header, rows = arrow_batch(data)
            return cls(
                batch_id=header["batch"],
                part=header["part"],
                dialect=header["dialect"],
                schema=header["schema"],
                name=header["name"],
                table=table_of(header["table"]),
                rows=rows.replace_schema_metadata(None),
                displaces=header["displaces"],
                links=tuple((tag, tuple(offsets)) for tag, offsets in header["links"]),
                members=tuple((s, n, d, u) for s, n, d, u in header["members"]),
            )


@lru_cache(maxsize=1024)
def table_text(table: TableInfo) -> str:
    return json.dumps(table_to_json(table), separators=(",", ":"))


@lru_cache(maxsize=1024)
def table_of(text: str) -> TableInfo:
    """Parse a table version; the same text always returns the same object."""
    return table_from_json(json.loads(text))


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one work unit, UTF-8; `in_order` combines the statements of several units."""

    deletes: list[bytes] = field(default_factory=list)
    upserts: list[bytes] = field(default_factory=list)
    ordered: list[bytes] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, (*self.deletes, *self.upserts, *self.ordered)))

    def encode(self) -> bytes:
        texts = [*self.deletes, *self.upserts, *self.ordered]
        counts = _COUNTS.pack(len(self.deletes), len(self.upserts), len(self.ordered))
        lengths = struct.pack(f"<{len(texts)}I", *map(len, texts))
        return b"".join([counts, lengths, *texts])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Statements:
        """Return the statements in `data`; raise `Malformed` when the lengths do not add up."""
        view = memoryview(data)
        with reading("statements"):
            deletes, upserts, ordered = _COUNTS.unpack_from(view)
            count = deletes + upserts + ordered
            lengths = struct.unpack_from(f"<{count}I", view, _COUNTS.size)
            at = _COUNTS.size + 4 * count
            texts = []
            for length in lengths:
                texts.append(bytes(view[at : at + length]))
                at += length
            if at != len(view):
                raise ValueError(f"they end at {at} of {len(view)} bytes")
        upserts_end = deletes + upserts
        return cls(texts[:deletes], texts[deletes:upserts_end], texts[upserts_end:])


def in_order(parts: Iterable[Statements]) -> Sequence[bytes]:
    """Return the statements of all units of a batch in an order that is right.

    Deletes of every table and partition come first, so that no upsert meets a unique value that its
    owner is about to release; then upserts; then changes that had to keep their own order.
    """
    units = list(parts)
    statements: list[bytes] = []
    for unit in units:
        statements += unit.deletes
    for unit in units:
        statements += unit.upserts
    for unit in units:
        statements += unit.ordered
    return statements


def failure_of(error: Exception, problem: str) -> dict[str, str]:
    """Return problem, hint and code of a task's error; `problem` names the failed step."""
    if isinstance(error, PenstockError):
        problem, hint = getattr(error, "problem", str(error)), getattr(error, "hint", _REPORT_HINT)
        return {"problem": problem, "hint": hint, "code": str(error.code)}
    if isinstance(error, MemoryError):
        problem += ": they need more memory than Spark gives a task"
        return {"problem": problem, "hint": _MEMORY_HINT, "code": str(Code.SPARK_TASK)}
    problem += f": {type(error).__name__}: {error}"
    return {"problem": problem, "hint": _REPORT_HINT, "code": str(Code.DEFECT)}


_MEMORY_HINT: Final = "lower batch-bytes-max, or raise spark.executor.pyspark.memory in spark.conf"
_REPORT_HINT: Final = "the Drainer's checkpoint stands before this batch; report this failure"
