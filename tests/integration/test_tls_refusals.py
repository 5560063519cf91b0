"""A certificate that is refused is an operator's business, said at once and with its file; a node
that restarts is not."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.ctl.commands import main as ctl
from penstock.errors import NeedsOperator, Retryable
from penstock.local.etcd import EtcdServer
from penstock.local.process import free_port
from penstock.node.logs import handshake_failure
from penstock.oracle.client import OracleClient
from penstock.security.refusal import certificate_refusal
from penstock.security.tls import Security, SecurityConfig
from pumpclient import PumpClient, Tls
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def mutual(nodes: Nodes, authority: Authority) -> Any:
    node = authority.issue("node")
    return nodes.add_pump(**node.settings, security_cert_allowed_cn="node,writer", gc="1h")


def test_a_certificate_of_another_ca_is_refused_before_a_node_starts(
    nodes: Nodes, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "other").issue("node", file="foreign")
    settings = {**foreign.settings, "security_ssl_ca": str(authority.file)}
    pump = nodes.add_pump(waiting=False, **settings)
    assert pump.wait(30) == 2
    errors = [line for line in pump.log_text().splitlines() if " ERROR " in line]
    assert len(errors) == 1
    assert str(foreign.cert) in errors[0]
    assert str(authority.file) in errors[0]
    expired = authority.issue("node", days=-1)
    ca, cert, key = str(expired.ca), str(expired.cert), str(expired.key)
    with pytest.raises(NeedsOperator, match="expired"):
        Security(SecurityConfig(ssl_ca=ca, ssl_cert=cert, ssl_key=key))


@pytest.mark.thorough
def test_a_writer_whose_certificate_is_refused_hears_so_at_once(
    mutual: PumpProcess, authority: Authority, etcd: Any, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "other").issue("writer", file="foreign")
    for tls, message in (
        (Tls(ca=authority.file), "there is none to show"),
        (Tls(ca=authority.file, cert=foreign.cert, key=foreign.key), str(foreign.cert)),
        (Tls(ca=foreign.ca), str(foreign.ca)),
        (authority.issue("stranger").tls, "stranger"),
    ):
        oracle = OracleClient(etcd, timeout_s=600, tls=tls)
        began_s = time.monotonic()
        with pytest.raises(NeedsOperator) as caught:
            oracle.get_ts()
        assert message in str(caught.value)
        # In real time, since connections are.
        assert time.monotonic() - began_s < 60, "it tried for as long as for a node that restarts"
        oracle.close()


@pytest.mark.thorough
def test_a_prewrite_that_no_pump_takes_for_its_certificate_needs_an_operator(
    mutual: PumpProcess, authority: Authority, etcd_server: EtcdServer
) -> None:
    writer = authority.issue("writer")
    with PumpClient.connect(etcd_server.url, tls=writer.tls) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
        with client.begin("shop") as transaction:
            transaction.insert("t", {"id": 1})
        authority.issue("writer", days=-1)
        mutual.restart()
        with pytest.raises(NeedsOperator, match=r"writer\.crt"):
            eventually(lambda: _inserts(client), 60)


def _inserts(client: PumpClient) -> bool:
    """Try a transaction; a Retryable one is to be tried again."""
    try:
        with client.begin("shop") as transaction:
            transaction.insert("t", {"id": 2})
    except Retryable:
        return False
    return True


@pytest.mark.thorough
def test_a_node_that_restarts_or_is_not_there_is_no_matter_of_certificates(
    mutual: PumpProcess, authority: Authority, etcd: Any
) -> None:
    writer = authority.issue("writer").tls
    assert certificate_refusal(mutual.addr, writer) is None
    assert certificate_refusal(f"127.0.0.1:{free_port()}", writer) is None
    mutual.freeze()
    assert certificate_refusal(mutual.addr, Tls(ca=authority.file)) is None
    mutual.thaw()
    mutual.kill()
    oracle = OracleClient(etcd, timeout_s=1, tls=Tls(ca=authority.file))
    with pytest.raises(Retryable):
        oracle.get_ts()
    oracle.close()


def test_an_operator_learns_which_certificate_is_refused(
    mutual: PumpProcess, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--ssl-ca", str(authority.file)]
    assert ctl(["status", "--addr", mutual.addr, *flags]) == 2
    assert "asks for a certificate" in capsys.readouterr().err


def test_a_command_shows_no_line_of_grpc_s_own(mutual: PumpProcess, authority: Authority) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-m", "penstock.ctl.commands", "status", "--addr", mutual.addr]
    for flags in ([], ["--ssl-ca", str(authority.file)]):
        done = subprocess.run(
            [*command, *flags], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode in (1, 2)
        assert all(line.startswith("penstock ctl: ") for line in done.stderr.splitlines()), (
            done.stderr
        )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "I1122 11:08:06.236388   30090 ssl_transport_security.cc:2563] Handshake failed with"
            " error SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:"
            "PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context",
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        ),
        (
            "I0000 00:00:1763809686.281498   30 ssl_transport_security.cc:1] Handshake failed with"
            " error SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: certificate has expired",
            "CERTIFICATE_VERIFY_FAILED: certificate has expired",
        ),
        ("I1122 11:08:06.236388   30090 ev_epoll1_linux.cc:125] grpc epoll fd: 9", ""),
        ("Handshake failed: NOT_GRPCS_OWN_LINE", ""),
    ],
)
def test_the_reason_of_a_failed_handshake_is_found_in_grpc_s_line(line: str, reason: str) -> None:
    assert handshake_failure(line) == reason
