"""What an operator sees of a real Pump: pages, metrics, health and reflection."""

import contextlib
import json
import os
import re
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pages import asked, scraped
from tests.kit.wait import eventually, present


def pages_of(pump: PumpProcess) -> str:
    return pump.wait_for(r"status pages at (\S+)")[1]


def metrics_of(pump: PumpProcess) -> dict[str, float]:
    return scraped(pages_of(pump))


class Writes:
    """Writes through `penstock.Pump`, one batch after the other."""

    def __init__(self, etcd: Any, pump: PumpProcess) -> None:
        self.cluster_id = Registry(etcd).cluster_id()
        self.oracle = OracleClient(etcd)
        self.channel = pump.channel()
        self.stub: Any = penstock_pb2_grpc.PumpStub(self.channel)  # type: ignore[no-untyped-call]

    def batch(self, *binlogs: Binlog) -> list[Any]:
        payloads = [encode_binlog(binlog) for binlog in binlogs]
        batch = penstock_pb2.WriteBatch(cluster_id=self.cluster_id, seq=1, payloads=payloads)
        return list(next(iter(self.stub.Write(iter([batch]), timeout=10))).refusals)

    def prewrite(self) -> Binlog:
        mutation = TableMutation(
            table_id=7, inserted_rows=(b"\x08\x02",), sequence=(MutationType.INSERT,)
        )
        value = encode_prewrite_value(PrewriteValue(schema_version=3, mutations=(mutation,)))
        start_ts = self.oracle.get_ts()
        return Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)

    def commit(self, prewrite: Binlog) -> Binlog:
        commit_ts = self.oracle.get_ts()
        return Binlog(tp=BinlogType.COMMIT, start_ts=prewrite.start_ts, commit_ts=commit_ts)

    def close(self) -> None:
        self.channel.close()
        self.oracle.close()


@pytest.fixture
def writes(etcd: Any, pump: PumpProcess) -> Any:
    writes = Writes(etcd, pump)
    yield writes
    writes.close()


def test_a_scrape_counts_what_was_written_refused_left_open_and_pulled(
    pump: PumpProcess, writes: Writes
) -> None:
    done, left_open = writes.prewrite(), writes.prewrite()
    assert writes.batch(done, left_open) == []
    commit = writes.commit(done)
    assert writes.batch(commit) == []
    stray = Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=writes.oracle.get_ts())
    assert len(writes.batch(stray)) == 1
    assert len(writes.batch(Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=4))) == 1
    writes.cluster_id += 1
    assert len(writes.batch(done, left_open)) == 2
    writes.cluster_id -= 1
    request = penstock_pb2.PullRequest(cluster_id=writes.cluster_id, drainer_id="drainer-9")
    pull = writes.stub.Pull(request, timeout=30)
    next(iter(pull))
    found = metrics_of(pump)
    pull.cancel()
    assert found["penstock_pump_state{state=online}"] == 1
    assert found["penstock_pump_state{state=paused}"] == 0
    assert found["penstock_pump_etcd_reachable"] == 1
    assert found["penstock_pump_binlogs_written_total"] >= 3
    assert found["penstock_pump_binlogs_refused_total{reason=no_prewrite}"] == 1
    assert found["penstock_pump_binlogs_refused_total{reason=invalid}"] == 1
    assert found["penstock_pump_binlogs_refused_total{reason=cluster_mismatch}"] == 1
    assert found["binlog_pump_loss_binlog_count"] == 2
    assert found["penstock_pump_open_prewrites"] == 1
    assert 0 < found["penstock_pump_oldest_open_prewrite_seconds"] < 60
    assert found["penstock_pump_queue_bytes"] == 0
    assert found["penstock_pump_pullers"] == 1
    assert found["penstock_pump_connections"] >= 1
    assert found["penstock_pump_calls"] >= 1
    assert "penstock_pump_puller_lag_seconds{puller=drainer-9}" in found
    groups = found["penstock_pump_groups_written_total"]
    assert found["penstock_pump_group_binlogs_count"] == groups
    assert found["penstock_pump_append_seconds_count"] == groups
    assert found["penstock_pump_fdatasync_seconds_count"] >= groups
    assert found["penstock_pump_fdatasync_seconds_bucket{le=+Inf}"] >= groups
    assert 0 < found["penstock_pump_fdatasync_seconds_sum"] < 60
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert found["penstock_pump_storage_log_bytes"] > 32


