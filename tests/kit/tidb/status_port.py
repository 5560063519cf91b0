"""Status port: one TiDB server's HTTP, over a real socket, as far as its DDL history goes.

    knows      start_job_id   limit         without either
    "pages"    yes            any           all of it       TiDB 6.3 and later
    "capped"   yes            1,024 at most 1,024 jobs      the newest
    "limit"    no             any           all of it       before 6.3

With `start_job_id` and with `limit` a server that knows the first answers newest first, others
oldest first. A fault holds until it is taken back.
"""

import json
import ssl
import threading
import uuid
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from drainer.ddl.tidb_servers import SERVERS
from tests.kit.servers.authority import Pair

CAPPED_AT = 1024

Json = dict[str, Any]


class StatusPort:
    """Listens for as long as a `with` lasts, and is in etcd until its entry is deleted."""

    def __init__(
        self,
        etcd: Any,
        jobs: Callable[[], Sequence[Json]],
        *,
        knows: str = "pages",
        pair: Pair | None = None,
    ) -> None:
        self.asked: list[str] = []
        """The paths that were asked for, in their order."""
        self.fault = ""
        """"500", "cut" (the answer ends in its middle), "mute" (none) or "refused"."""
        self.tables: dict[int, Json] = {}
        """Its tables of now, by their ids."""
        self._jobs = jobs
        self._knows = knows
        self._pair = pair
        self._etcd = etcd
        self._key = f"{SERVERS}{uuid.uuid4()}"
        self._unmute = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        self.list_in_etcd()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, at the same port as before."""
        server = _Http(("127.0.0.1", self.port), _handler(self))
        if self._pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._pair.cert, self._pair.key)
            context.load_verify_locations(self._pair.ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols(["h2", "http/1.1"])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_port
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Let no one connect any more; the entry in etcd stays."""
        self._unmute.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def list_in_etcd(self) -> None:
        info = {
            "version": "5.7.25-TiDB-v7.0.0",
            "ddl_id": self._key.removeprefix(SERVERS),
            "ip": "127.0.0.1",
            "listening_port": 4000,
            "status_port": self.port,
            "lease": "45s",
            "binlog_status": "On",
        }
        self._etcd.put(self._key, json.dumps(info))

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.fault == "mute":
            self._unmute.wait(30)
        if self.fault == "500":
            return 500, b"Internal Server Error"
        if self.fault == "refused":
            return 400, b"[domain:8027]Information schema is out of date"
        parts = urlsplit(path)
        asked = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        if parts.path == "/schema":
            if asked["table_id"] not in self.tables:
                return 400, b"[schema:1146]Table does not exist."
            return 200, json.dumps(self.tables[asked["table_id"]]).encode()
        if parts.path != "/ddl/history":
            return 404, b"404 page not found"
        if self._knows == "capped" and asked.get("limit", 1) > CAPPED_AT:
            return 400, b"ddl history limit must be greater than 0 and less than or equal to 1024"
        return 200, json.dumps(self._history(asked) or None).encode()

    def _history(self, asked: dict[str, int]) -> list[Json]:
        jobs = list(self._jobs())
        limit = asked.get("limit", CAPPED_AT if self._knows == "capped" else 0)
        if self._knows == "limit":
            return jobs[-limit:] if limit else jobs
        if not asked and self._knows == "pages":
            return jobs
        start = asked.get("start_job_id", 0)
        older = [job for job in jobs if not start or job["id"] <= start]
        return older[::-1][:limit]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler(port: StatusPort) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = port.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if port.fault == "cut" else body)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler
