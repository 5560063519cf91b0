"""gRPC server: chooses the engine and its options, the status of each error, health and reflection.

`server-engine` chooses between the project's own server, `penstock.http2`, and `grpc.aio`. Both
serve the same handlers with the same limits, and a caller sees no difference but the speed.

Handlers receive and return raw bytes, and parse them. An undecodable request then gets a clear
INVALID_ARGUMENT instead of an internal error, and constant answers are never built.

    error                               status               text
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

Health is for load balancers and probes, reflection for `grpcurl`. Health is SERVING from the time
this Pump is online until it has paused: while it is pausing or closing it refuses Prewrites, but
Commits and pulls still need it. Before and after that it is NOT_SERVING.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable, code_fields, coded
from penstock.http2 import messages
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits, connections_within
from penstock.node.command import open_files
from penstock.node.http_status import JSON, TEXT, Answer, HttpStatus
from pump.config import HTTP2
from pump.service.admission import Refused
from pump.store.record import Contradiction, NoPrewrite, OutOfSpace, PurgedRange

if TYPE_CHECKING:
    from penstock.security.tls import Security
    from pump.config import PumpConfig

SERVER_GRACE_S = 0.5
"""For calls in progress. Streams of batches stay open indefinitely and are then cut."""

_HEALTH = "/grpc.health.v1.Health/"
_SERVING = frozenset({NodeState.ONLINE, NodeState.PAUSING, NodeState.CLOSING})
_WATCH_TICK_S = 0.5
_Status = health_pb2.HealthCheckResponse

_ENVELOPE_BYTES = 16 << 20
"""The allowance of a message around its largest payload, so that our own check answers first."""

_CALLS_MAX = 20_000
_HANDSHAKE_MS = 5_000
_PING_AFTER_MS, _PING_ANSWER_MS = 20_000, 10_000

_STATUS: tuple[tuple[type[BaseException], grpc.StatusCode], ...] = (
    (PurgedRange, grpc.StatusCode.OUT_OF_RANGE),
    (Contradiction, grpc.StatusCode.INVALID_ARGUMENT),
    (NoPrewrite, grpc.StatusCode.NOT_FOUND),
    # TiDB-Binlog's clients try the next Pump on UNKNOWN, which is right for a full disk;
    # RESOURCE_EXHAUSTED would make them stop.
    (OutOfSpace, grpc.StatusCode.UNKNOWN),
    (Corrupt, grpc.StatusCode.DATA_LOSS),
    (Retryable, grpc.StatusCode.UNAVAILABLE),
    (NeedsOperator, grpc.StatusCode.FAILED_PRECONDITION),
)


def status_of(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, Refused):
        return error.status
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.UNKNOWN


async def abort(context: Any, error: BaseException) -> NoReturn:
    await context.abort(status_of(error), coded(error), code_fields(error))
    raise AssertionError("abort returned")


parsed = functools.partial(messages.parsed, code=Code.BINLOG_INVALID)
"""Returns a request, or ends the call with INVALID_ARGUMENT."""


def build_server(config: PumpConfig, security: Security) -> Any:
    """Return a server of the configured engine; without services, not bound, not started."""
    message_bytes_max = config.max_message_bytes + _ENVELOPE_BYTES
    if config.server_engine == HTTP2:
        limits = ServerLimits(
            message_bytes_max=message_bytes_max,
            calls_max=_CALLS_MAX,
            connections_max=connections_within(open_files()),
            begin_s=_HANDSHAKE_MS / 1000,
            ping_after_s=_PING_AFTER_MS / 1000,
            ping_answer_s=_PING_ANSWER_MS / 1000,
        )
        return GrpcFront(limits, security.interceptors())
    return grpc.aio.server(
        interceptors=security.interceptors(),
        options=[
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # Two Pumps on one port would share the writers silently.
            # A peer that does not start to talk is disconnected.
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", _PING_AFTER_MS),
            ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
        ],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )


def add_service(server: Any, name: str, methods: Mapping[str, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


def listen(server: Any, config: PumpConfig, security: Security) -> int:
    """Bind the configured address and return the port; `NeedsOperator` when that is impossible."""
    try:
        return security.add_port(server, config.addr)
    except (RuntimeError, OSError) as error:
        raise NeedsOperator(
            f"cannot listen on {config.addr}: {error}",
            "is another process there? choose another --addr",
            Code.ADDRESS_TAKEN,
        ) from error


def add_health(server: Any, state: Callable[[], NodeState], services: tuple[str, ...]) -> None:
    """Add health and reflection to a server that has not started; `services` are served."""
    health_pb2_grpc.add_HealthServicer_to_server(_Health(state, services), server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    # `enable_server_reflection` would treat any server but grpc.aio's own as threaded.
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(names), server
    )


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Asks the node at each check, so that no answer can be out of date."""

    def __init__(self, state: Callable[[], NodeState], services: tuple[str, ...]) -> None:
        self._state = state
        self._known = {"", *services}

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return _Status(status=self._status())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        last = None
        while True:
            known = request.service in self._known
            status = self._status() if known else _Status.SERVICE_UNKNOWN
            if status != last:
                yield _Status(status=status)
                last = status
            await asyncio.sleep(_WATCH_TICK_S)

    def _status(self) -> Any:
        return _Status.SERVING if self._state() in _SERVING else _Status.NOT_SERVING


