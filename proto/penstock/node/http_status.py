"""HTTP status: a node's pages for people and for Prometheus, over minimal HTTP/1.1, beside gRPC.

    GET   open to everyone who reaches the port: on loopback, unless `status-addr` says otherwise
    PUT, POST, and pages that show stored data: answered to callers on this very machine only
    GET   /metrics as OpenMetrics, if `Accept` prefers it

Without authentication, remote changes and remote reads of data go through `penstock ctl` and gRPC.
A node with TLS serves its pages over TLS unless they are on loopback, and with `cert-allowed-cn`
only to callers with such a certificate. Each connection serves one request, and everything that a
caller can make grow is bounded. A connection in its TLS handshake counts like any other, and the
handshake ends after 5 s.

A web page can have its own name resolve to this machine, and then read these pages as its own (DNS
rebinding). So without TLS, which checks the name, the `Host` of a request must be an IP address,
localhost, this machine's name, or a name in one of the node's own addresses.

An empty `status-addr` means loopback and the gRPC port plus 1000. If that port is taken, another
port is used, because pages that were not requested must not prevent a node's start.
"""

import asyncio
import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.node.logs import one_line
from penstock.node.metrics import OPEN_METRICS, is_open_metrics_asked, open_metrics
from penstock.security.tls import Security, common_names, server_context

log = logging.getLogger(__name__)

OFF = "off"
PORT_ABOVE = 1000
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
METRICS, HEALTH, READY = "/metrics", "/healthz", "/readyz"

_HEAD_BYTES_MAX = 16 << 10
_BODY_BYTES_MAX = 64 << 10
_HANDSHAKE_S = 5.0
_DEFECT = HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of a page."""

    body: str | bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


def probed(problem: str) -> Answer:
    """Return the answer to a probe: one line, with status 503 if there is a problem."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return Answer(f"{one_line(problem) or 'ok'}\n", status=status)


Page = Callable[[Mapping[str, str]], Awaitable[Answer]]
"""Receives the values in the place of the path's `{names}`."""


class BadRequest(Exception):
    """A request that gets no page; carries the answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(f"{text}\n", status=status)


@dataclass(frozen=True, slots=True)
class _PageRoute:
    method: str
    path: str
    page: Page
    about: str
    local_only: bool

    def match(self, path: str) -> dict[str, str] | None:
        given, wanted = path.split("/"), self.path.split("/")
        if len(given) != len(wanted):
            return None
        found = {}
        for part, want in zip(given, wanted, strict=True):
            if want.startswith("{"):
                found[want[1:-1]] = unquote(part)
            elif part != want:
                return None
        return found


class HttpStatus:
    """The pages of one node, and the socket that serves them."""

    def __init__(self, title: str, *, request_s: float = 10.0, connections_max: int = 64) -> None:
        self._request_s = request_s
        self._connections_max = connections_max
        self._routes: list[_PageRoute] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._allowed: frozenset[str] = frozenset()
        self._context: ssl.SSLContext | None = None
        self._names: frozenset[str] = frozenset()
        self.url = ""
        """The address of the pages; empty while they are not served."""
        self.problem: Callable[[], str] = lambda: "this node is starting"
        """Returns why the node cannot do its work now, empty if it can."""
        self.begin_anew(title)

    def add(
        self, method: str, path: str, page: Page, about: str, *, local_only: bool = False
    ) -> None:
        """Serve `page` at `path`, in which a part `{name}` matches anything."""
        local_only = local_only or method != "GET"
        self._routes.append(_PageRoute(method, path, page, about, local_only))

    def begin_anew(self, title: str) -> None:
        """Remove all pages, so that others can be added; the socket stays open."""
        self._title = title
        self._routes.clear()

        async def healthy(names: Mapping[str, str]) -> Answer:
            return probed("")

        async def ready(names: Mapping[str, str]) -> Answer:
            return probed(self.problem())

        self.add("GET", HEALTH, healthy, "200: the process answers")
        self.add("GET", READY, ready, "200: it can do its work; 503: the reason why not")

    async def start(
        self, address: str, grpc_port: int, security: Security | None = None, advertised: str = ""
    ) -> None:
        """Serve at `address`; raise `NeedsOperator` when a configured address cannot be bound.

        Serves over TLS if `security` has TLS and the address is not loopback. `advertised` is the
        address at which others reach the node.
        """
        if address == OFF:
            return
        host, _, port = (address or f"127.0.0.1:{grpc_port + PORT_ABOVE}").rpartition(":")
        host = host.strip("[]")
        is_local = host == "localhost" or _is_loopback((host,))
        if security is not None and security.tls is not None and not is_local:
            allowed = self._allowed = security.allowed
            self._context = server_context(security.tls, with_client_certificate=bool(allowed))
        self._names = frozenset((host, host_of(advertised)))
        try:
            self._server = await asyncio.start_server(self._serve, host, int(port))
        except (OSError, OverflowError) as error:
            if address:
                raise NeedsOperator(
                    f"cannot serve status pages at {address}: {error}",
                    "choose another --status-addr, or off",
                    Code.ADDRESS_TAKEN,
                ) from error
            self._server = await asyncio.start_server(self._serve, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if self._context else 'http'}://{host}:{port}/"
        log.info("status pages at %s", self.url)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)  # Lets waiting tasks see that no request will come.

    async def answer(
        self, method: str, target: str, headers: Mapping[str, str], *, is_local: bool
    ) -> Answer:
        """Return the answer to a request; header names must be in lower case."""
        path = target.partition("?")[0]
        if path == "/":
            return Answer(self._index())
        wanted = "GET" if method == "HEAD" else method
        fitting = [(r, found) for r in self._routes if (found := r.match(path)) is not None]
        for route, found in fitting:
            if route.method != wanted:
                continue
            # An Origin comes from a browser: a web page must not control a node of its reader.
            if route.local_only and (not is_local or "origin" in headers):
                raise BadRequest(
                    HTTPStatus.FORBIDDEN, "only from this machine; from afar use penstock ctl"
                )
            page = await route.page(found)
            if path == METRICS and is_open_metrics_asked(headers.get("accept", "")):
                text = page.body if isinstance(page.body, str) else page.body.decode()
                kind = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
                return Answer(open_metrics(text), kind, page.status)
            return page
        if fitting:
            allowed = ", ".join(route.method for route, _ in fitting)
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"this page takes {allowed}")
        raise BadRequest(HTTPStatus.NOT_FOUND, f"no such page; there are:\n{self._index()}")

    def _index(self) -> str:
        width = max((len(route.path) for route in self._routes), default=0)
        lines = [f"{r.method:4} {r.path.ljust(width)}  {r.about}" for r in self._routes]
        return "\n".join([self._title, "", *lines, ""])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request without raising, since no caller would see an exception."""
        if len(self._open) >= self._connections_max:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            if self._context is not None:
                await _start_tls(writer, self._context)
            method, answer = await self._answered(reader, writer)
            writer.write(_bytes_of(answer, with_body=method != "HEAD"))
            async with asyncio.timeout(self._request_s):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            # The client went away, or took too long. The frames of a failed handshake hold its
            # buffers in a cycle, and the garbage collector runs rarely.
            error.__traceback__ = None
        except asyncio.CancelledError:
            pass  # The node ends.
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, Answer]:
        method = ""
        try:
            async with asyncio.timeout(self._request_s):
                method, target, headers = await _read_head(reader)
            if self._allowed and self._allowed.isdisjoint(
                common_names(writer.get_extra_info("peercert"))
            ):
                reason = "cert-allowed-cn does not list the common name of your certificate"
                raise BadRequest(HTTPStatus.FORBIDDEN, reason)
            if self._context is None and not is_own_name(headers.get("host", ""), self._names):
                reason = "ask by an address, or by the name in advertise-addr or status-addr"
                raise BadRequest(HTTPStatus.MISDIRECTED_REQUEST, f"not under this name: {reason}")
            is_local = _is_loopback(writer.get_extra_info("peername"))
            return method, await self.answer(method, target, headers, is_local=is_local)
        except BadRequest as refused:
            return method, refused.answer
        except PenstockError as error:
            return method, _refusal(method, error)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            raise
        except Exception:
            log.exception("a status page has a defect")
            return method, Answer("a defect; see the log\n", status=_DEFECT)


