"""TiDB: the settings of a session to TiDB, and the limits of a batch.

A server is a TiDB if its version says so, or if the operator calls it `tidb` (`server-version` in
tidb.toml can hide it). It speaks MySQL's protocol, and differs here:

    session        `VARIABLES` are set, each if the server knows it; `params` come after them
    a transaction  is bounded in bytes (`too_large`)
    shared locks   do not exist: each worker queue locks a dedicated row (`side_connections`)
    DDL            is a job of the cluster: it continues after the session that began it has ended
                   (`ddl_progress`)

Transactions are pessimistic; those of TiDB-Binlog are optimistic. The checkpoint's row is locked at
their start, as in MySQL, so that a replaced Drainer finds out before it has written a batch and not
through a conflict at its end. The server never re-runs a transaction
(`tidb_disable_txn_auto_retry`), which would not check the checkpoint again; therefore
`stmt-count-limit`, which bounds only such transactions, does not apply.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pymysql.err import MySQLError

VARIABLES = (
    ("allow_auto_random_explicit_insert", "1"),
    ("tidb_txn_mode", "pessimistic"),
    ("tidb_disable_txn_auto_retry", "1"),
    ("tidb_placement_mode", "ignore"),
)
"""Rows keep their AUTO_RANDOM keys; each cluster decides its own placement."""

PASSING = frozenset({
    8002, 8005, 8022, 8027, 8028, 8113, 8120, 8201, 8229,
    9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008, 9010, 9011,
})  # fmt: skip
"""Transient errors: write conflicts, schemas, moving regions and leaders, lost locks."""

_TXN_TOO_LARGE, _ENTRY_TOO_LARGE, _MEMORY = 8004, 8025, 8175
_OUT_OF_MEMORY = re.compile(r"out of memory quota|memory quota for a|memory limit", re.IGNORECASE)
_UNKNOWN = 1105
_SIZE_LIMIT = "performance", "txn-total-size-limit"
_TXN_BYTES_DEFAULT = 100 << 20
_BYTES_PER_BYTE = 8
"""Transaction bytes per byte of a row: the row, its indexes, and their old entries."""


def is_tidb(version: object) -> bool:
    """Return whether a server's version is a TiDB's, such as 5.7.25-TiDB-v7.0.0."""
    return "tidb" in str(version).lower()


def too_large(code: int, message: str) -> str:
    if code == _ENTRY_TOO_LARGE:
        return (
            "a single row is above what the downstream takes: raise txn-entry-size-limit of its"
            " [performance] (6 MiB by default, 120 MiB at most) and raftstore.raft-entry-max-size"
            " of its TiKVs, on each server; nothing was changed"
        )
    if code == _TXN_TOO_LARGE:
        return (
            "raise txn-total-size-limit of the downstream's [performance] (100 MiB by default), on"
            " each of its servers; or, where a batch has many transactions, lower --batch-bytes-max"
            " or --batch-rows-max; nothing was changed"
        )
    if code == _MEMORY or (code == _UNKNOWN and _OUT_OF_MEMORY.search(message)):
        return (
            "the downstream had no memory left for one transaction: raise tidb_mem_quota_query"
            " there (SET GLOBAL, or in params); or, where a batch has many transactions, lower"
            " --batch-bytes-max or --batch-rows-max; nothing was changed"
        )
    return ""


def batch_bytes_max(connection: Any) -> int:
    """Return how many bytes of the stream fit one transaction, by the server's limit."""
    limit = _TXN_BYTES_DEFAULT
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@tidb_config")
            section, name = _SIZE_LIMIT
            limit = int(json.loads(cursor.fetchone()[0])[section][name])
    except (MySQLError, KeyError, TypeError, ValueError):
        pass  # Hidden from this account, or of another form: then the default is the best guess.
    return max(1, limit // _BYTES_PER_BYTE)
