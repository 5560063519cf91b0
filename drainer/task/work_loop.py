"""Resident task: connects to the Drainer and turns units of work into SQL until that ends.

One connection per task, encrypted with `[security]` (`line.py`), frames in both directions
(little-endian):

    | kind u8 | number u64 | length u64 | payload ... |

    HELLO   task -> Drainer   number: the partition        payload: the token, a space, the version
    WORK    Drainer -> task   number: the unit             payload: an encoded unit
    RESULT  task -> Drainer   number: the unit             payload: its answer
    FAILED  task -> Drainer   number: the unit             payload: JSON {"problem", "hint"}
    CATALOG Drainer -> task   number: of the catalog       payload: a schema snapshot

A unit may also be a `FetchUnit`; the catalog that it names was sent earlier on the same connection.
A unit's answer depends only on the unit. It does not matter which task processes it, how often, or
whether an earlier answer was lost. The end of the connection ends the task. A Drainer of another
version closes the connection immediately.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from drainer.task.answers import answer
from drainer.task.line import Line
from drainer.task.version import code_version
from penstock.codes import Code
from penstock.errors import NeedsOperator

if TYPE_CHECKING:  # It imports the grammar of DDL, and most tasks fetch nothing.
    from drainer.task.row_fetch_unit import FetchSettings

HEADER = struct.Struct("<BQQ")
HELLO, WORK, RESULT, FAILED, CATALOG = range(5)
_CONNECT_TIMEOUT_S = 30

Answer = Callable[[bytes], bytes]
Keep = Callable[[int, bytes], None]


def _keep_nothing(number: int, catalog: bytes) -> None:
    """Discard a catalog: units that contain rows do not need it."""


def serve_partition(
    host: str,
    port: int,
    token: str,
    partitions: Iterator[int],
    settings: FetchSettings | None = None,
    digest: str = "",
) -> None:
    """Run as one task of the resident Spark job until the Drainer closes the connection.

    With `settings` it can fetch rows from the Pumps; `digest` is that of the Drainer's certificate.
    """
    for partition in partitions:
        if settings is None:
            serve((host, port), token, partition, answer, digest=digest)
            continue
        # Only tasks that fetch need gRPC.
        from drainer.task.row_fetcher import Fetcher

        fetcher = Fetcher(settings)
        serve((host, port), token, partition, fetcher.answer, fetcher.keep, digest)


def serve(
    address: tuple[str, int],
    token: str,
    partition: int,
    answer: Answer,
    keep: Keep = _keep_nothing,
    digest: str = "",
) -> None:
    """Connect and answer units until the connection ends; raise `OSError` if none is made."""
    with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S) as connection:
        line = Line(connection, digest)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        hello = f"{token} {code_version()}".encode()
        line.send(HEADER.pack(HELLO, partition, len(hello)) + hello)
        # One unit is received while another is processed, so that the next is ready immediately.
        units: queue.Queue[tuple[int, bytes] | None] = queue.Queue(maxsize=1)
        reader = threading.Thread(target=_receive, args=(line, units, keep), daemon=True)
        reader.start()
        while (unit := units.get()) is not None:
            number, payload = unit
            try:
                kind, reply = RESULT, answer(payload)
            except Exception as error:
                kind, reply = FAILED, _explain(error)
            try:
                line.send(HEADER.pack(kind, number, len(reply)), reply)
            except OSError:  # The Drainer has gone: the next one sends the unit again.
                break
        _hang_up(connection)
        while reader.is_alive():
            _drain(units)
            reader.join(timeout=0.05)


def _receive(line: Line, units: queue.Queue[tuple[int, bytes] | None], keep: Keep) -> None:
    try:
        while (header := line.read(HEADER.size)) is not None:
            kind, number, length = HEADER.unpack(header)
            assert kind in (WORK, CATALOG), kind
            payload = line.read(length)
            if payload is None:
                break
            if kind == CATALOG:
                keep(number, payload)
                continue
            units.put((number, payload))
    finally:
        units.put(None)


def _explain(error: Exception) -> bytes:
    if isinstance(error, NeedsOperator):
        problem, hint, code = error.problem, error.hint, error.code
    else:
        problem, hint, code = f"{type(error).__name__}: {error}", "", Code.DEFECT
    return json.dumps({"problem": problem, "hint": hint, "code": str(code)}).encode()


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # The other side closed it.


def _drain(units: queue.Queue[tuple[int, bytes] | None]) -> None:
    try:
        units.get_nowait()
    except queue.Empty:
        return
