"""The pages of a node, asked over real sockets by well-behaved and other clients."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.node import http_status
from penstock.node.http_status import Answer, BadRequest, HttpStatus
from penstock.security.tls import Security, SecurityConfig
from tests.kit.servers.authority import Authority
from tests.kit.servers.pages import samples_of
from tests.kit.wait import until


async def hello(names: Mapping[str, str]) -> Answer:
    return Answer(f"hello {names.get('name', 'all')}\n")


async def away(names: Mapping[str, str]) -> Answer:
    raise Retryable("etcd is away", code=Code.ETCD_AWAY)


async def broken(names: Mapping[str, str]) -> Answer:
    raise RuntimeError("a defect")


def pages(**bounds: Any) -> HttpStatus:
    server = HttpStatus("Pump p at 127.0.0.1:1", **bounds)
    server.add("GET", "/hello", hello, "greets")
    server.add("GET", "/hello/{name}", hello, "greets one", local_only=True)
    server.add("PUT", "/state/{name}/{action}", hello, "changes something")
    server.add("GET", "/away", away, "is away")
    server.add("GET", "/broken", broken, "is broken")
    return server


async def sent(server: HttpStatus, request: bytes) -> tuple[int, str]:
    """Send bytes and return the status and body of the answer; the connection must end."""
    host, _, port = server.url[7:-1].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        answer = await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        answer = b""
    head, _, body = answer.partition(b"\r\n\r\n")
    writer.close()
    if not head:
        return 0, ""
    assert f"Content-Length: {len(body)}".encode() in head or b"HEAD" in request[:4]
    return int(head.split()[1]), body.decode()


def served(test: Callable[[HttpStatus], Awaitable[None]], **bounds: Any) -> None:
    async def run() -> None:
        server = pages(**bounds)
        await server.start("127.0.0.1:0", 0)
        try:
            await test(server)
        finally:
            await server.close()

    asyncio.run(run())


def test_a_page_is_found_by_its_path_and_an_unknown_one_gets_the_list() -> None:
    async def test(server: HttpStatus) -> None:
        assert await sent(server, b"GET /hello HTTP/1.1\r\n\r\n") == (200, "hello all\n")
        asked = b"GET /hello/a%20b?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert await sent(server, asked) == (200, "hello a b\n")
        code, text = await sent(server, b"GET /nothing HTTP/1.1\r\n\r\n")
        assert (code, "GET  /hello " in text) == (404, True)
        code, text = await sent(server, b"GET / HTTP/1.0\r\n\r\n")
        assert (code, text.splitlines()[0]) == (200, "Pump p at 127.0.0.1:1")
        assert await sent(server, b"HEAD /hello HTTP/1.1\r\n\r\n") == (200, "")
        put = b"PUT /state/p/pause HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
        assert await sent(server, put) == (200, "hello p\n")
        code, text = await sent(server, b"GET /state/p/pause HTTP/1.1\r\n\r\n")
        assert (code, text) == (405, "this page takes PUT\n")

    served(test)


def test_a_failing_page_is_an_answer_and_not_the_end() -> None:
    async def test(server: HttpStatus) -> None:
        assert await sent(server, b"GET /away HTTP/1.1\r\n\r\n") == (
            503,
            '{"error": "etcd is away", "code": "PS-2001"}\n',
        )
        assert (await sent(server, b"GET /broken HTTP/1.1\r\n\r\n"))[0] == 500
        assert (await sent(server, b"GET /hello HTTP/1.1\r\n\r\n"))[0] == 200

    served(test)


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"\x16\x03\x01 what is this\r\n\r\n", 400),
        (b"GET nothing HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 431),
        (b"PUT /state/p/pause HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"PUT /state/p/pause HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /hello HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 413),
    ],
)
def test_a_request_that_is_none_gets_a_short_answer(request_bytes: bytes, code: int) -> None:
    async def test(server: HttpStatus) -> None:
        assert (await sent(server, request_bytes))[0] == code

    served(test)


def test_a_client_that_says_nothing_is_let_go() -> None:
    async def test(server: HttpStatus) -> None:
        assert await sent(server, b"GET /hello HTTP/1.1\r\n") == (0, "")

    served(test, request_s=0.05)


def test_connections_have_a_bound() -> None:
    async def test(server: HttpStatus) -> None:
        host, _, port = server.url[7:-1].rpartition(":")
        open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        assert await sent(server, b"GET /hello HTTP/1.1\r\n\r\n") == (0, "")
        for _, writer in open_ones[:2]:
            writer.close()
        await until(lambda: len(server._open) < 3)
        assert (await sent(server, b"GET /hello HTTP/1.1\r\n\r\n"))[0] == 200
        open_ones[2][1].close()

    served(test, connections_max=3)


def test_what_changes_or_shows_data_is_for_this_machine_and_not_for_web_pages() -> None:
    async def ask(method: str, path: str, is_local: bool, **headers: str) -> HTTPStatus:
        try:
            return (await pages().answer(method, path, headers, is_local=is_local)).status
        except BadRequest as refused:
            return refused.answer.status

    async def test() -> None:
        assert await ask("GET", "/hello", False) == 200
        for method, path in (("GET", "/hello/a"), ("PUT", "/state/p/pause")):
            assert await ask(method, path, True) == 200
            assert await ask(method, path, False) == 403
            assert await ask(method, path, True, origin="http://evil") == 403

    asyncio.run(test())


@pytest.mark.fault(
    "a page is asked for under a foreign name (DNS rebinding)",
    "status 421, on every page",
    cases="44",
)
@pytest.mark.parametrize(
    ("host", "code"),
    [
        (b"127.0.0.1:9", 200),
        (b"LOCALHOST", 200),
        (b"[::1]:9", 200),
        (b"[fe80::1]", 200),
        (b"10.1.2.3:9250", 200),
        (b"pump-1.example.com:9250", 200),
        (socket.gethostname().encode(), 200),
        (b"evil.example.com:9", 421),
        (b"localhost.evil.example.com", 421),
        (b"127.0.0.1.evil.example.com:9", 421),
        (b"example.com", 421),
    ],
)
@pytest.mark.parametrize("path", [b"/", b"/hello", b"/hello/a", b"/nothing"])
def test_no_page_is_shown_under_a_name_that_a_stranger_may_have_chosen(
    path: bytes, host: bytes, code: int
) -> None:
    async def test() -> None:
        server = pages()
        await server.start("127.0.0.1:0", 0, advertised="pump-1.example.com:8250")
        try:
            found, text = await sent(server, b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (path, host))
            assert found == (404 if (path, code) == (b"/nothing", 200) else code), text
        finally:
            await server.close()

    asyncio.run(test())


@pytest.mark.fault(
    "connections to a status page over TLS that say nothing",
    "they count against its limit and end after the handshake's time",
    cases="3",
)
def test_a_handshake_counts_as_a_connection_and_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Authority(tmp_path).issue("server")
    security = Security(
        SecurityConfig(ssl_ca=str(pair.ca), ssl_cert=str(pair.cert), ssl_key=str(pair.key))
    )
    monkeypatch.setattr(http_status, "_HANDSHAKE_S", 0.5)

    def asked(port: int) -> bytes:
        trust = pair.tls.client_context()
        plain = socket.create_connection(("127.0.0.1", port))
        with trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET /hello HTTP/1.1\r\nHost: any.name\r\n\r\n")
            return connection.recv(4096)

    async def test() -> None:
        server = pages(connections_max=3)
        await server.start("0.0.0.0:0", 0, security)
        port = int(server.url.rpartition(":")[2].strip("/"))
        try:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await until(lambda: len(server._open) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
            await until(lambda: not server._open)
            assert b"hello all" in await asyncio.to_thread(asked, port)
        finally:
            await server.close()

    asyncio.run(test())


def test_the_default_port_lies_above_grpcs_and_gives_way_when_it_is_taken() -> None:
    async def test() -> None:
        first, second, third = pages(), pages(), pages()
        taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        try:
            await first.start("", port - http_status.PORT_ABOVE)
            assert first.url.startswith("http://127.0.0.1:")
            assert not first.url.endswith(f":{port}/")
            with pytest.raises(NeedsOperator, match="choose another --status-addr"):
                await second.start(f"127.0.0.1:{port}", 1)
            await second.start("off", 1)
            assert second.url == ""
            await third.start("", 65_000)  # 66,000 is no port.
            assert third.url.startswith("http://127.0.0.1:")
        finally:
            for server in (first, second, third):
                await server.close()
            taken.close()

    asyncio.run(test())


def test_a_node_is_healthy_as_soon_as_it_answers_and_ready_when_it_has_no_problem() -> None:
    async def test(server: HttpStatus) -> None:
        healthy, ready = b"GET /healthz HTTP/1.1\r\n\r\n", b"GET /readyz HTTP/1.1\r\n\r\n"
        assert await sent(server, healthy) == (200, "ok\n")
        assert await sent(server, ready) == (503, "this node is starting\n")
        server.problem = lambda: ""
        assert await sent(server, ready) == (200, "ok\n")
        server.problem = lambda: "the disk\nis full"
        assert await sent(server, ready) == (503, "the disk\\nis full\n")
        assert await sent(server, healthy) == (200, "ok\n")
        server.begin_anew("another role")
        assert (await sent(server, ready))[0] == 503
        assert "GET  /readyz" in (await sent(server, b"GET / HTTP/1.1\r\n\r\n"))[1]

    served(test)


METRICS = """\
# HELP a_total Things "counted".
# TYPE a_total counter
a_total{why="x, y"} 3.0
# HELP b_total Not known.
# TYPE b_total untyped
b_total 1.0
# HELP c_seconds Times.
# TYPE c_seconds histogram
c_seconds_bucket{le="0.5"} 1.0
c_seconds_bucket{le="+Inf"} 2.0
c_seconds_count 2.0
c_seconds_sum 7.5
"""


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", True),
        ("application/openmetrics-text;q=0.1, text/plain", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)
def test_metrics_are_openmetrics_for_a_caller_that_prefers_it(accept: str, is_open: bool) -> None:
    async def metrics(names: Mapping[str, str]) -> Answer:
        return Answer(METRICS.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def test() -> None:
        server = pages()
        server.add("GET", "/metrics", metrics, "for Prometheus")
        answer = await server.answer("GET", "/metrics", {"accept": accept}, is_local=False)
        body = answer.body if isinstance(answer.body, str) else answer.body.decode()
        if not is_open:
            assert (answer.content_type.split(";")[0], body) == ("text/plain", METRICS)
            return
        assert answer.content_type.startswith("application/openmetrics-text; version=1.0.0;")
        read = open_metrics.text_string_to_metric_families
        families = list(read(body))  # type: ignore[no-untyped-call]
        assert [(each.name, each.type) for each in families] == [
            ("a", "counter"),
            ("b_total", "unknown"),
            ("c_seconds", "histogram"),
        ]
        assert families[0].documentation == 'Things "counted".'
        assert samples_of(families) == samples_of(text_string_to_metric_families(METRICS))

    asyncio.run(test())
