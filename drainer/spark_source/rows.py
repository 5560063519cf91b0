"""Rows: what a task does. It fetches the pieces of its partition and turns them into Arrow rows.

    piece ── Fetch, one call per Pump ── read_changes ──> columns of the table, or rows as JSON
    large ── Pull of this binlog ──> a temporary file ── slices ──> the same

A Pump that does not answer may have been taken over: the task asks etcd for the addresses, and
tries again for `PATIENCE_S`. Then it fails, and Spark may run it again.
"""

from __future__ import annotations

import base64
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import pyarrow as pa

from drainer.differences import FILTER
from drainer.intake.payload import Spooled, SpooledRows, outline_in
from drainer.intake.spool import chunk_of
from drainer.schema.snapshot import unpack
from drainer.sinks.committed import RowForm
from drainer.spark_source.columns import GENERIC, fitted
from drainer.spark_source.options import SourceOptions
from drainer.spark_source.pieces import Piece, Statement
from drainer.stream.decoder import SLICES
from drainer.task.change_batches import ChangeBatches
from drainer.task.events.messages import PerTable
from drainer.task.row_changes import (
    Lookup,
    Loss,
    Screened,
    TableChanges,
    Target,
    Targets,
    parse_merged,
    read_changes,
)
from drainer.task.row_fetch import CHANNEL_OPTIONS, Away, Fetcher, FetchSettings, FetchUnit, Pem
from drainer.task.selection import Selection
from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, PenstockError, Retryable
from penstock.filters import FilterConfig, Rules
from penstock.pb import penstock_pb2
from penstock.security.tls import open_channel

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.3
DDL: Final = "ddl"
"""The kind of a line of a query over all tables that is a statement."""
_READER: Final = "spark"
"""The tasks' name in a Pump's list of pullers."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The pieces of one partition, and where their Pumps were when it was planned."""

    cluster_id: int
    pieces: tuple[Piece | Statement, ...]
    addresses: dict[str, str]


