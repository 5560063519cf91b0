"""Refusal: finds out whether certificates are the reason why a TLS connection to a node fails.

gRPC reports UNAVAILABLE for a node that restarts, for a node whose certificate we do not trust, and
for a node that refuses ours. Only the first case passes without help. The caller therefore makes a
separate connection, whose handshake shows the error. It reports only failures that a certificate is
surely to blame for; in any other case, the node may be restarting.
"""

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.tls import Tls

_WITHIN_S = 2.0
_AGAIN_S = 5.0
"""How long a finding is reused, so that repeated attempts do not ask each time."""
_KEPT_MAX = 64
_LOOKS = 2
"""A process may end between two messages once, but not twice."""
_READ_BYTES = 1 << 16
_HANDSHAKE_RECORD = 22
_CERTIFICATE_REQUEST, _HELLO_DONE = 13, 14

_ALERTS = frozenset({
    "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_CERTIFICATE_REVOKED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED",
})  # fmt: skip
"""Alerts of a server other than gRPC's about our certificate, before it hangs up."""

_NO_CERTIFICATE = "SSLV3_ALERT_HANDSHAKE_FAILURE"
"""Newer versions of Go send it to a client that shows no certificate."""

_found: dict[tuple[str, str, object], tuple[float, NeedsOperator | None]] = {}
_lock = threading.Lock()


def refusal_of(address: str, tls: Tls | None, error: Any) -> NeedsOperator | None:
    """Return the error that an operator must fix after a failed call; None when it may pass.

    `error` is gRPC's. The first time it takes up to two seconds, for a separate connection.
    """
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        shown = "no certificate" if tls is None or tls.files[1] is None else str(tls.files[1])
        return NeedsOperator(
            f"{address} refuses {shown}: {error.details()}",
            "show a certificate whose common name its cert-allowed-cn lists",
            Code.TLS_NOT_TRUSTED,
        )
    if tls is None or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    if "onnection refused" in (error.details() or ""):
        return None
    return _once_in_a_while(address, tls)


def etcd_refusal(addresses: Sequence[str], tls: Tls) -> NeedsOperator | None:
    """Return the error that an operator must fix for a silent etcd; None when it may pass.

    All members must be unusable for it, and prove to be the first member's host (gRPC's rule).
    """
    name = addresses[0].rpartition(":")[0]
    found = [_once_in_a_while(each, tls, whose="etcd-", name=name) for each in addresses]
    return found[0] if all(found) else None


def _once_in_a_while(address: str, tls: Tls, **options: str) -> NeedsOperator | None:
    key, now_s = (address, options.get("name", ""), tls.version()), time.monotonic()
    with _lock:
        known = _found.get(key)
        if known is not None and now_s - known[0] < _AGAIN_S:
            return known[1]
    found = certificate_refusal(address, tls, **options)
    with _lock:
        if len(_found) >= _KEPT_MAX:
            _found.clear()
        _found[key] = (now_s, found)
    return found


def certificate_refusal(
    address: str, tls: Tls, *, whose: str = "", name: str = ""
) -> NeedsOperator | None:
    """Connect by TLS and return the error in either side's certificate, None if both are good.

    `whose` is the prefix of the settings' names if the node is not one of ours, such as "etcd-".
    The certificate must be `name`'s if that is not the address's host.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    ca, cert, _ = tls.files
    settings = {each: _spelled(each, whose) for each in ("ssl-ca", "ssl-cert", "ssl-key")}
    try:
        for _ in range(_LOOKS):
            with socket.create_connection((host, int(port)), timeout=_WITHIN_S) as connection:
                context = tls.client_context()
                if not _hangs_up_on_our_certificate(connection, context, name or host):
                    return None
    except ssl.SSLCertVerificationError as error:
        return NeedsOperator(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            f"it must be valid, for {name or 'this host'}, and signed by the CA in"
            f" {ca or 'the system'} ({settings['ssl-ca']})",
            Code.TLS_NOT_TRUSTED,
        )
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            without = "write http:// in its address" if whose else "leave out ssl-ca"
            return NeedsOperator(
                f"{address} does not speak TLS",
                f"{without}, or switch TLS on there",
                Code.TLS_MISMATCH,
            )
        if error.reason not in _ALERTS and not (cert is None and error.reason == _NO_CERTIFICATE):
            return None
    except (OSError, ValueError):
        return None
    if cert is None:
        problem = f"{address} asks for a certificate, and there is none to show"
    else:
        problem = f"{address} refuses the certificate in {cert}"
    return NeedsOperator(
        problem,
        f"give {settings['ssl-cert']} and {settings['ssl-key']} of one that is valid and"
        " signed by the CA that it trusts",
        Code.TLS_NOT_TRUSTED,
    )


def _spelled(setting: str, whose: str) -> str:
    return f"{whose}{setting}, or {setting} where that is not set" if whose else setting


def _hangs_up_on_our_certificate(
    connection: socket.socket, context: ssl.SSLContext, host: str
) -> bool:
    """Return whether a server asks for our certificate, and hangs up because of what we send.

    TLS 1.2 makes that visible: the server's request is not encrypted, and its next message shows
    whether it is content. gRPC sends no alert.
    """
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = context.wrap_bio(incoming, outgoing, server_hostname=host)
    received = bytearray()
    while True:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            if data := outgoing.read():
                connection.sendall(data)
            try:
                data = connection.recv(_READ_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                return {_CERTIFICATE_REQUEST, _HELLO_DONE} <= _messages(bytes(received))
            received += data
            incoming.write(data)
        else:
            return False


def _messages(flight: bytes) -> set[int]:
    plain, at = bytearray(), 0
    while at + 5 <= len(flight) and flight[at] == _HANDSHAKE_RECORD:
        length = int.from_bytes(flight[at + 3 : at + 5])
        plain += flight[at + 5 : at + 5 + length]
        at += 5 + length
    kinds, at = set(), 0
    while at + 4 <= len(plain):
        kinds.add(plain[at])
        at += 4 + int.from_bytes(plain[at + 1 : at + 4])
    return kinds
