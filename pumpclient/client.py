"""The client that applications embed: it writes their transactions to the Pumps.

Calls block and are safe to share between threads. Writes of all threads to the same Pump are
batched.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from penstock.cluster import etcd
from penstock.cluster.fence import DdlFence, WriterFence
from penstock.cluster.history import History
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.oracle.client import find_cluster_id, open_oracle
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Binlog, BinlogType, Origin
from pumpclient.ddl import DdlExecutor, LostDdl
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.pump_set import Pump, Pumps
from pumpclient.delivery.retries import Deliveries
from pumpclient.delivery.selector import Selector
from pumpclient.delivery.session import Session
from pumpclient.errors import closed
from pumpclient.options import Options, Tls
from pumpclient.rows import Table
from pumpclient.schema import Schemas, split_name
from pumpclient.transaction import Transaction

log = logging.getLogger(__name__)

_HOMES_MAX = 1 << 20


class PumpClient:
    """A writer's connection to a Penstock cluster; made by `connect`."""

    def __init__(self, session: Session, ddl: DdlExecutor, resources: ExitStack) -> None:
        self._session = session
        self._ddl = ddl
        self._resources = resources
        self._is_closed = False
        self._lock = threading.Lock()
        # The Pump and the time of each Prewrite of `write_binlog`, until its Commit or Rollback.
        self._homes: OrderedDict[int, tuple[Pump, float]] = OrderedDict()

    @classmethod
    def connect(
        cls,
        etcd_urls: str = "127.0.0.1:2379",
        *,
        strategy: str = "range",
        write_timeout_s: float = 15.0,
        tls: Tls | None = None,
        options: Options | None = None,
    ) -> Self:
        """Return a client of the cluster whose nodes are registered in that etcd.

        `strategy` chooses the Pump of the next transaction: "range" (round robin), "hash" (by
        start_ts) or "score" (by the score that Pumps report). A write that no Pump accepts within
        `write_timeout_s` fails. Raises `NoPump` when no Pump was ever registered, `Retryable` when
        etcd or the oracle does not answer, `NeedsOperator` for bad settings.
        """
        options = options or Options()
        if tls is not None:
            tls.check()
        selector = Selector(strategy)
        with ExitStack() as opened:
            connection = etcd.connect(etcd_urls, tls=options.etcd_tls or tls)
            opened.callback(connection.close)
            registry = Registry(connection)
            history = History(connection)
            pd_tls = options.pd_tls or tls
            cluster_id = find_cluster_id(connection, options.pd_address, pd_tls)
            pumps = Pumps(cluster_id, selector, options, tls)
            opened.callback(pumps.close, options.close_timeout_s)
            opened.callback(registry.watch(NodeKind.PUMP, pumps.follow).cancel)
            if not pumps.wait_for_any(options.connect_timeout_s):
                raise pumps.missing()
            oracle = open_oracle(connection, options.pd_address, tls, pd_tls=pd_tls)
            opened.callback(oracle.close)
            deliveries = Deliveries(
                retry_s=options.commit_retry_s,
                attempt_timeout_s=options.attempt_timeout_s,
                count_max=options.deliveries_max,
            )
            opened.callback(deliveries.close, options.close_timeout_s)
            pumps.on_moved = deliveries.hurry
            lost = LostDdl(pumps.statuses, history)
            schemas = Schemas(history, lost.refuse_at_first)
            writer_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            fence = WriterFence(connection, writer_id, on_version=schemas.confirm)
            opened.callback(fence.close)
            session = Session(
                oracle=oracle,
                schemas=schemas,
                fence=fence,
                pumps=pumps,
                deliveries=deliveries,
                write_timeout_s=write_timeout_s,
                options=options,
            )
            ddl = DdlExecutor(session, history, DdlFence(connection), lost, writer_id)
            return cls(session, ddl, opened.pop_all())

    @property
    def session(self) -> Session:
        """The components of this client, for callers that commit in their own way."""
        return self._session

    def begin(
        self, schema: str | None = None, *, prewrite_key: bytes = b"", origin: Origin | None = None
    ) -> Transaction:
        """Begin a transaction; tables named without a schema are in `schema`.

        A Pump's resolver, if it has one, looks the transaction up by `prewrite_key`. With an
        `origin`, the transaction is applied downstream once, however often it is committed here. A
        source must commit its transactions in the order of their origins: the Drainer skips a
        transaction whose origin is not beyond the last origin it has seen.
        """
        self._check_open()
        return Transaction(self._session, schema, prewrite_key, origin)

    def execute_ddl(
        self,
        sql: str,
        schema: str | None = None,
        *,
        origin: Origin | None = None,
        context: DdlContext | None = None,
    ) -> list[int]:
        """Execute a DDL statement and return the commit timestamps of its jobs.

        Several statements, or a statement with several jobs (DROP TABLE a, b), are executed one
        after the other, each durably done before the next starts. If any of them cannot be done,
        none is started. Waits up to 30 s for the transactions that other writers are committing,
        then until the DDL is durable and decided. An IF [NOT] EXISTS without effect returns an
        empty list.

        With an `origin` the DDL is done once, however often it is requested: when the last DDL of
        the same source is not before that origin, nothing happens and the list is empty. A
        statement with an origin must have a single job; the caller must split DROP TABLE a, b.
        `context` is the session in which the statement ran elsewhere. Without it literals are in
        UTC, old rows are converted strictly, and the current time is that of the commit timestamp.

        Raises `NeedsOperator` if the DDL cannot be done, `Retryable` if it did not happen but may
        work later, `OutcomeUnknown` if the outcome could not be determined.
        """
        self._check_open()
        return self._ddl.execute([(sql, origin)], schema, context)

    def execute_ddls(self, statements: Sequence[tuple[str, Origin | None]]) -> list[int]:
        """Execute statements with their origins as `execute_ddl` does, but under one fence.

        If any of them cannot be done, none is started. Other writers wait until all are done, so
        pass at most `DDLS_MAX`.
        """
        self._check_open()
        return self._ddl.execute(statements)

    def last_ddl_origin(self, source: str) -> Origin | None:
        """Return the origin of the last DDL passed on by `source`, or None before the first."""
        self._check_open()
        return self._ddl.last_origin(source)

    def table(self, name: str, schema: str | None = None) -> TableInfo:
        """Return a table's current version; raise `NeedsOperator` if it does not exist."""
        return self.compiled(name, schema).info

    def compiled(self, name: str, schema: str | None = None) -> Table:
        self._check_open()
        return self._session.schemas.table(*split_name(name, schema))

    def write_binlog(self, binlog: Binlog) -> None:
        """Write one binlog; for writers that make their own transactions and timestamps.

        Returns once the binlog is durable. A Commit or Rollback must follow within 10 minutes of a
        Prewrite written by this client, and goes to the same Pump; it is retried and may end in
        `OutcomeUnknown` (see `Transaction.commit`). The caller must encode rows for a schema
        version that cannot change until the commit; only `begin` ensures this automatically.
        """
        self._check_open()
        if binlog.tp is BinlogType.PREWRITE:
            payload = Payload.of(binlog, self._session.options.spill_bytes)
            self._remember(binlog.start_ts, self._session.prewrite(payload))
            return
        with self._lock:
            found = self._homes.pop(binlog.start_ts, None)
        if found is None:
            raise NeedsOperator(
                f"no Prewrite of {binlog.start_ts} was written by this client",
                "a Commit must follow its own Prewrite",
                Code.WRITER_MISUSED,
            )
        home, start_s = found
        self._session.commit(home, binlog, start_s=start_s, wait=True)

    def close(self) -> None:
        """Deliver pending writes, for some seconds at most, and end all threads."""
        self._is_closed = True
        self._resources.close()

    def __repr__(self) -> str:
        pumps = self._session.pumps
        state = "closed" if self._is_closed else f"{len(pumps)} Pumps"
        return f"<PumpClient of cluster {pumps.cluster_id}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed()

    def _remember(self, start_ts: int, home: Pump) -> None:
        now_s = time.monotonic()
        oldest_s = now_s - self._session.options.commit_timeout_s
        with self._lock:
            self._homes[start_ts] = (home, now_s)
            while len(self._homes) > _HOMES_MAX or next(iter(self._homes.values()))[1] < oldest_s:
                self._homes.popitem(last=False)
