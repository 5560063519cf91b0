"""A column as written into a `ColumnInfo`: shape, flags, character set and default.

What is no text has character set and collation `binary`, as in TiDB; JSON has `utf8mb4`. BIT and
YEAR are unsigned, ZEROFILL makes a number so. A TIMESTAMP is nullable and without a default unless
written, as with `explicit_defaults_for_timestamp`.
"""

from __future__ import annotations

from penstock.ddl.charsets.charsets import resolve
from penstock.ddl.syntax.elements import ColumnDef, TypeSpec, ValueKind
from penstock.ddl.tables.default_values import default_of
from penstock.ddl.tables.shapes import (
    INTEGERS,
    LARGE_TYPES,
    NATIVE,
    NUMERIC,
    TEXT_TYPES,
    elems_of,
    refuse,
    shape_of,
)
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType

_COUNTING = frozenset({*INTEGERS, "SERIAL", "FLOAT", "DOUBLE"})


def build_column(column: ColumnDef, column_id: int, inherited: tuple[str, str]) -> ColumnInfo:
    """Return the column as the catalog keeps it, at offset 0 and without key flags.

    `inherited` is the table's character set and collation. What MySQL would refuse raises
    NeedsOperator.
    """
    spec = column.type
    _check_attributes(column)
    charset, collate = _charset(spec, inherited)
    tp, flen, decimal = shape_of(column, charset)
    info = ColumnInfo(
        id=column_id,
        name=column.name,
        offset=0,
        tp=tp,
        flag=_flags(column, tp, charset),
        flen=flen,
        decimal=decimal,
        charset=charset,
        collate=collate,
        elems=elems_of(column, charset),
        generated_expr=column.generated,
        generated_stored=column.stored,
        comment=column.comment,
        native=spec.name if spec.name in NATIVE else "",
    )
    return default_of(info, column.default)


def _check_attributes(column: ColumnDef) -> None:
    spec = column.type
    if (spec.unsigned or spec.zerofill) and spec.name not in NUMERIC:
        raise refuse(column, f"{spec.name} cannot be UNSIGNED", "leave UNSIGNED and ZEROFILL out")
    if column.generated and (
        column.default is not None or column.auto_increment or column.on_update_now
    ):
        raise refuse(column, "a generated column has no default", "leave the default out")
    if column.auto_increment and spec.name not in _COUNTING:
        raise refuse(column, f"{spec.name} AUTO_INCREMENT", "make it a number")
    if column.auto_increment and column.default is not None:
        raise refuse(column, "AUTO_INCREMENT with a default", "leave the default out")
    if column.on_update_now and spec.name not in ("DATETIME", "TIMESTAMP"):
        raise refuse(column, "ON UPDATE needs a time", "make it DATETIME or TIMESTAMP")
    null = column.default is not None and column.default.kind is ValueKind.NULL
    if null and column.not_null:
        raise refuse(column, "NOT NULL with DEFAULT NULL", "drop one of the two")


def _is_text(spec: TypeSpec) -> bool:
    return spec.name in ("ENUM", "SET", "CHAR", "VARCHAR") or spec.name.endswith("TEXT")


def _charset(spec: TypeSpec, inherited: tuple[str, str]) -> tuple[str, str]:
    if spec.name == "JSON":
        return "utf8mb4", "utf8mb4_bin"
    if spec.name in NATIVE:
        return "ascii", "ascii_bin"
    if not _is_text(spec):
        if spec.charset.charset not in (None, "binary"):
            raise NeedsOperator(
                f"{spec.name} takes no character set", hint="leave CHARACTER SET out"
            )
        return "binary", "binary"
    charset, collate = resolve(spec.charset, inherited)
    if spec.binary and spec.charset.collate is None and charset != "binary":
        collate = f"{charset}_bin"
    return charset, collate


def _flags(column: ColumnDef, tp: MysqlType, charset: str) -> ColumnFlag:
    spec = column.type
    wanted = {
        ColumnFlag.NOT_NULL: bool(column.not_null),
        ColumnFlag.UNSIGNED: spec.unsigned or spec.name in ("SERIAL", "BIT", "YEAR"),
        ColumnFlag.ZEROFILL: spec.zerofill or spec.name == "YEAR",
        ColumnFlag.AUTO_INCREMENT: column.auto_increment,
        ColumnFlag.ON_UPDATE_NOW: column.on_update_now,
        ColumnFlag.BLOB: tp in LARGE_TYPES,
        ColumnFlag.ENUM: tp is MysqlType.ENUM,
        ColumnFlag.SET: tp is MysqlType.SET,
        ColumnFlag.BINARY: tp in TEXT_TYPES and charset == "binary",
    }
    now = column.default is not None and column.default.kind is ValueKind.NOW
    if tp is MysqlType.TIMESTAMP and (now or column.on_update_now):
        wanted[ColumnFlag.TIMESTAMP] = True
    flag = ColumnFlag(0)
    for one, is_set in wanted.items():
        flag |= one if is_set else ColumnFlag(0)
    return flag
