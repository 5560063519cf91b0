"""Running DDL: whether a server still runs a DDL of a session that is gone.

    MySQL, MariaDB    a server notices at the end of a statement that its client has gone. It shows
                      the statement in SHOW PROCESSLIST, with `?` for characters beyond its own
    TiDB              a DDL is a job of the cluster's, listed in information_schema.ddl_jobs

A Drainer that runs it again meanwhile runs it twice. So the sink waits for the end of the first
one; then the definitions of its tables show what it did.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Any

from pymysql.constants import ER
from pymysql.err import MySQLError

from penstock.codes import Code
from penstock.errors import Retryable

log = logging.getLogger(__name__)

_JOBS = (
    "SELECT COUNT(*) FROM information_schema.ddl_jobs WHERE query IN %s"
    " AND LOWER(state) NOT IN ('synced', 'cancelled', 'rollback done')"
)
_POLL_S = 0.5


def wait_for_ddl(
    connection: Any, texts: Collection[str], closing: threading.Event, *, is_tidb: bool
) -> None:
    """Return when the downstream runs none of these statements, or has none of them queued.

    An account that may not see them finds none. Raises `Retryable` when `closing` is set.
    """
    is_logged = False
    while _is_under_way(connection, texts, is_tidb=is_tidb):
        if not is_logged:
            is_logged = True
            log.info("waiting for a DDL that the downstream still runs: %s", next(iter(texts)))
        if closing.wait(_POLL_S):
            raise Retryable("the sink was closed while the downstream ran a DDL", code=Code.CLOSED)


def _is_under_way(connection: Any, texts: Collection[str], *, is_tidb: bool) -> bool:
    return _is_queued(connection, texts) if is_tidb else _is_running(connection, texts)


def _is_queued(connection: Any, texts: Collection[str]) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute(_JOBS, (tuple(texts),))
            return int(cursor.fetchone()[0]) > 0
    except MySQLError as error:
        if error.args[0] in (ER.UNKNOWN_TABLE, ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR):
            return False  # A TiDB from before the table.
        raise


def _is_running(connection: Any, texts: Collection[str]) -> bool:
    wanted = {_shown(text) for text in texts}
    with connection.cursor() as cursor:
        cursor.execute("SHOW FULL PROCESSLIST")
        found = [row[7] for row in cursor.fetchall()]
    return any(_shown(str(info)) in wanted for info in found if info)


def _shown(statement: str) -> str:
    """Return what of a statement each server shows as it is."""
    return "".join(c for c in statement if c.isascii() and c != "?")
