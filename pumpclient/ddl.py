"""Executes DDL: one statement at a time for all writers, in one order with all row changes.

    1  DDL lock in etcd                 no other writer plans a DDL; the catalog read now is last,
                                        and has every DDL of the stream (`LostDdl`)
    2  plan                             the tables after the DDL; a bad statement stops here
    3  fence raised                     every writer has finished all rows encoded with the old
                                        schema, knows its commit_ts, and starts nothing new
    4  DDL Prewrite durable on a Pump   that Pump's stream now waits for this DDL
    5  commit_ts from the oracle        after all old row changes, before all new ones
    6  job appended to history          THE DECISION, one etcd transaction that demands the lock
    7  Commit binlog                    the stream continues
    8  fence lowered                    writers read history and continue with the new schema

Why a crash is safe at any point. Before 6 no job exists: the Prewrite is rolled back by this client
or by the Pump's resolver (immediately when a later DDL is recorded, otherwise after its timeout),
and nothing happened. From 6 on the DDL is done: the Pump's resolver finds the job in the history
under the binlog's job id and commits the Prewrite with the job's `finished_ts`, which is the
`commit_ts` of 5, whether or not 7 arrives.

Between 4 and 6 the resolver must not decide against this client. This client refuses step 6 itself
when step 4 is too long ago (`DECISION_S_MAX`, far below the Pumps' `txn_timeout`). etcd refuses
step 6 when the lock or the fence is gone (which is the case when this process was frozen for longer
than their lease), when a later DDL is recorded, and once a Pump has rolled this DDL back, which the
Pump records in etcd first. When the answer to 6 is lost, this client asks until the outcome is
known; until then it sends neither a Rollback nor a Commit. If etcd does not answer within
`ASK_S_MAX`, it raises `OutcomeUnknown`; the resolver and all writers read the outcome later.

Several statements may share one lock and one fence. Steps 4 to 7 then take several jobs at a time:
all are prewritten, all get their commit_ts in the order of the statements, and 6 is one
transaction, so that all of them are done or none. Between two such runs the above holds again: what
is recorded is done, and the rest did not happen.

A DDL Prewrite that was left on a second Pump does no harm even before its Rollback arrives: both
Pumps' resolvers find the same job with the same `finished_ts`, and the Drainer drops the duplicate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from textwrap import shorten
from typing import Final

from penstock import failpoints
from penstock.cluster.fence import DdlFence
from penstock.cluster.history import Guard, History, has_drawn, together
from penstock.codes import Code
from penstock.ddl import plan_ddl
from penstock.errors import NeedsOperator, Retryable
from penstock.pb import penstock_pb2
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import PUBLIC, DdlJob
from penstock.ts import physical_ms
from penstock.wire.binlog import Binlog, BinlogType, Origin
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.session import Session
from pumpclient.errors import OutcomeUnknown

log = logging.getLogger(__name__)

DECISION_S_MAX: Final = 120.0
# etcd elects in seconds; after this long our lease, and with it the lock and the fence, is gone.
ASK_S_MAX: Final = 30.0
_ASK_AGAIN_S: Final = 0.5
DDLS_MAX: Final = 100
"""At most so many statements share a fence: other writers wait for it, and give up after 30 s."""

_after_prewrites = failpoints.point("ddl.after_prewrites")
_before_commits = failpoints.point("ddl.before_commits")

_QUERY_MAX = 200

Statuses = Callable[[], dict[str, penstock_pb2.StatusReply | str]]
"""Returns each online Pump's status, or the reason why it does not answer."""


