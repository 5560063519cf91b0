"""Side connections of a MySQL sink: commit worker queues, or fenced partitions, concurrently.

**Worker queues** (strategy `statements`): each has a thread and a connection. Each transaction
first reads the checkpoint row under a shared lock. Queues do not block each other with that lock,
but a Drainer that takes over waits for it. No queue of a replaced Drainer, however long it was
frozen, can therefore write after its successor started. TiDB has no shared locks: there each queue
locks a dedicated fence row (part -1, -2, …), which a start passes through as described below.

**Partitions** (strategy `merge`, mode `parallel`), each fenced by a row that moves with it:

    `tidb_binlog`.`checkpoint_fence`

    column      type               meaning
    clusterID   bigint unsigned    key, with part
    part        int                the partition's number in its batch
    epoch       bigint unsigned    the run that may commit it; rises with every start
    batch       bigint unsigned    commit_ts of the last batch of which the downstream has this part
    content     char(32)           digest of that batch, or of the one in progress

A partition's transaction first moves its row, `WHERE epoch = … AND batch < …`. If no row matches,
either the epoch has risen, so another Drainer works here; or the row has the batch, so an earlier
run, or an earlier attempt whose answer was lost, did commit it.

A start raises all epochs in the transaction that stores its first checkpoint, in any mode: it waits
there for partitions that are being committed. Rows are valid for a batch only while the stored
checkpoint says that this very batch is in progress, and only if the batch consists of the same
statements, cut in the same way; otherwise each of its partitions is run (again). Any other write
during a batch, for example by a run with another strategy, empties `content`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pymysql
from pymysql.constants import ER

from drainer.sinks.checkpoint import TakenOver
from drainer.sinks.mysql.session import (
    OWN_ENGINE,
    Connection,
    MysqlSession,
    code_of,
    many,
    one,
    passes,
    refused,
)
from drainer.sinks.mysql.statements import query, run
from drainer.sinks.protocol import (
    ForeignKey,
    InDoubt,
    Missed,
    Passage,
    RowStatement,
    Split,
    Transaction,
    lane_committed,
    partition_changed,
    partition_committed,
)
from drainer.task.partitions import Partition, Partitions
from penstock.codes import Code


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
                raise  # Statements that are run again in the safe form do no harm.
            raise InDoubt(f"a commit got no answer: {error}", code=Code.SINK_AWAY) from error
        lane_committed()
        return missed

    return session.retrying(attempt)


def run_rows(connection: Connection, rows: list[RowStatement], missed: Missed | None) -> None:
    """Run one statement after another; raise `NeedsOperator` that names the row.

    Missing rows are counted in `missed`, unless it is None.
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
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for *key, child, parent in many(
        connection,
        "SELECT table_schema, table_name, referenced_table_schema, referenced_table_name,"
        " constraint_name, column_name, referenced_column_name"
        " FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL",
    ):
        found.setdefault(tuple(key), []).append((child, parent))
    return tuple(
        ForeignKey(schema, table, parent_schema, parent, tuple(columns))
        for (schema, table, parent_schema, parent, _), columns in found.items()
    )


log = logging.getLogger(__name__)


