"""Login: the user of an etcd with `auth enable`, from the environment of every program.

    PENSTOCK_ETCD_USER=penstock PENSTOCK_ETCD_PASSWORD=…

etcd answers Authenticate with a token, which each call carries as metadata. A token ends with the
member that made it, or with its time to live. Then a call is refused as UNAUTHENTICATED, a new
token is requested, and a unary call is retried. A stream breaks, and its owner reopens it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.pb.etcd import rpc_pb2, rpc_pb2_grpc

USER, PASSWORD = "PENSTOCK_ETCD_USER", "PENSTOCK_ETCD_PASSWORD"
HINT = (
    f"set {USER} and {PASSWORD}, and grant that user read and write on /penstock and /tidb-binlog"
)


def login_from(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return user and password, None if neither is set; `NeedsOperator` if only one is."""
    user, password = env.get(USER, ""), env.get(PASSWORD, "")
    if bool(user) != bool(password):
        has, lacks = (USER, PASSWORD) if user else (PASSWORD, USER)
        raise NeedsOperator(
            f"{has} is set and {lacks} is not", hint="set both", code=Code.SETTING_VALUE
        )
    return (user, password) if user else None


class _Details(NamedTuple):
    """The properties of a call that gRPC needs; `grpc.ClientCallDetails` has no fields."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str], ...]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class Login(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds a token to each call on a channel; safe to share between threads."""

    def __init__(self, channel: grpc.Channel, user: str, password: str, timeout_s: float) -> None:
        self._auth = rpc_pb2_grpc.AuthStub(channel)  # type: ignore[no-untyped-call]
        self._request = rpc_pb2.AuthenticateRequest(name=user, password=password)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make the call; retry it once with a new token if etcd does not know the token."""
        token = self._valid_token("")
        call = continuation(_with(details, token), request)
        if call.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return call
        return continuation(_with(details, self._valid_token(token)), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Open the stream with its own token, because a stream cannot be retried."""
        return continuation(_with(details, self._valid_token(self._token)), requests)

    def _valid_token(self, refused: str) -> str:
        """Return a token other than `refused`; raise `grpc.RpcError` as Authenticate does."""
        with self._lock:
            if self._token == refused:
                self._token = self._auth.Authenticate(self._request, self._timeout_s).token
            return self._token


def _with(details: Any, token: str) -> _Details:
    return _Details(
        details.method,
        details.timeout,
        (*(details.metadata or ()), ("token", token)),
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )
