"""Fast writes: `WriteBinlog` on our own server's fast path, without a task or a future per call.

    calls ──> gathered ──> admit each ──> one submission ──> group commit ──> answer each
                               └─ refused: answered immediately

The calls of one turn of the event loop are admitted and submitted together in the next turn, and
the append starts in that same turn. Statuses, texts and counters are those of the other handler,
`TidbService.write_binlog`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, code_fields, coded
from penstock.http2.unary import Reply
from penstock.pb import pump_pb2
from pump.counters import Counters
from pump.service.grpc_server import status_of

if TYPE_CHECKING:
    from penstock.http2.unary import UnaryCall
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit, Refusals
    from pump.store.record import Record

log = logging.getLogger(__name__)

WRITE_METHOD: Final = "WriteBinlog"
WRITTEN = Reply(pump_pb2.WriteBinlogResp().SerializeToString())

_SUBMISSION_BYTES = 256 << 10
"""A larger gathering is submitted in pieces, of which a group takes as many as it may hold."""


_Call = tuple[bytes, "UnaryCall", float]
"""The request, the waiting call, and its arrival time."""


class FastWrites:
    """The calls of one Pump that wait to be submitted; for one event loop."""

    def __init__(
        self,
        group_commit: GroupCommit,
        admission: Admission,
        counters: Counters,
        *,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` sends the given answers; by default they leave in the loop's next turn."""
        self._group_commit = group_commit
        self._flush = flush
        self._admission = admission
        self._gathered: list[_Call] = []
        self._succeeded = counters.calls[WRITE_METHOD, "succ"]
        self._failed = counters.calls[WRITE_METHOD, "fail"]

    def handle(self, data: bytes, call: UnaryCall) -> None:
        """Accept a `WriteBinlogReq`; answer once the binlog is durable or refused."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._submit_gathered)
        self._gathered.append((data, call, time.perf_counter()))

    def _submit_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        admit = self._admission.admit_request
        records: list[Record] = []
        calls: list[_Call] = []
        size_bytes = 0
        for waiting in gathered:
            data = waiting[0]
            try:
                record = admit(data, waiting[1])
            except Exception as error:
                self._fail(waiting, error)
                continue
            if record is None:  # A probe waits for nothing.
                self._answer([waiting])
                continue
            records.append(record)
            calls.append(waiting)
            size_bytes += len(data)
            if size_bytes >= _SUBMISSION_BYTES:
                self._submit(records, calls)
                records, calls, size_bytes = [], [], 0
        if records:
            self._submit(records, calls)
        self._group_commit.begin()

    def _submit(self, records: list[Record], calls: list[_Call]) -> None:
        try:
            self._group_commit.enqueue(records, partial(self._settle, calls), calls=len(calls))
        except PenstockError as error:
            self._settle(calls, error)

    def _settle(self, calls: list[_Call], outcome: Refusals | BaseException) -> None:
        if not outcome:
            self._answer(calls)
            self._flush()
            return
        for i, waiting in enumerate(calls):
            error = outcome if isinstance(outcome, BaseException) else outcome.get(i)
            if error is None:
                self._answer([waiting])
            else:
                self._fail(waiting, error)

    def _answer(self, calls: list[_Call]) -> None:
        for _, call, _ in calls:
            call.answer(WRITTEN)
        now_s = time.perf_counter()
        self._succeeded.note_sorted([now_s - begin_s for _, _, begin_s in calls])

    def _fail(self, waiting: _Call, error: BaseException) -> None:
        _, call, begin_s = waiting
        if not isinstance(error, PenstockError | OSError):
            log.error("WriteBinlog failed", exc_info=error)
        call.fail(status_of(error), coded(error), code_fields(error))
        self._failed.note(time.perf_counter() - begin_s)
