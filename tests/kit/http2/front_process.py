"""A process that serves nothing but tests, by our own gRPC server.

    python -m tests.kit.http2.front_process '{"tls": {}, "limits": {}}'

It has gRPC's interoperability service, one method on the fast path, and one that says what the
server holds. `FrontProcess` starts it; that it is a process of its own makes its memory and its
end visible.
"""

import asyncio
import json
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import psutil

from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import Reply, UnaryCall
from penstock.local.process import ServerProcess, python_module
from penstock.security.tls import Security, SecurityConfig
from tests.kit.http2 import interop_service
from tests.kit.http2.raw_peer import RawPeer
from tests.kit.servers.authority import Pair
from tests.kit.wait import eventually

log = logging.getLogger(__name__)

SERVICE = "penstock.testing.Front"
FAST = f"/{SERVICE}/Answer"
HELD = f"/{SERVICE}/Held"
ANSWER = b"answered"
_PORTS = "serves at "


@dataclass(frozen=True)
class Held:
    """What a server holds."""

    calls: int
    connections: int
    tasks: int
    fast_calls: int
    """How many calls on the fast path there ever were."""


class FrontProcess(ServerProcess):
    """The server, with a plain port and, where a certificate is given, one with TLS."""

    def __init__(self, log: Path, pair: Pair | None = None, **limits: Any) -> None:
        """`limits` are those of `ServerLimits`."""
        tls = {} if pair is None else pair.settings
        settings = {name.removeprefix("security_"): value for name, value in tls.items()}
        super().__init__(
            python_module(__name__, json.dumps({"tls": settings, "limits": limits})), log=log
        )
        self.port = self.tls_port = 0

    def start(self) -> Self:
        """Start it and wait until it serves."""
        super().start()
        eventually(lambda: _PORTS in self.log_text() or not self.is_running, within_s=30)
        text = self.log_text()
        assert _PORTS in text, text
        ports = text.rpartition(_PORTS)[2].partition("\n")[0].split()
        self.port, self.tls_port = int(ports[0]), int(ports[-1])
        return self

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """Where it listens without TLS."""
        return f"127.0.0.1:{self.port}"

    def peer(self, **options: Any) -> RawPeer:
        """Return a new connection without TLS."""
        return RawPeer("127.0.0.1", self.port, **options)

    def memory_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def held(self) -> Held:
        """Ask, on a connection of its own, what the server holds beside this call."""
        with RawPeer("127.0.0.1", self.port) as peer:
            answer = peer.call(HELD, b"")
            assert answer.status == 0, answer
            return Held(**json.loads(answer.messages[0]))

    def is_idle(self) -> bool:
        """Return whether it holds no call and no connection."""
        held = self.held()
        return (held.calls, held.connections) == (0, 0)

    def assert_serves(self) -> None:
        """Fail unless a new connection gets its answers, on and beside the fast path."""
        with RawPeer("127.0.0.1", self.port) as peer:
            assert peer.call(FAST, b"x").messages == [ANSWER]
            assert peer.call(f"/{interop_service.SERVICE}/EmptyCall", b"").messages == [b""]


async def _serve(settings: dict[str, Any]) -> None:
    front = GrpcFront(ServerLimits(**settings["limits"]))
    fast_calls = 0

    def answer(message: bytes, call: UnaryCall) -> None:
        nonlocal fast_calls
        fast_calls += 1
        call.answer(reply)

    async def answer_slowly(message: bytes, context: Any) -> bytes:
        return ANSWER

    async def held(message: bytes, context: Any) -> bytes:
        found = Held(
            calls=front.calls - 1,
            connections=front.connections - 1,
            tasks=len(asyncio.all_tasks()),
            fast_calls=fast_calls,
        )
        return json.dumps(vars(found)).encode()

    reply = Reply(ANSWER)
    front.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                SERVICE,
                {
                    "Answer": grpc.unary_unary_rpc_method_handler(answer_slowly),
                    "Held": grpc.unary_unary_rpc_method_handler(held),
                },
            ),
        )
    )
    front.add_fast_unary(FAST, answer)
    interop_service.add_to(front)
    ports = [front.add_insecure_port("127.0.0.1:0")]
    if settings["tls"]:
        security = Security(SecurityConfig(**settings["tls"]))
        ports.append(security.add_port(front, "127.0.0.1:0"))
    await front.start()
    log.info("%s%s", _PORTS, " ".join(map(str, ports)))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await front.stop(1.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(json.loads(sys.argv[1])))
