"""Filters and routes over a stream: what is planned, what is left out, what runs of the DDL."""

from itertools import count

import pytest

from drainer.differences import Counts, Skipped
from drainer.intake.merger import Merged
from drainer.planner import Planner, RowsStep
from drainer.schema.tracker import SchemaTracker
from drainer.task.row_changes import Collector, read_changes
from drainer.task.selection import Selection
from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.filters import EventRule, ExpressionRule, FilterConfig, RouteRule, Rules
from penstock.filters.settings import ExtractTable
from penstock.schema.model import DdlJob, TableInfo
from penstock.wire.binlog import MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_prewrite_value
from tests.kit.tidb.tidb_shop import committed

INSERT, UPDATE, DELETE = MutationType
SHARDS = (RouteRule(schema_pattern="s_?", table_pattern="t*", target_schema="all",
                    target_table="t"),)  # fmt: skip


class Upstream:
    """A tracked schema and what the selection makes of it."""

    def __init__(self, config: FilterConfig) -> None:
        self.tracker = SchemaTracker()
        self.selection = Selection(Rules(config), self.tracker)
        self.skipped = Counts()
        self._ids = count(1)

    def planned(self, sql: str) -> DdlJob:
        (job,) = plan_ddl(sql, None, self.tracker.catalog, lambda: next(self._ids))
        return job

    def ddl(self, sql: str) -> SchemaChange | None:
        routed = self.selection.route(self.tracker.follow(self.planned(sql)))
        if not isinstance(routed, Skipped):
            return routed
        self.skipped[routed] += 1
        return None

    def table(self, schema: str, name: str) -> TableInfo:
        found = self.tracker.catalog.table(schema, name)
        assert found is not None
        return found

    def inserts(self, schema: str, name: str, *rows: tuple[object, ...]) -> TableMutation:
        table = self.table(schema, name)
        codec = RowCodec(table)
        return TableMutation(
            table_id=table.id,
            inserted_rows=tuple(codec.encode_insert(row) for row in rows),
            sequence=(INSERT,) * len(rows),
        )

    def value(self, *mutations: TableMutation) -> bytes:
        version = self.tracker.version
        return encode_prewrite_value(PrewriteValue(schema_version=version, mutations=mutations))


def test_what_the_downstream_has_bears_the_names_of_the_routes() -> None:
    up = Upstream(FilterConfig(routes=SHARDS, ignore_dbs=("hidden",)))
    for schema in ("s_1", "s_2", "other", "hidden"):
        up.ddl(f"CREATE DATABASE {schema}")
        up.ddl(f"CREATE TABLE {schema}.t1 (id INT PRIMARY KEY)")
    found = up.selection.downstream()
    assert sorted((schema, table.name) for schema, table in found.tables()) == [
        ("all", "t"),
        ("other", "t1"),
    ]
    assert {schema.name for schema in found.schemas()} >= {"all", "other"}
    assert found.schema("hidden") is None


def shop(config: FilterConfig) -> Upstream:
    up = Upstream(config)
    up.ddl("CREATE DATABASE shop")
    up.ddl("CREATE TABLE shop.item (id INT PRIMARY KEY, n INT)")
    up.ddl("CREATE TABLE shop.other (id INT PRIMARY KEY, n INT)")
    return up


def test_rows_of_a_filtered_table_are_counted_and_never_looked_at() -> None:
    up = shop(FilterConfig(do_dbs=("elsewhere",)))
    garbage = TableMutation(
        table_id=up.table("shop", "item").id, inserted_rows=(b"\xff", b"\xfe"),
        sequence=(INSERT, INSERT),
    )  # fmt: skip
    planner = Planner(up.selection.lookup, rows_max=10, bytes_max=1000)
    payload = committed(10, up.value(garbage))
    planner.offer(Merged([10], [payload], 0))
    assert planner.next_step() is None
    step = planner.cut()
    assert isinstance(step, RowsStep)
    assert (step.commit_ts, step.rows, step.tables) == (10, 0, [])
    assert step.skipped == {Skipped("rows", "filter", "shop.item"): 2}


