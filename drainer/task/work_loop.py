"""Resident task: connects to the Drainer and turns units of work into SQL until that ends.

One connection per task, encrypted with `[security]` (`Line`), frames in both directions
(little-endian):

    | kind u8 | number u64 | length u64 | payload ... |

    HELLO   task -> Drainer   number: the partition        payload: the token, a space, the version
    WORK    Drainer -> task   number: the unit             payload: an encoded unit
    RESULT  task -> Drainer   number: the unit             payload: its answer
    FAILED  task -> Drainer   number: the unit             payload: JSON {"problem", "hint"}
    CATALOG Drainer -> task   number: of the catalog       payload: a schema snapshot
    ORDER   Drainer -> task   number: the order            payload: an order to commit
    WAITS   task -> Drainer   number: 0                    payload: why its downstream waits

A unit may also be a `FetchUnit`; the catalog that it names was sent earlier on the same connection.
A unit's answer depends only on the unit. It does not matter which task processes it, how often, or
whether an earlier answer was lost. The end of the connection ends the task. A Drainer of another
version closes the connection immediately.

A task that commits (`Orders`) keeps the SQL of a unit and commits it when it is ordered to, in a
second thread, while the first processes the next unit. The answer to an order is a RESULT.

With `[security]`, the Drainer serves its tasks with its own certificate. A task knows the digest of
that certificate and accepts no other. An executor therefore needs no files, and no name must match.
The Drainer serves the certificate of its start for as long as it runs.

The version identifies the code of a process, so that a task with other code is detected. The number
alone is not enough, because different code on an executor's own path may have the same number:

    0.2.0+3f9a81c2d4e5   the version of Penstock, the first digits of a SHA-256 over its source

On a local master Spark runs this module in place of its own daemon, which imports nothing, and
forks the tasks from it. Else each task would spend most of a second on the same imports, and have
its own copy of the modules.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import io
import json
import queue
import socket
import ssl
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final, Protocol, Self

from drainer.task.held_unit import answer
from drainer.task.work_unit import failure_of
from penstock import __version__
from penstock.http2.client.tls_end import TlsEnd

if TYPE_CHECKING:
    from drainer.task.partitions import Partitions
    from drainer.task.row_fetch import FetchSettings

_PACKAGES = ("drainer", "penstock")
_PROGRAMS = {"penstock/ctl", "penstock/local"}  # No task imports them.
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Bundle:
    """The bytes of a zip file with the code that tasks import, and the code's version.

    It is read once: a version installed while a Drainer runs must not reach tasks that start later.
    """

    version: str
    data: bytes

    @classmethod
    def of_this_code(cls) -> Self:
        sources = list(_sources())
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
            for path, source in sources:
                bundle.writestr(path, source)
        return cls(_version_of(sources), out.getvalue())


@cache
def code_version() -> str:
    return _version_of(list(_sources()))


def _version_of(sources: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for path, source in sources:
        digest.update(f"{path} {len(source)}\n".encode())
        digest.update(source)
    return f"{__version__}+{digest.hexdigest()[:_DIGITS]}"


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        yield from _below(files(package), package)


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{name}/{entry.name}"
        if entry.name.endswith(".py"):
            yield path, entry.read_bytes()
        elif entry.name != "__pycache__" and path not in _PROGRAMS and entry.is_dir():
            yield from _below(entry, path)


_READ_BYTES: Final = 256 << 10


def digest_of(certificate: bytes | None) -> str:
    """Return the digest that identifies a certificate in DER form."""
    return hashlib.sha256(certificate or b"").hexdigest()


class Line:
    """One connection; one thread may read while others send."""

    def __init__(self, connection: socket.socket, digest: str = "") -> None:
        """Shake hands if `digest` is set; raise `OSError`, also for a different certificate."""
        self._connection = connection
        self._end: TlsEnd | None = None
        self._ahead = bytearray()
        self._sending = threading.Lock()
        if not digest:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._end = TlsEnd(context, "")
        self._end.shake_hands(connection)
        if not hmac.compare_digest(digest_of(self._end.certificate), digest):
            raise ConnectionRefusedError("what answers at the Drainer's address is not the Drainer")

    def send(self, *pieces: bytes) -> None:
        with self._sending:
            if self._end is None:
                for piece in pieces:
                    self._connection.sendall(piece)
            else:
                self._connection.sendall(self._end.encrypt(pieces))

    def read(self, length: int) -> bytes | None:
        """Return exactly `length` bytes, or None if the connection ends first."""
        try:
            return self._read(length) if self._end is None else self._decrypted(self._end, length)
        except OSError:
            return None

    def _read(self, length: int) -> bytes | None:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while view:
            got = self._connection.recv_into(view)
            if got == 0:
                return None
            view = view[got:]
        return bytes(buffer)

    def _decrypted(self, end: TlsEnd, length: int) -> bytes | None:
        while len(self._ahead) < length:
            data = b"" if end.is_ended else self._connection.recv(_READ_BYTES)
            if not data:
                return None
            self._ahead += end.decrypt(data)
        found = bytes(memoryview(self._ahead)[:length])
        del self._ahead[:length]
        return found


HEADER = struct.Struct("<BQQ")
HELLO, WORK, RESULT, FAILED, CATALOG, ORDER, WAITS = range(7)
_CONNECT_TIMEOUT_S = 30

Answer = Callable[[bytes], bytes]
Keep = Callable[[int, bytes], None]


class Orders(Protocol):
    """A task's connections to the downstream.

    `check` raises `NeedsOperator` if the task has no password for a connection. `commit` obeys one
    order and raises nothing; `close` ends it from another thread.
    """

    report: Callable[[str], None]
    """Called with the condition that the downstream waits for, empty once that has passed."""

    def check(self) -> None: ...

    def commit(self, order: bytes) -> bytes: ...

    def close(self) -> None: ...


class OpensOrders(Protocol):
    """Settings of a task that commits; `kept` has the partitions by their content."""

    def open(self, kept: MutableMapping[str, Partitions], partition: int) -> Orders:
        """Return connections that are not open yet."""


def serve_partition(
    host: str,
    port: int,
    token: str,
    partitions: Iterator[int],
    settings: FetchSettings | None = None,
    digest: str = "",
    commits: OpensOrders | None = None,
) -> None:
    """Run as one task of the resident Spark job until the Drainer closes the connection.

    With `settings` it can fetch rows from the Pumps, with `commits` also write the downstream;
    `digest` is that of the Drainer's certificate.
    """
    for partition in partitions:
        if settings is None:
            serve((host, port), token, partition, answer, digest=digest)
            continue
        # Only tasks that fetch need gRPC.
        from drainer.task.row_fetch import Fetcher

        fetcher = Fetcher(settings)
        if commits is None:
            serve((host, port), token, partition, fetcher.answer, fetcher.keep, digest)
            continue
        orders = commits.open(fetcher.kept, partition)
        checked = partial(_answer_checked, orders, fetcher.answer)
        serve((host, port), token, partition, checked, fetcher.keep, digest, orders)


def _answer_checked(orders: Orders, answer: Answer, payload: bytes) -> bytes:
    orders.check()  # With the first batch, even if it is too small to be committed here.
    return answer(payload)


def serve(
    address: tuple[str, int],
    token: str,
    partition: int,
    answer: Answer,
    keep: Keep | None = None,
    digest: str = "",
    orders: Orders | None = None,
) -> None:
    """Connect and answer units until the connection ends; raise `OSError` if none is made.

    Units that contain their rows need no `keep` for catalogs. With `orders` it also commits.
    """
    with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S) as connection:
        line = Line(connection, digest)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        hello = f"{token} {code_version()}".encode()
        line.send(HEADER.pack(HELLO, partition, len(hello)) + hello)
        # One unit is received while another is processed, so that the next is ready immediately.
        units: queue.Queue[tuple[int, bytes] | None] = queue.Queue(maxsize=1)
        ordered: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_receive, args=(line, units, keep, ordered), daemon=True)
        reader.start()
        if orders is not None:
            threading.Thread(target=_obey, args=(line, ordered, orders), daemon=True).start()
        while (unit := units.get()) is not None:
            number, payload = unit
            try:
                kind, reply = RESULT, answer(payload)
            except Exception as error:
                failure = failure_of(error, "the rows of a batch were not converted")
                kind, reply = FAILED, json.dumps(failure).encode()
            try:
                line.send(HEADER.pack(kind, number, len(reply)), reply)
            except OSError:  # The Drainer has gone: the next one sends the unit again.
                break
        with suppress(OSError):  # The other side may have closed it.
            connection.shutdown(socket.SHUT_RDWR)
        if orders is not None:
            orders.close()
        while reader.is_alive():
            with suppress(queue.Empty):
                units.get_nowait()
            reader.join(timeout=0.05)


def _obey(line: Line, ordered: queue.SimpleQueue[tuple[int, bytes] | None], orders: Orders) -> None:
    def report(problem: str) -> None:
        with suppress(OSError):
            text = problem.encode()
            line.send(HEADER.pack(WAITS, 0, len(text)), text)

    orders.report = report
    while (order := ordered.get()) is not None:
        reply = orders.commit(order[1])
        with suppress(OSError):  # The Drainer has gone: the fence tells the next one.
            line.send(HEADER.pack(RESULT, order[0], len(reply)), reply)


def _receive(
    line: Line,
    units: queue.Queue[tuple[int, bytes] | None],
    keep: Keep | None,
    ordered: queue.SimpleQueue[tuple[int, bytes] | None],
) -> None:
    try:
        while (header := line.read(HEADER.size)) is not None:
            kind, number, length = HEADER.unpack(header)
            assert kind in (WORK, CATALOG, ORDER), kind
            payload = line.read(length)
            if payload is None:
                break
            if kind == CATALOG:
                if keep is not None:
                    keep(number, payload)
            elif kind == ORDER:
                ordered.put((number, payload))
            else:
                units.put((number, payload))
    finally:
        ordered.put(None)
        units.put(None)


if __name__ == "__main__":
    importlib.import_module("drainer.task.work_loop")  # Under the name that tasks look for.
    importlib.import_module("pyspark.daemon").manager()
