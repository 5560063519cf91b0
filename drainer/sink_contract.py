"""Sink contract: the promises of every sink, as tests that a suite derives its classes from.

A package that provides a sink tests the same promises (`penstock.testing`):

    class TestMySink(SinkContract):
        def url(self, folder: Path) -> str: ...
        def seen(self, url: str) -> Seen: ...

Nothing runs but the sink: the DDL is planned here, and tasks' own functions make the batches.
"""

# A class of tests is named by its promises.

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from drainer.differences import Override, Skipped
from drainer.sinks.checkpoint import Checkpoint, Overridden
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import EventSink, Sink
from drainer.sinks.third_party import Moved, PluginSink
from drainer.task.events.event_unit import answer, encoded_units
from drainer.task.events.messages import Messages
from drainer.task.work_unit import Batch, TableRows, TransactionStart
from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator, Retryable
from penstock.wire.binlog import MutationType, Origin

CLUSTER = 6_791_641_053_252_586_769 * 2 + 1  # More than a signed 64-bit number holds.
SKIPPED = Override(commit_ts=10**9, verb="skip", made="then")

Seen = list[tuple[int, Any]]
"""commit_ts with the text of a DDL, or the ids of the rows that a transaction inserted."""

Row = tuple[object, ...]
Change = tuple[Row | None, Row | None]
"""A row before and after; None where there is none."""


Transactions = Mapping[int, Mapping[str, Sequence[Change]]]
"""The changes of each table, by commit_ts."""


class SinkStream:
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

    def ddl(self, sink: Sink, *statements: str) -> Checkpoint:
        for sql in statements:
            for change in self.changes(sql):
                point = self.point()
                sink.run_ddl(change, point, maybe_done=False)
        return point

    def table_rows(
        self, name: str, changes: Sequence[Change], transactions: Sequence[int] | None = None
    ) -> TableRows:
        table = self.catalog.table("shop", name)
        assert table is not None
        codec, kinds, rows = RowCodec(table), bytearray(), []
        for before, after in changes:
            if before is None:
                assert after is not None
                kinds.append(MutationType.INSERT)
                rows.append(codec.encode_insert(after))
            elif after is None:
                kinds.append(MutationType.DELETE)
                rows.append(codec.encode_delete(before))
            else:
                kinds.append(MutationType.UPDATE)
                rows.append(codec.encode_update(before, after))
        numbers = None if transactions is None else np.array(transactions, np.int32)
        return TableRows("shop", table, bytes(kinds), pa.array(rows, pa.binary()), numbers)

    def batch_of(self, transactions: Transactions, *, is_slice: bool = False) -> Batch:
        of_table: dict[str, list[tuple[int, Change]]] = {}
        for number, tables in enumerate(transactions.values()):
            for name, changes in tables.items():
                of_table.setdefault(name, []).extend((number, each) for each in changes)
        held = [
            self.table_rows(name, [each for _, each in some], [number for number, _ in some])
            for name, some in of_table.items()
        ]
        return Batch(
            1, held, displaces=is_slice, commit_ts=list(transactions),
            starts={ts: TransactionStart(ts - 1, self.origin) for ts in transactions},
        )  # fmt: skip

    def messages(self, sink: EventSink, batch: Batch, parts: int = 3) -> list[Messages]:
        units = encoded_units(batch, sink.encoding, parts)
        return [Messages.decode(answer(unit), batch.starts) for unit in units]


CREATE = "CREATE DATABASE shop; CREATE TABLE t (id INT PRIMARY KEY)"


class InsertStream(SinkStream):
    """A stream of rows that are inserted into one table, `t (id)`."""

    def batch(self, transactions: Mapping[int, Sequence[int]], *, is_slice: bool = False) -> Batch:
        made = {ts: {"t": inserts(*((i,) for i in ids))} for ts, ids in transactions.items()}
        return self.batch_of(made, is_slice=is_slice)

    def put(self, sink: EventSink, *ids: int) -> Checkpoint:
        point = self.point()
        sink.put(self.messages(sink, self.batch({point.commit_ts: ids})), point)
        return point

    def create(self, sink: EventSink) -> None:
        self.ddl(sink, CREATE)