def test_kinds_of_change_are_left_out_by_table() -> None:
    rule = EventRule(schema_pattern="shop", table_pattern="item", events=("delete", "update"),
                     action="Ignore")  # fmt: skip
    up = shop(FilterConfig(events=(rule,)))
    item, other = up.table("shop", "item"), up.table("shop", "other")
    changes = [
        TableMutation(
            table_id=table.id, inserted_rows=(b"i",), updated_rows=(b"u",), deleted_rows=(b"d",),
            sequence=(DELETE, INSERT, UPDATE),
        )
        for table in (item, other)
    ]  # fmt: skip
    one, two = read_changes(up.value(*changes), up.selection.lookup)
    filtered = {Skipped("rows", "filter", "shop.item"): 2}
    assert (one.kinds, one.rows, one.skipped) == (bytes([INSERT]), [b"i"], filtered)
    assert (two.rows, two.skipped) == ([b"d", b"i", b"u"], None)


def test_a_rule_that_says_error_stops_at_such_a_row_and_not_before() -> None:
    rule = EventRule(schema_pattern="shop", events=("delete",), action="Error")
    up = shop(FilterConfig(events=(rule,)))
    table_id = up.table("shop", "item").id
    insert = TableMutation(table_id=table_id, inserted_rows=(b"i",), sequence=(INSERT,))
    delete = TableMutation(table_id=table_id, deleted_rows=(b"d",), sequence=(DELETE,))
    (change,) = read_changes(up.value(insert), up.selection.lookup)
    assert change.rows == [b"i"]
    with pytest.raises(NeedsOperator, match="rows with delete meet an event rule that says Error"):
        read_changes(up.value(delete), up.selection.lookup)


def test_rows_are_left_out_by_their_values() -> None:
    rule = ExpressionRule(schema="shop", table="item", insert_value_expr="n < 0")
    up = shop(FilterConfig(expressions=(rule,)))
    mutation = up.inserts("shop", "item", (1, 5), (2, -5), (3, None))
    (change,) = read_changes(up.value(mutation), up.selection.lookup)
    assert len(change.rows) == 2
    collector = Collector()
    collector.add([change], 1)
    assert collector.rows == 2
    assert collector.skipped == {Skipped("rows", "filter", "shop.item"): 1}


def test_an_expression_that_does_not_fit_stops_at_the_start_and_at_a_new_version() -> None:
    rule = ExpressionRule(schema="shop", table="item", insert_value_expr="price < 0")
    up = shop(FilterConfig(expressions=(rule,)))
    mutation = up.inserts("shop", "item", (1, 5))
    with pytest.raises(NeedsOperator, match="no column 'price'"):
        read_changes(up.value(mutation), up.selection.lookup)
    with pytest.raises(NeedsOperator, match="no column 'price'"):
        Selection(Rules(FilterConfig(expressions=(rule,))), up.tracker)


def test_a_filtered_ddl_is_tracked_and_not_run() -> None:
    up = shop(FilterConfig(ignore_dbs=("shop",)))
    assert up.ddl("ALTER TABLE shop.item ADD COLUMN c INT") is None
    assert [c.name for c in up.table("shop", "item").columns] == ["id", "n", "c"]
    tables = ["shop.item", "shop.item", "shop.other", "shop"]
    assert up.skipped == Counts(Skipped("ddls", "filter", each) for each in tables)


# --- several tables into one -------------------------------------------------------------------


def shards() -> Upstream:
    up = Upstream(FilterConfig(routes=SHARDS))
    for number in (1, 2):
        up.ddl(f"CREATE DATABASE s_{number}")
        up.ddl(f"CREATE TABLE s_{number}.t{number} (id INT PRIMARY KEY, n INT)")
    return up


def test_the_first_source_makes_the_table_and_its_schema() -> None:
    up = Upstream(FilterConfig(routes=SHARDS))
    up.ddl("CREATE DATABASE s_1")
    made = up.ddl("CREATE TABLE s_1.t1 (id INT PRIMARY KEY)")
    assert made is not None
    assert made.job.query.startswith("CREATE TABLE `all`.`t` (id INT PRIMARY KEY)")
    assert (made.job.schema_name, made.job.schema and made.job.schema.name) == ("all", "all")
    assert [(schema, table.name) for schema, table in made.created] == [("all", "t")]
    up.ddl("CREATE DATABASE s_2")
    assert up.ddl("CREATE TABLE s_2.t2 (id INT PRIMARY KEY)") is None
    with pytest.raises(NeedsOperator, match="a new source"):
        up.ddl("CREATE TABLE s_2.t3 (id BIGINT PRIMARY KEY)")