async def _start_tls(writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
    protocol = writer.transport.get_protocol()
    try:
        await writer.start_tls(context, ssl_handshake_timeout=_HANDSHAKE_S)
    except BaseException:
        # asyncio omits this after a failed handshake; the two would keep referring to each other.
        protocol.connection_lost(None)
        raise


def _refusal(method: str, error: PenstockError) -> Answer:
    """Return an error as JSON: the client's fault if the request was to change something."""
    is_theirs = isinstance(error, NeedsOperator) and method not in ("GET", "HEAD")
    fields = {"error": str(error), "code": str(error.code)}
    if isinstance(error, NeedsOperator):
        fields |= {"error": error.problem, "hint": error.hint}
    status = HTTPStatus.BAD_REQUEST if is_theirs else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(json.dumps(fields, ensure_ascii=False) + "\n", JSON, status)


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers of the next request, after reading its body."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long") from error
    if len(head) > _HEAD_BYTES_MAX:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long")
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
    headers = {}
    for line in filter(None, lines):
        name, _, text = line.partition(":")
        headers[name.strip().lower()] = text.strip()
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_BYTES_MAX or "transfer-encoding" in headers:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no page takes a body")
    await reader.readexactly(int(length))  # Unread bytes would reset the answer on its way.
    return parts[0], parts[1], headers


def host_of(address: str) -> str:
    """Return the host of `host`, `host:port` or `[host]:port`."""
    host, _, port = address.rpartition(":")
    return (host if host and port.isdecimal() else address).strip("[]").lower()


def is_own_name(asked: str, names: Iterable[str]) -> bool:
    """Return whether a request's `Host` is an address, or a name that no stranger can have chosen.

    A request without a `Host` does not come from a browser.
    """
    host = host_of(asked).removesuffix(".")
    if host in ("", "localhost", socket.gethostname().lower(), *names):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(peer: object) -> bool:
    try:
        return isinstance(peer, tuple) and ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        return False


def _bytes_of(answer: Answer, *, with_body: bool) -> bytes:
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    head = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + (body if with_body else b"")
