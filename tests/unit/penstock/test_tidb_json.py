"""Tables and DDL jobs survive JSON, and JSON of TiDB's own reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.schema.model import (
    PUBLIC,
    ColumnFlag,
    ColumnInfo,
    DdlJob,
    DdlType,
    IndexColumn,
    IndexInfo,
    MysqlType,
    SchemaInfo,
    TableInfo,
)
from penstock.schema.tidb_json import job_from_json, job_to_json, table_from_json, table_to_json

ids = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=10)
texts = st.text(max_size=10)
flags = st.integers(0, 2**14 - 1).map(ColumnFlag)


@st.composite
def columns(draw: st.DrawFn) -> ColumnInfo:
    tp = draw(st.sampled_from(MysqlType))
    flen = draw(st.integers(-1, 64))
    bits = st.integers(0, 2 ** max(flen, 1) - 1).map(str)
    defaults = st.none() | (bits if tp is MysqlType.BIT else texts)
    return ColumnInfo(
        id=draw(ids),
        name=draw(names),
        offset=draw(st.integers(0, 1000)),
        tp=tp,
        flag=draw(flags),
        flen=flen,
        decimal=draw(st.integers(-1, 30)),
        charset=draw(texts),
        collate=draw(texts),
        elems=tuple(draw(st.lists(texts, max_size=3))),
        origin_default=draw(defaults),
        default=draw(defaults),
        default_is_expr=draw(st.booleans()),
        generated_expr=draw(texts),
        generated_stored=draw(st.booleans()),
        comment=draw(texts),
        state=draw(st.integers(0, PUBLIC)),
    )


parts = st.builds(
    IndexColumn, name=names, offset=st.integers(0, 1000), length=st.integers(-1, 1000)
)
indexes = st.builds(
    IndexInfo,
    id=ids,
    name=names,
    columns=st.lists(parts, max_size=3).map(tuple),
    unique=st.booleans(),
    primary=st.booleans(),
    state=st.integers(0, PUBLIC),
)
tables = st.builds(
    TableInfo,
    id=ids,
    name=names,
    columns=st.lists(columns(), max_size=3).map(tuple),
    indexes=st.lists(indexes, max_size=2).map(tuple),
    charset=texts,
    collate=texts,
    pk_is_handle=st.booleans(),
    is_common_handle=st.booleans(),
    max_column_id=ids,
    max_index_id=ids,
    comment=texts,
    is_view=st.booleans(),
)
schemas = st.builds(SchemaInfo, id=ids, name=names, charset=texts, collate=texts)
jobs = st.builds(
    DdlJob,
    id=ids,
    type=st.sampled_from(DdlType).map(int),
    schema_id=ids,
    schema_name=texts,
    query=texts,
    schema_version=ids,
    table_id=ids,
    table_name=texts,
    finished_ts=ids,
    state=st.integers(0, 7),
    schema=st.none() | schemas,
    table=st.none() | tables,
    tables=st.lists(st.tuples(texts, tables), max_size=2).map(tuple),
)


@given(tables)
def test_a_table_survives_json(table: TableInfo) -> None:
    assert table_from_json(json.loads(json.dumps(table_to_json(table)))) == table


@given(jobs)
def test_a_job_survives_json(job: DdlJob) -> None:
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job


def tidb_job() -> dict[str, Any]:
    """A CREATE TABLE t (Id bigint primary key, b bit(10) default b'1000000001') of TiDB 6."""
    kind = {"Flen": 20, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
    column = {
        "id": 1,
        "name": {"O": "Id", "L": "id"},
        "offset": 0,
        "origin_default": None,
        "origin_default_bit": None,
        "default": None,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": {**kind, "Tp": 8, "Flag": 4099},
        "state": 5,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }
    bit = {
        **column,
        "id": 2,
        "name": {"O": "b", "L": "b"},
        "offset": 1,
        "default": "\x02\x01",
        "default_bit": "AgE=",
        "type": {**kind, "Tp": 16, "Flag": 32, "Flen": 10},
    }
    table = {
        "id": 66,
        "name": {"O": "t", "L": "t"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [column, bit],
        "index_info": None,
        "fk_info": None,
        "state": 5,
        "pk_is_handle": True,
        "is_common_handle": False,
        "max_col_id": 2,
        "max_idx_id": 0,
        "view": None,
        "partition": None,
    }
    return {
        "id": 67,
        "type": 3,
        "schema_id": 2,
        "table_id": 66,
        "schema_name": "shop",
        "state": 6,
        "err": None,
        "query": "create table t (...)",
        "binlog": {
            "SchemaVersion": 31,
            "DBInfo": None,
            "TableInfo": table,
            "FinishedTS": 432109876543210,
        },
        "version": 1,
        "priority": 0,
    }


def test_a_job_that_tidb_wrote_reads() -> None:
    job = job_from_json(tidb_job())
    assert (job.id, job.schema_version, job.finished_ts) == (67, 31, 432109876543210)
    assert job.table is not None
    id_column, bit = job.table.columns
    assert job.table.primary_key is not None
    assert id_column.name == "Id"
    assert bit.default == str(0b1000000001)
    assert job.table.indexes == ()


def test_a_numeric_default_reads_as_its_text() -> None:
    fields = tidb_job()
    fields["binlog"]["TableInfo"]["cols"][0]["default"] = 7
    table = job_from_json(fields).table
    assert table is not None
    assert table.columns[0].default == "7"


def test_the_columns_of_a_view_have_no_type() -> None:
    fields = tidb_job()
    table = fields["binlog"]["TableInfo"]
    table["view"] = {"view_algorithm": 0, "view_select": "SELECT 1 AS Id", "view_cols": None}
    table["cols"][0]["type"]["Tp"] = 0
    view = job_from_json(fields).table
    assert view is not None
    assert (view.kind, view.columns[0].name, view.columns[0].tp) == ("VIEW", "Id", MysqlType.NULL)


def test_an_index_over_an_expression_is_known_by_its_hidden_column() -> None:
    fields = tidb_job()
    table = fields["binlog"]["TableInfo"]
    table["cols"][1] |= {
        "name": {"O": "_V$_i_0", "L": "_v$_i_0"}, "hidden": True,
        "generated_expr_string": "`Id` + 1",
    }  # fmt: skip
    part = {"name": {"O": "_V$_i_0", "L": "_v$_i_0"}, "offset": 1, "length": -1}
    index = {"id": 1, "idx_name": {"O": "i", "L": "i"}, "idx_cols": [part], "is_unique": True,
             "is_primary": False, "state": 5}  # fmt: skip
    plain = index | {"id": 2, "idx_name": {"O": "j", "L": "j"},
                     "idx_cols": [{"name": {"O": "Id", "L": "id"}, "offset": 0}]}  # fmt: skip
    table["index_info"] = [index, plain]
    found = job_from_json(fields).table
    assert found is not None
    assert found.expression_indexes == ("i",)
    assert [column.hidden for column in found.columns] == [False, True]
    assert found.columns[1].is_generated
    assert table_from_json(json.loads(json.dumps(table_to_json(found)))) == found


def test_partitions_keep_the_ids_that_a_tidb_gives_them() -> None:
    fields = tidb_job()
    definitions = [{"id": 70 + n, "name": {"O": f"p{n}", "L": f"p{n}"}} for n in range(2)]
    fields["binlog"]["TableInfo"]["partition"] = {"type": 1, "definitions": definitions}
    table = job_from_json(fields).table
    assert table is not None
    assert (table.partitions, table.partition_ids) == (("p0", "p1"), (70, 71))
    assert table_from_json(json.loads(json.dumps(table_to_json(table)))) == table


def test_tables_renamed_together_are_where_their_schemas_ids_say() -> None:
    fields = tidb_job()
    table = fields["binlog"]["TableInfo"]
    fields["binlog"] |= {"TableInfo": None, "MultipleTableInfos": [table, table | {"id": 68}]}
    fields |= {"type": int(DdlType.RENAME_TABLES), "raw_args": [[2, 2], [2, 9], [], [], [], []]}
    job = job_from_json(fields)
    assert job.schema_ids == (2, 9)
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job
    for other in (None, "x", [], [[2]], [[2, 2], [2]]):
        assert job_from_json(fields | {"raw_args": other}).schema_ids == ()
    assert job_from_json(fields | {"type": 60}).schema_ids == ()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda job: job.pop("id"),
        lambda job: job.update(query=7),
        lambda job: job["binlog"].update(SchemaVersion="31"),
        lambda job: job["binlog"]["TableInfo"].pop("name"),
        lambda job: job["binlog"]["TableInfo"]["cols"][0]["type"].update(Tp=99),
        lambda job: job["binlog"]["TableInfo"]["cols"][1].update(default_bit="?"),
        lambda job: job.update(table_schemas=["one too many"]),
    ],
)
def test_a_job_of_another_shape_is_malformed(break_it: Any) -> None:
    fields = tidb_job()
    break_it(fields)
    with pytest.raises(Malformed):
        job_from_json(fields)
