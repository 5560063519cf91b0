"""What a Pump accepts: the checks between a payload from the wire and a record for the log.

Checks, in order: the cluster id, the size, the bytes, the type, the Pump's state (Prewrites need
`online`; Commits and Rollbacks are always taken, or an operator could strand a transaction), and
that a Commit does not come after its transaction was rolled back here. A binlog whose timestamps
are both zero is a client's probe: checked like any other, never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import PenstockError
from penstock.model import BinlogType
from penstock.pb import binlog_pb2, penstock_pb2
from penstock.registry import NodeState
from pump.storage import Record

if TYPE_CHECKING:
    from pump.storage import Storage

_Code = penstock_pb2.Refusal
_ROLLED_BACK_MAX = 100_000


class Refused(PenstockError):
    """A binlog this Pump does not take; carries the code of both services."""

    def __init__(self, code: int, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Admission:
    """Decides about every payload that writers send to one Pump."""

    def __init__(
        self,
        storage: Storage,
        *,
        cluster_id: int,
        state: Callable[[], NodeState],
        payload_bytes_max: int,
    ) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._state = state
        self._payload_bytes_max = payload_bytes_max
        self._rolled_back: dict[int, None] = {}
        self.refused = 0

    def rolled_back(self, start_ts: int) -> None:
        """Note that this Pump itself ended a transaction: a Commit of it must be refused now."""
        self._rolled_back[start_ts] = None
        if len(self._rolled_back) > _ROLLED_BACK_MAX:  # The storage still knows the oldest ones.
            del self._rolled_back[next(iter(self._rolled_back))]

    def check_cluster(self, cluster_id: int) -> None:
        """Raise `Refused` unless the caller belongs to this Pump's cluster."""
        if cluster_id != self._cluster_id:
            self.refused += 1
            raise Refused(
                _Code.CLUSTER_MISMATCH,
                grpc.StatusCode.PERMISSION_DENIED,
                f"cluster ID are mismatch, {cluster_id} vs {self._cluster_id}",
            )

    def admit(self, payload: bytes) -> Record | None:
        """Return the record to store, None for a probe; raise `Refused` with the reason."""
        try:
            return self._record(payload)
        except Refused:
            self.refused += 1
            raise

    def _record(self, payload: bytes) -> Record | None:
        if len(payload) > self._payload_bytes_max:
            raise Refused(
                _Code.INVALID,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"binlog of {len(payload)} bytes is larger than this Pump's limit of"
                f" {self._payload_bytes_max} (raise max-message-bytes on all Pumps and Drainers,"
                " or write smaller transactions)",
            )
        try:
            binlog = binlog_pb2.Binlog.FromString(payload)
        except DecodeError as error:
            raise _invalid(f"undecodable binlog of {len(payload)} bytes: {error}") from error
        tp, start_ts, commit_ts = int(binlog.tp), binlog.start_ts, binlog.commit_ts
        if tp == BinlogType.PREWRITE and self._state() is not NodeState.ONLINE:
            raise Refused(
                _Code.NOT_ONLINE,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no online: {self._state()}",
            )
        if start_ts == 0 and commit_ts == 0:
            return None
        self._check_timestamps(tp, start_ts, commit_ts)
        return Record(BinlogType(tp), start_ts, commit_ts, payload, binlog.ddl_job_id > 0)

    def _check_timestamps(self, tp: int, start_ts: int, commit_ts: int) -> None:
        if tp > BinlogType.ROLLBACK:
            raise _invalid(f"binlog of the obsolete type {tp}")
        if start_ts <= 0:
            raise _invalid(f"binlog with start_ts {start_ts}: timestamps are above zero")
        if tp == BinlogType.COMMIT:
            if commit_ts <= start_ts:
                raise _invalid(f"commit_ts {commit_ts} is not after start_ts {start_ts}")
            self._check_not_rolled_back(start_ts, commit_ts)
        elif tp == BinlogType.ROLLBACK and commit_ts >= start_ts:
            # Taking it would move this Pump's time to wherever the caller likes.
            raise _invalid("a fake binlog from outside: only a Pump writes those, to its own log")

    def _check_not_rolled_back(self, start_ts: int, commit_ts: int) -> None:
        """Refuse a Commit that can no longer be streamed in order.

        The greatest commit_ts passes a transaction only when that is matched or was rolled back;
        so a Commit behind it is either a repetition, and stored, or too late.
        """
        late = start_ts in self._rolled_back or (
            commit_ts <= self._storage.max_commit_ts
            and self._storage.get(commit_ts) is None
            and self._storage.prewrite(start_ts) is not None
        )
        if late:
            raise _invalid(
                f"transaction {start_ts} was rolled back on this Pump before its Commit came:"
                " it waited longer than txn-timeout-s"
            )


def _invalid(problem: str) -> Refused:
    return Refused(_Code.INVALID, grpc.StatusCode.INVALID_ARGUMENT, problem)
