"""Admission: checks every payload from the wire before it becomes a record for the log.

Order of checks: the cluster id, the size, the bytes, the Pump's state, the type, the timestamps,
and the database of an outbox's Prewrite. Prewrites need `online`. Commits and Rollbacks are always
accepted, because an operator could otherwise strand a transaction. This Pump must know the database
of an outbox, because it must ask that database if the writer dies.

A timestamp that the oracle cannot have issued yet is refused for now: stored, it would block the
binlogs of all other writers (`cluster/clock.py`). A binlog whose timestamps are both zero is a
client's probe: checked like any other, never stored. The storage decides whether a binlog
contradicts stored binlogs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from penstock import outbox
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import PenstockError, coded
from penstock.pb import binlog_pb2, penstock_pb2, pump_pb2
from penstock.wire.batch import decode_write_request, peek_binlog
from penstock.wire.binlog import BinlogType
from pump.counters import Counters
from pump.store.record import IN_ONE, Record

log = logging.getLogger(__name__)

_Code = penstock_pb2.Refusal
_ONLINE: Final = NodeState.ONLINE
_PREWRITE, _COMMIT = int(BinlogType.PREWRITE), int(BinlogType.COMMIT)
_TYPES = tuple(BinlogType)  # By number; cheaper than calling the enum for every binlog.
assert [int(tp) for tp in _TYPES] == [0, 1, 2]

PREWRITE_HEAD: Final = b"\x08\0\x10\0\x18\0"
"""How a Prewrite without timestamps begins: tp, start_ts, commit_ts."""

_OUTBOX: Final = b"outbox/"
_COMMON_BYTES = 64 << 10
"""Above, protobuf would copy more than `peek_binlog` costs."""

_STRANGER_AGAIN_S = 60.0
_STRANGERS_MAX = 1000

_parsed, _new = binlog_pb2.Binlog.FromString, tuple.__new__


class Refused(PenstockError):
    """A binlog that this Pump refuses; carries the answer for both services."""

    def __init__(self, refusal: int, status: grpc.StatusCode, message: str, *, code: Code) -> None:
        super().__init__(message, code=code)
        self.refusal = refusal
        self.status = status


class EnoughCopies(Protocol):
    """The replicas of this Pump's log; without enough of them, new transactions are refused."""

    @property
    def are_enough(self) -> bool:
        """True while writes are acknowledged as soon as the listed replicas have them."""

    def check(self) -> None:
        """Raise `Retryable` while there are not enough replicas."""


class Horizon(Protocol):
    """The limit of the timestamps that the oracle may have issued."""

    horizon_ts: int
    """A timestamp that is not above this limit is not ahead."""

    def is_ahead(self, ts: int) -> bool: ...


