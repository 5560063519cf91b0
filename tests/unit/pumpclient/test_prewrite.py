import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog
from pumpclient.changes import SpoolFile
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.pump_set import Pumps
from pumpclient.delivery.retries import Deliveries
from pumpclient.delivery.selector import Selector
from pumpclient.delivery.session import Session
from pumpclient.errors import NoPump, OutcomeUnknown
from pumpclient.options import Options
from tests.kit.fakes.oracle import MemoryOracle
from tests.kit.wait import eventually
from tests.unit.pumpclient.scripted_pump import ScriptedPump

Refusal = penstock_pb2.Refusal
FULL = (Refusal.RESOURCE_EXHAUSTED, "no available space")
QUICK: dict[str, Any] = {
    "attempt_timeout_s": 0.3,
    "connect_timeout_s": 1.0,
    "prewrite_retry_s": 0.01,
    "commit_retry_s": 0.05,
    "probe_interval_s": 0.05,
    "close_timeout_s": 1.0,
}


def prewrite_of(start_ts: int) -> Payload:
    return Payload(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts))


def available(cluster: "Cluster") -> list[str]:
    return [pump.node_id for pump in cluster.pumps.all if pump.is_available]


class Cluster:
    """A client's parts over scripted Pumps; etcd's list is what `list_pumps` says."""

    def __init__(self, write_timeout_s: float = 2, strategy: str = "range", **options: Any):
        self.options = Options(**{**QUICK, **options})
        self.scripted: list[ScriptedPump] = []
        self.pumps = Pumps(7, Selector(strategy), self.options)
        self.deliveries = Deliveries(
            retry_s=self.options.commit_retry_s,
            attempt_timeout_s=self.options.attempt_timeout_s,
            count_max=self.options.deliveries_max,
        )
        self.pumps.on_moved = self.deliveries.hurry
        self.session = Session(
            oracle=MemoryOracle(),
            schemas=None,  # type: ignore[arg-type]  # Nothing here looks at tables,
            fence=None,  # type: ignore[arg-type]  # nor pins their version.
            pumps=self.pumps,
            deliveries=self.deliveries,
            write_timeout_s=write_timeout_s,
            options=self.options,
        )

    def start(self, *node_ids: str, **settings: Any) -> Sequence[ScriptedPump]:
        self.scripted += [ScriptedPump(node_id, **settings) for node_id in node_ids]
        self.list_pumps()
        return self.scripted

    def list_pumps(self, state: NodeState = NodeState.ONLINE) -> None:
        self.pumps.follow(
            [NodeStatus(node_id=p.node_id, host=p.address, state=state) for p in self.scripted]
        )

    def prewrite(self, start_ts: int) -> str:
        return self.session.prewrite(prewrite_of(start_ts)).node_id

    def close(self) -> None:
        self.deliveries.close(1)
        self.pumps.close(1)
        for pump in self.scripted:
            pump.stop()


_clusters: list[Cluster] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _clusters:
        _clusters.pop().close()


def cluster_of(**settings: Any) -> Cluster:
    _clusters.append(Cluster(**settings))
    return _clusters[-1]


def kinds(pump: ScriptedPump) -> list[tuple[BinlogType, int]]:
    return [(b.tp, b.start_ts) for b in pump.binlogs]


def type_of(payload: bytes) -> BinlogType:
    return decode_binlog(payload).tp


def test_prewrites_go_round_the_pumps() -> None:
    cluster = cluster_of(write_timeout_s=60, attempt_timeout_s=30)
    cluster.start("a", "b")
    assert [cluster.prewrite(ts) for ts in (1, 2, 3, 4)] == ["a", "b", "a", "b"]


def test_a_dead_pump_is_passed_over_at_once_and_asked_no_more() -> None:
    cluster = cluster_of(probe_interval_s=600, write_timeout_s=600)
    a, _ = cluster.start("a", "b")
    a.stop()
    begun_s = time.monotonic()
    assert [cluster.prewrite(ts) for ts in (1, 2, 3)] == ["b", "b", "b"]
    # In real time, since connections are: below the 600 s of the time-outs that it must not await.
    assert time.monotonic() - begun_s < 60
    assert available(cluster) == ["b"]


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "in the background"])
def test_a_commit_follows_its_pump_to_another_address_at_once(waits: bool) -> None:
    cluster = cluster_of(write_timeout_s=1200, commit_retry_s=600)
    (before,) = cluster.start("a")
    home = cluster.session.prewrite(prewrite_of(1))
    before.stop()
    commit = Binlog(tp=BinlogType.COMMIT, start_ts=1, commit_ts=2)
    start_s = time.monotonic()
    committing = threading.Thread(
        target=lambda: cluster.session.commit(home, commit, start_s=start_s, wait=waits)
    )
    committing.start()
    eventually(lambda: not waits or home.errors_in_a_row > 0)
    after = cluster.scripted[0] = ScriptedPump("a")
    cluster.list_pumps()
    # Long before it would be sent again without the news.
    eventually(lambda: kinds(after) == [(BinlogType.COMMIT, 1)], 60)
    committing.join(60)
    assert not committing.is_alive()


