"""The events that a DDL is, by what it did to the tables and by its words.

Most operations of ALTER TABLE show in the table before and after: that is the more reliable source,
as it does not matter how the statement was written. What leaves no trace there (partitions, foreign
keys, storage engines) is looked for among the statement's words outside strings and comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.ddl import SchemaChange
from penstock.ddl.syntax.lexer import Kind, Token, read
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, DdlType, IndexInfo, MysqlType, TableInfo

Names = frozenset[str]

_BY_TYPE: dict[int, str] = {
    DdlType.CREATE_SCHEMA: "create database",
    DdlType.DROP_SCHEMA: "drop database",
    DdlType.CREATE_TABLE: "create table",
    60: "create table",
    DdlType.DROP_TABLE: "drop table",
    DdlType.TRUNCATE_TABLE: "truncate table",
    DdlType.RENAME_TABLE: "rename table",
    DdlType.RENAME_TABLES: "rename table",
    DdlType.CREATE_VIEW: "create view",
    DdlType.DROP_VIEW: "drop view",
    25: "recover table",
}
_BY_WORDS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\bADD PARTITION\b", "add table partition"),
        (r"\bDROP PARTITION\b", "drop table partition"),
        (r"\bTRUNCATE PARTITION\b", "truncate table partition"),
        (r"\bREORGANIZE PARTITION\b", "reorganize table partition"),
        (r"\bREBUILD PARTITION\b", "rebuild table partition"),
        (r"\bCOALESCE PARTITION\b", "coalesce table partition"),
        (r"\bSPLIT\b.*\bPARTITION\b", "split table partition"),
        (r"\bEXCHANGE PARTITION\b", "exchange table partition"),
        (r"\bREMOVE PARTITIONING\b", "remove table partitioning"),
        (r"\bPARTITION BY\b", "alter table partitioning"),
        (r"\bADD (CONSTRAINT (\S+ )?)?FOREIGN KEY\b", "add foreign key"),
        (r"\bDROP FOREIGN KEY\b", "drop foreign key"),
        (r"\b(ADD|DROP|ALTER) (CONSTRAINT (\S+ )?)?CHECK\b", "modify constraint"),
        (r"\b(DROP|ALTER) CONSTRAINT\b", "modify constraint"),
        (r"\bENGINE =", "modify storage engine"),
        (r"\bAUTO_INCREMENT =", "rebase auto id"),
        (r"\bALTER INDEX \S+ (IN)?VISIBLE\b", "alter index visibility"),
    )
]
_INT_WIDTHS = {
    MysqlType.TINY: 1,
    MysqlType.SHORT: 2,
    MysqlType.INT24: 3,
    MysqlType.LONG: 4,
    MysqlType.LONGLONG: 8,
}


def operations(change: SchemaChange) -> list[Names]:
    """Return the operations of a DDL, at least one, each with all its names."""
    job = change.job
    if job.type == DdlType.MODIFY_SCHEMA_CHARSET:
        return [frozenset({"alter database", "modify schema charset and collate"})]
    words = ddl_words(job.query)
    kinds = ("INDEX", "UNIQUE", "FULLTEXT", "SPATIAL")
    if words.startswith(tuple(f"CREATE {kind}" for kind in kinds)):
        return [frozenset({"create index"})]
    if words.startswith("DROP INDEX"):
        return [frozenset({"drop index"})]
    if job.type in _BY_TYPE and not words.startswith("ALTER TABLE"):
        return [frozenset({_BY_TYPE[job.type]})]
    found = list(_told(change, words))
    if not found:
        return [frozenset({"alter table"})]
    several = {"multi schema change"} if len(found) > 1 else set()
    return [frozenset({"alter table", *names, *several}) for names in found]


def ddl_words(query: str) -> str:
    """Return a statement's words in capitals and its signs, one blank between; `_` for the rest."""
    try:
        tokens = read(query).tokens
    except NeedsOperator:
        return ""
    return " ".join(_shown(token) for token in tokens if token.kind is not Kind.END)


def _shown(token: Token) -> str:
    if token.kind is Kind.WORD:
        return token.text.upper()
    return token.text if token.kind is Kind.SIGN else "_"


def _told(change: SchemaChange, words: str) -> Iterator[set[str]]:
    for _, before, after in change.altered:
        yield from _differences(before, after)
    for _, before, _, after in change.renamed:
        yield {"rename table"}
        yield from _differences(before, after)
    for pattern, name in _BY_WORDS:
        if pattern.search(words):
            yield {name}


def _differences(before: TableInfo, after: TableInfo) -> Iterator[set[str]]:
    old, new = {c.id: c for c in before.columns}, {c.id: c for c in after.columns}
    yield from ({"add column"} for i in new if i not in old)
    yield from ({"drop column"} for i in old if i not in new)
    for i, column in new.items():
        names = _column_change(old[i], column) if i in old else set()
        if names:
            yield names
    if [i for i in old if i in new] != [i for i in new if i in old]:
        yield {"modify columns order"}
    yield from _index_differences(before, after)
    if (before.charset, before.collate) != (after.charset, after.collate):
        yield {"modify table charset and collate"}
    if before.comment != after.comment:
        yield {"modify table comment"}


def _column_change(old: ColumnInfo, new: ColumnInfo) -> set[str]:
    """Return what happened to one column; it is one operation, whatever its names."""
    names: set[str] = set()
    if old.name != new.name:
        names.add("rename column")
    unsigned, auto = ColumnFlag.UNSIGNED, ColumnFlag.AUTO_INCREMENT
    kinds = [
        (c.tp, c.flen, c.decimal, c.elems, c.flag & unsigned, c.is_not_null) for c in (old, new)
    ]
    if kinds[0] != kinds[1]:
        names.add("modify column")
        if _is_narrower(old, new):
            names.add("value range decrease")
        if 0 <= new.decimal < old.decimal:
            names.add("precision decrease")
    if (old.default, old.default_is_expr) != (new.default, new.default_is_expr):
        names |= {"modify default value", "set default value"}
    if old.charset != new.charset:
        names.add("modify charset")
    if old.collate != new.collate:
        names.add("modify collation")
    if auto in old.flag and auto not in new.flag:
        names.add("remove auto increment")
    return names


def _is_narrower(old: ColumnInfo, new: ColumnInfo) -> bool:
    if old.tp in _INT_WIDTHS and new.tp in _INT_WIDTHS:
        return old.is_unsigned != new.is_unsigned or _INT_WIDTHS[new.tp] < _INT_WIDTHS[old.tp]
    if old.tp is not new.tp or old.is_unsigned != new.is_unsigned:
        return True
    if old.tp is MysqlType.NEWDECIMAL:
        return new.flen - new.decimal < old.flen - old.decimal
    return 0 <= new.flen < old.flen or new.elems[: len(old.elems)] != old.elems


def _index_differences(before: TableInfo, after: TableInfo) -> Iterator[set[str]]:
    if before.primary_key is None and after.primary_key is not None:
        yield {"add primary key"}
    if before.primary_key is not None and after.primary_key is None:
        yield {"drop primary key"}
    old = {i.id: i for i in before.indexes if not i.primary}
    new = {i.id: i for i in after.indexes if not i.primary}
    yield from ({"create index"} for i in new if i not in old)
    yield from (_dropped(index) for i, index in old.items() if i not in new)
    for i in old.keys() & new.keys():
        if old[i].name != new[i].name:
            yield {"rename index"}


def _dropped(index: IndexInfo) -> set[str]:
    return {"drop unique key", "drop index"} if index.unique else {"drop index"}
