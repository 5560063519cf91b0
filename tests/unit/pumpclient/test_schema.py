from __future__ import annotations

import pytest

from penstock.errors import NeedsOperator
from pumpclient.schema import split_name


@pytest.mark.parametrize(
    ("name", "schema", "parts"),
    [
        ("t", "db", ("db", "t")),
        ("db.t", None, ("db", "t")),
        ("db.t", "other", ("db", "t")),
        ("`db`.`t.x`", None, ("db", "t.x")),
        ("`a``b`", "db", ("db", "a`b")),
        ("db.`t`", None, ("db", "t")),
    ],
)
def test_a_table_is_named_with_or_without_its_schema(
    name: str, schema: str | None, parts: tuple[str, str]
) -> None:
    assert split_name(name, schema) == parts


@pytest.mark.parametrize("name", ["t", "", "a.b.c", ".t", "db."])
def test_what_names_no_table_is_refused(name: str) -> None:
    with pytest.raises(NeedsOperator, match="names no table"):
        split_name(name, None)
