"""Which schemas, tables and kinds of change pass, case by case and against a naive model."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.filters import EventRule, FilterConfig, RouteRule, Rules, TablePattern
from penstock.filters.events import DDL, DML, INCOMPATIBLE, Decision, EventFilter, events_named
from penstock.filters.routes import Router
from penstock.filters.settings import ExtractSchema, ExtractSource, ExtractTable
from penstock.filters.table_lists import (
    TableFilter,
    block_allow_list,
    drainer_list,
    plain_regex,
    wildcard,
)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("shop", ["shop", "SHOP"], ["shop1", "sho"]),
        ("shop*", ["shop", "shop_1"], ["myshop"]),
        ("*", ["", "anything"], []),
        ("t?", ["t1", "tx"], ["t", "t12"]),
        ("t[0-3]", ["t0", "t3"], ["t4", "t"]),
        ("t[!0-3]x*", ["t4x", "tax9"], ["t1x"]),
        ("a.b", ["a.b"], ["axb"]),
        ("t??", ["tä"], ["täx"]),
    ],
)
def test_a_wildcard_matches_as_the_reference_has_it(
    pattern: str, hits: list[str], misses: list[str]
) -> None:
    matches = wildcard(pattern, case_sensitive=False)
    assert [n for n in hits if not matches(n)] == []
    assert [n for n in misses if matches(n)] == []


@pytest.mark.parametrize("pattern", ["a*b", "**", "t[", "t[]", "t[z-a]"])
def test_a_wildcard_that_cannot_be_is_refused(pattern: str) -> None:
    with pytest.raises(NeedsOperator, match="cannot be"):
        wildcard(pattern, case_sensitive=False)


def test_letter_case_counts_where_it_is_asked_for() -> None:
    assert not wildcard("Shop", case_sensitive=True)("shop")
    assert wildcard("Shop", case_sensitive=True)("Shop")


def test_a_plain_name_in_drainer_toml_is_a_regular_expression_of_the_whole_name() -> None:
    assert plain_regex("a.c")("aBc")
    assert not plain_regex("a.c")("xabc")
    assert plain_regex("~a.c")("xabcx")
    with pytest.raises(NeedsOperator, match="regular expression"):
        plain_regex("~(")


def tables(*places: tuple[str, str]) -> tuple[TablePattern, ...]:
    return tuple(TablePattern(db_name=db, tbl_name=tbl) for db, tbl in places)


@pytest.mark.parametrize(
    ("config", "place", "passes"),
    [
        (FilterConfig(), ("a", "t"), True),
        (FilterConfig(do_dbs=("a",)), ("b", "t"), False),
        (FilterConfig(do_dbs=("~^A",)), ("ab", "t"), True),
        # do-dbs goes before ignore-dbs, which then says nothing.
        (FilterConfig(do_dbs=("a",), ignore_dbs=("a",)), ("a", "t"), True),
        (FilterConfig(ignore_dbs=("a*",)), ("ab", ""), False),
        (FilterConfig(do_tables=tables(("a", "t*"))), ("a", "t1"), True),
        (FilterConfig(do_tables=tables(("a", "t*"))), ("a", "x"), False),
        (FilterConfig(do_tables=tables(("a", "t*"))), ("b", ""), True),
        (FilterConfig(ignore_tables=tables(("a", "t"))), ("a", "t"), False),
        (FilterConfig(ignore_tables=tables(("a", "t"))), ("a", ""), True),
        # do-tables goes before ignore-tables, and closes the door behind it.
        (FilterConfig(do_tables=tables(("a", "t")), ignore_tables=tables(("a", "t"))),
         ("a", "t"), True),
        (FilterConfig(do_tables=tables(("a", "t")), ignore_tables=tables(("a", "u"))),
         ("a", "v"), False),
        # A do-table does not open a schema that do-dbs keeps out.
        (FilterConfig(do_dbs=("b",), do_tables=tables(("a", "t"))), ("a", "t"), False),
    ],
)  # fmt: skip
def test_the_block_allow_list_decides_in_its_order(
    config: FilterConfig, place: tuple[str, str], passes: bool
) -> None:
    assert block_allow_list(config)(*place) is passes


@pytest.mark.parametrize(
    ("lists", "place", "passes"),
    [
        (drainer_list(), ("a", "t"), True),
        (drainer_list(do_dbs=["a"], do_tables=tables(("b", "t"))), ("a", "x"), True),
        (drainer_list(do_dbs=["a"], do_tables=tables(("b", "t"))), ("b", "t"), True),
        (drainer_list(do_dbs=["a"], do_tables=tables(("b", "t"))), ("b", "x"), False),
        (drainer_list(do_tables=tables(("b", "t"))), ("b", ""), True),
        (drainer_list(do_tables=tables(("b", "t"))), ("c", ""), False),
        (drainer_list(do_dbs=["a"], ignore_tables=tables(("a", "~^tmp"))), ("a", "TMP_1"), False),
        (drainer_list(ignore_tables=tables(("a", "t"))), ("a", ""), True),
        (drainer_list(ignore_dbs=["mysql"]), ("MySQL", "user"), False),
    ],
)
def test_the_lists_of_drainer_toml_decide_in_their_order(
    lists: TableFilter, place: tuple[str, str], passes: bool
) -> None:
    assert lists(*place) is passes


def test_system_schemas_and_the_checkpoint_are_never_replicated() -> None:
    rules = Rules(FilterConfig(do_dbs=("*",)), protected=["my_marks"])
    for schema in ("mysql", "SYS", "information_schema", "tidb_binlog", "My_Marks"):
        assert not rules.is_replicated(schema, "t")
    assert rules.is_replicated("shop", "t")


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="do-tables: tbl-name has an empty pattern"):
        block_allow_list(FilterConfig(do_tables=tables(("a", ""))))


# --- kinds of change ---------------------------------------------------------------------------


def test_names_of_events_are_known_with_groups_aliases_and_exceptions() -> None:
    assert events_named(["all"]) == DML | DDL
    assert events_named(["All DML"]) == DML
    assert events_named(["create schema"]) == {"create database"}
    assert events_named(["incompatible DDL changes"]) == INCOMPATIBLE
    assert events_named(["all", "none dml"]) == DDL
    assert events_named(["all", "none", "insert"]) == {"insert"}
    with pytest.raises(NeedsOperator, match="did you mean 'insert'"):
        events_named(["inserts"])


def rule(
    schema: str = "*", table: str = "", *events: str, action: str = "Ignore", sql: str = ""
) -> EventRule:
    return EventRule(
        schema_pattern=schema, table_pattern=table, events=events, action=action,
        sql_pattern=(sql,) if sql else (),
    )  # fmt: skip


DROP = [frozenset({"alter table", "drop column"})]


@pytest.mark.parametrize(
    ("rules", "event", "decision"),
    [
        ([], "insert", Decision.DO),
        ([rule("a", "t", "insert")], "insert", Decision.IGNORE),
        ([rule("a", "t", "insert")], "update", Decision.DO),
        ([rule("a", "u", "insert")], "insert", Decision.DO),
        ([rule("a", "", "insert")], "insert", Decision.IGNORE),
        ([rule("a", "t", "insert", action="Do")], "update", Decision.IGNORE),
        # Every rule has its say, and one that ignores is enough.
        ([rule("a", "t", "insert", action="Do"), rule("a", "", "insert")], "insert",
         Decision.IGNORE),
        ([rule("a", "t", "insert", action="Error")], "insert", Decision.ERROR),
        ([rule("a", "t", "all", "none dml")], "insert", Decision.DO),
    ],
)  # fmt: skip
def test_rules_for_rows(rules: list[EventRule], event: str, decision: Decision) -> None:
    assert EventFilter(rules).decision("a", "t", [frozenset({event})]) is decision


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([rule("a", "t", "drop column")], Decision.IGNORE),
        ([rule("a", "t", "all dml")], Decision.DO),
        ([rule("a", "t", "create table", action="Do")], Decision.IGNORE),
        ([rule("a", "t", "alter table", action="Do")], Decision.DO),
        ([rule("a", "t", sql="DROP +column")], Decision.IGNORE),
        ([rule("a", "t", sql="^drop")], Decision.DO),
        ([rule("a", "t", sql="^drop", action="Do")], Decision.IGNORE),
        ([rule("a", "t", "alter table", action="Do", sql="nothing")], Decision.IGNORE),
        ([rule("a", "t", "incompatible ddl changes", action="Error")], Decision.ERROR),
    ],
)
def test_rules_for_ddl(rules: list[EventRule], decision: Decision) -> None:
    sql = "ALTER TABLE t DROP COLUMN c"
    assert EventFilter(rules).decision("a", "t", DROP, sql) is decision


def test_a_ddl_that_passes_in_part_is_mixed() -> None:
    both = [*DROP, frozenset({"alter table", "add column"})]
    assert (
        EventFilter([rule("a", "t", "drop column")]).decision("a", "t", both, "") is Decision.MIXED
    )
    assert EventFilter([rule("a", "t", "alter table")]).decision("a", "t", both, "") is (
        Decision.IGNORE
    )


def test_a_rule_with_a_table_pattern_is_not_about_the_schema_itself() -> None:
    create = [frozenset({"create database"})]
    assert EventFilter([rule("a", "*", "all")]).decision("a", "", create, "") is Decision.DO
    assert EventFilter([rule("a", "", "all")]).decision("a", "", create, "") is Decision.IGNORE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([rule("", "t", "all")], "no schema-pattern"),
        ([rule("a", "t", "all", action="Skip")], "action 'Skip'"),
        ([rule("a", "t")], "neither events nor"),
        ([rule("a", "t", "all"), rule("A", "T", "insert")], "rules 1 and 2 have the same"),
        ([rule("a", "t", sql="(")], "no regular expression"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(wrong: list[EventRule], message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        EventFilter(wrong)


# --- routes ------------------------------------------------------------------------------------


def route(schema: str, table: str, to_schema: str, to_table: str = "") -> RouteRule:
    return RouteRule(
        schema_pattern=schema, table_pattern=table, target_schema=to_schema, target_table=to_table
    )


def test_routes_for_tables_go_before_those_for_schemas() -> None:
    router = Router([route("s*", "", "all"), route("s_?", "t*", "merged", "t")])
    assert router.target("s_1", "t_7") == ("merged", "t")
    assert router.target("s_1", "other") == ("all", "other")
    assert router.target("s_1", "") == ("all", "")
    assert router.target("x", "t_7") == ("x", "t_7")


def test_two_routes_that_claim_one_table_are_named() -> None:
    router = Router([route("s*", "t*", "a"), route("s_1", "t_1", "b")])
    with pytest.raises(NeedsOperator, match=r"route 1 .* and route 2 .* both match s_1\.t_1"):
        router.target("s_1", "t_1")


def extracting(**columns: Any) -> RouteRule:
    return RouteRule(schema_pattern="s_*", table_pattern="t_*", target_schema="all",
                     target_table="t", **columns)  # fmt: skip


def test_a_route_says_of_every_row_where_it_came_from() -> None:
    rule = extracting(
        extract_table=ExtractTable(table_regexp="t_(.)-(.*)", target_column="c_table"),
        extract_source=ExtractSource(source_regexp="^(.*)$", target_column="c_source"),
    )
    router = Router([rule], source_id="north")
    assert router.extracted("s_1", "t_a-12") == (("c_table", "a12"), ("c_source", "north"))
    assert router.extracted("s_1", "t_?") == (("c_table", ""), ("c_source", "north"))
    assert router.extracted("x", "t_a-1") == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([route("a", "t", "")], "needs a schema-pattern and a target-schema"),
        ([route("a", "", "b", "t")], "a target-table and no table-pattern"),
        ([route("a", "t", "tidb_binlog")], "leads into 'tidb_binlog'"),
        ([route("a", "t", "b"), route("A", "t", "c")], "have the same patterns"),
        ([extracting(extract_table=ExtractTable(table_regexp="(.)"))],
         "extract-table needs a table-regexp and a target-column"),
        ([extracting(extract_table=ExtractTable(table_regexp="x", target_column="c"))],
         "has no group"),
        ([extracting(extract_schema=ExtractSchema(schema_regexp="(", target_column="c"))],
         "is no regular expression"),
        ([extracting(extract_table=ExtractTable(table_regexp="(.)", target_column="c"),
                     extract_schema=ExtractSchema(schema_regexp="(.)", target_column="C"))],
         "'C' is extracted twice"),
        ([extracting(extract_source=ExtractSource(source_regexp="(.)", target_column="c"))],
         "this upstream has no name"),
    ],
)  # fmt: skip
def test_a_route_that_cannot_be_is_refused(wrong: list[RouteRule], message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        Rules(FilterConfig(routes=tuple(wrong)))


# --- against a model that knows no order and no cache -------------------------------------------

_names = st.sampled_from(["a", "ab", "b", "tmp", "tmp1", "T", "t1"])
_patterns = st.sampled_from(["a", "a*", "*", "t?", "t[0-9]", "~^t", "~b$", "tmp*", "B"])
_pairs = st.lists(st.builds(lambda s, t: TablePattern(db_name=s, tbl_name=t), _patterns, _patterns),
                  max_size=3).map(tuple)  # fmt: skip
_lists = st.lists(_patterns, max_size=3).map(tuple)


def naive(pattern: str, name: str) -> bool:
    if pattern.startswith("~"):
        return re.search(pattern[1:], name, re.IGNORECASE) is not None
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    text = text.replace(r"\[", "[").replace(r"\]", "]").replace(r"\-", "-")
    return re.fullmatch(text, name, re.IGNORECASE) is not None


@given(_lists, _lists, _pairs, _pairs, _names, _names)
def test_the_block_allow_list_equals_a_naive_model(
    do_dbs: tuple[str, ...],
    ignore_dbs: tuple[str, ...],
    do_tables: tuple[TablePattern, ...],
    ignore_tables: tuple[TablePattern, ...],
    schema: str,
    table: str,
) -> None:
    def listed(pairs: tuple[TablePattern, ...]) -> bool:
        return any(naive(p.db_name, schema) and naive(p.tbl_name, table) for p in pairs)

    config = FilterConfig(
        do_dbs=do_dbs, ignore_dbs=ignore_dbs, do_tables=do_tables, ignore_tables=ignore_tables
    )
    if do_dbs:
        in_schema = any(naive(p, schema) for p in do_dbs)
    else:
        in_schema = not any(naive(p, schema) for p in ignore_dbs)
    in_table = listed(do_tables) or (not do_tables and not listed(ignore_tables))
    assert block_allow_list(config)(schema, table) is (in_schema and in_table)
    assert block_allow_list(config)(schema, "") is in_schema


_rules = st.lists(
    st.builds(
        lambda s, t, e, a: EventRule(schema_pattern=s, table_pattern=t, events=tuple(e), action=a),
        st.sampled_from(["a", "a*", "*", "b"]), st.sampled_from(["", "t?", "*", "tmp"]),
        st.lists(st.sampled_from(["insert", "update", "all", "all ddl", "none dml"]), min_size=1),
        st.sampled_from(["Do", "Ignore"]),
    ),
    max_size=4, unique_by=lambda r: (r.schema_pattern, r.table_pattern),
)  # fmt: skip


@given(_rules, _names, _names, st.sampled_from(sorted(DML)))
def test_event_rules_equal_a_naive_model(
    rules: list[EventRule], schema: str, table: str, event: str
) -> None:
    def ignores(each: EventRule) -> bool:
        if not naive(each.schema_pattern, schema):
            return False
        if each.table_pattern and not naive(each.table_pattern, table):
            return False
        grouped = "all" in each.events and "none dml" not in each.events
        return (event in each.events or grouped) is (each.action == "Ignore")

    expected = Decision.IGNORE if any(map(ignores, rules)) else Decision.DO
    assert EventFilter(rules).decision(schema, table, [frozenset({event})]) is expected
