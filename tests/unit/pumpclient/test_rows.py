import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import Malformed
from penstock.schema.model import (
    ColumnFlag,
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    MysqlType,
    TableInfo,
)
from pumpclient.rows import Table

NOT_NULL = ColumnFlag.NOT_NULL


def column(position: int, name: str, tp: MysqlType, **more: Any) -> ColumnInfo:
    return ColumnInfo(id=position + 1, name=name, offset=position, tp=tp, **more)


COLUMNS = (
    column(0, "id", MysqlType.LONG, flag=NOT_NULL | ColumnFlag.PRI_KEY),
    column(1, "Name", MysqlType.VARCHAR, flen=20, charset="utf8mb4", flag=NOT_NULL),
    column(2, "price", MysqlType.NEWDECIMAL, flen=8, decimal=2, default="9.50"),
    column(3, "note", MysqlType.VARCHAR, flen=20, charset="utf8mb4"),
    column(
        4,
        "changed",
        MysqlType.TIMESTAMP,
        decimal=3,
        default="CURRENT_TIMESTAMP(3)",
        flag=NOT_NULL | ColumnFlag.ON_UPDATE_NOW,
    ),
)
INFO = TableInfo(
    id=101,
    name="goods",
    columns=COLUMNS,
    indexes=(
        IndexInfo(
            id=1,
            name="PRIMARY",
            columns=(IndexColumn(name="id", offset=0),),
            unique=True,
            primary=True,
        ),
    ),
    pk_is_handle=True,
)
MOMENT = "2022-04-27 04:05:07.250"
WHOLE = {"id": 1, "Name": "nut", "price": Decimal("1.00"), "note": None, "changed": MOMENT}
IMAGE = tuple(WHOLE.values())


@pytest.fixture
def goods() -> Table:
    return Table("shop", INFO)


def with_columns(*extra: ColumnInfo) -> Table:
    return Table("shop", replace(INFO, columns=COLUMNS + extra))


def test_a_whole_row_is_taken_as_it_is_whatever_its_order(goods: Table) -> None:
    assert goods.inserted(WHOLE) == IMAGE
    assert goods.inserted(dict(reversed(WHOLE.items()))) == IMAGE
    assert goods.inserted(IMAGE) == IMAGE
    assert goods.inserted(list(IMAGE)) == IMAGE


def test_column_names_are_found_whatever_their_letter_case(goods: Table) -> None:
    assert goods.inserted({k.upper(): v for k, v in WHOLE.items()}) == IMAGE


def test_what_is_not_named_takes_the_default(goods: Table) -> None:
    image = goods.inserted({"id": 1, "name": "nut"})
    assert image[:4] == (1, "nut", Decimal("9.50"), None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", str(image[4]))


def test_not_null_without_a_default_must_be_given(goods: Table) -> None:
    with pytest.raises(Malformed, match=r"shop\.goods: column 'Name' has no value, is NOT NULL"):
        goods.inserted({"id": 1})


def test_auto_increment_must_be_given() -> None:
    auto = column(5, "no", MysqlType.LONG, flag=NOT_NULL | ColumnFlag.AUTO_INCREMENT)
    with pytest.raises(Malformed, match="only a database counts AUTO_INCREMENT"):
        with_columns(auto).inserted(WHOLE)


def test_an_expression_as_default_must_be_given() -> None:
    computed = column(5, "uuid", MysqlType.VARCHAR, default="uuid()", default_is_expr=True)
    with pytest.raises(Malformed, match=r"uuid\(\) is an expression"):
        with_columns(computed).inserted(WHOLE)


def test_generated_columns_may_be_left_out_everywhere() -> None:
    generated = column(
        5, "twice", MysqlType.LONG, generated_expr="id * 2", generated_stored=True, flag=NOT_NULL
    )
    table = with_columns(generated)
    assert table.inserted(WHOLE) == (*IMAGE, None)
    assert table.before(WHOLE) == (*IMAGE, None)
    assert table.before({**WHOLE, "twice": 2}) == (*IMAGE, 2)


def test_an_unknown_column_names_the_nearest(goods: Table) -> None:
    with pytest.raises(Malformed, match=r"no column 'nmae'.*did you mean 'Name'"):
        goods.inserted({"id": 1, "nmae": "nut"})


def test_a_column_given_twice_is_refused(goods: Table) -> None:
    with pytest.raises(Malformed, match="'Name' is given twice"):
        goods.inserted({"id": 1, "Name": "nut", "NAME": "bolt"})


def test_a_sequence_of_the_wrong_length_is_refused(goods: Table) -> None:
    with pytest.raises(Malformed, match=r"2 values for 5 columns.*id, Name, price"):
        goods.inserted((1, "nut"))


@pytest.mark.parametrize("row", ["text", b"bytes", 7, None, {1, 2}])
def test_what_is_no_row_is_refused(goods: Table, row: Any) -> None:
    with pytest.raises(Malformed, match="is not a row"):
        goods.inserted(row)


def test_an_image_before_a_change_must_be_whole(goods: Table) -> None:
    assert goods.before(WHOLE) == IMAGE
    with pytest.raises(Malformed, match="lacks 'price', 'changed'"):
        goods.before({"id": 1, "name": "nut", "note": None})


def test_after_a_change_what_is_not_named_stays(goods: Table) -> None:
    after = goods.after(IMAGE, {"id": 2, "changed": MOMENT})
    assert after == (2, *IMAGE[1:])


def test_a_change_moves_the_time_of_on_update_columns(goods: Table) -> None:
    after = goods.after(IMAGE, {"note": "new"})
    assert after[3] == "new"
    assert str(after[4]) > MOMENT


def test_no_change_moves_nothing(goods: Table) -> None:
    assert goods.after(IMAGE, {"note": None}) == IMAGE


def test_rows_are_carried_over_to_a_later_version_of_their_table(goods: Table) -> None:
    added = column(5, "stock", MysqlType.LONG, default="3")
    renamed = replace(COLUMNS[3], name="remark")
    later = Table("shop", replace(INFO, columns=(COLUMNS[0], added, renamed)))
    assert later.carried(goods, (*IMAGE[:3], "x", *IMAGE[4:])) == (1, 3, "x")