def inserts(*rows: Row) -> list[Change]:
    return [(None, row) for row in rows]


class Output(InsertStream):
    """One output, its sinks, and a stream for it."""

    def __init__(self, opened: Callable[[int], EventSink], seen: Callable[[], Seen]) -> None:
        super().__init__()
        self._opened = opened
        self.seen = seen
        self.sinks: list[EventSink] = []

    def open(self, cluster_id: int = CLUSTER) -> EventSink:
        sink = self._opened(cluster_id)
        self.sinks.append(sink)
        return sink

    def begun(self) -> EventSink:
        sink = self.open()
        sink.load_checkpoint()
        sink.look_at(self.catalog)
        self.create(sink)
        return sink

    def add(self, sink: EventSink, *ids: int, point: Checkpoint | None = None) -> Checkpoint:
        point = point or self.point()
        sink.put(self.messages(sink, self.batch({point.commit_ts: ids})), point)
        return point

    def ids(self) -> list[int]:
        return [each for _, ids in self.rows() for each in ids]

    def rows(self) -> Seen:
        return [(ts, what) for ts, what in self.seen() if isinstance(what, list)]


def following(downstream: Any) -> tuple[Sink, Checkpoint]:
    """Return the sink of the next run, and the checkpoint that it continues from."""
    sink: Sink = downstream.open()
    found = sink.load_checkpoint()
    assert found is not None
    sink.look_at(downstream.catalog)
    return sink, found


