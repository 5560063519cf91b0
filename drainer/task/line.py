"""Line: a task's end of its connection to the Drainer, plain or encrypted.

With `[security]`, the Drainer serves its tasks with its own certificate. A task knows the digest of
that certificate and accepts no other. An executor therefore needs no files, and no name must match.
The Drainer serves the certificate of its start for as long as it runs.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from typing import Final

from penstock.http2.client.tls_end import TlsEnd

_READ_BYTES: Final = 256 << 10


def digest_of(certificate: bytes | None) -> str:
    """Return the digest that identifies a certificate in DER form."""
    return hashlib.sha256(certificate or b"").hexdigest()


class Line:
    """One connection; one thread may read while another one sends."""

    def __init__(self, connection: socket.socket, digest: str = "") -> None:
        """Shake hands if `digest` is set; raise `OSError`, also for a different certificate."""
        self._connection = connection
        self._end: TlsEnd | None = None
        self._ahead = bytearray()
        if not digest:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._end = TlsEnd(context, "")
        self._end.shake_hands(connection)
        if not hmac.compare_digest(digest_of(self._end.certificate), digest):
            raise ConnectionRefusedError("what answers at the Drainer's address is not the Drainer")

    def send(self, *pieces: bytes) -> None:
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
