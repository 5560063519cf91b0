"""Parses partition clauses for their names; no row image depends on the rest.

    PARTITION BY …, REMOVE PARTITIONING                           may follow other operations
    ADD, REORGANIZE, COALESCE PARTITION                           alone; all rows stay
    ANALYZE, CHECK, OPTIMIZE, REBUILD, REPAIR PARTITION           alone; all rows stay
    DROP, TRUNCATE PARTITION                                      alone; rows go without a binlog
    EXCHANGE PARTITION … WITH TABLE …                             alone; rows change the table
    CONVERT PARTITION … TO TABLE …, CONVERT TABLE … TO PARTITION  alone; rows change the table

Rows that disappear or move without a binlog do so downstream when the statement runs there.
"""

from __future__ import annotations

from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.syntax.statements import Edit, Operation, PartitionBy, Partitions
from penstock.ddl.tables.partitioning import made_up
from penstock.schema.model import DdlType

_MAINTENANCE = ("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR")
_AFTER_NAME = ("VALUES", "ENGINE", "COMMENT", "HISTORY", "CURRENT", "DATA", "INDEX", "MAX_ROWS")
_TYPES = {
    "ADD": DdlType.ADD_PARTITION,
    "DROP": DdlType.DROP_PARTITION,
    "TRUNCATE": DdlType.TRUNCATE_PARTITION,
    "REORGANIZE": DdlType.REORGANIZE_PARTITION,
    "COALESCE": DdlType.REORGANIZE_PARTITION,
    **dict.fromkeys(_MAINTENANCE, DdlType.REORGANIZE_PARTITION),
}


def is_partition_operation(cur: Cursor) -> bool:
    if cur.is_word("CONVERT", "TABLE"):
        return True
    return cur.peek().upper in ("PARTITION", "PARTITIONING") and bool(cur.token.upper)


def partition_operation(cur: Cursor) -> Operation:
    if cur.take("REMOVE", "PARTITIONING"):
        return PartitionBy(())
    if cur.take("CONVERT", "TABLE"):
        return _convert_table(cur)
    verb = cur.next().upper
    cur.expect("PARTITION")
    if verb == "EXCHANGE":
        return _exchange(cur)
    if verb == "CONVERT":
        name = cur.name()
        cur.expect("TO", "TABLE")
        return Partitions(DdlType.CONVERT_PARTITION, cur.table_ref(), names=(name,))
    if verb not in _TYPES or cur.is_word("TABLESPACE"):
        cur.refuse(
            f"{verb} PARTITION",
            "rows would come or go without a binlog: use EXCHANGE PARTITION, or insert and delete",
        )
    cur.take_any("LOCAL", "NO_WRITE_TO_BINLOG")
    if verb == "ADD":
        return _add(cur)
    if verb == "COALESCE":
        return Partitions(_TYPES[verb], count=cur.integer())
    # The server decides whether a missing partition is an error, also downstream.
    lenient = verb == "DROP" and cur.take("IF", "EXISTS")
    names = () if cur.at_end() or cur.take("ALL") else cur.listed(cur.name)
    into: tuple[str, ...] = ()
    if verb == "REORGANIZE" and names:
        cur.expect("INTO")
        into = _definitions(cur)[0]
    while verb in _MAINTENANCE and not cur.at_end():
        _step(cur)
    return Partitions(_TYPES[verb], names=names, into=into, lenient=lenient)


def _add(cur: Cursor) -> Operation:
    lenient = cur.take("IF", "NOT", "EXISTS")
    if cur.take("PARTITIONS"):
        return Partitions(_TYPES["ADD"], count=cur.integer(), lenient=lenient)
    return Partitions(_TYPES["ADD"], into=_definitions(cur)[0], lenient=lenient)


def _exchange(cur: Cursor) -> Operation:
    name = cur.name()
    cur.expect("WITH", "TABLE")
    ref = cur.table_ref()
    _validation(cur)
    return Partitions(DdlType.EXCHANGE_PARTITION, ref, names=(name,))


def _convert_table(cur: Cursor) -> Operation:
    ref = cur.table_ref()
    cur.expect("TO", "PARTITION")
    name = cur.name()
    while not cur.at_end() and not cur.is_word("WITH") and not cur.is_word("WITHOUT"):
        _step(cur)
    _validation(cur)
    return Partitions(DdlType.CONVERT_TABLE, ref, into=(name,))


def _validation(cur: Cursor) -> None:
    start = cur.token.start
    if cur.take("WITH", "VALIDATION") or cur.take("WITHOUT", "VALIDATION"):
        # MariaDB did not know it for long; a downstream may well check the rows.
        cur.drop_from_mariadb(start)


def partition_by(cur: Cursor) -> PartitionBy:
    cur.expect("PARTITION", "BY")
    if cur.token.upper not in ("RANGE", "LIST", "HASH", "KEY", "LINEAR"):
        cur.refuse(f"PARTITION BY {cur.token.text}", "use RANGE, LIST, HASH or KEY")
    names: tuple[str, ...] = ()
    count, has_parts = 1, False
    while not cur.at_end() and cur.token.upper not in ("SELECT", "AS"):
        is_named = cur.peek().upper == "PARTITION" or cur.peek(2).upper in _AFTER_NAME
        if cur.is_sign("(") and is_named:
            names, parted = _definitions(cur)
            has_parts |= parted
        elif cur.take("PARTITIONS"):
            count = cur.integer()
        else:
            has_parts |= cur.is_word("SUBPARTITION")
            _step(cur)
    return PartitionBy(None if has_parts else names or made_up(0, count))


def _definitions(cur: Cursor) -> tuple[tuple[str, ...], bool]:
    names, has_parts = [], False
    cur.expect_sign("(")
    while True:
        start = cur.token.start
        if not cur.take("PARTITION"):
            cur.edits.append(Edit(start, start, "PARTITION "))
        names.append(cur.name())
        while not (cur.is_sign(",") or cur.is_sign(")")):
            if cur.at_end():
                cur.fail("')'")
            has_parts |= cur.is_sign("(") and cur.peek().upper == "SUBPARTITION"
            _step(cur)
        if not cur.take_sign(","):
            break
    cur.expect_sign(")")
    return tuple(names), has_parts


def _step(cur: Cursor) -> None:
    if cur.is_sign("("):
        cur.parenthesised()
    else:
        cur.next()