class Admission:
    """Decides about every payload that writers send to one Pump."""

    def __init__(
        self,
        *,
        cluster_id: int,
        state: Callable[[], NodeState],
        check_space: Callable[[], None],
        payload_bytes_max: int,
        outboxes: Collection[str] = (),
        horizon: Horizon,
        copies: EnoughCopies | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`outboxes` names the outboxes whose databases this Pump asks; "" is any name."""
        self._outboxes = frozenset(outboxes)
        self._cluster_id = cluster_id
        self._state = state
        self._check_space = check_space
        self._horizon = horizon
        self._copies = copies
        self._payload_bytes_max = payload_bytes_max
        self._common_bytes_max = min(payload_bytes_max, _COMMON_BYTES)
        self._counters = counters or Counters()
        self._strangers: dict[tuple[int, str], float] = {}

    def check_cluster(self, cluster_id: int, peer: Callable[[], str]) -> None:
        """Raise `Refused` unless the caller belongs to this Pump's cluster; the log names `peer`.

        `peer` returns gRPC's name of the caller, such as ipv4:127.0.0.1:4000; it is called only
        when needed.
        """
        if cluster_id != self._cluster_id:
            self._name_stranger(cluster_id, peer())
            mismatch = Refused(
                _Code.CLUSTER_MISMATCH,
                grpc.StatusCode.PERMISSION_DENIED,
                f"cluster ID are mismatch, {cluster_id} vs {self._cluster_id}",
                code=Code.CLUSTER_MISMATCH,
            )
            self._counters.refuse(mismatch)
            raise mismatch

    def _name_stranger(self, cluster_id: int, peer: str) -> None:
        caller, now_s = (cluster_id, peer.rpartition(":")[0]), time.monotonic()
        if now_s - self._strangers.get(caller, float("-inf")) < _STRANGER_AGAIN_S:
            return
        if len(self._strangers) >= _STRANGERS_MAX:
            self._strangers.clear()
        self._strangers[caller] = now_s
        log.warning(
            "refused %s: it belongs to cluster %d, this Pump to cluster %d (a TiDB, writer or"
            " Drainer with another PD or etcd? It is named once a minute)",
            peer, cluster_id, self._cluster_id,
        )  # fmt: skip

    def problem(self) -> str:
        """Return why a new transaction would be refused now; empty if it would be accepted."""
        try:
            self._check_online()
            self._check_space()
        except PenstockError as error:
            return coded(error)
        return ""

    def check_outbox(self, prewrite_key: bytes) -> None:
        """Raise `Refused` for the Prewrite of an outbox whose database this Pump cannot ask.

        If its writer died, the Pump would roll back by time a transaction that the database has
        committed.
        """
        name = outbox.name_in(prewrite_key)
        if name is not None and self._outboxes.isdisjoint((name, "")):
            raise Refused(
                _Code.INVALID,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this Pump does not know the database of the outbox {name!r} (set resolver.kind ="
                f' "sql" and resolver.url = "{name}=URL" on every Pump)',
                code=Code.RESOLVER_OUTBOX,
            )

    def check_large(self, start_ts: int, size_bytes: int, bytes_max: int) -> None:
        """Raise `Refused` unless a chunked Prewrite of that total size may be accepted now."""
        try:
            self._check_online()
            self._check_ahead(start_ts)
            if size_bytes > bytes_max:
                raise Refused(
                    _Code.INVALID,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"transaction of {size_bytes} bytes is larger than this Pump's limit of"
                    f" {bytes_max} (raise transaction-bytes-max on all Pumps, or write smaller"
                    " transactions)",
                    code=Code.BINLOG_TOO_LARGE,
                )
        except Refused as refused:
            self._counters.refuse(refused)
            raise

    def check_decided(self, payload: bytes) -> None:
        """Raise `Refused` unless a decided transaction's Prewrite may be accepted now."""
        try:
            self._check_online()
            self._check_size(len(payload))
            try:
                binlog = _parsed(payload)
            except DecodeError as error:
                raise invalid(f"undecodable binlog of {len(payload)} bytes: {error}") from error
            has_stamps = binlog.tp != _PREWRITE or binlog.start_ts or binlog.commit_ts
            if has_stamps or not payload.startswith(PREWRITE_HEAD):
                raise invalid("a decided transaction is a Prewrite with two timestamps of zero")
            if not binlog.HasField("origin") or binlog.prewrite_key or binlog.ddl_job_id:
                raise invalid("a decided transaction has an origin, no key and no DDL")
        except PenstockError as error:
            self._counters.refuse(error)
            raise

    def admit_request(self, data: bytes, call: Any) -> Record | None:
        """Admit a whole `WriteBinlogReq` as `admit` does, after a check of its cluster.

        `call` has gRPC's method `peer`.
        """
        try:
            cluster_id, payload = decode_write_request(data)
        except DecodeError as error:
            raise undecodable(pump_pb2.WriteBinlogReq, data, error) from error
        if cluster_id != self._cluster_id:
            self.check_cluster(cluster_id, call.peer)
        return self.admit(payload)

    def admit(self, payload: bytes) -> Record | None:
        """Return the record to store, None for a probe.

        Raises `Refused` with the reason, and for a probe `OutOfSpace`.
        """
        if len(payload) <= self._common_bytes_max:  # Nearly all payloads, at half the cost.
            try:
                binlog = _parsed(payload)
            except DecodeError:
                pass
            else:
                tp, start_ts = binlog.tp, binlog.start_ts
                if tp == _PREWRITE:
                    copies = self._copies
                    is_open = self._state() is _ONLINE and (copies is None or copies.are_enough)
                    is_due = 0 < start_ts <= self._horizon.horizon_ts
                    if is_due and is_open and not binlog.prewrite_key.startswith(_OUTBOX):
                        fields = (_PREWRITE, start_ts, binlog.commit_ts, payload, IN_ONE, 0)
                        return _new(Record, fields)
                elif tp == _COMMIT:
                    commit_ts = binlog.commit_ts
                    if 0 < start_ts < commit_ts <= self._horizon.horizon_ts:
                        job_id = binlog.ddl_job_id
                        fields = (_COMMIT, start_ts, commit_ts, payload, IN_ONE, job_id)
                        return _new(Record, fields)
        try:
            return self._record(payload)
        except PenstockError as error:
            self._counters.refuse(error)
            raise

    def _record(self, payload: bytes) -> Record | None:
        self._check_size(len(payload))
        try:
            tp, start_ts, commit_ts, prewrite_key = peek_binlog(payload)
        except DecodeError as error:
            raise invalid(f"undecodable binlog of {len(payload)} bytes: {error}") from error
        if tp == _PREWRITE:
            self._check_online()
            self.check_outbox(prewrite_key)
            is_sound = start_ts > 0
        else:
            is_sound = tp == _COMMIT and 0 < start_ts < commit_ts
        if not is_sound:
            if start_ts == 0 and commit_ts == 0:
                self._check_space()  # A client that probes wants to know whether it may write.
                return None
            _check_timestamps(tp, start_ts, commit_ts)
        self._check_ahead(max(start_ts, commit_ts))
        job_id = _parsed(payload).ddl_job_id if tp == _COMMIT else 0
        return Record(_TYPES[tp], start_ts, commit_ts, payload, ddl_job_id=job_id)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._payload_bytes_max:
            raise Refused(
                _Code.INVALID,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"binlog of {size_bytes} bytes is larger than this Pump's limit of"
                f" {self._payload_bytes_max} (raise max-message-bytes on all Pumps and Drainers,"
                " or write smaller transactions)",
                code=Code.BINLOG_TOO_LARGE,
            )

    def _check_ahead(self, ts: int) -> None:
        if self._horizon.is_ahead(ts):
            raise Refused(
                _Code.RETRYABLE,
                grpc.StatusCode.UNAVAILABLE,
                f"timestamp {ts} is ahead of the oracle, which cannot have handed it out yet (does"
                " the writer take its timestamps from this cluster's oracle?)",
                code=Code.CONTRADICTION,
            )

    def _check_online(self) -> None:
        if self._state() is not NodeState.ONLINE:
            raise Refused(
                _Code.NOT_ONLINE,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no online: {self._state()}",
                code=Code.PUMP_NOT_ONLINE,
            )
        if self._copies is not None:
            self._copies.check()


def invalid(problem: str) -> Refused:
    return Refused(
        _Code.INVALID, grpc.StatusCode.INVALID_ARGUMENT, problem, code=Code.BINLOG_INVALID
    )


def undecodable(message: type[Message], data: bytes, error: DecodeError) -> Refused:
    return invalid(f"undecodable {message.DESCRIPTOR.name} of {len(data)} bytes: {error}")


def _check_timestamps(tp: int, start_ts: int, commit_ts: int) -> None:
    if tp > BinlogType.ROLLBACK:
        raise invalid(f"binlog of the obsolete type {tp}")
    if start_ts <= 0:
        raise invalid(f"binlog with start_ts {start_ts}: timestamps are above zero")
    if tp == BinlogType.COMMIT:
        if commit_ts <= start_ts:
            raise invalid(f"commit_ts {commit_ts} is not after start_ts {start_ts}")
    elif tp == BinlogType.ROLLBACK and commit_ts >= start_ts:
        # Accepting it would let a caller move this Pump's time anywhere.
        raise invalid("a fake binlog from outside: only a Pump writes those, to its own log")