def test_rows_of_one_shape_are_one_table_in_the_order_of_their_commits() -> None:
    up = shards()
    planner = Planner(up.selection.lookup, rows_max=100, bytes_max=10_000)
    payloads = []
    for ts in range(10, 16):
        number = ts % 2 + 1
        value = up.value(up.inserts(f"s_{number}", f"t{number}", (7, ts)))
        payloads.append(committed(ts, value))
    planner.offer(Merged(list(range(10, 16)), payloads, 0))
    assert planner.next_step() is None
    step = planner.cut()
    assert isinstance(step, RowsStep)
    (rows,) = step.tables
    assert (rows.schema, rows.table.name) == ("all", "t")
    codec = RowCodec(rows.table)
    assert [codec.decode_insert(row)[1] for row in rows.rows.to_pylist()] == list(range(10, 16))


def test_while_shapes_differ_a_batch_ends_where_the_source_changes() -> None:
    up = shards()
    assert up.ddl("ALTER TABLE s_1.t1 ADD COLUMN c INT") is not None
    one = read_changes(up.value(up.inserts("s_1", "t1", (1, 1, 1))), up.selection.lookup)
    two = read_changes(up.value(up.inserts("s_2", "t2", (2, 2))), up.selection.lookup)
    collector = Collector()
    collector.add(one, 1)
    assert not collector.fits(two)
    assert collector.fits(one)


def test_the_same_ddl_of_several_sources_runs_once() -> None:
    up = shards()
    first = up.ddl("ALTER TABLE s_1.t1 ADD COLUMN c INT")
    assert first is not None
    assert first.job.query == "ALTER TABLE `all`.`t` ADD COLUMN c INT"
    assert up.ddl("ALTER TABLE s_2.t2 ADD COLUMN c INT") is None
    assert up.ddl("ALTER TABLE s_2.t2 DROP COLUMN c") is None
    assert up.ddl("ALTER TABLE s_1.t1 DROP COLUMN c") is not None


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE s_1.t1", "TRUNCATE TABLE s_1.t1", "ALTER TABLE s_1.t1 RENAME COLUMN n TO m",
     "DROP DATABASE s_1", "RENAME TABLE s_1.t1 TO s_1.away"],
)  # fmt: skip
def test_what_would_take_the_rows_of_other_sources_is_refused(sql: str) -> None:
    with pytest.raises(NeedsOperator):
        shards().ddl(sql)


def test_a_source_may_change_its_name_within_the_route_and_the_last_one_may_go() -> None:
    up = shards()
    assert up.ddl("RENAME TABLE s_1.t1 TO s_1.t9") is None
    # It was tracked before it was refused, as it is with ignore-txn-commit-ts.
    with pytest.raises(NeedsOperator):
        up.ddl("DROP TABLE s_1.t9")
    gone = up.ddl("DROP TABLE s_2.t2")
    assert gone is not None
    assert gone.job.query == "DROP TABLE `all`.`t`"


def test_schemas_that_become_one_are_created_once_and_not_dropped() -> None:
    route = RouteRule(schema_pattern="s_?", target_schema="all")
    up = Upstream(FilterConfig(routes=(route,)))
    made = up.ddl("CREATE DATABASE s_1")
    assert made is not None
    assert made.job.query.startswith("CREATE DATABASE IF NOT EXISTS `all` ")
    assert up.ddl("CREATE DATABASE s_2") is None
    with pytest.raises(NeedsOperator, match="other tables are routed too"):
        up.ddl("DROP DATABASE s_1")


MARKED = (
    RouteRule(
        schema_pattern="s_?",
        table_pattern="t*",
        target_schema="all",
        target_table="t",
        extract_table=ExtractTable(table_regexp="t(.*)", target_column="c"),
    ),
)


def marked() -> Upstream:
    up = Upstream(FilterConfig(routes=MARKED))
    up.ddl("CREATE DATABASE s_1")
    for name in ("t1", "t2"):
        assert up.ddl(f"CREATE TABLE s_1.{name} (id INT PRIMARY KEY)") is None
    return up


