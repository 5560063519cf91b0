"""What an expression refuses, and which changes a row filter leaves out."""

import pytest

from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import NeedsOperator
from penstock.filters import ExpressionRule, FilterConfig, Rules
from penstock.filters.expressions.compiler import check_expression, compile_expression
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.unit.penstock.ddl_session import DdlSession

INSERT, UPDATE, DELETE = MutationType


def table() -> TableInfo:
    session = DdlSession()
    session.run(
        "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_bin,"
        " c VARCHAR(9) COLLATE utf8mb4_general_ci, day DATE, e ENUM('a'), j JSON,"
        " v INT GENERATED ALWAYS AS (id + 1) VIRTUAL, k VARCHAR(9) COLLATE utf8mb4_unicode_ci)"
    )
    found = session.catalog.table("d", "t")
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "", "id >", "id = (SELECT 1)", "id & 1", "day + INTERVAL 1 DAY", "t.id = 1", "id = @x",
        "sleep(1)", "RAND() < 1", "id = 1; DROP TABLE t", "IF(id)", "CAST(id AS JSON)", "id IS 5",
        "id NOT 5", "CASE END", "s COLLATE utf8mb4_bin = 'x'", "NOW() > day", "id = 1 id",
    ],
)  # fmt: skip
def test_what_cannot_be_understood_whole_is_refused_before_any_table_is_known(text: str) -> None:
    with pytest.raises(NeedsOperator):
        check_expression(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing = 1", "no column 'nothing'"),
        ("v = 1", "'v' is computed"),
        ("j = '{}'", "JSON"),
        ("day > 'soon'", "'soon' is no date"),
        ("day = s", "MOMENT and TEXT|TEXT and MOMENT"),
        ("c = k", "collations"),
        ("e = 1", "ENUM"),
        ("s LIKE c", "pattern of LIKE"),
        ("s REGEXP '('", "no regular expression"),
        ("IF(id, 1, s) = 1", "several kinds"),
    ],
)
def test_what_does_not_fit_the_table_is_refused_when_it_is_compiled(
    text: str, message: str
) -> None:
    check_expression(text)
    with pytest.raises(NeedsOperator, match=message):
        compile_expression(text, table())


def row(key: int, s: str | None) -> list[object]:
    return [key, s, None, None, None, None, None, None]


def filtering(rule: ExpressionRule) -> Rules:
    return Rules(FilterConfig(expressions=(rule,)))


def test_changes_are_left_out_by_the_expression_of_their_kind() -> None:
    info = table()
    codec = RowCodec(info)
    rule = ExpressionRule(
        schema="D", table="T", insert_value_expr="s = 'no'", delete_value_expr="id < 0",
        update_old_value_expr="s IS NULL", update_new_value_expr="s = 'no'",
    )  # fmt: skip
    kept = filtering(rule).of_rows("d", info).is_kept
    assert kept is not None
    assert filtering(rule).of_rows("d", info.renamed("other")).takes_all
    assert kept(INSERT, codec.encode_insert(row(1, "yes")))
    assert kept(INSERT, codec.encode_insert(row(1, None))), "NULL is not true"
    assert not kept(INSERT, codec.encode_insert(row(1, "no")))
    assert kept(DELETE, codec.encode_delete(row(1, "no")))
    assert not kept(DELETE, codec.encode_delete(row(-1, "no")))
    # Both halves of an update must be true.
    assert not kept(UPDATE, codec.encode_update(row(1, None), row(1, "no")))
    assert kept(UPDATE, codec.encode_update(row(1, "x"), row(1, "no")))
    assert kept(UPDATE, codec.encode_update(row(1, None), row(1, "x")))


def test_one_half_of_an_update_decides_alone_when_only_it_is_given() -> None:
    info = table()
    codec = RowCodec(info)
    rule = ExpressionRule(schema="d", table="t", update_new_value_expr="s = 'no'")
    kept = filtering(rule).of_rows("d", info).is_kept
    assert kept is not None
    assert not kept(UPDATE, codec.encode_update(row(1, "x"), row(1, "no")))
    assert kept(INSERT, codec.encode_insert(row(1, "no")))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([ExpressionRule(schema="d", insert_value_expr="1")], "a schema and a table"),
        ([ExpressionRule(schema="d", table="t")], "is empty"),
        ([ExpressionRule(schema="d", table=t, insert_value_expr="1") for t in "tT"], "two"),
        ([ExpressionRule(schema="d", table="t", insert_value_expr="oops(1)")], "OOPS"),
    ],
)
def test_a_row_filter_that_cannot_be_is_refused(rules: list[ExpressionRule], message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        Rules(FilterConfig(expressions=tuple(rules)))
