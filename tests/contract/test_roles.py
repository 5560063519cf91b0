"""Every RPC of both servers, called by every role over TLS."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.errors import NeedsOperator
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import Reply, UnaryCall
from penstock.pb import cistern_pb2, penstock_pb2, pump_pb2
from penstock.security.tls import (
    DRAINER,
    OPERATOR,
    PUMP,
    ROLES,
    WRITER,
    Security,
    SecurityConfig,
    open_aio_channel,
)
from tests.kit.servers.authority import Authority, Pair

MAY = {
    "binlog.Pump": {"WriteBinlog": {WRITER}, "PullBinlogs": {DRAINER, OPERATOR}},
    "binlog.Cistern": {"Notify": {PUMP}, "DumpBinlog": {OPERATOR}, "DumpDDLJobs": {OPERATOR}},
    "penstock.Pump": {
        "Write": {WRITER},
        "WriteLarge": {WRITER},
        "WriteDecided": {WRITER},
        "Pull": {DRAINER, OPERATOR},
        "Fetch": {DRAINER, OPERATOR},
        "Advance": {DRAINER},
        "Status": set(ROLES),
        "Pause": {OPERATOR},
        "Close": {OPERATOR},
        "MoveLog": {OPERATOR},
        "TriggerGc": {OPERATOR},
        "Scrub": {OPERATOR},
    },
    "penstock.Drainer": {
        "Status": set(ROLES),
        "Pause": {OPERATOR},
        "Close": {OPERATOR},
        "HandOver": {OPERATOR},
    },
    "penstock.Replica": {"Follow": {PUMP}, "Prepend": {PUMP}, "Read": {PUMP}},
    "pdpb.PD": {"GetMembers": set(ROLES), "Tso": set(ROLES)},
    "grpc.health.v1.Health": {"Check": set(ROLES)},
}
FAST = "/binlog.Pump/WriteBinlog"
NAMES = {role: f"the {role}" for role in ROLES}

_OTHER = grpc.StatusCode.UNKNOWN
_LOCAL = [("grpc.use_local_subchannel_pool", 1)]


def fronted(security: Security) -> Any:
    front = GrpcFront(ServerLimits(), security.interceptors())
    reply = Reply(b"served")

    def answer(message: bytes, call: UnaryCall) -> None:
        call.answer(reply)

    front.add_fast_unary(FAST, answer)
    return front


def aio(security: Security) -> Any:
    return grpc.aio.server(interceptors=security.interceptors())


def configured(pair: Pair, *roles: str, names: tuple[str, ...] = ()) -> SecurityConfig:
    return pair.config(*(names or NAMES.values()), roles=roles)


def called(
    tmp_path: Path, make: Callable[[Security], Any], *roles: str
) -> dict[tuple[str, str], grpc.StatusCode]:
    """Return the status of every RPC, by path and role."""
    authority = Authority(tmp_path)
    pairs = {role: authority.issue(name) for role, name in NAMES.items()}
    found: dict[tuple[str, str], grpc.StatusCode] = {}

    async def served(message: bytes, context: Any) -> bytes:
        return b"served"

    async def run() -> None:
        security = Security(configured(authority.issue("server"), *roles))
        server = make(security)
        for service, methods in MAY.items():
            handlers = {name: grpc.unary_unary_rpc_method_handler(served) for name in methods}
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))
        port = security.add_port(server, "127.0.0.1:0")
        await server.start()
        for role, pair in pairs.items():
            async with open_aio_channel(f"127.0.0.1:{port}", pair.tls, _LOCAL) as channel:
                for service, methods in MAY.items():
                    for name in methods:
                        path = f"/{service}/{name}"
                        found[path, role] = await status_of(channel, path)
        await server.stop(None)

    asyncio.run(run())
    return found


async def status_of(channel: Any, path: str) -> grpc.StatusCode:
    try:
        assert await channel.unary_unary(path)(b"x", timeout=20) == b"served"
    except grpc.aio.AioRpcError as error:
        return error.code() if "cert-roles does not make a" in error.details() else _OTHER
    return grpc.StatusCode.OK


def test_every_rpc_has_roles() -> None:
    files = (cistern_pb2, penstock_pb2, pump_pb2)
    described = {
        service.full_name: {method.name for method in service.methods}
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert {name: set(methods) for name, methods in MAY.items() if name in described} == described


@pytest.mark.fault(
    "each RPC by a certificate of each role, on both gRPC servers",
    "what `cert-roles` gives, PERMISSION_DENIED for all else",
    cases="26 RPCs × 4 roles × 2",
)
@pytest.mark.parametrize("make", [fronted, aio])
def test_a_caller_may_call_what_its_roles_say_and_nothing_else(
    tmp_path: Path, make: Callable[[Security], Any]
) -> None:
    found = called(tmp_path, make, *(f"{name}={role}" for role, name in NAMES.items()))
    allowed = {where for where, status in found.items() if status is grpc.StatusCode.OK}
    assert allowed == {
        (f"/{service}/{name}", role)
        for service, methods in MAY.items()
        for name, roles in methods.items()
        for role in roles
    }
    refused = {status for where, status in found.items() if where not in allowed}
    assert refused == {grpc.StatusCode.PERMISSION_DENIED}


def test_a_certificate_may_have_several_roles(tmp_path: Path) -> None:
    all_of_them = "+".join(ROLES)
    entries = [f"{name}={all_of_them}" for name in NAMES.values()]
    assert set(called(tmp_path, fronted, *entries).values()) == {grpc.StatusCode.OK}


def test_without_roles_every_listed_name_may_call_everything(tmp_path: Path) -> None:
    assert set(called(tmp_path, fronted).values()) == {grpc.StatusCode.OK}


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (("node",), "write each entry as name=role"),
        (("=pump",), "write each entry as name=role"),
        (("node=",), "'' is not a role: use writer, drainer, pump, operator"),
        (("node=pump+admin",), "'admin' is not a role"),
        (("node=pump", "other=pump"), "'other' is in one of them only"),
        (("writer=writer",), "'node' is in one of them only"),
    ],
)
def test_roles_that_do_not_fit_the_names_are_refused(
    tmp_path: Path, roles: tuple[str, ...], message: str
) -> None:
    pair = Authority(tmp_path).issue("node")
    with pytest.raises(NeedsOperator, match=rf"security.cert-roles is .*{message}"):
        configured(pair, *roles, names=("node",))
