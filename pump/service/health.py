"""gRPC's health and reflection services, for load balancers, probes and `grpcurl`.

SERVING from the moment this Pump is online until it has paused: while it is pausing or closing it
takes no Prewrites, but Commits and pulls still need it. Before that and after it: NOT_SERVING.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.cluster.registry import NodeState

_SERVING = frozenset({NodeState.ONLINE, NodeState.PAUSING, NodeState.CLOSING})
_WATCH_TICK_S = 0.5
_Status = health_pb2.HealthCheckResponse


def add_health(server: Any, state: Callable[[], NodeState], services: tuple[str, ...]) -> None:
    """Add both services to a server that was not started yet; `services` are what it serves."""
    health_pb2_grpc.add_HealthServicer_to_server(_Health(state, services), server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Asks the node itself at each check, so that nothing can be out of date."""

    def __init__(self, state: Callable[[], NodeState], services: tuple[str, ...]) -> None:
        self._state = state
        self._known = {"", *services}

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer for the whole Pump or for one of its services."""
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return _Status(status=self._status())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer now and at each change."""
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