class LostDdl:
    """Detects DDL that is in a Pump's stream, but not in the DDL history in etcd.

    A DDL enters the history before it is committed on a Pump. If the history does not contain a
    DDL of the stream, etcd was restored from an older backup. A writer would then continue with
    the tables as they were before that DDL, and its next DDL would start a second history. Each
    Pump reports the newest DDL of its log. A writer asks all online Pumps before its first
    transaction and, under the DDL lock, before each DDL. It writes nothing while the newest of
    these DDLs is lost, unless an operator has given that DDL up (`penstock ctl lost-ddl`).

    Not checked are Pumps that do not answer (a stopped Pump must not block DDL on all others),
    Pumps of older versions, and DDL of a TiDB, whose history is not in etcd. In every case a
    Drainer compares each DDL of the stream with the history.
    """

    def __init__(self, statuses: Statuses, history: History) -> None:
        self._statuses = statuses
        self._history = history
        self._unchecked: dict[str, str] = {}
        self._is_checked = False

    def refuse_at_first(self) -> None:
        """Check, unless this was done before; raise as `refuse` does."""
        if not self._is_checked:
            self.refuse()

    def refuse(self) -> None:
        """Raise `NeedsOperator` if the history lacks the newest DDL; `Retryable` without etcd."""
        newest = [
            (ddl.commit_ts, pump, ddl)
            for pump, ddl in self._newest().items()
            if ddl.job_id and has_drawn(ddl.job_id, ddl.commit_ts)
        ]
        if newest:
            _, pump, ddl = max(newest, key=lambda each: each[:2])
            job = self._history.get(ddl.job_id)
            if job is None and not self._history.is_rolled_back(ddl.job_id):
                raise _lost(pump, ddl, self._history.jobs())
        self._is_checked = True

    def _newest(self) -> dict[str, penstock_pb2.NewestDdl]:
        found, unchecked = {}, {}
        for pump, answer in self._statuses().items():
            if isinstance(answer, str):
                unchecked[pump] = answer
            elif answer.HasField("newest_ddl"):
                found[pump] = answer.newest_ddl
            else:
                unchecked[pump] = "its version does not name its newest DDL"
        for pump in sorted(unchecked.keys() - self._unchecked.keys()):
            log.warning(
                "cannot compare the DDL history in etcd with the stream of pump %s: %s (after a"
                " restore of etcd, start all Pumps before the writers)",
                *(pump, unchecked[pump]),
            )
        self._unchecked = unchecked
        return found


def _lost(pump: str, ddl: penstock_pb2.NewestDdl, history: list[DdlJob]) -> NeedsOperator:
    known = "is empty"
    if history:
        last = history[-1]
        known = f"ends with job {last.id}, {_about(last.query, last.finished_ts)}"
    return NeedsOperator(
        f"pump {pump} has DDL job {ddl.job_id}, {_about(ddl.query, ddl.commit_ts)}, in its stream,"
        f" but the DDL history in etcd {known}",
        "etcd was restored from an older backup: stop the writers and restore it from one that"
        f" has this DDL; or give the DDL up by `penstock ctl lost-ddl {ddl.job_id}`, run it again,"
        " and load a fresh copy of the data into each downstream",
        Code.DDL_HISTORY,
    )


def _about(query: str, commit_ts: int) -> str:
    at = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, UTC)
    text = repr(shorten(query, _QUERY_MAX)) if query else "whose text is purged"
    return f"{text} of {commit_ts} ({at:%Y-%m-%d %H:%M:%S} UTC)"


