"""TLS and mutual TLS between real processes: who gets in, who does not, and why, and for how long.

Refusals are judged by the answer that the refused one gets, or by the Pump's log.
"""

import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.ctl.commands import main
from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Tls, open_channel
from pumpclient import PumpClient
from tests.kit.servers.authority import Authority, Pair
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.servers.node import NodeProcess
from tests.kit.workloads.random_writer import RandomWriter, in_sqlite

_NAMES = {"security_cert_allowed_cn": "node, writer"}
_LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def ask(pump: NodeProcess, tls: Tls | None) -> str:
    with open_channel(pump.addr, tls, _LOCAL) as channel:
        return state(channel)


def state(channel: grpc.Channel) -> str:
    stub: Any = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
    return str(stub.Status(penstock_pb2.StatusRequest(), timeout=10).state)


def refusal(pump: NodeProcess, tls: Tls | None) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(pump, tls)
    return caught.value.code(), caught.value.details()


def test_writer_pumps_and_drainer_talk_through_mutual_tls_only(
    replication: Replication,
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {**authority.issue("node").settings, **_NAMES}
    writer = authority.issue("writer")
    first = replication.add_pump(**settings)
    drainer = replication.add_drainer(**settings)
    drainer.wait_for("drainer .* is online|pulling from Pump")
    # This one must notify the Drainer, the other is the oracle for both.
    second = replication.add_pump(**settings)
    second.wait_for("drainer drainer-1 was notified")
    with PumpClient.connect(replication.url, tls=writer.tls) as client:
        written = RandomWriter(client)
        written.create()
        drainer.wait_until(written.transact(30))
        assert in_sqlite(replication.path) == written.expected()
    for node in (first, second, drainer):
        shown = main(["status", "--addr", node.addr, *writer.flags])
        assert (shown, node.node_id in capsys.readouterr().out) == (0, True)
        code, why = refusal(node, None)
        assert code is grpc.StatusCode.UNAVAILABLE, why
    keys = [path.read_text().splitlines()[1] for path in tmp_path.glob("*.key")]
    for node in (first, second, drainer):
        assert not any(key in node.log.read_text() for key in keys)


@pytest.fixture
def mutual(nodes: Nodes, authority: Authority) -> PumpProcess:
    return nodes.add_pump(**authority.issue("node").settings, **_NAMES)


@pytest.mark.fault(
    "TLS to a Pump: no, foreign, expired certificate, plain text, another name",
    "refused, with the reason in the Pump's log or to the caller",
    cases="5",
)
def test_a_caller_that_is_refused_finds_the_reason_in_the_pumps_log(
    mutual: PumpProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    foreign = other.issue("writer", file="foreign")
    expired = authority.issue("writer", days=-1, file="expired")
    for tls, reason in (
        (None, "WRONG_VERSION_NUMBER"),
        (Tls(ca=authority.file), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (expired.tls, "certificate has expired"),
        (
            Tls(ca=authority.file, cert=foreign.cert, key=foreign.key),
            "unable to get local issuer certificate",
        ),
    ):
        code, _ = refusal(mutual, tls)
        assert code is grpc.StatusCode.UNAVAILABLE
        mutual.wait_for(f"WARNING .*handshake of a caller failed: .*{reason}")
    assert ask(mutual, authority.issue("writer").tls) == "online"


def test_a_common_name_that_is_not_listed_is_refused_by_its_name(
    mutual: PumpProcess,
    authority: Authority,
    etcd: Any,
    etcd_server: EtcdServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unlisted = authority.issue("stranger")
    code, why = refusal(mutual, unlisted.tls)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert why == "the certificate's common name is 'stranger', which cert-allowed-cn does not list"
    mutual.wait_for(r"refused ipv4:\S+: .*'stranger'; allowed are: node, writer")
    with open_channel(mutual.addr, unlisted.tls, _LOCAL) as channel:
        for method in ("/penstock.Pump/Write", "/pdpb.PD/Tso"):
            with pytest.raises(grpc.RpcError) as caught:
                next(channel.stream_stream(method)(iter([b""])))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
    assert main(["status", "--addr", mutual.addr, *unlisted.flags]) == 2
    assert "'stranger'" in capsys.readouterr().err
    oracle = OracleClient(etcd, timeout_s=1, tls=unlisted.tls)
    with pytest.raises(Exception, match="common name is 'stranger'"):
        oracle.get_ts()
    oracle.close()


def test_every_kind_of_method_works_behind_the_check(
    mutual: PumpProcess, authority: Authority
) -> None:
    with open_channel(mutual.addr, authority.issue("writer").tls, _LOCAL) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(request, timeout=10).status == serving
        assert next(health.Watch(request, timeout=10)).status == serving
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(reflection.ServerReflectionInfo(iter([listed]), timeout=10))
        assert "penstock.Pump" in str(answer.list_services_response)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/pdpb.PD/GetRegion")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.thorough
@pytest.mark.fault(
    "TLS to a Pump: a Pump that cannot prove itself; certificates replaced while it runs",
    "not trusted; new connections use the new ones",
    cases="3",
)
def test_a_pump_that_cannot_prove_itself_is_not_trusted(
    mutual: PumpProcess, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = authority.issue("writer")
    _, why = refusal(mutual, Tls(ca=Authority(tmp_path, "other").file))
    assert "CERTIFICATE_VERIFY_FAILED: " in why
    flags = ("--ssl-ca", str(tmp_path / "other.pem"))
    assert main(["status", "--addr", mutual.addr, *flags]) == 2
    assert "other.pem" in capsys.readouterr().err
    assert main(["status", "--addr", mutual.addr]) == 1
    assert "if it wants TLS, give --ssl-ca" in capsys.readouterr().err
    authority.issue("node", days=-1)
    _, why = refusal(mutual, good.tls)
    assert "certificate has expired" in why
    # The Pump has not ended over this, and a valid certificate makes it trustworthy again.
    authority.issue("node")
    assert ask(mutual, good.tls) == "online"


@pytest.mark.thorough
def test_certificates_are_replaced_while_a_pump_runs_and_its_connections_stay_open(
    nodes: Nodes, authority: Authority
) -> None:
    pair = authority.issue("node")
    pump = nodes.add_pump(**pair.settings)
    client = Tls(ca=authority.file)
    assert shown(pump) == pair.cert.read_text()
    with open_channel(pump.addr, client, _LOCAL) as channel:
        assert state(channel) == "online"
        old = pair.cert.read_text()
        fresh = authority.issue("node", file="fresh")
        fresh.cert.replace(pair.cert)
        assert shown(pump) == old, "the key of the new certificate is not there yet"
        pump.wait_for("not usable, the old ones serve on: .*key values mismatch")
        fresh.key.replace(pair.key)
        assert shown(pump) == pair.cert.read_text() != old
        pump.wait_for("new connections use the certificates read again")
        assert state(channel) == "online"
        assert ask(pump, client) == "online"


def shown(pump: NodeProcess) -> str:
    host, _, port = pump.addr.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_pump_does_not_start_with_files_that_cannot_be_used(
    nodes: Nodes, authority: Authority
) -> None:
    pair = authority.issue("node")
    pair.key.unlink()
    pump = nodes.add_pump(waiting=False, addr="127.0.0.1:1", **pair.settings)
    pump.wait_for("stopped: cannot read .*node.key: No such file.*check ssl-ca")
    with pytest.raises(NeedsOperator, match=r"cannot read .*node\.key"):
        PumpClient.connect(nodes.url, tls=Pair(pair.ca, pair.cert, pair.key).tls)