# All that TiDB-Binlog's Pump shows and has a meaning here; pump/README.md says what has none.
TIDB_BINLOG_METRICS = (
    "rpc_duration_seconds_bucket{label=succ,le=+Inf,method=WriteBinlog}",
    "rpc_duration_seconds_bucket{label=fail,le=+Inf,method=WriteBinlog}",
    "loss_binlog_count",
    "storage_gc_ts",
    "storage_done_gc_ts",
    "storage_deleted_kv_total",
    "storage_storage_size_bytes{type=capacity}",
    "storage_storage_size_bytes{type=available}",
    "storage_max_commit_ts",
    "storage_query_tikv_count",
    "storage_error_count{type=write_binlog}",
    "storage_error_count{type=write_binlog_batch}",
    "storage_error_count{type=batch_write_kv}",
    "storage_error_count{type=read_value}",
    "storage_write_binlog_size_bucket{le=+Inf,type=batch}",
    "storage_write_binlog_duration_time_bucket{le=+Inf,type=single}",
    "storage_write_binlog_duration_time_bucket{le=+Inf,type=batch}",
    "storage_write_binlog_duration_time_bucket{le=+Inf,type=fsync}",
    "storage_write_binlog_duration_time_bucket{le=+Inf,type=to_disk}",
    "storage_write_binlog_duration_time_bucket{le=+Inf,type=rotate}",
)


def test_the_metrics_of_tidb_binlog_have_their_names(pump: PumpProcess, writes: Writes) -> None:
    prewrite = writes.prewrite()
    writes.batch(prewrite)
    writes.batch(writes.commit(prewrite))
    found = metrics_of(pump)
    missing = [name for name in TIDB_BINLOG_METRICS if f"binlog_pump_{name}" not in found]
    assert missing == []
    assert found["binlog_pump_storage_max_commit_ts"] < 1 << 45  # Milliseconds.
    assert found["binlog_pump_loss_binlog_count"] == 0
    assert found["binlog_pump_storage_error_count{type=write_binlog_batch}"] == 0
    capacity = found["binlog_pump_storage_storage_size_bytes{type=capacity}"]
    assert capacity > found["binlog_pump_storage_storage_size_bytes{type=available}"] > 0
    for step in ("single", "batch", "fsync", "to_disk", "rotate"):
        name = "binlog_pump_storage_write_binlog_duration_time_count"
        assert found[f"{name}{{type={step}}}"] > 0
    assert found["binlog_pump_storage_write_binlog_size_count{type=batch}"] > 0
    name = "binlog_pump_rpc_duration_seconds_count"
    assert found[f"{name}{{label=succ,method=WriteBinlog}}"] == 0


def is_there(place: str) -> bool:
    return asked(place)[0] == 200


def test_the_pages_show_all_nodes_and_a_stored_binlog(
    etcd: Any, pump: PumpProcess, writes: Writes
) -> None:
    drainer = NodeStatus(
        node_id="d", host="h:1", state=NodeState.ONLINE, update_ts=compose(1, 0), max_commit_ts=3
    )
    Registry(etcd).put(NodeKind.DRAINER, drainer)
    url = pages_of(pump)
    code, text = asked(url + "status")
    page = json.loads(text)
    assert (code, page["ErrMsg"], page["Checkpoint"]) == (200, "", {})
    assert page["status"][pump.node_id]["state"] == "online"
    assert page["CommitTS"] > compose(1, 0)
    assert page["status"][pump.node_id]["isAlive"] is True
    stored = present(Registry(etcd).get(NodeKind.PUMP, pump.node_id))
    assert not stored.is_alive, "a Pump that is killed could not take it back"
    about = page["self"]
    assert (about["status_pages"], about["node_id"], about["leads_oracle"]) == (url, "pump-1", True)
    assert type(about["uptime_s"]) is int
    assert type(about["append_ms_average"]) is float
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in about)
    assert json.loads(asked(url + "drainers")[1]) == [json.loads(drainer.to_json())]  # Not alive.

    prewrite = writes.prewrite()
    writes.batch(prewrite)
    commit = writes.commit(prewrite)
    writes.batch(commit)
    for ts, title in ((prewrite.start_ts, "Prewrite"), (commit.commit_ts, "binlog in the stream")):
        place = f"{url}debug/binlog/{ts}"
        eventually(partial(is_there, place))
        text = asked(place)[1]
        assert text.startswith(title)
        assert "table 7: 1 insert\n    insert  0802" in text
    assert asked(url + "debug/binlog/12")[0] == 404
    assert asked(url + "debug/binlog/twelve")[0] == 400


