"""Real Pumps and a real etcd: what writers, pullers and operators can rely on."""

import time

import grpc
import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus
from penstock.pb import penstock_pb2, pump_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pump_session import PumpSession
from tests.kit.workloads.ledger import pull_until

pytestmark = pytest.mark.alone


@pytest.fixture
def session(nodes: Nodes) -> PumpSession:
    return nodes.session(nodes.add_pump(max_message_bytes=1 << 20))


def test_what_is_written_comes_out_merged_through_both_services(session: PumpSession) -> None:
    commits = [session.transaction(b"rows %d" % i) for i in range(5)]
    found = pull_until(session.pump.addr, session.cluster_id, commits[-1].commit_ts)
    merged = [b for _, payload in found if not (b := decode_binlog(payload)).is_fake]
    assert [b.commit_ts for b in merged] == [c.commit_ts for c in commits]
    assert [b.prewrite_value for b in merged] == [b"rows %d" % i for i in range(5)]

    request = pump_pb2.PullBinlogReq(
        clusterID=session.cluster_id, startFrom=pump_pb2.Pos(offset=commits[1].commit_ts)
    )
    call = session.compatible.PullBinlogs(request, timeout=20)
    entities = [next(call).entity for _ in range(3)]
    call.cancel()
    assert [e.meta.commitTs for e in entities] == [c.commit_ts for c in commits[2:]]
    assert [e.meta.startTs for e in entities] == [c.start_ts for c in commits[2:]]


def test_batches_are_acknowledged_in_order_and_name_what_they_refuse(session: PumpSession) -> None:
    prewrites = [session.prewrite() for _ in range(3)]
    stray = Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=session.oracle.get_ts())
    payloads = [encode_binlog(p) for p in prewrites]

    def batch(seq: int, payloads: list[bytes], cluster_id: int) -> penstock_pb2.WriteBatch:
        return penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq, payloads=payloads)

    acks = list(
        session.batches.Write(
            iter(
                [
                    batch(7, payloads[:2], session.cluster_id),
                    batch(8, [b"\xff", payloads[2], encode_binlog(stray)], session.cluster_id),
                    batch(9, payloads[:1], session.cluster_id + 1),
                ]
            ),
            timeout=20,
        )
    )
    refusal = penstock_pb2.Refusal
    assert [ack.seq for ack in acks] == [7, 8, 9]
    assert [[(r.index, r.code) for r in ack.refusals] for ack in acks] == [
        [],
        [(0, refusal.INVALID), (2, refusal.RETRYABLE)],
        [(0, refusal.CLUSTER_MISMATCH)],
    ]
    for prewrite in prewrites:
        session.write(session.commit(prewrite))


@pytest.mark.fault(
    "the same node id or data folder twice; a renamed host", "refused; keeps its name", cases="4"
)
def test_a_second_pump_on_the_same_data_or_name_says_so(session: PumpSession, nodes: Nodes) -> None:
    first = session.pump
    for settings, message in [
        ({"node_id": "twin", "data_dir": first.data_dir}, "another Pump runs in"),
        (
            {"node_id": first.node_id, "data_dir": first.data_dir.with_name("other")},
            "another --node-id if a second process",
        ),
    ]:
        with pytest.raises(pytest.fail.Exception, match=message):
            nodes.add_pump(**settings)
    session.transaction()


def drainer(session: PumpSession, checkpoint_ts: int) -> NodeStatus:
    return NodeStatus(
        node_id="drainer-1",
        host="127.0.0.1:9",
        state=NodeState.ONLINE,
        max_commit_ts=checkpoint_ts,
        update_ts=session.oracle.get_ts(),
    )


@pytest.mark.fault(
    "pause and offline with binlogs that no one has",
    "offline only when every Drainer has everything",
    cases="2",
)
@pytest.mark.thorough
def test_a_paused_pump_takes_commits_and_no_prewrites_until_it_ends(nodes: Nodes) -> None:
    session = nodes.session(nodes.add_pump(pause_grace_s=20))
    prewrite = session.prewrite()
    session.write(prewrite)
    with pytest.raises(grpc.RpcError, match="this is pump pump-1, not pump-9"):
        session.batches.Pause(penstock_pb2.PauseRequest(node_id="pump-9"), timeout=20)
    session.batches.Pause(penstock_pb2.PauseRequest(node_id="pump-1"), timeout=20)
    code, text = session.refusal(session.prewrite())
    assert (code, text) == (grpc.StatusCode.FAILED_PRECONDITION, "no online: pausing [PS-3103]")
    session.write(session.commit(prewrite))
    assert session.pump.wait() == 0
    status = session.registry.get(NodeKind.PUMP, "pump-1")
    assert status is not None
    assert status.state is NodeState.PAUSED


def test_a_purge_stops_at_the_checkpoint_and_a_purged_pull_is_an_error(nodes: Nodes) -> None:
    pump = nodes.add_pump(gc_days=1e-6, storage_segment_bytes_max=1 << 16)
    session = nodes.session(pump)
    kept = session.transaction()
    for _ in range(10):
        session.transaction(b"x" * (1 << 15))
    session.registry.put(NodeKind.DRAINER, drainer(session, kept.commit_ts - 1))
    time.sleep(0.3)
    reply = session.batches.TriggerGc(penstock_pb2.TriggerGcRequest(), timeout=20)
    assert "drainer drainer-1 (online) still needs binlogs after" in reply.message
    found = pull_until(session.pump.addr, session.cluster_id, kept.commit_ts, kept.commit_ts - 1)
    assert [commit_ts for commit_ts, _ in found] == [kept.commit_ts]
    session.registry.put(NodeKind.DRAINER, drainer(session, session.oracle.get_ts()))
    time.sleep(0.3)
    assert session.batches.TriggerGc(penstock_pb2.TriggerGcRequest(), timeout=20).message
    with pytest.raises(grpc.RpcError, match="purged") as caught:
        pull_until(session.pump.addr, session.cluster_id, kept.commit_ts, kept.commit_ts - 1)
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
