"""Converts tables and DDL jobs to JSON in TiDB's format, so that TiDB's histories can be read.

    job     id, type, schema_id, table_id, schema_name, table_name, state, query, schema_state,
            binlog {SchemaVersion, DBInfo, TableInfo, FinishedTS, MultipleTableInfos}
    table   id, name {O, L}, charset, collate, cols [], index_info [], state, pk_is_handle, …
    column  id, name, offset, origin_default, default, …_bit, generated_expr_string, type {Tp, …}
    index   id, idx_name, idx_cols [{name, offset, length}], is_unique, is_primary, state

A name is written twice: as given (`O`) and in lower case (`L`). The default of a BIT column is a
decimal number in memory and base64 of its bytes in the JSON. The job's fields `origin` ({source,
epoch, file, position, gtid}), `context` (`ddl_context`) and `table_schemas` are Penstock's own; the
latter are schema names of the `MultipleTableInfos`. For TiDB's own RENAME TABLES the ids of the
schemas are in `raw_args`. A table's `constants`, which only a task gets, are also Penstock's own. A
TiDB's job has the mode and the zone of its session in `reorg_meta` where it rewrites rows, else
nowhere. A missing field has a default; a field of another type makes the whole `Malformed`. The
columns of a view have the type 0.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.ddl_context import ROUNDS, DdlContext, modes_of, offset_text
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
from penstock.wire.binlog import Origin

Json = dict[str, Any]


def name_to_json(name: str) -> Json:
    return {"O": name, "L": name.lower()}


def name_from_json(written: Mapping[str, Any]) -> str:
    return text(written, "O")


def text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r} and not a string")
    return value


def number(fields: Mapping[str, Any], name: str, absent: int = 0) -> int:
    value = fields.get(name, absent)
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value!r} and not a whole number")
    return value


def flag(fields: Mapping[str, Any], name: str) -> bool:
    return bool(fields.get(name, False))


def strings(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(values or ())


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """Return the origin without the fields that are only for the stream."""
    return {name: getattr(origin, name) for name in _STORED}


_OF_STREAM = ("previous", "history", "after")
_STORED = tuple(each.name for each in fields(Origin) if each.name not in _OF_STREAM)


def origin_from_json(fields: Mapping[str, Any]) -> Origin:
    """Parse the output of `origin_to_json`; raise `Malformed` for anything else."""
    try:
        return Origin(
            source=str(fields["source"]),
            epoch=int(fields["epoch"]),
            file=int(fields["file"]),
            position=int(fields["position"]),
            gtid=str(fields.get("gtid", "")),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Malformed(
            f"an origin in etcd cannot be read: {error!r}",
            "it has a source, and an epoch, a file and a position that are numbers",
            Code.ETCD_VALUE,
        ) from error


_NOTHING_LEFT = {
    DdlType.DROP_SCHEMA, DdlType.DROP_TABLE, DdlType.DROP_COLUMN, DdlType.DROP_INDEX,
    DdlType.DROP_VIEW, DdlType.DROP_SEQUENCE, DdlType.DROP_PRIMARY_KEY,
}  # fmt: skip


def table_to_json(table: TableInfo) -> Json:
    written: Json = {
        "id": table.id,
        "name": name_to_json(table.name),
        "charset": table.charset,
        "collate": table.collate,
        "cols": [_column_to_json(column) for column in table.columns],
        "index_info": [_index_to_json(index) for index in table.indexes],
        "state": PUBLIC,
        "pk_is_handle": table.pk_is_handle,
        "is_common_handle": table.is_common_handle,
        "comment": table.comment,
        "max_col_id": table.max_column_id,
        "max_idx_id": table.max_index_id,
        "view": {"view_select": ""} if table.is_view else None,
        "sequence": {} if table.is_sequence else None,
    }
    if table.partitions is not None:
        parts: list[Json] = [{"name": name_to_json(name)} for name in table.partitions]
        for part, partition_id in zip(parts, table.partition_ids, strict=False):
            part["id"] = partition_id
        written["partition"] = {"enable": True, "definitions": parts} if parts else None
    if table.expression_indexes:
        written["expression_indexes"] = list(table.expression_indexes)
    if table.expires:
        written["ttl_info"] = {}
    if table.lacks_key:
        written["lacks_key"] = True
    if table.period:
        written["period"] = list(table.period)
    if table.own_period:
        written["own_period"] = list(table.own_period)
    if table.constraints is not None:
        written["constraints"] = list(table.constraints)
    return written | ({"constants": table.constants} if table.constants else {})


def table_from_json(fields: Mapping[str, Any]) -> TableInfo:
    """Parse a table written by `table_to_json` or TiDB; raise `Malformed` otherwise."""
    with _reading("a table"):
        return _table(fields)


def job_to_json(job: DdlJob) -> Json:
    written: Json = {
        "id": job.id,
        "type": int(job.type),
        "schema_id": job.schema_id,
        "table_id": job.table_id,
        "schema_name": job.schema_name,
        "table_name": job.table_name,
        "state": job.state,
        "query": job.query,
        "schema_state": 0 if job.type in _NOTHING_LEFT else PUBLIC,
        "binlog": {
            "SchemaVersion": job.schema_version,
            "DBInfo": schema_to_json(job.schema) if job.schema else None,
            "TableInfo": table_to_json(job.table) if job.table else None,
            "FinishedTS": job.finished_ts,
            "MultipleTableInfos": [table_to_json(table) for _, table in job.tables] or None,
        },
    }
    if job.tables:
        written["table_schemas"] = [schema for schema, _ in job.tables]
    if job.start_ts:
        written["start_ts"] = job.start_ts
    if job.schema_ids:
        written["raw_args"] = [[], list(job.schema_ids)]
    if job.parts:
        tp = int(DdlType.ADD_COLUMN)
        parts = [
            {"schema_version": ended} | ({"type": tp, "raw_args": [{"id": added}]} if added else {})
            for ended, added in job.parts
        ]
        written["multi_schema_info"] = {"sub_jobs": parts}
    if job.context is not None:
        written["context"] = job.context.to_json()
    return written | ({"origin": origin_to_json(job.origin)} if job.origin else {})


def job_from_json(fields: Mapping[str, Any]) -> DdlJob:
    """Parse a job written by `job_to_json` or TiDB; raise `Malformed` otherwise."""
    with _reading("a DDL job"):
        binlog = fields.get("binlog") or {}
        schema_name = text(fields, "schema_name")
        tables = [_table(each) for each in binlog.get("MultipleTableInfos") or ()]
        schemas = fields.get("table_schemas") or [schema_name] * len(tables)
        return DdlJob(
            id=int(fields["id"]),
            type=int(fields["type"]),
            schema_id=number(fields, "schema_id"),
            schema_name=schema_name,
            query=text(fields, "query"),
            schema_version=number(binlog, "SchemaVersion"),
            table_id=number(fields, "table_id"),
            table_name=text(fields, "table_name"),
            finished_ts=number(binlog, "FinishedTS"),
            state=number(fields, "state"),
            schema=schema_from_json(binlog["DBInfo"]) if binlog.get("DBInfo") else None,
            table=_table(binlog["TableInfo"]) if binlog.get("TableInfo") else None,
            tables=tuple(zip(schemas, tables, strict=True)),
            origin=origin_from_json(fields["origin"]) if fields.get("origin") else None,
            context=_context(fields),
            start_ts=number(fields, "start_ts"),
            schema_ids=_schema_ids(fields, len(tables)),
            parts=_parts(fields),
        )


def _context(fields: Mapping[str, Any]) -> DdlContext | None:
    if fields.get("context") is not None:
        return DdlContext.from_json(fields["context"])
    said = fields.get("reorg_meta") or {}
    location = said.get("location") or {}
    name, offset_s = text(location, "name"), number(location, "offset")
    zone = offset_text(offset_s) if offset_s else "+00:00" if name == "UTC" else name
    mode = said.get("sql_mode")
    context = DdlContext(
        time_zone=None if zone in ("", "Local", "SYSTEM") else zone,
        sql_mode=None if mode is None else modes_of(int(mode)) | {ROUNDS},
    )
    return None if context == DdlContext() or not said else context


def _parts(fields: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return (end version, added column) of each part of a multi-schema change."""
    found = []
    for part in (fields.get("multi_schema_info") or {}).get("sub_jobs") or ():
        added, arguments = 0, part.get("raw_args")
        if part.get("type") == DdlType.ADD_COLUMN and arguments:
            added = number(arguments[0], "id")
        found.append((number(part, "schema_version"), added))
    return tuple(found)


