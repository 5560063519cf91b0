"""The gRPC front of a Pump, and its compatible service `binlog.Pump`: one binlog per call.

Handlers take and give raw bytes and parse by themselves: an undecodable request then gets a clear
INVALID_ARGUMENT instead of an internal error, and constant answers are never built.

    what went wrong                     status               text
    a certificate of another name       UNAUTHENTICATED      …   (before anything is read)
    another cluster                     PERMISSION_DENIED    cluster ID are mismatch, …
    not a binlog, or a contradiction    INVALID_ARGUMENT     …
    larger than max-message-bytes       RESOURCE_EXHAUSTED   …   (clients do not try again)
    a Prewrite while not online         FAILED_PRECONDITION  no online: pausing
    a Commit without its Prewrite       NOT_FOUND            …   (it may still come: try again)
    the disk is full                    UNKNOWN              no available space, …
    overloaded                          UNAVAILABLE          …
    purged binlogs asked for            OUT_OF_RANGE         …
    pulled whole, and too large for it  FAILED_PRECONDITION  commit_ts, both sizes
    damaged bytes on disk               DATA_LOSS            file, offset
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from penstock.errors import Corrupt, NeedsOperator, PenstockError, Retryable
from penstock.pb import binlog_pb2, pump_pb2
from pump.service.admission import Refused
from pump.store.record import Contradiction, NoPrewrite, OutOfSpace, PurgedRange

if TYPE_CHECKING:
    from penstock.security.tls import Security
    from pump.config import PumpConfig
    from pump.service.admission import Admission
    from pump.service.group_commit import Writer
    from pump.service.pulls import Pulls

log = logging.getLogger(__name__)

_ENVELOPE_BYTES = 16 << 20
"""What a message may have around its largest payload, so that our own check speaks first."""

_CALLS_MAX = 20_000
_HANDSHAKE_MS = 10_000
_WRITTEN = pump_pb2.WriteBinlogResp().SerializeToString()

_STATUS: tuple[tuple[type[BaseException], grpc.StatusCode], ...] = (
    (PurgedRange, grpc.StatusCode.OUT_OF_RANGE),
    (Contradiction, grpc.StatusCode.INVALID_ARGUMENT),
    (NoPrewrite, grpc.StatusCode.NOT_FOUND),
    # Clients of the original go on to the next Pump on UNKNOWN, which is right for a full disk;
    # RESOURCE_EXHAUSTED would make them give up.
    (OutOfSpace, grpc.StatusCode.UNKNOWN),
    (Corrupt, grpc.StatusCode.DATA_LOSS),
    (Retryable, grpc.StatusCode.UNAVAILABLE),
    (NeedsOperator, grpc.StatusCode.FAILED_PRECONDITION),
)


def status_of(error: BaseException) -> grpc.StatusCode:
    """Return the status that says what the caller of a failed method can do."""
    if isinstance(error, Refused):
        return error.status
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.UNKNOWN


async def abort(context: Any, error: BaseException) -> NoReturn:
    """End the call with the error's status and text."""
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort returned")


async def parsed(context: Any, message: type[Message], data: bytes) -> Any:
    """Return the request in `data`, or end the call with INVALID_ARGUMENT."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        await undecodable(context, message, data, error)


async def undecodable(
    context: Any, message: type[Message], data: bytes, error: DecodeError
) -> NoReturn:
    """End the call with INVALID_ARGUMENT and what was wrong with its bytes."""
    text = f"undecodable {message.DESCRIPTOR.name} of {len(data)} bytes: {error}"
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    raise AssertionError("abort returned")


def build_server(config: PumpConfig, security: Security) -> Any:
    """Return a `grpc.aio` server; without services, not bound, not started."""
    return grpc.aio.server(
        interceptors=security.interceptors(),
        options=[
            ("grpc.max_receive_message_length", config.max_message_bytes + _ENVELOPE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # Two Pumps on one port would share the writers silently.
            # Who does not even begin to talk is let go.
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
        ],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )


def add_service(server: Any, name: str, methods: Mapping[str, Any]) -> None:
    """Add a service's handlers, by method name, to a server that was not started yet."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


def listen(server: Any, config: PumpConfig, security: Security) -> int:
    """Bind the configured address and return the port; `NeedsOperator` when that is impossible."""
    try:
        return security.add_port(server, config.addr)
    except (RuntimeError, OSError) as error:
        raise NeedsOperator(
            f"cannot listen on {config.addr}: {error}",
            hint="is another process there? choose another --addr",
        ) from error


class CompatibleService:
    """`binlog.Pump`, as the original's clients and Drainers call it."""

    def __init__(self, writer: Writer, pulls: Pulls, admission: Admission) -> None:
        self._writer = writer
        self._pulls = pulls
        self._admission = admission

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method name."""
        return {
            "WriteBinlog": grpc.unary_unary_rpc_method_handler(self.write_binlog),
            "PullBinlogs": grpc.unary_stream_rpc_method_handler(self.pull_binlogs),
        }

    async def write_binlog(self, data: bytes, context: Any) -> bytes:
        """Answer once the binlog is durable."""
        request = await parsed(context, pump_pb2.WriteBinlogReq, data)
        try:
            self._admission.check_cluster(request.clusterID)
            record = self._admission.admit(request.payload)
            if record is not None:
                await self._writer.write([record])
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return _WRITTEN

    async def pull_binlogs(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Stream merged binlogs after a commit_ts, one per message, until the Pump closes."""
        request = await parsed(context, pump_pb2.PullBinlogReq, data)
        try:
            self._admission.check_cluster(request.clusterID)
            batches = self._pulls.batches(context.peer(), request.startFrom.offset)
            async with aclosing(batches):
                async for pulled in batches:
                    if pulled.large is not None:
                        payload = await self._pulls.whole(pulled.large)
                        yield _entity(pulled.large.commit_ts, payload)
                    for commit_ts, payload in zip(pulled.commit_ts, pulled.payloads, strict=True):
                        yield _entity(commit_ts, payload)
        except (PenstockError, OSError) as error:
            await abort(context, error)


def _entity(commit_ts: int, payload: bytes) -> bytes:
    meta = pump_pb2.Meta(startTs=binlog_pb2.Binlog.FromString(payload).start_ts, commitTs=commit_ts)
    return pump_pb2.PullBinlogResp(
        entity=pump_pb2.Entity(payload=payload, meta=meta)
    ).SerializeToString()
