"""Who gets into a Drainer, whom it trusts, and an etcd that wants certificates."""

import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from drainer.task.work_loop import HEADER, HELLO
from penstock.cluster.node_registry import Registry
from penstock.ctl.commands import main as ctl
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Security, Tls, open_channel
from pumpclient import Options, PumpClient
from tests.fault.test_requests import DrainerServer
from tests.kit.fakes.merging import Merging
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_copies import Trio
from tests.kit.servers.fix_drainer import DrainerFactory
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, in_sqlite

_LOCAL = [("grpc.use_local_subchannel_pool", 1)]
_LONG_S = 90


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refusal(addr: str, tls: Tls | None) -> tuple[grpc.StatusCode, str]:
    with open_channel(addr, tls, _LOCAL) as channel:
        stub: Any = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
        try:
            stub.Status(penstock_pb2.StatusRequest(), timeout=20)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.fault(
    "TLS to a Pump: a Drainer's callers, and its own way to Pumps: foreign authority, another"
    " name, plain text",
    "refused; the status names the Pump and the reason",
    cases="3 + 3",
)
def test_a_drainer_refuses_a_caller_that_cannot_prove_itself(
    authority: Authority, tmp_path: Path
) -> None:
    config = authority.issue("node").config("node", "operator")
    foreign = Authority(tmp_path, "other").issue("operator", file="foreign")
    with DrainerServer(tmp_path / "d", Security(config)) as server:
        assert refusal(server.addr, authority.issue("operator").tls)[0] is grpc.StatusCode.OK
        code, why = refusal(server.addr, authority.issue("stranger").tls)
        assert (code, "'stranger'" in why) == (grpc.StatusCode.UNAUTHENTICATED, True)
        for tls in (None, Tls(ca=authority.file, cert=foreign.cert, key=foreign.key)):
            assert refusal(server.addr, tls)[0] is grpc.StatusCode.UNAVAILABLE


def is_shown(merging: Merging, reason: str) -> bool:
    return reason in merging.views()["pump-1"].why.lower()


def is_pulled(merging: Merging) -> bool:
    return len(merging.found) > 0


@pytest.mark.thorough
def test_a_drainer_that_a_pump_does_not_trust_says_which_pump_and_why(
    nodes: Nodes, authority: Authority, tmp_path: Path
) -> None:
    names = {"security_cert_allowed_cn": "node, drainer"}
    nodes.add_pump(**authority.issue("node").settings, **names)
    other = Authority(tmp_path, "other").issue("drainer", file="foreign")
    good = authority.issue("drainer")
    oracle = OracleClient(nodes.etcd, tls=good.tls)
    cases: list[tuple[Tls | None, str]] = [
        (other.tls, "is not trusted"),
        (authority.issue("stranger").tls, "'stranger'"),
        (None, "does it want tls?"),
        (good.tls, ""),
    ]
    for number, (tls, reason) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Merging(Registry(nodes.etcd), oracle, folder, by_way_of={}, tls=tls) as merging:
            if reason:
                eventually(partial(is_shown, merging, reason), _LONG_S)
            else:
                eventually(partial(is_pulled, merging), _LONG_S)
    oracle.close()


@pytest.mark.fault(
    "TLS to a Pump: a Drainer and an etcd that wants certificates",
    "replicates; without them it waits and says so",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_drainer_works_with_an_etcd_that_wants_certificates(
    tmp_path: Path, pump_factory: Any, drainer_factory: DrainerFactory
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    theirs = Authority(outside)
    pair, home = theirs.issue("etcd"), tmp_path / "tls-etcd"
    home.mkdir()
    tls = pair.ca, pair.cert, pair.key
    server = EtcdServer(home, durable=False, tls=tls).start()
    path = tmp_path / "down.db"
    mine = theirs.issue("penstock")
    settings = {
        "security_etcd_ssl_ca": mine.ca,
        "security_etcd_ssl_cert": mine.cert,
        "security_etcd_ssl_key": mine.key,
    }
    try:
        pump_factory(server.url, **settings)
        sink = f"sqlite:///{path}"
        drainer = drainer_factory(server.url, sink, **settings)
        with PumpClient.connect(server.url, options=Options(etcd_tls=mine.tls)) as client:
            writer = RandomWriter(client, seed=52)
            writer.create()
            last_ts = writer.transact(20)
            eventually(lambda: drainer.status().max_commit_ts >= last_ts, _LONG_S)
            assert in_sqlite(path) == writer.expected()
        untrusting = drainer_factory(server.url, f"{sink}.2", started=False).spawn()
        untrusting.wait_for("stopped: etcd: the certificate of .* is not trusted")
        assert untrusting.wait() == 2
    finally:
        server.stop()


def served_certificate(port: int) -> bytes | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain) as connection:
        return connection.getpeercert(binary_form=True)


@pytest.mark.fault(
    "someone listens between a Drainer with `[security]` and its tasks, answers in its place,"
    " or speaks to its port in plain text"
)
@pytest.mark.slow
def test_a_drainer_with_tls_and_its_spark_tasks_speak_in_cipher(
    replication: Replication, authority: Authority
) -> None:
    pair = authority.issue("node")
    replication.add_pump(**pair.settings)
    drainer = replication.add_drainer(**pair.settings)
    with PumpClient.connect(replication.url, tls=pair.tls) as client:
        writer = RandomWriter(client, seed=53)
        writer.create()
        last_ts = writer.transact(20)
        drainer.wait_until(last_ts, _LONG_S)
        assert in_sqlite(replication.path) == writer.expected()
    listening = {
        each.laddr.port
        for each in psutil.Process(drainer.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    asked = {
        each.raddr.port
        for child in drainer.children()
        if "python" in child.name()
        for each in child.net_connections("tcp")
        if each.raddr
    }
    (port,) = listening & asked
    node = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    assert served_certificate(port) == node
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(HEADER.pack(HELLO, 0, 4) + b"noun")
        with suppress(ConnectionResetError):
            assert b"noun" not in plain.recv(1000)


@pytest.mark.slow
def test_a_cluster_in_which_each_has_its_own_role_works(
    tmp_path: Path,
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    authority: Authority,
) -> None:
    names = ("pump", "drainer", "writer", "operator")
    roles = {
        "security_cert_allowed_cn": ", ".join(names),
        "security_cert_roles": ", ".join(f"{name}={name}" for name in names),
    }
    pairs = {name: authority.issue(name) for name in names}
    trio = Trio(pump_factory, etcd_server.url, etcd, number=2, **pairs["pump"].settings, **roles)
    path = tmp_path / "down.db"
    tls = pairs["drainer"].settings
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}", **tls, **roles)
    late = pump_factory(etcd_server.url, **pairs["pump"].settings, **roles)  # Notifies the Drainer.
    with PumpClient.connect(etcd_server.url, tls=pairs["writer"].tls) as client:
        writer = RandomWriter(client, seed=54)
        writer.create()
        drainer.wait_until(writer.transact(30), _LONG_S)
    assert in_sqlite(path) == writer.expected()
    trio.until_whole()

    def pause(role: str) -> int:
        asked = ["pause-pump", "--etcd-urls", etcd_server.url, "--node-id", late.node_id]
        return ctl([*asked, *pairs[role].flags])

    assert pause("writer") != 0
    assert late.is_running
    assert pause("operator") == 0
    eventually(lambda: not late.is_running, _LONG_S)