def test_a_probe_brings_a_pump_back() -> None:
    cluster = cluster_of()
    a, _ = cluster.start("a", "b")
    a.stop()
    cluster.prewrite(1)
    assert len(available(cluster)) == 1
    cluster.scripted[0] = ScriptedPump("a", port=a.port)
    eventually(lambda: len(available(cluster)) == 2)


def test_the_only_pump_is_asked_again_until_it_is_back() -> None:
    cluster = cluster_of(write_timeout_s=5, probe_interval_s=60)
    (a,) = cluster.start("a")
    refusals = iter([(Refusal.RETRYABLE, "starting")] * 3)
    a.verdict = lambda payload: next(refusals, None)
    assert cluster.prewrite(1) == "a"


def test_more_than_ten_errors_in_a_row_make_a_pump_unavailable() -> None:
    cluster = cluster_of(probe_interval_s=60, attempt_timeout_s=5)
    a, _ = cluster.start("a", "b")
    (pump_a,) = [p for p in cluster.pumps.all if p.node_id == "a"]
    a.verdict = lambda payload: (
        (Refusal.RETRYABLE, "sick") if type_of(payload) is BinlogType.PREWRITE else None
    )
    for start_ts in range(1, 100):
        assert cluster.prewrite(start_ts) == "b"
        assert pump_a.is_available == (pump_a.errors_in_a_row <= 10)
    assert pump_a.errors_in_a_row == 11


def test_a_pump_out_of_space_is_not_asked_again_for_the_same_binlog() -> None:
    cluster = cluster_of()
    a, b = cluster.start("a", "b")
    asked: list[bytes] = []

    def full(payload: bytes) -> tuple[Refusal.Code, str]:
        asked.append(payload)
        return FULL

    a.verdict = full
    busy = iter([(Refusal.RETRYABLE, "busy")] * 3)
    b.verdict = lambda payload: next(busy, None)
    assert cluster.prewrite(1) == "b"
    assert len(asked) <= 1
    assert len(available(cluster)) == 2


def test_when_all_pumps_are_out_of_space_it_says_so_at_once() -> None:
    cluster = cluster_of(write_timeout_s=30)
    cluster.start("a", "b", verdict=lambda payload: FULL)
    with pytest.raises(NeedsOperator, match="out of space: a, b"):
        cluster.prewrite(1)


def test_a_binlog_no_pump_would_take_is_malformed() -> None:
    cluster = cluster_of(write_timeout_s=30)
    cluster.start("a", verdict=lambda payload: (Refusal.INVALID, "too large"))
    with pytest.raises(Malformed, match="too large"):
        cluster.prewrite(1)


def test_a_pump_of_another_cluster_needs_an_operator() -> None:
    cluster = cluster_of()
    cluster.start("a", verdict=lambda payload: (Refusal.CLUSTER_MISMATCH, "7 vs 8"))
    with pytest.raises(NeedsOperator, match="7 vs 8"):
        cluster.prewrite(1)


def test_without_any_pump_the_error_says_how_to_get_one() -> None:
    cluster = cluster_of(write_timeout_s=0.1)
    with pytest.raises(NoPump, match="penstock pump"):
        cluster.prewrite(1)


def test_without_an_online_pump_the_error_names_those_that_are_not() -> None:
    cluster = cluster_of(write_timeout_s=0.1)
    cluster.start("a")
    cluster.list_pumps(NodeState.PAUSED)
    with pytest.raises(NoPump, match="registered are a"):
        cluster.prewrite(1)


def test_pumps_that_never_answer_end_in_a_retryable_error() -> None:
    cluster = cluster_of(write_timeout_s=0.3)
    (a,) = cluster.start("a")
    a.stop()
    with pytest.raises(Retryable, match="no Pump took the Prewrite"):
        cluster.prewrite(1)


