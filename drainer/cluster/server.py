"""Server: a Drainer's name, its port with the methods, and its pages.

The methods are `Cistern/Notify` for joining Pumps and the operator's commands. The port and the
pages stay while the Drainer changes from a standby to the active Drainer and back; only the object
that answers changes (`Role`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc

from drainer.components import Home
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

_OPTIONS = [
    # Two Drainers on one port would share the calls silently.
    ("grpc.so_reuseport", 0),
    # Callers never send this much to a Drainer, and silent connections are closed.
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
_SERVER_GRACE_S = 1.0


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


class Front:
    """One Drainer's port and pages; its methods are answered by the Drainer's current role."""

    def __init__(self, config: DrainerConfig, security: Security, home: Home) -> None:
        """Bind the port, but serve nothing; `NeedsOperator` for an unusable port or name."""
        self._config = config
        self._security = security
        self._server: Any = grpc.aio.server(interceptors=security.interceptors(), options=_OPTIONS,
                                            maximum_concurrent_rpcs=_CALLS_MAX)  # fmt: skip
        try:
            self.port = security.add_port(self._server, config.addr)
        except RuntimeError as error:
            raise NeedsOperator(
                f"cannot listen on {config.addr}: it is in use, or not an address of this machine",
                "is another process there? choose another --addr",
                Code.ADDRESS_TAKEN,
            ) from error
        self._role: Role | None = None
        self._add_methods()
        host, _, wanted = (config.advertise_addr or config.addr).rpartition(":")
        self.address = f"{host}:{self.port if int(wanted) == 0 else wanted}"
        """The address where others reach this Drainer, with the port actually bound."""
        self.node_id = home.node_id(config.node_id, self.address)
        self.pages = HttpStatus(self._title)

    @property
    def _title(self) -> str:
        return f"Drainer {self.node_id} at {self.address}"

    @property
    def role(self) -> Role:
        assert self._role is not None, "the server started before there was anyone to answer"
        return self._role

    async def serve(self, role: Role) -> None:
        """Let `role` answer from now on; the first call starts the server."""
        is_first, self._role = self._role is None, role
        self.pages.begin_anew(self._title)
        role.add_pages(self.pages)
        if is_first:
            await self._server.start()
            config = self._config
            await self.pages.start(config.status_addr, self.port, self._security, self.address)

    async def close(self) -> None:
        await self._server.stop(_SERVER_GRACE_S)
        await self.pages.close()

    def _add_methods(self) -> None:
        pb, cistern = penstock_pb2, cistern_pb2

        async def notify(request: Any) -> Any:
            await self.role.refresh()
            return cistern.NotifyResp()

        async def dump_ddl_jobs(request: Any) -> Any:  # Returns nothing, as TiDB-Binlog does.
            return cistern.DumpDDLJobsResp()

        async def dump_binlog(data: bytes, context: Any) -> AsyncIterator[Any]:  # The same.
            await parsed(context, cistern.DumpBinlogReq, data)
            nothing: tuple[Any, ...] = ()
            for response in nothing:
                yield response

        async def status(request: Any) -> Any:
            return self.role.status()

        async def pause(request: Any) -> Any:
            self.role.pause(request.node_id)
            return pb.PauseReply()

        async def close(request: Any) -> Any:
            self.role.close(request.node_id)
            return pb.CloseReply()

        async def hand_over(request: Any) -> Any:
            return pb.HandOverReply(standbys=await self.role.hand_over(request.node_id))

        services = {
            "binlog.Cistern": {
                "Notify": _unary(notify, cistern.NotifyReq, cistern.NotifyResp),
                "DumpBinlog": grpc.unary_stream_rpc_method_handler(
                    dump_binlog, response_serializer=cistern.DumpBinlogResp.SerializeToString
                ),
                "DumpDDLJobs": _unary(
                    dump_ddl_jobs, cistern.DumpDDLJobsReq, cistern.DumpDDLJobsResp
                ),
            },
            "penstock.Drainer": {
                "Status": _unary(status, pb.StatusRequest, pb.StatusReply),
                "Pause": _unary(pause, pb.PauseRequest, pb.PauseReply),
                "Close": _unary(close, pb.CloseRequest, pb.CloseReply),
                "HandOver": _unary(hand_over, pb.HandOverRequest, pb.HandOverReply),
            },
        }
        for name, methods in services.items():
            handler = grpc.method_handlers_generic_handler(name, methods)
            self._server.add_generic_rpc_handlers((handler,))


def _unary(answer: Callable[[Any], Awaitable[Any]], request: Any, response: Any) -> Any:
    async def called(data: bytes, context: Any) -> Any:
        asked = await parsed(context, request, data)
        try:
            return await answer(asked)
        except PenstockError as error:
            is_retryable = isinstance(error, Retryable)
            codes = grpc.StatusCode
            code = codes.UNAVAILABLE if is_retryable else codes.FAILED_PRECONDITION
            await context.abort(code, coded(error), code_fields(error))

    serializer = response.SerializeToString
    return grpc.unary_unary_rpc_method_handler(called, response_serializer=serializer)
