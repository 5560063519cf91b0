"""Real Pumps and a real etcd: what writers, pullers and operators can rely on."""

import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus
from penstock.pb import penstock_pb2, pump_pb2
from penstock.ts import compose, physical_ms
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import Ledger, LedgerWriter, pull_until, pulls

pytestmark = pytest.mark.alone

Factory = Callable[..., PumpProcess]


@pytest.fixture
def session(nodes: Nodes) -> Iterator[PumpSession]:
    session = nodes.session(nodes.add_pump(max_message_bytes=1 << 20))
    yield session
    session.close()


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


def test_every_refusal_says_what_is_wrong(session: PumpSession) -> None:
    status = grpc.StatusCode
    code, text = session.refusal(session.prewrite(), clusterID=session.cluster_id + 1)
    assert code is status.PERMISSION_DENIED
    assert text.startswith(f"cluster ID are mismatch, {session.cluster_id + 1} vs")
    code, text = session.refusal(b"\xff\xff garbage")
    assert (code, "undecodable binlog of 10 bytes" in text) == (status.INVALID_ARGUMENT, True)
    code, text = session.refusal(session.prewrite(b"x" * ((1 << 20) + 1)))
    assert code is status.RESOURCE_EXHAUSTED
    assert "larger than this Pump's limit of 1048576 (raise max-message-bytes" in text
    code, text = session.refusal(session.prewrite(b"x" * (40 << 20)))
    assert (code, "larger than max" in text) == (status.RESOURCE_EXHAUSTED, True)
    fake_ts = session.oracle.get_ts()
    code, text = session.refusal(
        Binlog(tp=BinlogType.ROLLBACK, start_ts=fake_ts, commit_ts=fake_ts)
    )
    assert (code, "only a Pump writes those" in text) == (status.INVALID_ARGUMENT, True)
    code, _ = session.refusal(Binlog(tp=BinlogType.COMMIT, start_ts=9, commit_ts=fake_ts))
    assert code is status.NOT_FOUND
    session.write(b"")  # A probe: the Pump is well after all that.
    session.transaction()


def test_a_waiting_puller_of_an_idle_pump_is_served_within_a_moment(session: PumpSession) -> None:
    stamps, begin_s = [], time.monotonic()
    for commit_ts, payload in pulls(session.pump.addr, session.cluster_id):
        assert decode_binlog(payload).is_fake
        stamps.append(commit_ts)
        if len(stamps) == 5:
            break
    took_s = time.monotonic() - begin_s
    assert 0.3 < took_s < 3
    assert physical_ms(stamps[-1]) - physical_ms(stamps[1]) >= 250


