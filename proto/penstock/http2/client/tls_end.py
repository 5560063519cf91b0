"""TLS end: TLS without a socket, so that one thread may read while another thread writes.

Two threads must not use an `ssl.SSLSocket` at the same time. Here a lock protects OpenSSL's work in
memory; the slow work on the socket is the caller's.
"""

import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Final

_READ_BYTES: Final = 256 << 10


class TlsEnd:
    """A client's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """`host` is empty if no name is checked."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host or None)
        self._lock = threading.Lock()
        self.is_ended = False
        """True once the peer has announced that it sends no more."""

    def shake_hands(self, connection: socket.socket) -> str | None:
        """Return the negotiated protocol; raises `OSError`, which includes `SSLError`."""
        while True:
            try:
                self._end.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange(connection)
            else:
                if data := self._outgoing.read():
                    connection.sendall(data)
                return self._end.selected_alpn_protocol()

    def _exchange(self, connection: socket.socket) -> None:
        if data := self._outgoing.read():
            connection.sendall(data)
        received = connection.recv(_READ_BYTES)
        if not received:
            raise ConnectionResetError("the peer closed the connection in the TLS handshake")
        self._incoming.write(received)

    def encrypt(self, pieces: Iterable[bytes | memoryview]) -> bytes:
        """Return the TLS records of these bytes, and any other pending TLS output."""
        with self._lock:
            for piece in pieces:
                if len(piece):
                    self._end.write(piece)
            return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the bytes in these records; raises `SSLError` for invalid records.

        After the peer announced its end, only the end of the connection follows.
        """
        parts = []
        with self._lock:
            self._incoming.write(data)
            try:
                while part := self._end.read(_READ_BYTES):
                    parts.append(part)
                self.is_ended = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self.is_ended = True
            return b"".join(parts)

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate in DER, whether or not it was checked."""
        return self._end.getpeercert(binary_form=True)

    @property
    def has_output(self) -> bool:
        """True when TLS itself has output pending, such as the answer to a key update."""
        return bool(self._outgoing.pending)
