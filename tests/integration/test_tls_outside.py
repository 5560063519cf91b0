"""TLS to what is not ours, an etcd and a PD, and of the pages when they leave the machine."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drainer.__main__ import main as drainer_main
from penstock.cluster.etcd import EtcdClient, connect, read
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.ctl.commands import main
from penstock.errors import NeedsOperator, Retryable
from penstock.local.etcd import EtcdServer
from penstock.local.process import ServerProcess, free_port, python_module
from penstock.oracle.client import open_oracle
from penstock.security.databases import trusting
from penstock.security.tls import Tls
from penstock.ts import physical_ms
from penstock.wire.binlog import Binlog, BinlogType
from pumpclient import Options, PumpClient
from tests.kit.fakes.scripted_tidb import TidbCluster
from tests.kit.servers.authority import Authority, Pair
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually

pytestmark = pytest.mark.etcd

Factory = Callable[..., PumpProcess]


@pytest.fixture
def outside(tmp_path: Path) -> Authority:
    folder = tmp_path / "outside"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
def tls_etcd(tmp_path: Path, outside: Authority) -> Iterator[EtcdServer]:
    pair = outside.issue("etcd")
    home = tmp_path / "tls-etcd"
    home.mkdir()
    tls = pair.ca, pair.cert, pair.key
    server = EtcdServer(home, durable=False, tls=tls).start()
    yield server
    server.stop()


def settings(whose: str, pair: Pair) -> dict[str, str]:
    parts = {"ca": pair.ca, "cert": pair.cert, "key": pair.key}
    return {f"security_{whose}_ssl_{name}": str(path) for name, path in parts.items()}


def test_pumps_writers_and_operators_use_an_etcd_that_wants_certificates(
    tls_etcd: EtcdServer,
    outside: Authority,
    pump_factory: Factory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = outside.issue("penstock")
    pump = pump_factory(tls_etcd.url, **settings("etcd", pair))
    with PumpClient.connect(tls_etcd.url, options=Options(etcd_tls=pair.tls)) as client:
        assert client.execute_ddl("CREATE DATABASE shop") != []
    flags = [f"--etcd-{flag[2:]}" if flag.startswith("--") else flag for flag in pair.flags]
    assert main(["pumps", "--etcd-urls", tls_etcd.url, *flags]) == 0
    assert pump.node_id in capsys.readouterr().out
    assert pump.stop() == 0


@pytest.mark.thorough
def test_one_set_of_certificates_serves_for_nodes_and_etcd(
    tls_etcd: EtcdServer, outside: Authority, pump_factory: Factory
) -> None:
    pair = outside.issue("node")
    pump = pump_factory(tls_etcd.url, **pair.settings)
    with PumpClient.connect(tls_etcd.url, tls=pair.tls) as client:
        client.write_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=5))
    assert main(["status", pump.node_id, "--etcd-urls", tls_etcd.url, *pair.flags]) == 0


@pytest.mark.main_case("nothing")
@pytest.mark.parametrize("shown", ["nothing", "another authority's", "an expired one"])
def test_whose_certificate_etcd_refuses_hears_so_at_once(
    tls_etcd: EtcdServer, outside: Authority, tmp_path: Path, shown: str
) -> None:
    files: dict[str, Path | None] = {"cert": None, "key": None}
    message = "asks for a certificate, and there is none to show"
    if shown != "nothing":
        issuer = outside if shown == "an expired one" else Authority(tmp_path, "other")
        pair = issuer.issue("stranger", days=-1 if shown == "an expired one" else 30)
        files, message = (
            {"cert": pair.cert, "key": pair.key},
            f"refuses the certificate in {pair.cert}",
        )
    tls = Tls(ca=outside.file, **files)
    with closing(connect(tls_etcd.url, timeout_s=600, tls=tls)) as client:
        began_s = time.monotonic()
        with pytest.raises(NeedsOperator) as caught:
            read(client, "/a")
        assert message in caught.value.problem
        assert "etcd-ssl-cert" in str(caught.value.hint)
        with pytest.raises(NeedsOperator):
            Registry(client).list(NodeKind.PUMP)
    # In real time, since connections are.
    assert time.monotonic() - began_s < 60, "it tried as long as for an etcd that restarts"


@pytest.mark.thorough
def test_programs_that_do_not_trust_etcd_s_certificate_end_at_once_and_name_the_file(
    tls_etcd: EtcdServer,
    pump_factory: Factory,
    outside: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = outside.issue("penstock")
    foreign = Pair(Authority(tmp_path, "other").file, pair.cert, pair.key)
    message = f"the CA in {foreign.ca} (etcd-ssl-ca, or ssl-ca where that is not set)"
    pump = pump_factory(tls_etcd.url, waiting=False, **settings("etcd", foreign))
    assert pump.wait(60) == 2
    assert message in pump.log_text()
    assert "trying again" not in pump.log_text()
    with pytest.raises(NeedsOperator) as caught:
        PumpClient.connect(tls_etcd.url, options=Options(etcd_tls=foreign.tls))
    assert message in str(caught.value.hint)
    pem = [f"--etcd-{flag[2:]}" if flag.startswith("--") else flag for flag in foreign.flags]
    etcd = ["--etcd-urls", tls_etcd.url]
    assert main(["pumps", *etcd, *pem]) == 2
    assert message in capsys.readouterr().err
    pem = [f"--security-{flag[2:]}" if flag.startswith("--") else flag for flag in pem]
    sink = ["--sink", f"sqlite:///{tmp_path / 'd.db'}", "--data-dir", str(tmp_path / "d")]
    assert drainer_main(["ddl", "list", *etcd, *sink, *pem]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.thorough
def test_a_node_that_has_had_an_answer_continues_to_try_and_says_what_is_wrong(
    tls_etcd: EtcdServer, outside: Authority
) -> None:
    with closing(connect(tls_etcd.url, tls=outside.issue("penstock").tls)) as client:
        assert read(client, "/a") is None
        tls_etcd.stop()
        with pytest.raises(Retryable):
            read(client, "/a")
        outside.issue("etcd", days=-1)
        tls_etcd.start()
        with pytest.raises(Retryable) as caught:
            eventually(lambda: _finds_a_certificate(client), 60)
    assert "has expired" in str(caught.value)


def _finds_a_certificate(client: EtcdClient) -> bool:
    try:
        read(client, "/a")
    except Retryable as error:
        if "certificate" in str(error):
            raise
    return False


@pytest.mark.thorough
def test_another_endpoint_serves_over_tls_when_one_is_dead(
    tls_etcd: EtcdServer, outside: Authority
) -> None:
    client = connect(
        f"https://127.0.0.1:{free_port()},{tls_etcd.url}", tls=outside.issue("penstock").tls
    )
    assert Registry(client).list(NodeKind.PUMP) == []
    client.close()


@pytest.mark.thorough
def test_timestamps_come_from_a_pd_that_wants_certificates(
    nodes: Nodes, outside: Authority
) -> None:
    pair = outside.issue("penstock")
    with TidbCluster(pair=outside.issue("pd")) as pd:
        pump = nodes.add_pump(pd_address=pd.url, **settings("pd", pair))
        assert pump.status().details["leads_oracle"] == "False"
        oracle = open_oracle(nodes.etcd, pd.url, pd_tls=pair.tls)
        assert physical_ms(oracle.get_ts()) >= 1_700_000_000_000
        oracle.close()
        options = Options(pd_address=pd.url, pd_tls=pair.tls)
        with PumpClient.connect(nodes.url, options=options) as client:
            assert client.execute_ddl("CREATE DATABASE shop") != []
        bare = open_oracle(nodes.etcd, pd.url, pd_tls=Tls(ca=outside.file))
        bare._timeout_s = 2  # type: ignore[attr-defined]
        with pytest.raises(NeedsOperator, match="there is none to show"):
            bare.get_ts()
        bare.close()
        assert pump.stop() == 0


def test_a_pd_whose_leader_wants_tls_is_not_asked_in_the_clear(
    etcd: Any, outside: Authority
) -> None:
    with TidbCluster() as pd:
        plain, pd.pair = pd.url, outside.issue("pd")  # From now on it names itself by https.
        oracle = open_oracle(etcd, plain)
        with pytest.raises(NeedsOperator, match=r"asks for TLS .*https:// in pd-address"):
            oracle.get_ts()
        oracle.close()


def page(url: str, pair: Pair | None, ca: Path) -> tuple[int, str]:
    context = trusting(ca)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    https = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
    try:
        with opener.open(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_pages_that_leave_the_machine_are_served_over_tls_with_certificates_read_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    node, guest = authority.issue("node"), authority.issue("guest")
    port = free_port()
    pump = nodes.add_pump(
        status_addr=f"0.0.0.0:{port}", security_cert_allowed_cn="node", **node.settings
    )
    assert f"status pages at https://0.0.0.0:{port}/" in pump.log_text()
    url = f"https://127.0.0.1:{port}/metrics"
    code, text = page(url, node, authority.file)
    assert code == 200
    assert 'penstock_pump_state{state="online"} 1.0' in text
    code, text = page(url, guest, authority.file)
    assert (code, "cert-allowed-cn" in text) == (403, True)
    with pytest.raises(OSError):  # noqa: PT011
        page(url, None, authority.file)
    with pytest.raises(OSError):  # noqa: PT011
        page(url.replace("https", "http"), None, authority.file)
    first = served(port, node)
    authority.issue("node", days=60)
    eventually(lambda: served(port, node) != first, 30)


def served(port: int, pair: Pair) -> bytes:
    context = trusting(pair.ca)
    context.load_cert_chain(pair.cert, pair.key)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""


def test_pages_on_loopback_stay_plain(nodes: Nodes, tmp_path: Path) -> None:
    node = Authority(tmp_path).issue("node")
    pump = nodes.add_pump(**node.settings)
    assert "status pages at http://127.0.0.1:" in pump.log_text()


@pytest.mark.thorough
def test_a_console_asks_nodes_over_tls_and_is_shown_by_it_to_allowed_names_only(
    nodes: Nodes, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    node, guest = authority.issue("node"), authority.issue("guest")
    nodes.add_pump(security_cert_allowed_cn="node", **node.settings)
    port = free_port()
    console = ServerProcess(
        [
            *python_module("penstock", "console", "--addr", f"0.0.0.0:{port}"),
            *("--etcd-urls", nodes.url, "--cert-allowed-cn", "node", *node.flags),
        ],
        log=tmp_path / "console.log",
    ).start()
    try:
        url = f"https://127.0.0.1:{port}/"
        eventually(lambda: url.partition("127")[0] + "0.0.0.0" in console.log_tail(), 30)
        eventually(lambda: "binlogs/s" in page(url, node, authority.file)[1], 30)
        assert "online" in page(url, node, authority.file)[1]
        code, text = page(url, guest, authority.file)
        assert (code, "cert-allowed-cn" in text) == (403, True)
        with pytest.raises(OSError):  # noqa: PT011
            page(url, None, authority.file)
    finally:
        assert console.stop() == 0
