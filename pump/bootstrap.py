"""A Pump before it has its parts: it has a port and pages, and says what it waits for.

port bound, pages up ── data folder opened ── etcd answered ── parts wired ── `open`
     └─ health: NOT_SERVING; every other call: UNAVAILABLE with what it waits for
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import grpc

from penstock.cluster.registry import NodeState
from penstock.node.http_status import JSON, TEXT, Answer, HttpStatus
from penstock.security.tls import Security
from pump.config import PumpConfig
from pump.service.front import build_server, listen
from pump.service.health import add_health

log = logging.getLogger(__name__)

_HEALTH = "/grpc.health."
_SERVER_GRACE_S = 0.5


class Starting:
    """The port and the pages of a Pump, from the first moment to the last."""

    def __init__(self, config: PumpConfig, security: Security) -> None:
        """Bind the port; raise `NeedsOperator` when that is impossible."""
        self.security = security
        self.server = build_server(config, security)
        self.port = listen(self.server, config, security)
        self.pages = HttpStatus("a Pump that is starting")
        self.waits_for = "its data folder is being opened"
        """Told to whoever asks until `open`."""
        self._status_addr = config.status_addr
        self._began_s = time.monotonic()
        self._is_open = False
        self._state: Callable[[], NodeState] = lambda: NodeState.PAUSED

    async def start(self) -> None:
        """Serve what can be served by now."""
        self.server.add_generic_rpc_handlers((_Entrance(self),))
        add_health(self.server, lambda: self._state(), ("binlog.Pump", "penstock.Pump"))
        self.pages.add("GET", "/status", self._status, "what this Pump waits for")
        self.pages.add("GET", "/metrics", self._metrics, "for Prometheus: the state, no more")
        await self.server.start()
        await self.pages.start(self._status_addr, self.port, self.security)

    def open(self, title: str, state: Callable[[], NodeState]) -> None:
        """Let all calls through to the services that were added, and make way for their pages."""
        self._state = state
        self._is_open = True
        self.pages.begin_anew(title)

    async def close(self) -> None:
        """Let go of port and pages; they may be closed already."""
        await self.server.stop(_SERVER_GRACE_S)
        await self.pages.close()

    @property
    def problem(self) -> str:
        """What stands between this Pump and its callers; empty: nothing."""
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


class _Entrance(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Stands before all services while the Pump is starting.

    Without it a caller would be told that the method does not exist, and take this for another
    kind of node.
    """

    def __init__(self, starting: Starting) -> None:
        self._starting = starting

    def service(self, details: Any) -> Any:
        """Return a handler that refuses; None lets the call through."""
        if not self._starting.problem or details.method.startswith(_HEALTH):
            return None
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, requests: Any, context: Any) -> NoReturn:
        await context.abort(grpc.StatusCode.UNAVAILABLE, self._starting.problem)
        raise AssertionError("abort raises")