class Entrance(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The port and the pages of a Pump, for the whole life of its process.

    Until the parts exist, every answer names the dependency that the Pump waits for. gRPC would
    answer that the method does not exist, which suggests another kind of node.
    """

    def __init__(self, config: PumpConfig, security: Security) -> None:
        """Bind the port; raise `NeedsOperator` when that is impossible."""
        self.security = security
        self.server = build_server(config, security)
        self.port = listen(self.server, config, security)
        self.pages = HttpStatus("a Pump that is starting")
        self.pages.problem = lambda: self.problem
        self.waits_for = "its data folder is being opened"
        """The answer to every caller until `open`."""
        self.let_in = {_HEALTH}
        """Prefixes of the methods that are served before `open`."""
        self._status_addr = config.status_addr
        self._advertised = config.advertise_addr or config.addr
        self._began_s = time.monotonic()
        self._is_open = False
        self._state: Callable[[], NodeState] = lambda: NodeState.PAUSED

    async def start(self) -> None:
        self.server.add_generic_rpc_handlers((self,))
        add_health(self.server, lambda: self._state(), ("binlog.Pump", "penstock.Pump"))
        self.pages.add("GET", "/status", self._status, "what this Pump waits for")
        self.pages.add("GET", "/metrics", self._metrics, "for Prometheus: the state, no more")
        await self.server.start()
        await self.pages.start(self._status_addr, self.port, self.security, self._advertised)

    def open(self, title: str, state: Callable[[], NodeState]) -> None:
        self._state = state
        self._is_open = True
        self.pages.begin_anew(title)

    async def close(self) -> None:
        await self.server.stop(SERVER_GRACE_S)
        await self.pages.close()

    @property
    def problem(self) -> str:
        """The reason why callers cannot reach this Pump; empty if they can."""
        return "" if self._is_open else f"this Pump is starting: {self.waits_for}"

    async def _status(self, names: Mapping[str, str]) -> Answer:
        page = {
            "state": "starting",
            "waits_for": self.waits_for,
            "uptime_s": round(time.monotonic() - self._began_s),
        }
        return Answer(json.dumps({"self": page}, indent=2) + "\n", JSON)

    async def _metrics(self, names: Mapping[str, str]) -> Answer:
        return Answer('penstock_pump_state{state="starting"} 1\n', TEXT)

    def service(self, details: Any) -> Any:
        """Return a handler that refuses the call, or None to let it through."""
        service, slash, _ = details.method.rpartition("/")
        if not self.problem or service + slash in self.let_in:
            return None

        async def refuse(requests: Any, context: Any) -> NoReturn:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.problem)
            raise AssertionError("abort raises")

        return grpc.stream_stream_rpc_method_handler(refuse)
