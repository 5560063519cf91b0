"""The URL of a MySQL downstream, taken apart.

    mysql://user:password@host:port/?checkpoint-schema=tidb_binlog&ssl-ca=/path/ca.pem

Special characters in user and password are percent-encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import NeedsOperator

_CONNECT_TIMEOUT_S = 10
_TLS = {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key"}
_KNOWN = {"checkpoint-schema", "checkpoint-table", "unix-socket", *_TLS}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and where the checkpoint lives."""

    name: str
    options: dict[str, Any]
    checkpoint_schema: str
    checkpoint_table: str


def parse_url(url: str) -> Target:
    """Return the parts of `url`; raise `NeedsOperator` for an option nobody knows."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 3306
        asked = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        # The URL itself holds a password and is not repeated.
        raise NeedsOperator(
            f"unreadable downstream URL: {error}",
            hint="write mysql://user:password@host:port/ and percent-encode special characters",
        ) from error
    for key in asked:
        if key not in _KNOWN:
            raise NeedsOperator(
                f"unknown downstream option {key!r}", hint=f"known are {', '.join(sorted(_KNOWN))}"
            )
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": _CONNECT_TIMEOUT_S,
    }
    options |= {ours: asked[theirs] for theirs, ours in _TLS.items() if theirs in asked}
    if "unix-socket" in asked:
        options["unix_socket"] = asked["unix-socket"]
    return Target(
        name=f"{host}:{port}",
        options=options,
        checkpoint_schema=asked.get("checkpoint-schema", "tidb_binlog").replace("`", "``"),
        checkpoint_table=asked.get("checkpoint-table", "checkpoint").replace("`", "``"),
    )
