"""MySQL sink: writes MySQL, MariaDB or TiDB; the checkpoint is a row of `tidb_binlog.checkpoint`.

A batch is one transaction: lock the checkpoint row, compare it with the row that this run last
wrote, run the statements, store the new checkpoint, commit. When the connection breaks, it is
unknown whether the commit happened. The next attempt reads the row, under a lock that waits for the
end of any statement that the server still runs, and so finds out. That makes every retry safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import ER

from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, overridden, own_row
from drainer.sinks.mysql.ddl_progress import (
    DdlProgress,
    definitions,
    digest,
    ensure_all_there,
    is_respelled,
    left_to_do,
    progress,
    wait_for_ddl,
)
from drainer.sinks.mysql.ddl_session import as_upstream, written_out
from drainer.sinks.mysql.server import (
    Collations,
    check_grants,
    check_own,
    report_engines,
    report_missing,
    spelled,
    with_transactions,
)
from drainer.sinks.mysql.session import (
    ALREADY_CODES,
    OWN_ENGINE,
    Connection,
    MysqlSession,
    batch_bytes_max,
    code_of,
    many,
    one,
    passes,
    unhurried,
)
from drainer.sinks.mysql.side_connections import Fences, SideConnections, foreign_keys, run_rows
from drainer.sinks.mysql.statements import run
from drainer.sinks.protocol import (
    ForeignKey,
    Missed,
    PartitionedSink,
    Passage,
    Split,
    Transaction,
    checkpoint_stored,
    ddl_intended,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.task.partitions import Partitions
from drainer.task.row_changes import MARK_SCHEMA, MARK_TABLE
from drainer.task.sql.literals import MYSQL
from penstock.ddl.catalog import drops_several
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType

if TYPE_CHECKING:
    from drainer.sinks.protocol import StatementLists
    from penstock.ddl import Catalog, SchemaChange

log = logging.getLogger(__name__)

_DONE, _UNKNOWN = DdlProgress.DONE, DdlProgress.UNKNOWN


class MysqlSink(PartitionedSink):
    """See `Sink`; one connection, opened when it is first needed and reopened after a loss."""

    dialect = MYSQL

    def __init__(self, target: MysqlTarget, *, cluster_id: int, retry_s_max: float) -> None:
        target.current_password()  # Report an unreadable file now.
        self._target = target
        super().__init__(cluster_id)
        self._closing = threading.Event()
        new_session = partial(MysqlSession, target, retry_s_max=retry_s_max, closing=self._closing)
        self._session = new_session()
        self._collations = Collations(target.collations)
        self._known_engines: set[tuple[str, str]] = set()
        self._foreign_keys: tuple[ForeignKey, ...] | None = None
        self._is_fenced = False
        schema, table = target.checkpoint_schema, target.checkpoint_table
        self._table = quote_path(schema, table)
        self._own_tables = (
            (schema, table), (schema, f"{table}_fence"), (MARK_SCHEMA, MARK_TABLE)
        )  # fmt: skip
        self._fences = Fences(quote_path(schema, f"{table}_fence"), cluster_id)
        self._side = SideConnections(new_session, self._fences)

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue; create the checkpoint table if it does not exist.

        The first time, raise `NeedsOperator` if the account lacks a privilege to write.
        """

        def attempt(connection: Connection, retried: bool) -> str | None:
            stored = self._stored_or_created(connection)
            if not self._ledger.is_loaded:
                check_own(connection, self._own_tables)
                check_grants(connection, self._target.checkpoint_schema, self._table)
                if self._session.is_tidb:
                    self.batch_bytes_max = batch_bytes_max(connection)
            return stored

        return self._ledger.loaded(self._session.retrying(attempt))

    def _stored_or_created(self, connection: Connection) -> str | None:
        try:
            return self._own(connection)
        except pymysql.err.MySQLError as error:
            if code_of(error) not in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE):
                raise
        schema = self._target.checkpoint_schema
        connection.query(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
        connection.query(
            f"CREATE TABLE IF NOT EXISTS {self._table}"
            f" (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT) {OWN_ENGINE}"
        )
        return None

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.apply((), checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        def attempt(connection: Connection, retried: bool) -> None:
            connection.begin()
            stored = self._stored(connection, " FOR UPDATE")
            self._store(connection, overridden(stored, change), is_first=stored is None)
            connection.commit()

        self._session.retrying(attempt)

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        self.apply_slices(lambda: (each for each in (statements,)), checkpoint)

    def apply_slices(self, slices: StatementLists, checkpoint: Checkpoint) -> None:
        is_between = self._is_between

        def work(connection: Connection) -> None:
            with closing(slices()) as lists:
                for statements in lists:
                    self._session.check_sizes(statements)
                    if statements and is_between and self._fences.may_have_content:
                        self._fences.forget(connection)
                    for statement in statements:
                        run(connection, statement)
                    del statements
                    rows_changed()

        self._commit(work, checkpoint)

    def apply_split(self, split: Split, checkpoint: Checkpoint, start: Checkpoint) -> Missed:
        missed = Missed()
        if split.queues:
            if self._is_between:
                self._session.retrying(lambda connection, _: self._fences.forget(connection))
            begun = self._ledger.applying(checkpoint, start)
            if self._session.is_tidb:  # It has no shared locks: each queue locks a row.
                count = len(split.queues)
                self._session.retrying(lambda connection, _: self._fences.create(connection))
                self._commit(lambda connection: self._fences.begin_queues(connection, count), begun)
            else:
                self.save_checkpoint(begun)
            missed.add((self._side.run_queues(split, self._queue_begins),))
        last = Missed()

        def work(connection: Connection) -> None:
            self._session.check_sizes([statement.sql for statement in split.last])
            last.forget()  # Rows that an earlier attempt missed.
            run_rows(connection, split.last, None if split.safe else last)

        self._commit(work, checkpoint)
        return missed.add((last,))

    def has_begun(self, partitions: Partitions) -> bool:
        return self._session.retrying(lambda c, _: self._fences.hold(c, partitions))

    def apply_partitions(
        self, partitions: Partitions, checkpoint: Checkpoint, start: Checkpoint
    ) -> list[float]:
        took_s: list[float] = []
        if partitions.phases:
            ts, last = checkpoint.commit_ts, self._ledger.last
            resumes = last is not None and last.applying_ts == ts

            def begin(connection: Connection) -> None:
                # The rows are valid if the checkpoint marks the batch as in progress.
                if not (resumes and self._fences.hold(connection, partitions)):
                    parts = range(partitions.count)
                    self._fences.begin(connection, partitions.content, parts, ts)

            self._begin(begin, checkpoint, start)
            took_s = self._side.run_partitions(partitions, ts)
        self.apply(partitions.last, checkpoint)
        return took_s

    def begin_partitions(self, parts: range, checkpoint: Checkpoint, start: Checkpoint) -> Passage:
        def begin(connection: Connection) -> None:
            if self._fences.may_have_content:  # Later, tasks hold locks of these rows.
                self._fences.forget(connection)
            self._fences.begin(connection, "", parts, checkpoint.commit_ts)

        self._begin(begin, checkpoint, start)
        self._fences.may_have_content = False
        return self._fences.passage(checkpoint.commit_ts, parts.start)

    def _begin(
        self, begin: Callable[[Connection], None], checkpoint: Checkpoint, start: Checkpoint
    ) -> None:
        if not self._is_fenced:  # Later, it could wait for tasks that use the table.
            self._session.retrying(lambda connection, _: self._fences.create(connection))
            self._is_fenced = True
        self._commit(begin, self._ledger.applying(checkpoint, start))

    def _queue_begins(self, connection: Connection, transaction: Transaction, queue: int) -> None:
        self._session.check_sizes([statement.sql for statement in transaction])
        if self._session.is_tidb:
            self._fences.lock_queue(connection, queue)
            self._ledger.check(self._stored(connection, ""))
        else:
            self._ledger.check(self._stored(connection, " LOCK IN SHARE MODE"))

    def _commit(self, work: Callable[[Connection], None], checkpoint: Checkpoint) -> None:
        text, doubtful = self._ledger.attempt(checkpoint)

        def attempt(connection: Connection, retried: bool) -> None:
            connection.begin()
            stored = self._stored(connection, " FOR UPDATE")
            if self._ledger.is_written(stored, text, retried=retried or doubtful):
                connection.rollback()
                log.info("the commit whose answer was lost did happen (%s)", checkpoint)
                return
            if not self._fences.is_taken:
                self._fences.take(connection)
            transaction_begun()
            work(connection)
            self._store_own(connection, text)
            checkpoint_stored()
            connection.commit()
            transaction_committed()

        self._session.retrying(attempt)
        self._ledger.wrote(text)
        self._fences.is_taken = True

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        if self._foreign_keys is None:
            self._foreign_keys = self._session.retrying(lambda c, _: foreign_keys(c))
        return self._foreign_keys

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Save the intent, run the job's query, save `checkpoint`.

        MySQL commits a DDL implicitly, so a crash can leave it done without a checkpoint. The
        intent says which DDL that may be, and the definitions of its tables before it
        (`ddl_progress`).
        """
        last = self._ledger.last
        intended = last is not None and last.ddl_intent_ts == checkpoint.commit_ts
        doubtful = maybe_done or intended
        self._foreign_keys = None
        before = last.ddl_before if last is not None and intended else ""
        if not doubtful:
            before = self._session.retrying(lambda c, _: digest(definitions(c, change)))
        self.save_checkpoint(self._ledger.intent(checkpoint, before))
        ddl_intended()

        tried = False

        def attempt(connection: Connection, retried: bool) -> None:
            nonlocal tried
            tried = not (doubtful or retried)
            if tried:
                self._execute_ddl(connection, change)
                return
            self._wait_for_ddl(connection, change)
            rest = left_to_do(connection, change, before)
            if rest is None:
                log.info("DDL job %d was done before: %s", change.job.id, change.job.query)
                return
            tried = True
            try:
                self._execute_ddl(connection, rest)
            except pymysql.err.MySQLError as error:
                is_done = not before and code_of(error) in ALREADY_CODES
                if not (is_done and progress(connection, change) in (_DONE, _UNKNOWN)):
                    raise
                log.info("DDL job %d was done before: %s", change.job.id, error)

        try:
            self._session.retrying(attempt)
        except NeedsOperator:
            if tried and before:
                self._forget_intent(change, before)
            raise
        ddl_run()
        self.save_checkpoint(checkpoint)

    def _forget_intent(self, change: SchemaChange, before: str) -> None:
        """Forget a DDL that was refused, if it has changed nothing.

        An operator's own changes of the definitions must not be taken for the DDL.
        """
        now = self._session.retrying(lambda c, _: digest(definitions(c, change)))
        last = self._ledger.last
        if now == before and last is not None:
            self.save_checkpoint(replace(last, ddl_intent_ts=0, ddl_before=""))

    def waits_for(self) -> str:
        sessions = (self._session, *self._side.sessions)
        return next((each.problem for each in sessions if each.problem), "")

    def look_at(self, catalog: Catalog) -> None:
        tables, last = catalog.tables(), self._ledger.last
        names = [(schema, table.name) for schema, table in tables]
        is_settled = last is not None and last.commit_ts and not last.ddl_intent_ts

        def look(connection: Connection, retried: bool) -> None:
            self._collations.look_at(connection, [table for _, table in tables])
            report_engines(connection, names, self._known_engines)
            if is_settled:
                report_missing(connection, [(s, t.name) for s, t in tables if t.kind == "TABLE"])

        self._session.retrying(look)

    def stand_ins(self) -> Mapping[str, str]:
        return self._collations.in_use

    def close(self) -> None:
        self._closing.set()
        self._side.close()
        self._session.close()

    # --- details ---------------------------------------------------------------------------

    @property
    def _is_between(self) -> bool:
        last = self._ledger.last
        return last is not None and last.is_between

    def _own(self, connection: Connection) -> str | None:
        def others() -> list[Any]:
            sql = f"SELECT clusterID FROM {self._table} ORDER BY 1 LIMIT 3"  # noqa: S608
            return [row[0] for row in many(connection, sql)]

        stored = partial(self._stored, connection, "")
        return own_row(stored, others, self._cluster_id, "checkpoint-table")

    def _stored(self, connection: Connection, lock: str) -> str | None:
        where = f"WHERE clusterID = {self._cluster_id}{lock}"
        try:
            row = one(connection, f"SELECT checkPoint FROM {self._table} {where}")  # noqa: S608
        except pymysql.err.MySQLError as error:
            is_missing = code_of(error) in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE)
            if not is_missing or self._ledger.has_no_row:
                raise
            return None
        return (row[0] or "") if row else None  # A row without text is not a checkpoint.

    def _store_own(self, connection: Connection, text: str) -> None:
        """Store our checkpoint; `TakenOver` if another Drainer has stored the first checkpoint.

        A row that does not exist cannot be locked: two Drainers that start together both find none.
        """
        try:
            self._store(connection, text, is_first=self._ledger.has_no_row)
        except pymysql.err.MySQLError as error:
            if self._ledger.has_no_row and code_of(error) == ER.DUP_ENTRY:
                self._ledger.check(self._stored(connection, " FOR UPDATE"))
            raise

    def _store(self, connection: Connection, text: str, *, is_first: bool) -> None:
        value = connection.escape(text)
        if is_first:
            sql = f"INSERT INTO {self._table} VALUES ({self._cluster_id}, {value})"  # noqa: S608
        else:
            where = f"WHERE clusterID = {self._cluster_id}"
            sql = f"UPDATE {self._table} SET checkPoint = {value} {where}"  # noqa: S608
        connection.query(sql)

    def _execute_ddl(self, connection: Connection, change: SchemaChange) -> None:
        job = change.job
        if not job.query:
            return
        if is_respelled(change) and one(connection, "SELECT @@lower_case_table_names")[0]:
            log.info("names are in lower case downstream, so nothing is renamed: %s", job.query)
            return
        if drops_several(change):
            ensure_all_there(connection, change)
        query = self._query_of(connection, change)
        if job.type == DdlType.CREATE_TABLE and job.schema is not None:
            home = job.schema
            connection.query(
                f"CREATE DATABASE IF NOT EXISTS {quote_name(home.name)}"
                f" {self._collations.clause_of(connection, home.charset, home.collate)}"
            )
        if job.schema_name and job.type not in (DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA):
            connection.select_db(job.schema_name)
        if query:
            session = as_upstream(connection, change, query, self._target)
            with session as text, unhurried(connection):
                self._run_definition(connection, change, text)

    def _wait_for_ddl(self, connection: Connection, change: SchemaChange) -> None:
        if query := self._query_of(connection, change):
            forms = (query, written_out(query))
            texts = dict.fromkeys(t for form in forms for t in (form, with_transactions(form)))
            is_tidb = self._session.is_tidb
            wait_for_ddl(connection, tuple(texts), self._closing, is_tidb=is_tidb)

    def _run_definition(self, connection: Connection, change: SchemaChange, query: str) -> None:
        made = [*change.created, *((schema, new) for schema, _, new in change.altered)]
        tables = [(schema, table.name) for schema, table in made if table.kind == "TABLE"]
        safe = with_transactions(query) if tables else query
        try:
            connection.query(safe)
        except pymysql.err.MySQLError as error:
            if safe == query or passes(error):
                raise
            log.warning("not with InnoDB, so as it is written (%s): %s", error, query)
            connection.query(query)
        report_engines(connection, tables, self._known_engines)

    def _query_of(self, connection: Connection, change: SchemaChange) -> str:
        if not change.job.query:
            return ""
        text = spelled(connection, change, is_tidb=self._session.is_tidb)
        return self._collations.query_of(connection, change, text)
