"""Loop-back control: which transactions stop, in which form they come, what else stays."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from drainer.apply.large import LargeTransactions
from drainer.components import protected_schemas
from drainer.differences import Counts, Skipped
from drainer.intake.merger import Merged
from drainer.intake.payload import Limits, Spooled, outline
from drainer.planner import LargeStep, Planner, RowsStep
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.settings.syncer_section import SyncerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread, open_table_sink
from drainer.task.row_changes import OWN_SCHEMAS, MarkTable, read_changes
from drainer.task.selection import Selection
from drainer.task.work_unit import Batch
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import SchemaChange, plan_ddl
from penstock.errors import Malformed
from penstock.filters import EventRule, FilterConfig, Rules
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value

INSERT, UPDATE, DELETE = MutationType
MARKS = (
    "CREATE TABLE retl._drainer_repl_mark (id BIGINT, channel_id BIGINT NOT NULL DEFAULT 0,"
    " val BIGINT DEFAULT 0, channel_info VARCHAR(64), PRIMARY KEY (id, channel_id))"
)


RETURNED = Counts([Skipped("transactions", "loop-back")])


class Upstream:
    """A tracked schema with a table of items, the table of marks, and a selection over both."""

    def __init__(
        self, channel_id: int | None = 7, config: FilterConfig | None = None, runs_ddl: bool = True
    ) -> None:
        self.tracker = SchemaTracker()
        own = OWN_SCHEMAS if channel_id is not None else ()
        rules = Rules(config or FilterConfig(), protected=own)
        self.selection = Selection(rules, self.tracker, channel_id=channel_id, runs_ddl=runs_ddl)
        self._ids = count(1)
        for sql in ("CREATE DATABASE shop", "CREATE DATABASE retl", MARKS,
                    "CREATE TABLE shop.item (id INT PRIMARY KEY, n INT)"):  # fmt: skip
            self.ddl(sql)

    def ddl(self, sql: str) -> SchemaChange | None:
        (job,) = plan_ddl(sql, None, self.tracker.catalog, lambda: next(self._ids))
        routed = self.selection.route(self.tracker.follow(job))
        return None if isinstance(routed, Skipped) else routed

    def table(self, schema: str, name: str) -> TableInfo:
        found = self.tracker.catalog.table(schema, name)
        assert found is not None
        return found

    def mark(self, kind: MutationType, channel_id: int) -> TableMutation:
        table = self.table("retl", "_drainer_repl_mark")
        codec, row, after = RowCodec(table), (0, channel_id, 1, "x"), (0, channel_id, 2, "x")
        return TableMutation(
            table_id=table.id,
            inserted_rows=(codec.encode_insert(row),) if kind is INSERT else (),
            updated_rows=(codec.encode_update(row, after),) if kind is UPDATE else (),
            deleted_rows=(codec.encode_delete(row),) if kind is DELETE else (),
            sequence=(kind,),
        )

    def items(self, *ids: int) -> TableMutation:
        table = self.table("shop", "item")
        rows = tuple(RowCodec(table).encode_insert((i, i)) for i in ids)
        return TableMutation(table_id=table.id, inserted_rows=rows, sequence=(INSERT,) * len(rows))

    def value(self, *mutations: TableMutation) -> bytes:
        version = self.tracker.version
        return encode_prewrite_value(PrewriteValue(schema_version=version, mutations=mutations))


def binlog(ts: int, value: bytes) -> bytes:
    return encode_binlog(
        Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts, prewrite_value=value)
    )


@pytest.mark.parametrize("kind", list(MutationType))
@pytest.mark.parametrize("first", [True, False])
def test_a_transaction_with_our_mark_has_no_changes_wherever_the_mark_stands(
    kind: MutationType, first: bool
) -> None:
    up = Upstream()
    parts = [up.items(1, 2), up.mark(kind, 7)]
    value = up.value(*(parts[::-1] if first else parts))
    (change,) = read_changes(value, up.selection.lookup)
    assert (change.rows, change.skipped) == ([], RETURNED)


def test_a_foreign_mark_stops_nothing_and_is_not_data() -> None:
    up = Upstream()
    changes = read_changes(up.value(up.mark(UPDATE, 8), up.items(1, 2)), up.selection.lookup)
    assert [(len(change.rows), change.skipped) for change in changes] == [(2, None)]


def test_without_loop_back_control_the_table_of_marks_is_a_table() -> None:
    up = Upstream(channel_id=None)
    changes = read_changes(up.value(up.mark(UPDATE, 7), up.items(1)), up.selection.lookup)
    assert len(changes) == 2


def test_the_mark_is_looked_at_before_a_filter_can_stop_the_drainer() -> None:
    rule = EventRule(schema_pattern="shop", table_pattern="item", events=("insert",),
                     action="Error")  # fmt: skip
    up = Upstream(config=FilterConfig(events=(rule,)))
    value = up.value(up.items(1), up.mark(INSERT, 7))
    assert [each.skipped for each in read_changes(value, up.selection.lookup)] == [RETURNED]


def test_the_planner_moves_time_over_what_came_back_and_counts_it_once() -> None:
    up = Upstream()
    planner = Planner(up.selection.lookup, rows_max=3, bytes_max=100_000)
    values = [up.value(up.items(1, 2)), up.value(up.mark(UPDATE, 7), up.items(3, 4)),
              up.value(up.items(5, 6)), up.value(up.mark(UPDATE, 7))]  # fmt: skip
    payloads = [binlog(ts, value) for ts, value in enumerate(values, 10)]
    planner.offer(Merged(list(range(10, 14)), payloads, 0))
    steps, skipped = [], Counts()
    while (step := planner.next_step() or planner.cut()) is not None:
        assert isinstance(step, RowsStep)
        steps.append((step.commit_ts, step.rows))
        skipped += step.skipped
    assert sum(rows for _, rows in steps) == 4
    assert steps[-1][0] == 13
    assert skipped == RETURNED + RETURNED


def test_a_table_that_only_bears_the_name_is_refused() -> None:
    with pytest.raises(Malformed, match="has no column channel_id"):
        MarkTable(("retl", TableInfo(id=1, name="_drainer_repl_mark")), 7)


def test_nothing_of_the_drainers_own_schemas_is_replicated() -> None:
    up = Upstream()
    assert up.ddl("CREATE DATABASE tidb_binlog") is None
    assert up.ddl("CREATE TABLE tidb_binlog.checkpoint (id INT PRIMARY KEY)") is None
    assert up.ddl("ALTER TABLE retl._drainer_repl_mark ADD COLUMN more INT") is None
    assert up.ddl("ALTER TABLE shop.item ADD COLUMN more INT") is not None
    syncer = SyncerConfig(loopback_control=True)
    config = DrainerConfig(sink="mysql://u@h/?checkpoint-schema=mine", syncer=syncer)
    assert protected_schemas(config) == {"mine", "retl", "tidb_binlog"}


def test_with_sync_ddl_off_a_ddl_is_tracked_and_not_run() -> None:
    up = Upstream(runs_ddl=False)
    assert up.ddl("ALTER TABLE shop.item ADD COLUMN more INT") is None
    assert up.table("shop", "item").column("more") is not None


@pytest.mark.parametrize(("channel_id", "rows"), [(7, 0), (8, 50)])
def test_a_large_transaction_with_our_mark_only_moves_the_checkpoint(
    channel_id: int, rows: int, tmp_path: Path
) -> None:
    up = Upstream()
    sent = binlog(20, up.value(up.items(*range(50)), up.mark(UPDATE, channel_id)))
    path = tmp_path / "large"
    path.write_bytes(sent)
    found = outline(lambda offset, size: sent[offset : offset + size], len(sent))
    limits = Limits(bytes_max=200, rows_max=10)
    step = LargeStep(20, Spooled(path, len(sent), b"", found), up.selection.lookup, limits)
    made: list[int] = []

    async def generate(batch: Batch) -> list[bytes]:
        made.append(sum(len(table.rows) for table in batch.tables))
        return []

    async def test() -> None:
        sink, thread = open_table_sink(f"sqlite:///{tmp_path / 'd.db'}", cluster_id=1), SinkThread()
        await thread.call(sink.load_checkpoint)
        prepared = await LargeTransactions(generate, sink.apply_slices, sink, thread).prepare(step)
        await prepared(Checkpoint(20, 1))
        assert await thread.call(sink.load_checkpoint) == Checkpoint(20, 1)
        sink.close()
        assert await thread.close(5)

    asyncio.run(asyncio.wait_for(test(), 60))
    assert sum(made) == rows
    assert step.skipped == (RETURNED if channel_id == 7 else {})
    assert not path.exists()
