"""Server: a Drainer's name, its port with the methods, and its pages.

The methods are `Cistern/Notify` for joining Pumps and the operator's commands. The port and the
pages stay while the Drainer changes from a standby to the active Drainer and back; only the object
that answers changes (`Role`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import grpc

from drainer.data_dir import Home
from drainer.settings.config import DrainerConfig
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable, code_fields, coded
from penstock.http2.messages import parsed
from penstock.node.http_status import HttpStatus
from penstock.pb import cistern_pb2, penstock_pb2
from penstock.security.tls import Security

_MESSAGE_BYTES_MAX = 1 << 20
_HANDSHAKE_MS = 5_000
_CALLS_MAX = 1_000


class Role(Protocol):
    """A Drainer's current task, active or standby; each command takes a node id to check."""

    def status(self) -> penstock_pb2.StatusReply: ...

    async def refresh(self) -> None:
        """Make one pass over the list of Pumps; return once all of them take part."""

    def pause(self, asked: str) -> None:
        """Start to shut down; the Drainer keeps its place."""

    def close(self, asked: str) -> None:
        """Start to decommission: Pumps no longer keep binlogs for this Drainer."""

    async def hand_over(self, asked: str) -> Sequence[str]:
        """Start to make room for a standby; return the standbys that may take over."""

    def add_pages(self, pages: HttpStatus) -> None: ...


class Services:
    """The methods, answered by the Drainer's current role."""

    def __init__(self) -> None:
        """`role` must be set before the server starts."""
        self.role: Role | None = None

    @property
    def _role(self) -> Role:
        assert self.role is not None, "the server started before there was anyone to answer"
        return self.role

    def add_to(self, server: Any) -> None:
        pb, cistern = penstock_pb2, cistern_pb2
        dump = grpc.unary_stream_rpc_method_handler(
            _parsed_stream(self.dump_binlog, cistern.DumpBinlogReq),
            response_serializer=cistern.DumpBinlogResp.SerializeToString,
        )
        services = {
            "binlog.Cistern": {
                "Notify": _unary(self.notify, cistern.NotifyReq, cistern.NotifyResp),
                "DumpBinlog": dump,
                "DumpDDLJobs": _unary(
                    self.dump_ddl_jobs, cistern.DumpDDLJobsReq, cistern.DumpDDLJobsResp
                ),
            },
            "penstock.Drainer": {
                "Status": _unary(self.status, pb.StatusRequest, pb.StatusReply),
                "Pause": _unary(self.pause, pb.PauseRequest, pb.PauseReply),
                "Close": _unary(self.close, pb.CloseRequest, pb.CloseReply),
                "HandOver": _unary(self.hand_over, pb.HandOverRequest, pb.HandOverReply),
            },
        }
        for name, methods in services.items():
            handler = grpc.method_handlers_generic_handler(name, methods)
            server.add_generic_rpc_handlers((handler,))

    async def notify(self, request: Any, context: Any) -> cistern_pb2.NotifyResp:
        try:
            await self._role.refresh()
        except PenstockError as error:
            await _abort(context, error)
        return cistern_pb2.NotifyResp()

    async def dump_binlog(
        self, request: Any, context: Any
    ) -> AsyncIterator[cistern_pb2.DumpBinlogResp]:
        """Yield nothing, as TiDB-Binlog does."""
        nothing: tuple[cistern_pb2.DumpBinlogResp, ...] = ()
        for response in nothing:
            yield response

    async def dump_ddl_jobs(self, request: Any, context: Any) -> cistern_pb2.DumpDDLJobsResp:
        """Return nothing, as TiDB-Binlog does."""
        return cistern_pb2.DumpDDLJobsResp()

    async def status(self, request: Any, context: Any) -> penstock_pb2.StatusReply:
        return self._role.status()

    async def pause(self, request: Any, context: Any) -> penstock_pb2.PauseReply:
        try:
            self._role.pause(request.node_id)
        except PenstockError as error:
            await _abort(context, error)
        return penstock_pb2.PauseReply()

    async def close(self, request: Any, context: Any) -> penstock_pb2.CloseReply:
        try:
            self._role.close(request.node_id)
        except PenstockError as error:
            await _abort(context, error)
        return penstock_pb2.CloseReply()

    async def hand_over(self, request: Any, context: Any) -> penstock_pb2.HandOverReply:
        """Start to become a standby; another Drainer takes over once this one stops writing."""
        found: Sequence[str] = ()
        try:
            found = await self._role.hand_over(request.node_id)
        except PenstockError as error:
            await _abort(context, error)
        return penstock_pb2.HandOverReply(standbys=found)


def build_server(security: Security) -> Any:
    return grpc.aio.server(
        interceptors=security.interceptors(),
        options=[
            # Two Drainers on one port would share the calls silently.
            ("grpc.so_reuseport", 0),
            # Callers never send this much to a Drainer, and silent connections are closed.
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
        ],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )


def listen(server: Any, address: str, security: Security) -> int:
    try:
        return security.add_port(server, address)
    except RuntimeError as error:
        raise NeedsOperator(
            f"cannot listen on {address}: {error}", "choose another --addr", Code.ADDRESS_TAKEN
        ) from error


def _unary(method: Any, request: Any, response: Any) -> Any:
    async def called(data: bytes, context: Any) -> Any:
        return await method(await parsed(context, request, data), context)

    return grpc.unary_unary_rpc_method_handler(
        called, response_serializer=response.SerializeToString
    )


def _parsed_stream(method: Any, request: Any) -> Any:
    async def called(data: bytes, context: Any) -> AsyncIterator[Any]:
        async for response in method(await parsed(context, request, data), context):
            yield response

    return called


async def _abort(context: Any, error: PenstockError) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, Retryable):
        code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, coded(error), code_fields(error))


def reached_at(config: DrainerConfig, port: int) -> str:
    """Return the address where others reach this Drainer, with the port actually bound."""
    host, _, wanted = (config.advertise_addr or config.addr).rpartition(":")
    return f"{host}:{port if int(wanted) == 0 else wanted}"


log = logging.getLogger(__name__)

_SERVER_GRACE_S = 1.0


class Front:
    """One Drainer's port and pages."""

    def __init__(self, config: DrainerConfig, security: Security, home: Home) -> None:
        """Bind the port, but serve nothing; `NeedsOperator` for an unusable port or name."""
        self._config = config
        self._security = security
        self._server: Any = build_server(security)
        self._port = listen(self._server, config.addr, security)
        self._services = Services()
        self._services.add_to(self._server)
        self.address = reached_at(config, self._port)
        self.node_id = home.node_id(config.node_id, self.address)
        self.pages = HttpStatus(self._title)
        self._is_started = False

    @property
    def _title(self) -> str:
        return f"Drainer {self.node_id} at {self.address}"

    async def serve(self, role: Role) -> None:
        """Let `role` answer from now on; the first call starts the server."""
        self._services.role = role
        self.pages.begin_anew(self._title)
        role.add_pages(self.pages)
        if not self._is_started:
            self._is_started = True
            await self._server.start()
            config = self._config
            await self.pages.start(config.status_addr, self._port, self._security, self.address)

    async def close(self) -> None:
        await self._server.stop(_SERVER_GRACE_S)
        await self.pages.close()