def test_a_prewrite_in_doubt_is_rolled_back_there_after_it_went_elsewhere() -> None:
    cluster = cluster_of(write_timeout_s=20, attempt_timeout_s=1.0)
    a, b = cluster.start("a", "b")
    a.gate.clear()
    assert cluster.prewrite(1) == "b"
    a.gate.set()
    eventually(lambda: (BinlogType.ROLLBACK, 1) in kinds(a))
    assert (BinlogType.ROLLBACK, 1) not in kinds(b)


def test_an_orphan_on_a_pump_that_died_is_rolled_back_when_it_is_back() -> None:
    cluster = cluster_of(write_timeout_s=20, attempt_timeout_s=1.0)
    a, b = cluster.start("a", "b")
    a.gate.clear()

    assert cluster.prewrite(1) == "b"
    a.stop()
    revived = cluster.scripted[0] = ScriptedPump("a", port=a.port)
    eventually(lambda: (BinlogType.ROLLBACK, 1) in kinds(revived))
    assert kinds(b) == [(BinlogType.PREWRITE, 1)]


def test_the_pump_that_took_a_prewrite_on_a_second_try_gets_no_rollback() -> None:
    cluster = cluster_of()
    (a,) = cluster.start("a")
    first = iter([(Refusal.RETRYABLE, "disk error")])
    a.verdict = lambda payload: next(first, None)
    assert cluster.prewrite(1) == "a"
    cluster.deliveries.close(1)
    assert (BinlogType.ROLLBACK, 1) not in kinds(a)


def test_a_prewrite_that_failed_everywhere_is_rolled_back_everywhere_it_may_be() -> None:
    cluster = cluster_of(write_timeout_s=0.2)
    a, b = cluster.start("a", "b")
    a.verdict = b.verdict = lambda payload: (
        (Refusal.RETRYABLE, "sick") if type_of(payload) is BinlogType.PREWRITE else None
    )
    with pytest.raises(Retryable):
        cluster.prewrite(1)
    eventually(lambda: (BinlogType.ROLLBACK, 1) in kinds(a))
    eventually(lambda: (BinlogType.ROLLBACK, 1) in kinds(b))


def commit_of(start_ts: int) -> Binlog:
    return Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=start_ts + 10)


def test_a_commit_goes_to_the_pump_of_its_prewrite_even_while_that_is_closing() -> None:
    cluster = cluster_of()
    a, b = cluster.start("a", "b")
    home = cluster.session.prewrite(prewrite_of(1))
    cluster.list_pumps(NodeState.CLOSING)
    cluster.session.commit(home, commit_of(1), start_s=time.monotonic(), wait=True)
    assert kinds(a) == [(BinlogType.PREWRITE, 1), (BinlogType.COMMIT, 1)]
    assert kinds(b) == []


def test_a_commit_waits_out_a_restart_of_its_pump() -> None:
    cluster = cluster_of(write_timeout_s=10)
    a, _ = cluster.start("a", "b")
    home = cluster.session.prewrite(prewrite_of(1))
    a.stop()
    revived = cluster.scripted[0] = ScriptedPump("a", port=a.port)
    cluster.session.commit(home, commit_of(1), start_s=time.monotonic(), wait=True)
    assert kinds(revived) == [(BinlogType.COMMIT, 1)]


def test_a_commit_whose_pump_is_gone_is_unknown_and_delivered_when_it_is_back() -> None:
    cluster = cluster_of(write_timeout_s=0.2)
    a, _ = cluster.start("a", "b")
    home = cluster.session.prewrite(prewrite_of(1))
    a.stop()
    with pytest.raises(OutcomeUnknown) as unknown:
        cluster.session.commit(home, commit_of(1), start_s=time.monotonic(), wait=True)
    assert (unknown.value.start_ts, unknown.value.commit_ts) == (1, 11)
    assert not unknown.value.wait(0)
    revived = cluster.scripted[0] = ScriptedPump("a", port=a.port)
    assert unknown.value.wait(5)
    assert kinds(revived) == [(BinlogType.COMMIT, 1)]


def test_a_commit_that_its_pump_contradicts_did_not_happen() -> None:
    cluster = cluster_of(write_timeout_s=5)
    (a,) = cluster.start("a")
    home = cluster.session.prewrite(prewrite_of(1))
    a.verdict = lambda payload: (Refusal.INVALID, "it was rolled back")
    with pytest.raises(Retryable, match=r"did not happen.*it was rolled back"):
        cluster.session.commit(home, commit_of(1), start_s=time.monotonic(), wait=True)