def test_rows_that_name_their_source_are_collected_apart_in_one_batch() -> None:
    up = marked()
    value = up.value(up.inserts("s_1", "t1", (1,)), up.inserts("s_1", "t2", (1,)))
    changes = read_changes(value, up.selection.lookup)
    collector = Collector()
    assert collector.fits(changes)
    collector.add(changes, 1)
    tables = collector.tables()
    assert [(each.schema, each.table.name) for each in tables] == [("all", "t")] * 2
    assert [each.table.constants for each in tables] == [(("c", "1"),), (("c", "2"),)]


def test_the_table_that_names_sources_is_the_operator_s_and_only_altered() -> None:
    up = marked()
    change = up.ddl("ALTER TABLE s_1.t1 ADD COLUMN n INT")
    assert change is not None
    assert change.job.query == "ALTER TABLE `all`.`t` ADD COLUMN n INT"
    assert up.ddl("ALTER TABLE s_1.t2 ADD COLUMN n INT") is None
    refused = ("TRUNCATE TABLE s_1.t1", "DROP TABLE s_1.t2", "DROP DATABASE s_1",
               "RENAME TABLE s_1.t1 TO s_1.t3", "RENAME TABLE s_1.t1 TO s_1.x")  # fmt: skip
    for sql in refused:
        with pytest.raises(NeedsOperator, match="other tables are routed too"):
            up.selection.route(up.tracker.catalog.copy().apply(up.planned(sql)))


def test_a_source_has_no_column_of_the_name_that_identifies_it() -> None:
    up = Upstream(FilterConfig(routes=MARKED))
    up.ddl("CREATE DATABASE s_1")
    with pytest.raises(NeedsOperator, match="adds the column 'c' to rows of 't3'"):
        up.ddl("CREATE TABLE s_1.t3 (id INT PRIMARY KEY, C INT)")
    with pytest.raises(NeedsOperator, match="adds the column 'c' to rows of 't3'"):
        up.selection.lookup(up.table("s_1", "t3").id, up.tracker.version)


def routes(*rules: tuple[str, str, str, str]) -> FilterConfig:
    return FilterConfig(
        routes=tuple(
            RouteRule(schema_pattern=a, table_pattern=b, target_schema=c, target_table=d)
            for a, b, c, d in rules
        )
    )


UNMEANT = [
    (("old", "", "shop", ""),),
    (("old", "t", "shop", "t"),),
    (("old", "", "all", ""), ("shop", "", "all", "")),
    (("old", "t", "all", "t"), ("shop", "", "all", "")),
]


@pytest.mark.fault(
    "a route makes one table of two by accident, or two names that differ in letter case"
    " only; a downstream has all names in lower case",
    "refused at the start and at the DDL that makes the second; names in any letters are"
    " followed, and a rename of letter case only runs nothing",
    cases="7",
)
@pytest.mark.parametrize("rules", UNMEANT)
def test_tables_that_become_one_without_a_route_that_means_it_are_refused(
    rules: tuple[tuple[str, str, str, str], ...],
) -> None:
    up = Upstream(routes(*rules))
    for schema in ("old", "shop"):
        up.ddl(f"CREATE DATABASE {schema}")
    up.ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    up.ddl("CREATE TABLE old.other (id INT PRIMARY KEY)")
    with pytest.raises(NeedsOperator, match=r"old\.t and shop\.t both become") as refused:
        up.ddl("CREATE TABLE old.t (id INT PRIMARY KEY)")
    assert refused.value.code is Code.FILTER_RULE
    with pytest.raises(NeedsOperator, match="both become"):
        Selection(Rules(routes(*rules)), up.tracker)
    for meant in (
        routes(("old", "t", "all", "t"), ("shop", "t", "all", "t")),
        routes(("*", "", "all", "")),
        FilterConfig(routes=routes(*rules).routes, ignore_dbs=("shop",)),
    ):
        Selection(Rules(meant), up.tracker)


def test_tables_that_become_two_names_in_other_letters_are_refused() -> None:
    up = Upstream(routes(("s_*", "", "all", "")))
    for schema in ("s_1", "s_2"):
        up.ddl(f"CREATE DATABASE {schema}")
    up.ddl("CREATE TABLE s_1.Item (id INT PRIMARY KEY)")
    with pytest.raises(NeedsOperator, match=r"all\.Item and all\.item.* letter case") as refused:
        up.ddl("CREATE TABLE s_2.item (id INT PRIMARY KEY)")
    assert refused.value.code is Code.ROUTE_CONFLICT
    Selection(Rules(routes(("s_*", "i*", "all", "item"))), up.tracker)