def _schema_ids(fields: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the target schemas' ids of a RENAME TABLES, from TiDB's arguments.

    They are the second argument; a job without them names the schemas of its tables itself.
    """
    arguments = fields.get("raw_args")
    if fields["type"] != DdlType.RENAME_TABLES or not isinstance(arguments, list):
        return ()
    ids = arguments[1] if len(arguments) > 1 else None
    if not isinstance(ids, list) or len(ids) != count:
        return ()
    return tuple(map(int, ids))


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Convert Python errors about JSON of another shape to `Malformed`."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise Malformed(
            f"{what} in the DDL history cannot be read: {type(error).__name__}: {error}",
            "its JSON must have the shape of TiDB's",
            Code.DDL_HISTORY,
        ) from error


def _column_to_json(column: ColumnInfo) -> Json:
    extras: Json = {"native_type": column.native} if column.native else {}
    if column.hidden:
        extras["hidden"] = True
    if column.origin_is_expr:
        extras["origin_is_expr"] = True
    return extras | {
        "id": column.id,
        "name": name_to_json(column.name),
        "offset": column.offset,
        "origin_default": column.origin_default,
        "origin_default_bit": _bit_bytes(column, column.origin_default),
        "default": column.default,
        "default_bit": _bit_bytes(column, column.default),
        "default_is_expr": column.default_is_expr,
        "generated_expr_string": column.generated_expr,
        "generated_stored": column.generated_stored,
        "type": {
            "Tp": int(column.tp),
            "Flag": int(column.flag),
            "Flen": column.flen,
            "Decimal": column.decimal,
            "Charset": column.charset,
            "Collate": column.collate,
            "Elems": list(column.elems) or None,
        },
        "state": column.state,
        "comment": column.comment,
    }


def _column(fields: Mapping[str, Any]) -> ColumnInfo:
    kind = fields["type"]
    tp = MysqlType(kind["Tp"] or MysqlType.NULL)  # A view's columns have none.
    return ColumnInfo(
        id=int(fields["id"]),
        name=name_from_json(fields["name"]),
        offset=int(fields["offset"]),
        tp=tp,
        flag=ColumnFlag(number(kind, "Flag")),
        flen=number(kind, "Flen", -1),
        decimal=number(kind, "Decimal", -1),
        charset=text(kind, "Charset"),
        collate=text(kind, "Collate"),
        elems=strings(kind.get("Elems")),
        origin_default=_default(tp, fields, "origin_default"),
        default=_default(tp, fields, "default"),
        default_is_expr=flag(fields, "default_is_expr"),
        generated_expr=text(fields, "generated_expr_string"),
        generated_stored=flag(fields, "generated_stored"),
        comment=text(fields, "comment"),
        state=number(fields, "state", PUBLIC),
        hidden=flag(fields, "hidden"),
        origin_is_expr=flag(fields, "origin_is_expr"),
        native=text(fields, "native_type"),
    )


def _index_to_json(index: IndexInfo) -> Json:
    return {
        "id": index.id,
        "idx_name": name_to_json(index.name),
        "idx_cols": [
            {"name": name_to_json(part.name), "offset": part.offset, "length": part.length}
            for part in index.columns
        ],
        "is_unique": index.unique,
        "is_primary": index.primary,
        "state": index.state,
    }


def _index(fields: Mapping[str, Any]) -> IndexInfo:
    parts = (
        IndexColumn(
            name=name_from_json(part["name"]),
            offset=int(part["offset"]),
            length=number(part, "length", -1),
        )
        for part in fields["idx_cols"]
    )
    return IndexInfo(
        id=int(fields["id"]),
        name=name_from_json(fields["idx_name"]),
        columns=tuple(parts),
        unique=flag(fields, "is_unique"),
        primary=flag(fields, "is_primary"),
        state=number(fields, "state", PUBLIC),
    )


def _table(fields: Mapping[str, Any]) -> TableInfo:
    columns = tuple(map(_column, fields.get("cols") or ()))
    indexes = tuple(map(_index, fields.get("index_info") or ()))
    parts = (fields.get("partition") or {}).get("definitions") or ()
    constraints = fields.get("constraints")
    hidden = {column.name for column in columns if column.hidden}
    over_expressions = [i.name for i in indexes if any(part.name in hidden for part in i.columns)]
    return TableInfo(
        id=int(fields["id"]),
        name=name_from_json(fields["name"]),
        columns=columns,
        indexes=indexes,
        charset=text(fields, "charset"),
        collate=text(fields, "collate"),
        pk_is_handle=flag(fields, "pk_is_handle"),
        is_common_handle=flag(fields, "is_common_handle"),
        max_column_id=number(fields, "max_col_id", max((c.id for c in columns), default=0)),
        max_index_id=number(fields, "max_idx_id", max((i.id for i in indexes), default=0)),
        comment=text(fields, "comment"),
        is_view=fields.get("view") is not None,
        is_sequence=fields.get("sequence") is not None,
        partitions=tuple(name_from_json(each["name"]) for each in parts)
        if "partition" in fields
        else None,
        partition_ids=tuple(int(each["id"]) for each in parts if each.get("id")),
        constants=tuple((str(name), str(text)) for name, text in fields.get("constants") or ()),
        expression_indexes=tuple(map(str, fields.get("expression_indexes") or over_expressions)),
        lacks_key=flag(fields, "lacks_key"),
        period=tuple(map(str, fields.get("period") or ())),
        own_period=tuple(map(str, fields.get("own_period") or ())),
        expires=fields.get("ttl_info") is not None,
        constraints=None if constraints is None else tuple(map(str, constraints)),
    )


def schema_to_json(schema: SchemaInfo) -> Json:
    return {
        "id": schema.id,
        "db_name": name_to_json(schema.name),
        "charset": schema.charset,
        "collate": schema.collate,
        "state": PUBLIC,
    }


def schema_from_json(fields: Mapping[str, Any]) -> SchemaInfo:
    return SchemaInfo(
        id=int(fields["id"]),
        name=name_from_json(fields["db_name"]),
        charset=text(fields, "charset"),
        collate=text(fields, "collate"),
    )


def _bit_bytes(column: ColumnInfo, default: str | None) -> str | None:
    if column.tp is not MysqlType.BIT or default is None or not default.isdecimal():
        return None
    bits = max(column.flen, int(default).bit_length(), 1)
    return base64.b64encode(int(default).to_bytes((bits + 7) // 8, "big")).decode()


def _default(tp: MysqlType, fields: Mapping[str, Any], name: str) -> str | None:
    bits = fields.get(f"{name}_bit")
    if tp is MysqlType.BIT and bits is not None:
        return str(int.from_bytes(base64.b64decode(bits, validate=True), "big"))
    value = fields.get(name)
    return value if value is None or isinstance(value, str) else str(value)