def test_a_purge_and_a_pause_can_be_asked_for_as_with_tidb_binlog(pump: PumpProcess) -> None:
    url = pages_of(pump)
    code, text = asked(url + "debug/gc/trigger", "POST")
    assert (code, text.splitlines()[0]) == (200, "trigger gc success")
    assert "0 segments went" in text
    for path, status, problem in (
        ("state/ghost/pause", 404, f"this is pump {pump.node_id}, not ghost"),
        (f"state/{pump.node_id}/dance", 400, "invalid action dance"),
    ):
        code, text = asked(url + path, "PUT")
        answer = json.loads(text)
        assert (code, answer["code"], problem in answer["message"]) == (status, 3, True)
    code, text = asked(f"{url}state/{pump.node_id}/pause", "PUT")
    assert json.loads(text) == {"message": "apply action pause success!", "code": 200, "data": None}
    assert pump.wait() == 0


def test_pages_can_be_switched_off_and_a_taken_address_is_an_error(
    nodes: Nodes, pump: PumpProcess
) -> None:
    off = nodes.add_pump(status_addr="off")
    assert off.status().details["status_pages"] == "none"
    address = pages_of(pump)[7:-1]
    refused = nodes.add_pump(waiting=False, status_addr=address)
    assert refused.wait() == 2
    assert "choose another --status-addr, or off" in refused.log_text()


def test_health_follows_the_state_and_reflection_knows_the_services(nodes: Nodes) -> None:
    pump = nodes.add_pump()
    serving = health_pb2.HealthCheckResponse.SERVING
    with pump.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "binlog.Pump", "penstock.Pump"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert health.Check(request, timeout=10).status == serving
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="what"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(iter(watch)).status == serving
        watch.cancel()

        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="penstock.Pump"),
        ]
        listed, described = reflect.ServerReflectionInfo(iter(requests), timeout=10)
        names = {service.name for service in listed.list_services_response.service}
        assert {"binlog.Pump", "penstock.Pump", "grpc.health.v1.Health"} <= names
        files = described.file_descriptor_response.file_descriptor_proto
        methods = FileDescriptorProto.FromString(files[0]).service[0].method
        assert "TriggerGc" in {method.name for method in methods}


def test_a_pump_that_is_not_online_yet_is_not_serving(nodes: Nodes) -> None:
    # Alive by its heartbeat and deaf: no Pump comes online before it took notice.
    now_ts = compose(4_000_000_000_000, 0)
    deaf = NodeStatus(node_id="deaf", host="127.0.0.1:1", state=NodeState.ONLINE, update_ts=now_ts)
    Registry(nodes.etcd).put(NodeKind.DRAINER, deaf)
    pump = nodes.add_pump(online=False)
    with pump.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert metrics_of(pump)["penstock_pump_state{state=paused}"] == 1


def test_a_pump_says_to_systemd_when_it_is_online_that_it_lives_and_when_it_stops(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        pump = nodes.add_pump(online=False)
        heard: list[bytes] = []

        def is_ready() -> bool:
            heard.append(systemd.recv(100))
            return heard[-1] == b"READY=1\nSTATUS=online"

        eventually(is_ready, 60)
        assert pump.status().state == "online"
        assert systemd.recv(100) == b"WATCHDOG=1"
        assert pump.stop() == 0
        systemd.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(systemd.recv(100))
        assert b"STOPPING=1" in heard
        assert set(heard) == {b"WATCHDOG=1", b"READY=1\nSTATUS=online", b"STOPPING=1"}


def test_a_hangup_lets_a_pump_continue_with_a_new_log(nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "pump-1.log"
    pump = nodes.add_pump(log_file=str(path))
    path.rename(tmp_path / "pump-1.log.1")
    assert pump.pid is not None
    os.kill(pump.pid, signal.SIGHUP)
    eventually(lambda: path.exists() and "SIGHUP: the log is open again" in path.read_text())
    assert pump.status().state == "online"
    assert pump.stop() == 0
    assert "pump pump-1 is paused" in path.read_text()


def test_json_lines_are_all_that_a_pump_writes(nodes: Nodes) -> None:
    pump = nodes.add_pump(waiting=False, log_format="json")
    pump.wait_for("is online at")
    assert pump.stop() == 0
    lines = pump.log_text().splitlines()
    assert len(lines) > 3
    for line in lines:
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))