@pytest.mark.thorough
def test_an_open_transaction_holds_up_only_what_may_follow_it(nodes: Nodes) -> None:
    session = nodes.session(nodes.add_pump(txn_timeout_s=2))
    before = session.transaction()
    orphan = session.prewrite()
    session.write(orphan)
    after = session.transaction()
    session.pump.wait_for(f"transaction {orphan.start_ts} is rolled back")
    found = pull_until(session.pump.addr, session.cluster_id, after.commit_ts)
    merged = [b for _, payload in found if not (b := decode_binlog(payload)).is_fake]
    assert [b.commit_ts for b in merged] == [before.commit_ts, after.commit_ts]
    code, text = session.refusal(session.commit(orphan))
    assert (code, "rolled back" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_a_pump_keeps_its_name_and_its_binlogs_over_a_restart(session: PumpSession) -> None:
    commit = session.transaction()
    pump = session.pump
    assert pump.stop() == 0
    stopped = session.registry.get(NodeKind.PUMP, pump.node_id)
    assert stopped is not None
    assert stopped.state is NodeState.PAUSED
    assert stopped.max_commit_ts >= commit.commit_ts
    pump.start()
    back = session.registry.get(NodeKind.PUMP, pump.node_id)
    assert back is not None
    assert (back.state, back.host) == (NodeState.ONLINE, pump.addr)
    found = pull_until(pump.addr, session.cluster_id, commit.commit_ts)
    assert commit.commit_ts in [commit_ts for commit_ts, _ in found]


@pytest.mark.fault(
    "the same node id or data folder twice; a renamed host", "refused; keeps its name", cases="4"
)
def test_a_second_pump_on_the_same_data_or_name_says_so(session: PumpSession, nodes: Nodes) -> None:
    first = session.pump
    for settings, message in [
        ({"node_id": "twin", "data_dir": first.data_dir}, "lock|open"),
        (
            {"node_id": first.node_id, "data_dir": first.data_dir.with_name("other")},
            "another --node-id if a second process",
        ),
    ]:
        with pytest.raises(pytest.fail.Exception, match=message):
            nodes.add_pump(**settings)
    session.transaction()


def drainer(
    session: PumpSession, checkpoint_ts: int, *, age_s: int = 0, host: str = ""
) -> NodeStatus:
    return NodeStatus(
        node_id="drainer-1",
        host=host or "127.0.0.1:9",
        state=NodeState.ONLINE,
        max_commit_ts=checkpoint_ts,
        update_ts=session.oracle.get_ts() - compose(age_s * 1000, 0),
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


@pytest.mark.thorough
def test_a_pump_goes_offline_only_when_every_drainer_has_everything(session: PumpSession) -> None:
    commit = session.transaction()
    session.registry.put(NodeKind.DRAINER, drainer(session, commit.commit_ts - 1, age_s=60))
    session.batches.Close(penstock_pb2.CloseRequest(node_id="pump-1"), timeout=20)
    session.pump.wait_for("not offline yet: drainer drainer-1 .* behind, and not running")
    assert session.pump.status().state == "closing"
    time.sleep(1)
    session.registry.put(NodeKind.DRAINER, drainer(session, session.oracle.get_ts()))
    assert session.pump.wait() == 0
    status = session.registry.get(NodeKind.PUMP, "pump-1")
    assert status is not None
    assert status.state is NodeState.OFFLINE


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


def test_many_writers_and_two_pumps_lose_nothing(nodes: Nodes) -> None:
    sessions = [nodes.session(nodes.add_pump()) for _ in range(2)]
    ledgers = [Ledger(), Ledger()]
    writers = [
        LedgerWriter(ledger, session.oracle, session.pump.addr, session.cluster_id, seed=seed)
        for seed in range(4)
        for ledger, session in zip(ledgers, sessions, strict=True)
    ]
    for writer in writers:
        writer.start()
    eventually(lambda: min(ledger.acknowledged for ledger in ledgers) > 200, within_s=60)
    for writer in writers:
        writer.stop()
    for ledger, session in zip(ledgers, sessions, strict=True):
        until_ts = session.oracle.get_ts()
        found = pull_until(session.pump.addr, session.cluster_id, until_ts)
        assert ledger.check(found) >= ledger.acknowledged


@pytest.mark.thorough
def test_a_large_transaction_passes_whole_and_leaves_the_memory_again(nodes: Nodes) -> None:
    session = nodes.session(nodes.add_pump())
    value = bytes(64 << 20)
    commit = session.transaction(value)
    found = pull_until(session.pump.addr, session.cluster_id, commit.commit_ts)
    assert decode_binlog(found[-1][1]).prewrite_value == value
    assert session.pump.rss_bytes() < 1 << 30


def test_a_stopping_pump_ends_a_pull_without_an_error(session: PumpSession) -> None:
    commit = session.transaction()
    request = penstock_pb2.PullRequest(cluster_id=session.cluster_id, drainer_id="me")
    call = session.batches.Pull(request, timeout=30)
    next(call)
    assert "me after" in session.pump.status().details["pullers"]
    assert session.pump.stop() == 0
    rest = [commit_ts for batch in call for commit_ts in batch.commit_ts]
    assert all(commit_ts > commit.commit_ts for commit_ts in rest)
    assert call.code() is grpc.StatusCode.OK
