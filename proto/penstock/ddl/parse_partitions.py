"""Partitions: what they are is not tracked, because no row image depends on them.

    PARTITION BY …, REMOVE PARTITIONING                           may follow other operations
    ADD, REORGANIZE, COALESCE PARTITION                           alone; all rows stay
    ANALYZE, CHECK, OPTIMIZE, REBUILD, REPAIR PARTITION           alone; all rows stay
    DROP, TRUNCATE PARTITION                                      alone; rows go without a binlog
    EXCHANGE PARTITION … WITH TABLE …                             alone; rows change the table

Rows that go or move without a binlog do so downstream when the statement runs there.
"""

from __future__ import annotations

from penstock.ddl.cursor import Cursor
from penstock.ddl.operations import Operation, Partitions, Untracked
from penstock.schema import DdlType

_TYPES = {
    "ADD": DdlType.ADD_PARTITION,
    "DROP": DdlType.DROP_PARTITION,
    "TRUNCATE": DdlType.TRUNCATE_PARTITION,
    "REORGANIZE": DdlType.REORGANIZE_PARTITION,
    "COALESCE": DdlType.REORGANIZE_PARTITION,
    **dict.fromkeys(
        ("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR"), DdlType.REORGANIZE_PARTITION
    ),
}


def is_partition_operation(cur: Cursor) -> bool:
    """Return whether an operation on partitions stands here."""
    return cur.peek().upper in ("PARTITION", "PARTITIONING") and bool(cur.token.upper)


def partition_operation(cur: Cursor) -> Operation:
    """Read an operation on partitions."""
    if cur.take("REMOVE", "PARTITIONING"):
        return Untracked()
    verb = cur.next().upper
    cur.expect("PARTITION")
    if verb == "EXCHANGE":
        return _exchange(cur)
    if verb not in _TYPES or cur.is_word("TABLESPACE"):
        cur.refuse(
            f"{verb} PARTITION",
            "rows would come or go without a binlog: use EXCHANGE PARTITION, or insert and delete",
        )
    if verb in ("DROP", "TRUNCATE"):
        # Which partitions there are is not tracked, so a server decides about IF EXISTS.
        cur.take("IF", "EXISTS")
        if not cur.take("ALL"):
            cur.name()
            while cur.take_sign(","):
                cur.name()
    else:
        _skip_rest(cur)
    return Partitions(_TYPES[verb])


def _exchange(cur: Cursor) -> Operation:
    cur.name()
    cur.expect("WITH", "TABLE")
    ref = cur.table_ref()
    start = cur.token.start
    if cur.take("WITH", "VALIDATION") or cur.take("WITHOUT", "VALIDATION"):
        # MariaDB did not know it for long; a downstream may well look at the rows.
        cur.drop_text(start)
    return Partitions(DdlType.EXCHANGE_PARTITION, ref)


def partition_by(cur: Cursor) -> None:
    """Move past PARTITION BY and all that belongs to it."""
    cur.expect("PARTITION", "BY")
    if cur.token.upper not in ("RANGE", "LIST", "HASH", "KEY", "LINEAR"):
        cur.refuse(f"PARTITION BY {cur.token.text}", "use RANGE, LIST, HASH or KEY")
    _skip_rest(cur)


def _skip_rest(cur: Cursor) -> None:
    while not cur.at_end():
        if cur.token.upper in ("SELECT", "AS"):
            return
        if cur.is_sign("("):
            cur.parenthesised()
        else:
            cur.next()
