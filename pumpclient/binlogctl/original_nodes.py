"""Steers TiDB-Binlog's nodes in a mixed cluster through HTTP.

    PUT http://<host>/state/<node id>/pause | close      {"message": …, "code": 200, "data": …}

They serve HTTP at the address of their gRPC, do not know our methods, and always answer with status
200: the code in the body has the result.
"""

from __future__ import annotations

import http.client
import json
from typing import Final
from urllib.parse import quote

from penstock.cluster.node_registry import NodeStatus
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.security.tls import Tls, open_http

_DONE: Final = 200
_ANSWER_BYTES_MAX: Final = 64 << 10


def steer(status: NodeStatus, action: str, within_s: float, tls: Tls | None) -> None:
    """Ask a node to `pause` or to `close`; it then proceeds on its own.

    Raises `NeedsOperator` with the node's words when it refuses, `Retryable` when it is away.
    """
    answer = _put(status.host, f"/state/{quote(status.node_id, safe='')}/{action}", within_s, tls)
    try:
        body = json.loads(answer)
        code, message = int(body["code"]), str(body.get("message", ""))
    except (ValueError, KeyError, TypeError) as error:
        raise NeedsOperator(
            f"{status.host} does not answer as a node of TiDB-Binlog does",
            hint="is it another program? see that its address in etcd is right",
            code=Code.NODE_OTHER,
        ) from error
    if code != _DONE:
        raise NeedsOperator(
            f"{status.node_id}, a node of TiDB-Binlog, refuses: {message}",
            hint="look at the node's log",
            code=Code.NODE_REFUSES,
        )


def _put(host: str, path: str, within_s: float, tls: Tls | None) -> bytes:
    connection = open_http(host, tls, within_s)
    try:
        connection.request("PUT", path)
        body: bytes = connection.getresponse().read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise Retryable(f"{host}: {error or type(error).__name__}", code=Code.NODE_AWAY) from error
    finally:
        connection.close()
    return body