def rows_of(part: Slice, options: SourceOptions, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows in commit order.

    Raises `Retryable` if a Pump stays away, `NeedsOperator` for binlogs that it has purged.
    """
    pumps = _Pumps(part, options)
    for piece in part.pieces:
        if isinstance(piece, Statement):
            yield _statement(piece)
            continue
        rows = _Typed(wanted) if options.place is not None else _Generic()
        targets = Targets(_lookup(piece.catalog, options))
        if piece.is_large:
            yield from _large(piece, pumps, targets, rows)
            continue
        for ts, payload in pumps.retrying(lambda: pumps.fetched(piece)):  # noqa: B023
            binlog = parse_merged(ts, payload)
            changes = read_changes(binlog.prewrite_value, targets.of)
            rows.add(ts, binlog.start_ts, changes, len(payload))
        yield from rows.take()


def _lookup(catalog: bytes, options: SourceOptions) -> Lookup:
    selection = _selection(catalog)
    if options.place is None:
        return selection.lookup
    schema, name = (part.lower() for part in options.place)

    def lookup(table_id: int, version: int) -> Target:
        found = selection.lookup(table_id, version)
        if isinstance(found, Screened) or (found[0].lower(), found[1].name.lower()) == (
            schema,
            name,
        ):
            return found
        return Screened(found, Loss(f"{found[0]}.{found[1].name}", cause=FILTER))

    return lookup


@lru_cache(maxsize=4)
def _selection(catalog: bytes) -> Selection:
    tracker, _ = unpack(catalog, "the schema of a partition")
    return Selection(Rules(FilterConfig()), tracker, checks=False)


# --- forms of rows -----------------------------------------------------------------------------


class _Typed:
    """Lines with the columns of one table."""

    def __init__(self, wanted: pa.Schema) -> None:
        self._wanted = wanted
        self._batches = ChangeBatches()

    def add(self, commit_ts: int, start_ts: int, changes: list[TableChanges], size: int) -> None:
        self._batches.add(commit_ts, start_ts, changes, size)

    def take(self) -> Iterator[pa.RecordBatch]:
        for each in self._batches.take():
            yield fitted(each.rows, self._wanted)


class _Generic:
    """A line for each change of any table, its rows as JSON."""

    def __init__(self) -> None:
        self._forms = PerTable(RowForm)
        self._lines: list[tuple[Any, ...]] = []
        self._last_ts = self._seq = 0

    def add(self, commit_ts: int, start_ts: int, changes: list[TableChanges], size: int) -> None:
        if commit_ts != self._last_ts:
            self._last_ts, self._seq = commit_ts, 0
        for each in changes:
            if not each.rows:
                continue
            change = self._forms.of(*each.target).change
            for made in map(change, each.kinds, each.rows):
                place = (made.schema, made.table, _json(made.before), _json(made.after))
                self._lines.append((*place, made.kind, commit_ts, start_ts, self._seq))
                self._seq += 1

    def take(self) -> Iterator[pa.RecordBatch]:
        lines, self._lines = self._lines, []
        if lines:
            yield _generic(lines)


def _generic(lines: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*lines, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, GENERIC, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=GENERIC)


def _statement(ddl: Statement) -> pa.RecordBatch:
    text = json.dumps({"query": ddl.query}, ensure_ascii=False)
    return _generic([(ddl.schema, None, None, text, DDL, ddl.commit_ts, ddl.start_ts, 0)])


def _json(row: Any) -> str | None:
    return None if row is None else json.dumps(dict(row), ensure_ascii=False, default=_text)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    assert isinstance(value, Decimal), "a row has no other values"
    return format(value, "f")


# --- Pumps -------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _fetcher(pem: Pem | None) -> Fetcher:
    return Fetcher(FetchSettings(filters=FilterConfig(), pem=pem))


class _Pumps:
    """The Pumps of a partition, at their present addresses."""

    def __init__(self, part: Slice, options: SourceOptions) -> None:
        self._part, self._options = part, options
        self._addresses = dict(part.addresses)
        self._tls = options.tls()
        self._fetcher = _fetcher(options.pem)

    def retrying(self, act: Callable[[], T]) -> T:
        """Return what `act` returns, once it succeeds."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except Away as away:
                if time.monotonic() > until_s:
                    raise Retryable(str(away), Code.NO_PUMP) from away
                log.warning("%s; trying again", away)
                time.sleep(_PAUSE_S)
                self._look()

    def _look(self) -> None:
        """Take the Pumps' addresses from etcd, as far as it answers."""
        try:
            etcd = connect(self._options.etcd, tls=self._tls)
            try:
                listed = Registry(etcd).list(NodeKind.PUMP)
            finally:
                etcd.close()
        except PenstockError as error:
            log.warning("the addresses of the Pumps are not known: %s", error)
            return
        self._addresses.update({each.node_id: each.host for each in listed})

    def fetched(self, piece: Piece) -> list[tuple[int, bytes]]:
        """Return the merged binlogs of a piece; raise `Away` or `NeedsOperator`."""
        unit = FetchUnit(
            batch_id=0,
            catalog=0,
            cluster_id=self._part.cluster_id,
            drainer_id=self._options.name or _READER,
            addresses=[self._addresses[pump] for pump in piece.pumps],
            commit_ts=piece.commit_ts,
            owners=piece.owners,
        )
        try:
            return list(self._fetcher.transactions(unit))
        except NeedsOperator as error:
            cause = error.__cause__
            if isinstance(cause, grpc.RpcError) and _is_purged(cause):
                raise NeedsOperator(error.problem, PURGED_HINT, error.code) from cause
            raise

    def pulled(self, piece: Piece, file: Any) -> None:
        """Write a large binlog into a file; raise `Away`, `NeedsOperator` or `Malformed`."""
        file.truncate(file.seek(0))
        ts, address = int(piece.commit_ts[0]), self._addresses[piece.pumps[0]]
        request = penstock_pb2.PullRequest(
            cluster_id=self._part.cluster_id, after_ts=ts - 1, pieces=True, drainer_id=_READER
        )  # fmt: skip
        with open_channel(address, self._tls, CHANNEL_OPTIONS) as channel:
            pull = channel.unary_stream(
                "/penstock.Pump/Pull",
                request_serializer=penstock_pb2.PullRequest.SerializeToString,
                response_deserializer=penstock_pb2.PullBatch.FromString,
            )
            try:
                for batch in pull(request, timeout=_LARGE_S):
                    chunk = chunk_of(batch)
                    if chunk is None and not batch.commit_ts:
                        continue
                    if chunk is None or (chunk.commit_ts, chunk.offset) != (ts, file.tell()):
                        raise Malformed(
                            f"the Pump at {address} did not send the large transaction {ts}",
                            "the Pumps and Spark's executors must run compatible versions",
                            Code.PULL_MALFORMED,
                        )
                    file.write(chunk.data)
                    if file.tell() == chunk.bytes:
                        file.flush()
                        return
            except grpc.RpcError as error:
                self._raise(address, error)
        raise Away(f"the Pump at {address} ended the stream of the large transaction {ts}")

    def _raise(self, address: str, error: Any) -> None:
        problem = f"the Pump at {address} does not send what it has: {error.code().name}:"
        problem += f" {error.details()}"
        if _is_purged(error):
            raise NeedsOperator(problem, PURGED_HINT, Code.PULL_REFUSED) from error
        raise Away(problem) from error


def _is_purged(error: Any) -> bool:
    return bool(error.code() is grpc.StatusCode.OUT_OF_RANGE)


PURGED_HINT: Final = (
    "begin with a copy of the data and a new checkpoint location, after its commit_ts; a streaming"
    " query with the option name keeps Pumps from purging what it has not processed"
)
_LARGE_S: Final = 3600.0


def _large(
    piece: Piece, pumps: _Pumps, targets: Targets, rows: _Typed | _Generic
) -> Iterator[pa.RecordBatch]:
    with tempfile.NamedTemporaryFile(prefix="penstock-large-") as file:
        pumps.retrying(lambda: pumps.pulled(piece, file))
        path, size = Path(file.name), file.tell()
        outline = outline_in(path, size)
        payload = Spooled(path, size, b"", outline)
        for changes in SpooledRows(payload, targets.of, SLICES).changes():
            rows.add(outline.commit_ts, outline.start_ts, changes, 0)
            yield from rows.take()