def test_a_pump_that_moved_is_followed_to_its_new_address() -> None:
    cluster = cluster_of()
    (a,) = cluster.start("a")
    home = cluster.session.prewrite(prewrite_of(1))
    a.stop()
    moved = cluster.scripted[0] = ScriptedPump("a")
    cluster.list_pumps()
    cluster.session.commit(home, commit_of(1), start_s=time.monotonic(), wait=True)
    assert kinds(moved) == [(BinlogType.COMMIT, 1)]


def test_a_transaction_that_fails_after_its_prewrite_is_rolled_back() -> None:
    cluster = cluster_of()
    (a,) = cluster.start("a")
    with pytest.raises(Retryable, match="no oracle"), cluster.session.prewritten(prewrite_of(1)):
        raise Retryable("no oracle", code=Code.ETCD_AWAY)
    eventually(lambda: (BinlogType.ROLLBACK, 1) in kinds(a))


def large_prewrite(start_ts: int = 1, rows: bytes | SpoolFile = bytes(3 << 20)) -> Payload:
    return Payload(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts), rows)


def test_a_large_prewrite_goes_to_one_pump_in_chunks() -> None:
    cluster = cluster_of()
    (pump,) = cluster.start("pump-1")
    assert cluster.session.prewrite(large_prewrite()).node_id == "pump-1"
    (taken,) = pump.large
    assert decode_binlog(taken).prewrite_value == bytes(3 << 20)
    assert available(cluster)


def test_a_large_prewrite_that_a_pump_refuses_begins_again_on_the_next() -> None:
    cluster = cluster_of()
    first, second = cluster.start("pump-1", "pump-2")
    first.verdict = lambda payload: FULL
    homes = {cluster.session.prewrite(large_prewrite(ts)).node_id for ts in (1, 2)}
    assert homes == {"pump-2"}
    assert [decode_binlog(data).start_ts for data in second.large] == [1, 2]


def test_a_large_prewrite_over_the_pumps_limit_is_malformed() -> None:
    cluster = cluster_of()
    (pump,) = cluster.start("pump-1")
    pump.verdict = lambda payload: (Refusal.INVALID, "larger than this Pump's limit of 5")
    with pytest.raises(Malformed, match=r"limit of 5.*nothing was written"):
        cluster.session.prewrite(large_prewrite())
    pump.verdict = lambda payload: None
    assert cluster.prewrite(2) == "pump-1"


def test_pumps_without_the_method_are_passed_over_and_named_when_there_is_no_other() -> None:
    cluster = cluster_of()
    cluster.start("pump-1", has_large=False)
    with pytest.raises(NeedsOperator, match=r"pump-1.*no method WriteLarge.*update the Pumps"):
        cluster.session.prewrite(large_prewrite())
    cluster.start("pump-2")
    assert cluster.session.prewrite(large_prewrite(2)).node_id == "pump-2"
    assert cluster.prewrite(3) in ("pump-1", "pump-2")


def test_rows_that_cannot_be_read_end_the_write_with_their_own_error() -> None:
    cluster = cluster_of()

    class Broken(SpoolFile):
        def read(self, offset: int, length: int) -> bytes:
            if offset > 2 << 20:
                raise NeedsOperator("the file is gone", hint="look", code=Code.DDL_UNSUPPORTED)
            return bytes(length)

    broken = Broken(None)
    broken.size_bytes = 4 << 20
    (pump,) = cluster.start("pump-1")
    with pytest.raises(NeedsOperator, match="the file is gone"):
        cluster.session.prewrite(large_prewrite(rows=broken))
    broken.close()
    assert pump.large == []


def test_a_rollback_that_is_one_too_many_is_named_and_left_to_the_pumps_resolver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(deliveries_max=1)
    (pump,) = cluster.start("pump-1")
    homes = [cluster.session.prewrite(prewrite_of(n)) for n in (1, 2)]
    pump.gate.clear()
    for start_ts, home in enumerate(homes, 1):
        cluster.session.roll_back(home, start_ts)
    pump.gate.set()
    assert caplog.messages == ["the Rollback of 2 to pump pump-1 is not followed up"]
    eventually(lambda: [b.start_ts for b in pump.binlogs if b.tp is BinlogType.ROLLBACK] == [1])
