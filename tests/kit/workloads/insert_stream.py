"""A stream of inserts for sinks of events: one table, transactions of chosen rows, and its DDL."""

import itertools

import numpy as np
import pyarrow as pa

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import EventSink
from drainer.task.events.event_unit import answer, event_units
from drainer.task.events.messages import Messages
from drainer.task.work_unit import Batch, TableRows, TransactionStart
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.wire.binlog import MutationType, Origin

CREATE = "CREATE DATABASE shop; CREATE TABLE t (id INT PRIMARY KEY)"


class InsertStream:
    """Hands out changes and the checkpoints that go with them, in commit order."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._ids = itertools.count(1)
        self.ts = 100
        self.origin: Origin | None = None
        """Of all transactions."""

    def point(self) -> Checkpoint:
        self.ts += 1
        return Checkpoint(commit_ts=self.ts, schema_version=self.catalog.version)

    def changes(self, sql: str) -> list[SchemaChange]:
        made = []
        for each in sql.split("; "):
            jobs = plan_ddl(each, "shop", self.catalog, lambda: next(self._ids))
            made += [self.catalog.apply(job) for job in jobs]
        return made

    def batch(self, transactions: dict[int, list[int]], *, is_slice: bool = False) -> Batch:
        """Return transactions, by commit_ts, that insert rows of these ids."""
        table = self.catalog.table("shop", "t")
        assert table is not None
        codec = RowCodec(table)
        rows = [codec.encode_insert((i,)) for some in transactions.values() for i in some]
        sizes = [len(some) for some in transactions.values()]
        numbers = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        kinds = bytes([MutationType.INSERT]) * len(rows)
        held = TableRows("shop", table, kinds, pa.array(rows, pa.binary()), numbers)
        return Batch(
            1, [held], displaces=is_slice, commit_ts=list(transactions),
            starts={ts: TransactionStart(ts - 1, self.origin) for ts in transactions},
        )  # fmt: skip

    def messages(self, sink: EventSink, batch: Batch) -> list[Messages]:
        """Return a batch as the tasks encode it."""
        units = event_units(batch, sink.encoding, parts=3)
        return [Messages.decode(answer(unit.encode()), batch.starts) for unit in units]

    def put(self, sink: EventSink, *ids: int) -> Checkpoint:
        point = self.point()
        sink.put(self.messages(sink, self.batch({point.commit_ts: list(ids)})), point)
        return point

    def create(self, sink: EventSink) -> None:
        for change in self.changes(CREATE):
            sink.run_ddl(change, self.point(), maybe_done=False)