class CheckpointContract:
    """The promises of every sink about its checkpoint, for a fixture `downstream`."""

    def test_a_fresh_downstream_has_no_checkpoint_and_none_after_looking(
        self, downstream: Any
    ) -> None:
        for _ in range(2):
            assert downstream.open().load_checkpoint() is None

    def test_a_closed_sink_says_so(self, downstream: Any) -> None:
        sink = downstream.open()
        sink.close()
        with pytest.raises(Retryable):
            sink.load_checkpoint()

    def test_a_saved_checkpoint_is_what_the_next_run_loads(self, downstream: Any) -> None:
        sink = downstream.open()
        sink.load_checkpoint()
        sql = 'ALTER TABLE `it\'s` ADD c TEXT COMMENT "a \\ and \\" and ü",\n ADD d INT'
        point = replace(
            Checkpoint(2**63 + 5, 7, consistent=True),
            skipped={Skipped("rows", "override", "shop.it's \\ `odd` \x7f ü"): 2**40},
            origins={"a": (1, 2, 3)},
            pumps={'p"1': 7},
            overrides={7: Override(commit_ts=7, verb="replace", sql=sql, made="then")},
        )
        sink.save_checkpoint(Checkpoint(5, 1))
        assert sink.is_new is False
        sink.save_checkpoint(point)
        sink.close()
        assert downstream.open().load_checkpoint() == point

    def test_changes_and_checkpoint_arrive_together_and_the_next_run_continues(
        self, downstream: Any
    ) -> None:
        first = downstream.begun()
        one = downstream.add(first, 1, 2)
        first.close()
        second, found = following(downstream)
        assert (found, downstream.ids()) == (one, [1, 2])
        downstream.add(second, 3)
        assert downstream.ids() == [1, 2, 3]

    def test_a_second_drainer_on_the_same_downstream_stops_the_first(self, downstream: Any) -> None:
        first = downstream.begun()
        second, _ = following(downstream)
        downstream.add(second, 1)
        for _ in range(2):
            with pytest.raises(NeedsOperator, match="another Drainer"):
                downstream.add(first, 2)
        downstream.add(second, 3)
        assert downstream.ids() == [1, 3]

    def test_two_drainers_that_reach_the_same_checkpoint_do_not_both_write(
        self, downstream: Any
    ) -> None:
        first = downstream.begun()
        second, _ = following(downstream)
        point = downstream.add(first, 1)
        with pytest.raises(NeedsOperator):
            downstream.add(second, 2, point=point)
        assert downstream.ids() == [1]

    def test_a_downstream_of_another_cluster_is_refused_and_left_alone(
        self, downstream: Any
    ) -> None:
        one, two = downstream.begun(), downstream.open(cluster_id=2)
        before = downstream.add(one, 1)
        with pytest.raises(NeedsOperator, match=rf"that of cluster {CLUSTER} .* of cluster 2,"):
            two.load_checkpoint()
        with closing(downstream.open()) as again:
            assert again.load_checkpoint() == before
        assert downstream.ids() == [1]

    def test_an_override_is_read_before_the_next_commit_of_the_run_that_writes(
        self, downstream: Any
    ) -> None:
        sink = downstream.begun()
        operator = downstream.open()
        before = operator.load_checkpoint()
        operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
        with pytest.raises(Overridden):
            downstream.add(sink, 1)
        assert downstream.ids() == []
        found = sink.load_checkpoint()
        assert found == replace(
            before, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True
        )
        assert found.writer == sink.writer
        downstream.add(sink, 2)
        assert downstream.ids() == [2]

    def test_an_override_that_comes_before_a_run_has_stored_anything_is_read_by_it_too(
        self, downstream: Any
    ) -> None:
        sink, operator = downstream.open(), downstream.open()
        assert sink.load_checkpoint() is operator.load_checkpoint() is None
        operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
        with pytest.raises(Overridden):
            sink.save_checkpoint(downstream.point())
        found = sink.load_checkpoint()
        assert sink.is_new
        assert found == Checkpoint(
            0, 0, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True
        )
        sink.save_checkpoint(replace(found, commit_ts=5))
        assert not sink.is_new
        # The next one has loaded what the first one stored, and has not stored anything itself.
        following = downstream.open()
        following.load_checkpoint()
        operator.change_overrides(lambda now: {})
        with pytest.raises(Overridden):
            following.save_checkpoint(downstream.point())

    def test_a_change_of_overrides_that_fails_leaves_the_checkpoint_as_it_is(
        self, downstream: Any
    ) -> None:
        sink, operator = downstream.begun(), downstream.open()
        before = operator.load_checkpoint()

        def refuse(now: Checkpoint) -> dict[int, Override]:
            raise NeedsOperator("it is under way", hint="wait", code=Code.DDL_UNSUPPORTED)

        with pytest.raises(NeedsOperator, match="under way"):
            operator.change_overrides(refuse)
        assert downstream.open().load_checkpoint() == before
        downstream.add(sink, 1)


