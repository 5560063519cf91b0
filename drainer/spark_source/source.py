"""The classes that Spark calls; they hold options and columns, and are pickled with these.

Spark makes a reader wherever it needs one: where it plans a batch, in the process of a streaming
query, and in each task. Only the first two plan (`drainer.spark_source.plan`), and open a feed with
the first question.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from drainer.spark_source.options import SourceOptions
from drainer.spark_source.pieces import Piece, Statement
from drainer.spark_source.plan import Offset, SourcePlan, now_ts, table_columns
from drainer.spark_source.rows import Slice, rows_of
from drainer.stream.feed import NOW

PARTITION_BYTES = 8 << 20
"""A partition ends at the piece that fills it."""


class PenstockSource(DataSource):  # type: ignore[misc]
    """The format `penstock`; docs/spark.md has its options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns of the option `table`, or those of all tables."""
        return from_arrow_schema(table_columns(SourceOptions.of(self.options)))

    def reader(self, schema: StructType) -> PenstockReader:
        options = SourceOptions.of(self.options)
        options.check_batch()
        return PenstockReader(options, schema)

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802
        options = SourceOptions.of(self.options)
        options.check_stream()
        return PenstockStreamReader(options, schema)


class PenstockReader(DataSourceReader):  # type: ignore[misc]
    """The changes between two commit_ts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        now = now_ts(options)
        until_ts = now if options.until in (None, NOW) else min(options.until or 0, now)
        plan = SourcePlan(options, _columns(self._schema))
        plan.target_ts = until_ts
        try:
            pieces = plan.pieces(plan.initial(), {"commit_ts": until_ts})
            return _partitions(plan, pieces) or [InputPartition(None)]
        finally:
            plan.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema)


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The changes of a streaming query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._made: SourcePlan | None = None

    @property
    def _plan(self) -> SourcePlan:
        if self._made is None:
            _stop_at_sigterm()
            self._made = SourcePlan(self._options, _columns(self._schema))
        return self._made

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._plan.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan.target_ts = now_ts(self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return self._plan.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return _partitions(self._plan, self._plan.pieces(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema)

    def commit(self, end: Offset) -> None:
        self._plan.commit(end)

    def stop(self) -> None:
        if self._made is not None:
            if signal.getsignal(signal.SIGTERM) is _exit:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._made.close()


def _stop_at_sigterm() -> None:
    """Let SIGTERM, by which Spark ends the process of a stopped query, call `stop` first.

    Spark sends it more than once. Only the first is an exit: another must not interrupt `stop`.
    """
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def _exit(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _columns(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _partitions(plan: SourcePlan, pieces: Sequence[Piece | Statement]) -> list[InputPartition]:
    made: list[InputPartition] = []
    held: list[Piece | Statement] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.size if isinstance(piece, Piece) else 0
        if size >= PARTITION_BYTES or piece is pieces[-1]:
            made.append(InputPartition(Slice(plan.cluster_id, tuple(held), plan.addresses())))
            held, size = [], 0
    return made


def _read(
    partition: InputPartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    value: Any = partition.value
    return iter(()) if value is None else rows_of(value, options, _columns(schema))
