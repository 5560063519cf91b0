"""A Prewrite that is too large for a batch goes to a Pump piece by piece, from wherever it lies.

It has a connection of its own, so that no small write waits behind it, and the same question first:
is the node at this address the one that is meant? A try on another Pump begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import grpc

from penstock.log.chunks import DATA_BYTES, before_rows
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.refusal import refusal_of
from penstock.wire.batch import encode_write_piece
from penstock.wire.binlog import Binlog
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.connection import Target, failure_of, text_of
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options, open_channel


class Rows(Protocol):
    """Row changes that can be read as often as needed."""

    @property
    def size_bytes(self) -> int:
        """How many bytes there are."""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from `offset` on, fewer only at the end."""


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """Row changes that somebody already has as bytes."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes there are."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from `offset` on."""
        return self.data[offset : offset + length]


class LargePrewrite:
    """A serialized Prewrite whose rows are read when they are sent."""

    def __init__(self, prewrite: Binlog, rows: Rows) -> None:
        """Put `rows` behind `prewrite`, whose `prewrite_value` is what comes before them."""
        head = encode_binlog(replace(prewrite, prewrite_value=b""))
        begin = prewrite.prewrite_value
        self.start_ts = prewrite.start_ts
        self._head = before_rows(head, len(begin) + rows.size_bytes) + begin
        self._rows = rows

    def __len__(self) -> int:
        """Return the bytes of the whole binlog."""
        return len(self._head) + self._rows.size_bytes

    def pieces(self) -> Iterator[bytes]:
        """Yield the binlog in pieces that suit a Pump's log."""
        first = DATA_BYTES - len(self._head)
        yield self._head + self._rows.read(0, first)
        for offset in range(first, self._rows.size_bytes, DATA_BYTES):
            yield self._rows.read(offset, DATA_BYTES)


def payload_of(prewrite: Binlog, large_bytes: int) -> bytes | LargePrewrite:
    """Return a Prewrite as one message, or as pieces when its rows are more than `large_bytes`."""
    if len(prewrite.prewrite_value) <= large_bytes:
        return encode_binlog(prewrite)
    rows = RowsInMemory(prewrite.prewrite_value)
    return LargePrewrite(replace(prewrite, prewrite_value=b""), rows)


class _Messages:
    """The messages of one try, and how it went from our side."""

    def __init__(self, cluster_id: int, prewrite: LargePrewrite) -> None:
        self._cluster_id = cluster_id
        self._prewrite = prewrite
        self.is_complete = False  # True once the Pump may have all of it.
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        prewrite, sent = self._prewrite, 0
        try:
            for data in prewrite.pieces():
                told = (0, 0, 0) if sent else (self._cluster_id, prewrite.start_ts, len(prewrite))
                sent += len(data)
                self.is_complete = sent >= len(prewrite)
                yield encode_write_piece(*told, data)
        except Exception as error:
            self.error = error
            raise


def write_large(
    target: Target, options: Options, prewrite: LargePrewrite, timeout_s: float
) -> Failure | None:
    """Try once to make a large Prewrite durable on a Pump; None means that it is.

    Raises what reading the rows raises.
    """
    messages = _Messages(target.cluster_id, prewrite)
    with open_channel(target.address, target.tls) as channel:
        try:
            ask = penstock_pb2_grpc.PumpStub(channel).Status  # type: ignore[no-untyped-call]
            reply = ask(penstock_pb2.StatusRequest(), timeout=options.connect_timeout_s)
            if reply.node_id != target.node_id:
                problem = f"{target.address} now is {reply.node_id}"
                return Failure(Reason.BROKEN, problem, maybe_stored=False)
            write = channel.stream_unary(
                "/penstock.Pump/WriteLarge", None, penstock_pb2.WriteAck.FromString
            )
            ack = write(iter(messages), timeout=timeout_s)
        except grpc.RpcError as error:
            if messages.error is not None:
                raise messages.error from error
            refusal = refusal_of(target.address, target.tls, error)
            if refusal is not None:
                return Failure(Reason.CERTIFICATE, str(refusal), messages.is_complete)
            return _failure(error, messages.is_complete)
    for refusal in ack.refusals:
        failure = failure_of(refusal)
        return replace(failure, maybe_stored=failure.maybe_stored and messages.is_complete)
    return None


def _failure(error: grpc.RpcError, maybe_stored: bool) -> Failure:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        problem = "it has no method WriteLarge, so it takes no large transactions"
        return Failure(Reason.TOO_OLD, problem, maybe_stored=False)
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    reason = Reason.TIMED_OUT if is_late else Reason.BROKEN
    return Failure(reason, text_of(error), maybe_stored=maybe_stored)