class DdlExecutor:
    """Executes DDL statements for one client."""

    def __init__(
        self, session: Session, history: History, fence: DdlFence, lost: LostDdl, holder: str
    ) -> None:
        self._session = session
        self._history = history
        self._lost = lost
        self._fence = fence
        self._holder = holder
        # The History object supports a single held lock; threads of this client wait for each other
        # here.
        self._one_at_a_time = threading.Lock()

    def execute(
        self,
        statements: Sequence[tuple[str, Origin | None]],
        schema: str | None = None,
        context: DdlContext | None = None,
    ) -> list[int]:
        """Execute statements under one fence; return the `finished_ts` of their jobs.

        Raises `NeedsOperator` if one cannot be planned, `Retryable` if they surely did not happen,
        `OutcomeUnknown` if the outcome could not be determined. When they have more jobs than one
        transaction of etcd takes, a failure may leave the first of them done. A statement with an
        origin is a no-op if the history has a DDL of that or a later place: a job and its origin
        are recorded together, and the lock excludes every other DDL between them.
        """
        with self._one_at_a_time, self._history.lock(self._holder):
            self._lost.refuse()
            jobs = self._planned(statements, schema, context)
            if not jobs:
                return []
            # A job below a recorded one counts as overtaken: see `History.is_overtaken`.
            assert all(one.id < two.id for one, two in pairwise(jobs)), jobs
            with self._fence.raised(jobs[-1].schema_version) as guard:
                finished = [ts for run in together(jobs) for ts in self._run(run, guard)]
        try:
            # The caller that asked for the DDL probably uses its result next.
            self._session.schemas.catch_up()
        except Retryable as error:
            log.info("the new schema will be read later: %s", error)
        return finished

    def last_origin(self, source: str) -> Origin | None:
        """Return the origin of a source's last DDL, None before the first; raises `Retryable`."""
        return self._history.last_origin(source)

    def _planned(
        self,
        statements: Sequence[tuple[str, Origin | None]],
        schema: str | None,
        context: DdlContext | None,
    ) -> list[DdlJob]:
        catalog = self._session.schemas.catalog().copy()
        next_id = partial(next, self._ids(2 * len(statements)))
        last_origin = cache(self._history.last_origin)
        jobs: list[DdlJob] = []
        for sql, origin in statements:
            if origin is not None:
                last = last_origin(origin.source)
                if last is not None and origin.place <= last.place:
                    log.info("%s of %s is in the history: %s", origin.place, origin.source, sql)
                    continue
            found = plan_ddl(sql, schema, catalog, next_id, context)
            if origin is not None and len(found) > 1:
                raise NeedsOperator(
                    f"a statement with an origin comes to {len(found)} jobs: {sql}",
                    "pass its parts on one by one, each with an origin of its own",
                    Code.COMMAND_INVALID,
                )
            for job in found:
                catalog.apply(job)
                jobs.append(replace(job, origin=origin))
        return jobs

    def _ids(self, count: int) -> Iterator[int]:
        """Yield new ids, drawn `count` at a time."""
        while True:
            now_ms = physical_ms(self._session.oracle.get_ts())
            first = self._history.next_ids(count, now_ms)
            yield from range(first, first + count)

    def _run(self, jobs: Sequence[DdlJob], guard: Guard) -> list[int]:
        session = self._session
        start_s = time.monotonic()
        starts = session.oracle.get_many(len(jobs))
        named = f"DDL {jobs[0].id}" + f" and {len(jobs) - 1} more" * (len(jobs) > 1)
        with ExitStack() as opened:
            prewrites = map(session.prewritten, map(_prewrite, jobs, starts))
            with ThreadPoolExecutor(len(jobs)) as pool:  # A Pump syncs them together.
                homes = list(pool.map(opened.enter_context, prewrites))
            _after_prewrites()
            commits = session.oracle.get_many(len(jobs))
            if time.monotonic() - start_s > DECISION_S_MAX:
                raise Retryable(
                    f"{named} took too long and was rolled back: {jobs[0].query}",
                    Code.DDL_ROLLED_BACK,
                )
            timed = zip(jobs, starts, commits, strict=True)
            jobs = [replace(job, start_ts=start, finished_ts=ts) for job, start, ts in timed]
            is_decided = self._decide(jobs, guard)
        if not is_decided:
            raise OutcomeUnknown(
                f"etcd does not say whether {named} is done: {jobs[0].query}",
                start_ts=starts[0],
                commit_ts=commits[0],
                wait=lambda timeout_s: self._wait_for(jobs[0], timeout_s),
            )
        _before_commits()
        for home, job in zip(homes, jobs, strict=True):
            # The Commit carries the job id as well: merged with its Prewrite, the last value
            # counts. The DDL is done; the Commit only lets the stream continue sooner than the
            # resolver would.
            commit = Binlog(
                tp=BinlogType.COMMIT,
                start_ts=job.start_ts,
                commit_ts=job.finished_ts,
                ddl_job_id=job.id,
            )
            session.commit(home, commit, start_s=start_s, wait=False)
            log.info("DDL %d is done at %d: %s", job.id, job.finished_ts, job.query)
        return [*commits]

    def _decide(self, jobs: Sequence[DdlJob], guard: Guard) -> bool:
        """Append jobs; raise if they are surely absent, return False if etcd does not answer."""
        deadline_s = time.monotonic() + ASK_S_MAX
        while True:
            try:
                # Appending the same jobs twice has no effect, so this call both asks and writes.
                self._history.append(*jobs, guards=[guard])
                return True
            except Retryable as error:
                # An error without a cause is etcd's own, final verdict, lock lost or overtaken: the
                # transaction's conditions can never become true again, not even for a late
                # duplicate.
                if error.__cause__ is None:
                    raise
                log.warning("asking again whether DDL %d was recorded: %s", jobs[0].id, error)
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_ASK_AGAIN_S)

    def _wait_for(self, job: DdlJob, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            try:
                if self._history.get(job.id) is not None:
                    return True
            except Retryable as error:
                log.info("still asking for DDL %d: %s", job.id, error)
            time.sleep(_ASK_AGAIN_S)
        return False


def _prewrite(job: DdlJob, start_ts: int) -> Payload:
    return Payload(
        Binlog(
            tp=BinlogType.PREWRITE,
            start_ts=start_ts,
            ddl_query=job.query.encode(),
            ddl_job_id=job.id,
            ddl_schema_state=PUBLIC,
            origin=job.origin,
        )
    )