class Fences:
    """The rows that keep a replaced Drainer from committing partitions."""

    def __init__(self, table: str, cluster_id: int, epoch: int = 0) -> None:
        """Do not connect yet; `table` is a quoted name, `epoch` 0 until `take`."""
        self._table = table
        self._cluster_id = cluster_id
        self._epoch = epoch
        self.is_taken = False
        """True once the transaction of `take` is committed."""
        self.may_have_content = True
        """False once no row of this cluster has any content."""

    def create(self, connection: Connection) -> None:
        """Create the table if it is missing; commits any open transaction."""
        connection.query(
            f"CREATE TABLE IF NOT EXISTS {self._table} (clusterID BIGINT UNSIGNED NOT NULL,"
            " part INT NOT NULL, epoch BIGINT UNSIGNED NOT NULL, batch BIGINT UNSIGNED NOT NULL,"
            f" content CHAR(32) NOT NULL, PRIMARY KEY (clusterID, part)) {OWN_ENGINE}"
        )

    def take(self, connection: Connection) -> None:
        """Fence all earlier runs, within the transaction of this run's first checkpoint."""
        mine = f"clusterID = {self._cluster_id}"
        self._epoch = 1
        with self._perhaps_missing():
            connection.query(f"UPDATE {self._table} SET epoch = epoch + 1 WHERE {mine}")  # noqa: S608
            asked = f"SELECT COALESCE(MAX(epoch), 1) FROM {self._table} WHERE {mine}"  # noqa: S608
            self._epoch = int(one(connection, asked)[0])

    def forget(self, connection: Connection) -> None:
        """Clear the rows' content, because their batch is about to change in another way."""
        with self._perhaps_missing():
            mine = f"clusterID = {self._cluster_id}"
            connection.query(f"UPDATE {self._table} SET content = '' WHERE {mine}")  # noqa: S608

    def hold(self, connection: Connection, work: Partitions) -> bool:
        """Return whether the stored rows describe exactly this batch."""
        mine = f"clusterID = {self._cluster_id} AND content = '{work.content}'"
        with self._perhaps_missing():
            asked = f"SELECT COUNT(*) FROM {self._table} WHERE {mine}"  # noqa: S608
            return bool(one(connection, asked)[0] == work.count)
        return False

    def passage(self, ts: int, part: int) -> Passage:
        return Passage(self._table, self._cluster_id, self._epoch, ts, part)

    @staticmethod
    @contextmanager
    def _perhaps_missing() -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            if code_of(error) != ER.NO_SUCH_TABLE:
                raise

    def begin(self, connection: Connection, content: str, parts: range, ts: int) -> None:
        """Prepare the rows for the batch at `ts`, within the transaction that begins it."""
        self.may_have_content |= bool(content)
        rows = ",".join(
            f"({self._cluster_id},{part},{self._epoch},0,'{content}')" for part in parts
        )
        connection.query(
            f"INSERT INTO {self._table} VALUES {rows} ON DUPLICATE KEY UPDATE"  # noqa: S608
            f" epoch = VALUES(epoch), batch = LEAST(batch, {ts - 1}), content = VALUES(content)"
        )

    def begin_queues(self, connection: Connection, count: int) -> None:
        """Insert the rows that `count` queues lock, in the transaction that starts them."""
        parts = range(-1, -1 - count, -1)
        rows = ",".join(f"({self._cluster_id},{part},{self._epoch},0,'')" for part in parts)
        connection.query(
            f"INSERT INTO {self._table} VALUES {rows}"  # noqa: S608
            " ON DUPLICATE KEY UPDATE epoch = VALUES(epoch)"
        )

    def lock_queue(self, connection: Connection, number: int) -> None:
        """Block every other run until the transaction of this queue has ended.

        Raises `TakenOver` if another run came before.
        """
        row = f"clusterID = {self._cluster_id} AND part = {-1 - number}"
        asked = f"SELECT epoch FROM {self._table} WHERE {row} FOR UPDATE"  # noqa: S608
        stored = one(connection, asked)
        if stored is None or stored[0] != self._epoch:
            raise self._fenced_off(f"queue {number}", stored and stored[0])

    def pass_through(self, connection: Connection, part: int, ts: int) -> bool:
        """Move a partition's row to the batch at `ts`; False if it is there already.

        Raises `TakenOver` if another run has the partition.
        """
        row = f"{self._table} WHERE clusterID = {self._cluster_id} AND part = {part}"
        update = row.replace(" WHERE", f" SET batch = {ts} WHERE", 1)
        if connection.query(f"UPDATE {update} AND epoch = {self._epoch} AND batch < {ts}"):
            return True
        stored = one(connection, f"SELECT epoch, batch FROM {row}")  # noqa: S608
        if stored is None or stored[0] != self._epoch:
            raise self._fenced_off(f"partition {part} of the batch at {ts}", stored and stored[0])
        return False

    def _fenced_off(self, what: str, epoch: object) -> TakenOver:
        return TakenOver(
            f"{what} is fenced off: this Drainer's epoch is {self._epoch}, the downstream's"
            f" {epoch}",
            hint="another Drainer writes to the same downstream; stop one of them",
            code=Code.CHECKPOINT_TAKEN,
        )


class SideConnections:
    """The connections beside the sink's main connection; opened when they are first needed."""

    def __init__(
        self, new_session: Callable[[], MysqlSession], fences: Fences | None = None
    ) -> None:
        """Partitions need `fences`."""
        self._new_session = new_session
        self.fences = fences
        self.sessions: list[MysqlSession] = []

    def _opened(self, count: int) -> list[MysqlSession]:
        while len(self.sessions) < count:
            self.sessions.append(self._new_session())
        return self.sessions[:count]

    def close(self) -> None:
        """Close all connections; a running queue or partition raises `Retryable`."""
        for session in self.sessions:
            session.close()

    def run_queues(
        self, split: Split, begins: Callable[[Connection, Transaction, int], None]
    ) -> Missed:
        """Run all queues to their ends; raise a failure once no queue is running any more.

        `begins` is called in each transaction before its statements, with the queue's number, and
        raises to stop it.
        """
        sessions = self._opened(len(split.queues))
        failed = threading.Event()

        def queue(number: int, session: MysqlSession, transactions: list[Transaction]) -> Missed:
            def begin(connection: Connection, transaction: Transaction) -> None:
                begins(connection, transaction, number)

            missed = Missed()
            try:
                for transaction in transactions:
                    if failed.is_set():
                        break
                    missed.add((_run(session, transaction, begin, safe=split.safe),))
            except BaseException:
                failed.set()
                raise
            return missed

        with ThreadPoolExecutor(len(split.queues), thread_name_prefix="queue") as pool:
            running = [
                pool.submit(queue, number, session, transactions)
                for number, (session, transactions) in enumerate(
                    zip(sessions, split.queues, strict=True)
                )
            ]
        return Missed().add(each.result() for each in running)

    def run_partitions(self, work: Partitions, ts: int, part: int = 0) -> list[float]:
        """Run phase after phase; return each partition's seconds. `part` is the first one's number.

        A failure is raised once no partition of its phase is running any more.
        """
        took_s: list[float] = []
        for phase in work.phases:
            sessions = self._opened(len(phase))
            with ThreadPoolExecutor(len(phase), thread_name_prefix="partition") as pool:
                running = [
                    pool.submit(self._commit, session, part + len(took_s) + i, partition, ts)
                    for i, (session, partition) in enumerate(zip(sessions, phase, strict=True))
                ]
            took_s += [each.result() for each in running]
        return took_s

    def _commit(self, session: MysqlSession, part: int, statements: Partition, ts: int) -> float:
        began_s, fences = time.monotonic(), self.fences
        assert fences is not None

        def attempt(connection: Connection, retried: bool) -> None:
            connection.begin()
            if not fences.pass_through(connection, part, ts):
                connection.rollback()
                log.info("partition %d of the batch at %d was committed before", part, ts)
                return
            session.check_sizes(statements)
            for statement in statements:
                run(connection, statement)
            partition_changed()
            connection.commit()
            partition_committed()

        session.retrying(attempt)
        return time.monotonic() - began_s
