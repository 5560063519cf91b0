"""Trust: a TLS client's context, which trusts the same certificates in every Python."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Return a client's context that trusts `ca` and the certificates it signed.

    None stands for the system's authorities. From 3.13 on Python refuses certificates without the
    key identifiers of RFC 5280. gRPC, etcd and SQL servers accept them, and many private CAs issue
    no others. Raises `OSError`.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
