"""An etcd with users, and one that is reached by IPv6 alone: a Pump and a writer work with both."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cluster.etcd import PASSWORD, USER, Watch, connect, read
from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer, program
from pumpclient import PumpClient
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import answered, eventually

pytestmark = pytest.mark.thorough

SET_UP = """
user add root:secret
user grant-role root root
role add penstock
role grant-permission penstock --prefix=true readwrite /penstock
role grant-permission penstock --prefix=true readwrite /tidb-binlog
user add nodes:pa:ss
user grant-role nodes penstock
auth enable
"""


@pytest.fixture
def guarded(fresh_etcd: EtcdServer) -> EtcdServer:
    """An etcd with `auth enable`, and a user who may use Penstock's prefixes only."""
    control = [str(Path(program()).with_name("etcdctl")), f"--endpoints={fresh_etcd.url}"]
    for line in SET_UP.strip().splitlines():
        subprocess.run(
            [*control, *line.split()],
            env={**os.environ, "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
        )
    return fresh_etcd


def commit_one(url: str) -> None:
    with PumpClient.connect(url) as client:
        client.execute_ddl("CREATE DATABASE s")
        client.execute_ddl("CREATE TABLE s.t (id INT PRIMARY KEY)")
        with client.begin("s") as txn:
            txn.insert("t", {"id": 1})
        assert txn.commit_ts


def test_a_pump_and_a_writer_log_in_and_survive_the_end_of_their_tokens(
    guarded: EtcdServer, pump_factory: Callable[..., PumpProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(USER, "nodes")
    monkeypatch.setenv(PASSWORD, "pa:ss")
    pump_factory(guarded.url)
    seen: list[dict[str, bytes]] = []
    client = connect(guarded.url)
    watch = Watch(client, "/penstock/v1/test", seen.append)
    guarded.stop()
    guarded.start()  # It knows none of its tokens any more.
    # Channels of one process share a connection, and its pause after a refusal.
    answered(lambda: read(client, "/penstock/v1/test"))
    commit_one(guarded.url)
    client.put("/penstock/v1/test", "after")
    eventually(lambda: seen[-1] == {"/penstock/v1/test": b"after"}, 20)
    with pytest.raises(NeedsOperator, match="permission denied"):
        read(client, "/elsewhere")
    watch.cancel()
    client.close()


@pytest.mark.parametrize(
    ("user", "password", "problem"),
    [("", "", "user name is empty"), ("nodes", "wrong", "authentication failed")],
)
def test_an_etcd_that_refuses_a_login_is_reported_with_the_variables_to_set(
    guarded: EtcdServer, monkeypatch: pytest.MonkeyPatch, user: str, password: str, problem: str
) -> None:
    monkeypatch.setenv(USER, user)
    monkeypatch.setenv(PASSWORD, password)
    client = connect(guarded.url)
    with pytest.raises(NeedsOperator, match=problem) as refused:
        read(client, "/penstock/v1/x")
    client.close()
    assert USER in refused.value.hint
    assert "wrong" not in str(refused.value)


def test_several_endpoints_may_be_ipv6_or_both(
    tmp_path: Path, pump_factory: Callable[..., PumpProcess]
) -> None:
    server = EtcdServer(tmp_path / "etcd6", durable=False)
    port = server.url.rpartition(":")[2]
    server.command = [each.replace(f"127.0.0.1:{port}", f"[::1]:{port}") for each in server.command]
    server.start()
    try:
        urls = f"[::1]:{port},127.0.0.1:{port}"  # The second one does not answer.
        pump_factory(urls)
        commit_one(urls)
    finally:
        server.stop()
