"""A Pump that waits for etcd says so, on its pages and to its callers."""

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import Registry
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from penstock.local.process import free_port
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.pages import asked
from tests.kit.wait import eventually

Factory = Callable[..., PumpProcess]
_Health = health_pb2.HealthCheckResponse


def health(channel: grpc.Channel) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(), timeout=30, wait_for_ready=True).status


def test_a_pump_that_waits_for_etcd_says_so_when_asked_and_continues(
    fresh_etcd: EtcdServer, pump_factory: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh_etcd.stop()
    address, pages = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    pump = pump_factory(fresh_etcd.url, waiting=False, addr=address, status_addr=pages)
    pump.wait_for("does not answer, trying again")
    with pump.channel() as channel:
        assert health(channel) == _Health.NOT_SERVING
        code, text = asked(f"http://{pages}/status")
        status = json.loads(text)["self"]
        assert (code, status["state"]) == (200, "starting")
        assert status["waits_for"] == f"etcd at {fresh_etcd.url} has not answered yet"
        assert asked(f"http://{pages}/metrics")[1] == 'penstock_pump_state{state="starting"} 1\n'
        assert asked(f"http://{pages}/healthz") == (200, "ok\n")
        code, text = asked(f"http://{pages}/readyz")
        assert (code, text.startswith("this Pump is starting: etcd at")) == (503, True)
        stub: Any = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        refused = pytest.raises(grpc.RpcError, match="this Pump is starting: etcd at")
        with refused as caught:  # Not UNIMPLEMENTED: that would be a Pump of TiDB-Binlog.
            stub.Status(penstock_pb2.StatusRequest(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with refused:
            next(iter(stub.Pull(penstock_pb2.PullRequest(), timeout=30)))
        assert main(["status", "--addr", address]) == 1
        assert "this Pump is starting: etcd at" in capsys.readouterr().err
        fresh_etcd.start()
        pump.wait_for("is online at")
        eventually(lambda: health(channel) == _Health.SERVING)
        assert asked(f"http://{pages}/readyz") == (200, "ok\n")
        assert stub.Status(penstock_pb2.StatusRequest(), timeout=30).state == "online"
    client = connect(fresh_etcd.url)
    cluster_id = Registry(client).cluster_id()
    client.close()
    assert cluster_id > 0
    assert json.loads(asked(f"http://{pages}/status")[1])["self"]["state"] == "online"
    assert pump.node_id in asked(f"http://{pages}/")[1]
    assert pump.stop() == 0
