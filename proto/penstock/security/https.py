"""TLS for a node's HTTP pages, from the files of its gRPC port, read again when they change."""

from __future__ import annotations

import logging
import ssl
from typing import Any

from penstock.security.tls import Tls

log = logging.getLogger(__name__)


def server_context(tls: Tls, *, with_client_certificate: bool) -> ssl.SSLContext:
    """Return a context that looks at the files before each handshake; they are usable now."""
    now = _Contexts(tls, with_client_certificate)
    entrance = now.current()

    def choose(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = now.current()

    entrance.sni_callback = choose
    return entrance


class _Contexts:
    def __init__(self, tls: Tls, with_client_certificate: bool) -> None:
        self._tls = tls
        self._with_client_certificate = with_client_certificate
        self._version: object = None
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        version = self._tls.version()
        if version is self._version and self._context is not None:
            return self._context
        try:
            self._context = self._made()
        except (OSError, ssl.SSLError) as error:  # Changed again since they were checked.
            if self._context is None:
                raise
            log.warning("the pages go on with the certificates of before: %s", error)
        else:
            self._version = version
        return self._context

    def _made(self) -> ssl.SSLContext:
        ca, cert, key = self._tls.files
        assert cert is not None, "a node with TLS has a certificate"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if self._with_client_certificate:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def common_names(certificate: Any) -> set[str]:
    """Return the common names in what `getpeercert` gave."""
    subject = (certificate or {}).get("subject", ())
    return {value for part in subject for name, value in part if name == "commonName"}