class EventContract:
    """The promises of every sink of events, for a fixture `downstream`, which is an `Output`."""

    def test_messages_and_checkpoint_arrive_together_in_commit_order(self, downstream: Any) -> None:
        sink = downstream.begun()
        batch = downstream.batch({1000: [1, 2], 1001: [3], 1002: [], 1003: [4, 5, 6]})
        point = Checkpoint(1004, 2)
        sink.put(downstream.messages(sink, batch), point)
        assert downstream.rows() == [(1000, [1, 2]), (1001, [3]), (1003, [4, 5, 6])]
        assert downstream.open().load_checkpoint() == point

    def test_a_large_batch_is_spread_over_units_and_keeps_its_order(self, downstream: Any) -> None:
        sink = downstream.begun()
        wanted = {1000 + number: [number] for number in range(2000)}
        made = downstream.messages(sink, downstream.batch(wanted))
        assert len(made) == 3
        sink.put(made, Checkpoint(4000, 2))
        assert downstream.rows() == list(wanted.items())

    def test_a_ddl_is_in_its_place_among_the_rows(self, downstream: Any) -> None:
        sink = downstream.begun()
        first = downstream.put(sink, 1)
        (change,) = downstream.changes("CREATE TABLE other (id INT)")
        point = downstream.point()
        sink.run_ddl(change, point, maybe_done=False)
        assert downstream.open().load_checkpoint() == point
        last = downstream.put(sink, 2)
        assert [ts for ts, _ in downstream.seen()][-3:] == [
            first.commit_ts, point.commit_ts, last.commit_ts,
        ]  # fmt: skip
        assert downstream.seen()[-2][1].removeprefix("use `shop`; ").startswith("CREATE TABLE")

    def test_a_large_transaction_is_there_as_a_whole(self, downstream: Any) -> None:
        sink = downstream.begun()
        point = downstream.point()

        def slices() -> Generator[Messages]:
            for number in range(5):
                batch = downstream.batch(
                    {point.commit_ts: [number * 2, number * 2 + 1]}, is_slice=True
                )
                yield from downstream.messages(sink, batch)

        sink.put_slices(slices, point)
        after = downstream.put(sink, 99)
        assert downstream.rows() == [(point.commit_ts, list(range(10))), (after.commit_ts, [99])]

    def test_a_large_transaction_that_fails_in_the_middle_leaves_nothing(
        self, downstream: Any
    ) -> None:
        sink = downstream.begun()
        before = downstream.put(sink, 1)
        point = downstream.point()

        def failing() -> Generator[Messages]:
            batch = downstream.batch({point.commit_ts: list(range(50))}, is_slice=True)
            yield from downstream.messages(sink, batch)
            raise Retryable("the Drainer ends", code=Code.CLOSED)

        with pytest.raises(Retryable):
            sink.put_slices(failing, point)
        assert downstream.open().load_checkpoint() == before
        last = downstream.put(sink, 2)
        assert downstream.rows() == [(before.commit_ts, [1]), (last.commit_ts, [2])]

    def test_a_large_transaction_of_which_nothing_goes_downstream_is_no_message(
        self, downstream: Any
    ) -> None:
        sink = downstream.begun()
        nothing: list[Messages] = []
        sink.put_slices(lambda: (each for each in nothing), downstream.point())
        last = downstream.put(sink, 2)
        assert downstream.rows() == [(last.commit_ts, [2])]


class SinkContract(CheckpointContract, EventContract):
    """All promises of a sink that another package provides."""

    def url(self, folder: Path) -> str:
        """Return the URL of a new downstream; a test has a folder for it."""
        raise NotImplementedError

    def seen(self, url: str) -> Seen:
        """Return what a reader sees in the table `shop.t`, whose only column is `id`.

        Each transaction with its ids, and each DDL with its text, in commit order.
        """
        raise NotImplementedError

    @pytest.fixture
    def downstream(self, tmp_path: Path) -> Iterator[Output]:
        url = self.url(tmp_path)

        def opened(cluster_id: int) -> EventSink:
            sink = open_sink(url, cluster_id=cluster_id, retry_s_max=5)
            assert isinstance(sink, PluginSink), f"{url} is not the URL of a plug-in"
            return sink

        made = Output(opened, lambda: self.seen(url))
        yield made
        for sink in made.sinks:
            sink.close()

    def test_a_write_whose_answer_is_lost_happens_once(self, downstream: Any) -> None:
        sink = downstream.begun()
        made = sink._opened()

        def lossy(*arguments: Any) -> None:
            type(made).write(made, *arguments)
            raise ConnectionError("the answer is lost")

        made.write = lossy
        point = downstream.add(sink, 1)
        downstream.add(sink, 2)
        assert sink._opened() is not made
        assert downstream.ids() == [1, 2]
        assert downstream.rows()[0][0] == point.commit_ts

    def test_a_write_after_another_savepoint_is_refused(self, downstream: Any) -> None:
        sink = downstream.begun()
        before = downstream.add(sink, 1)
        with pytest.raises(Moved):
            sink._opened().write((), "{}", "another savepoint")
        assert downstream.open().load_checkpoint() == before
        downstream.add(sink, 2)
        assert downstream.ids() == [1, 2]
