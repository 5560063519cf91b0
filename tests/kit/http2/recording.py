"""What a client really sends: a relay that keeps the bytes of each of its connections."""

import contextlib
import socket
import threading
from typing import Self

_READ_BYTES = 1 << 16


class Recording:
    """Listens, passes everything on to an address and back, and keeps what clients sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets: list[socket.socket] = []
        self._sent: list[bytearray] = []
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def sessions(self) -> list[bytes]:
        """Return what came on each connection that sent anything, in the order of beginning."""
        return [bytes(sent) for sent in self._sent if sent]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # Closed.
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                kept = bytearray()
                self._sent.append(kept)
                for source, sink, into in ((client, server, kept), (server, client, None)):
                    self._threads.append(
                        threading.Thread(target=_relay, args=(source, sink, into), daemon=True)
                    )
                    self._threads[-1].start()


def _relay(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            if kept is not None:
                kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
