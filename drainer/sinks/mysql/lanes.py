"""Lanes of transactions on a MySQL downstream: a thread and a connection each, all at once.

Each transaction begins with a look at the checkpoint row under a shared lock, which lanes do not
mind among each other, and which a Drainer that takes over waits for. So no lane of a Drainer that
was replaced, however long it was frozen, writes after its successor began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pymysql

from drainer.sinks.mysql.session import Connection, MysqlSession, passes, query, refused
from drainer.sinks.protocol import (
    ForeignKey,
    InDoubt,
    Missed,
    RowStatement,
    Split,
    Transaction,
    lane_committed,
)


class Lanes:
    """The connections beside the sink's own; opened when they are first needed."""

    def __init__(self, new_session: Callable[[], MysqlSession]) -> None:
        """Contact nothing yet."""
        self._new_session = new_session
        self.sessions: list[MysqlSession] = []

    def run(
        self,
        split: Split,
        begins: Callable[[Connection, Transaction], None],
    ) -> Missed:
        """Run all lanes to their ends; raise a failure once no lane is at work any more.

        `begins` is called in each transaction before its statements, and raises to stop it.
        """
        while len(self.sessions) < len(split.lanes):
            self.sessions.append(self._new_session())
        failed = threading.Event()

        def lane(session: MysqlSession, transactions: list[Transaction]) -> Missed:
            missed = Missed()
            try:
                for transaction in transactions:
                    if failed.is_set():
                        break
                    missed.add((_run(session, transaction, begins, safe=split.safe),))
            except BaseException:
                failed.set()
                raise
            return missed

        with ThreadPoolExecutor(len(split.lanes), thread_name_prefix="lane") as pool:
            running = [
                pool.submit(lane, session, transactions)
                for session, transactions in zip(self.sessions, split.lanes, strict=False)
            ]
        return Missed().add(each.result() for each in running)

    def close(self) -> None:
        """Close all connections; a lane at work ends with `Retryable`."""
        for session in self.sessions:
            session.close()


def _run(
    session: MysqlSession,
    transaction: Transaction,
    begins: Callable[[Connection, Transaction], None],
    *,
    safe: bool,
) -> Missed:
    def attempt(connection: Connection, retried: bool) -> Missed:
        missed = Missed()
        connection.begin()
        begins(connection, transaction)
        run_rows(connection, transaction, None if safe else missed)
        try:
            connection.commit()
        except (pymysql.err.MySQLError, OSError) as error:
            if safe:
                raise  # What is run again in the safe form does no harm.
            raise InDoubt(f"a commit got no answer: {error}") from error
        lane_committed()
        return missed

    return session.retrying(attempt)


def run_rows(connection: Connection, rows: list[RowStatement], missed: Missed | None) -> None:
    """Run one statement after another; raise `NeedsOperator` that names the row.

    Rows that are not there are counted in `missed`, unless it is None.
    """
    for statement in rows:
        try:
            found = query(connection, statement.sql)
        except pymysql.err.MySQLError as error:
            if passes(error):
                raise
            raise refused(error, statement.row) from error
        if missed is not None and not found and statement.names_a_row:
            missed.note(statement.row)


def foreign_keys(connection: Connection) -> tuple[ForeignKey, ...]:
    """Return all foreign keys of the server."""
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name, referenced_table_schema, referenced_table_name,"
            " constraint_name, column_name, referenced_column_name"
            " FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL"
        )
        for *key, child, parent in cursor.fetchall():
            found.setdefault(tuple(key), []).append((child, parent))
    return tuple(
        ForeignKey(schema, table, parent_schema, parent, tuple(columns))
        for (schema, table, parent_schema, parent, _), columns in found.items()
    )
