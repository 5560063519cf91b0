import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.connection import PumpWriter, Target
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options
from tests.unit.pumpclient.scripted_pump import ScriptedPump

Refusal = penstock_pb2.Refusal


_pumps: list[ScriptedPump] = []
_writers: list[PumpWriter] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _writers:
        _writers.pop().close(5)
    while _pumps:
        _pumps.pop().stop()


def make_pump(*args: Any, **settings: Any) -> ScriptedPump:
    _pumps.append(ScriptedPump(*args, **settings))
    return _pumps[-1]


def make_writer(pump: ScriptedPump, node_id: str = "pump-1", **options: Any) -> PumpWriter:
    target = Target(node_id=node_id, address=pump.address, cluster_id=7)
    _writers.append(PumpWriter(target, Options(**options)))
    return _writers[-1]


def prewrite(start_ts: int, size: int = 10) -> bytes:
    return encode_binlog(
        Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=b"x" * size)
    )


def write(writer: PumpWriter, payload: bytes) -> Failure | None:
    pending = PendingWrite(payload)
    writer.submit([pending], 30)
    return pending.settle(30)


def test_a_write_returns_once_the_pump_has_it() -> None:
    pump = make_pump()
    assert write(make_writer(pump), prewrite(1)) is None
    assert [b.start_ts for b in pump.binlogs] == [1]
    assert pump.cluster_ids == {7}


def test_what_waits_for_the_pump_travels_together() -> None:
    pump = make_pump()
    writer = make_writer(pump, batches_in_flight_max=1)
    pump.gate.clear()
    pendings = [PendingWrite(prewrite(ts)) for ts in range(1, 51)]
    writer.submit([pendings[0]], 1)
    assert pump.arrived.acquire(timeout=5)
    for pending in pendings[1:]:
        writer.submit([pending], 1)
    pump.gate.set()
    assert [p.settle(5) for p in pendings] == [None] * 50
    assert [len(batch) for batch in pump.batches] == [1, 49]


def test_a_refusal_is_for_its_binlog_alone() -> None:
    bad = prewrite(2)
    pump = make_pump(verdict=lambda p: (Refusal.RESOURCE_EXHAUSTED, "full") if p == bad else None)
    writer = make_writer(pump)
    pendings = [PendingWrite(prewrite(ts)) for ts in (1, 2, 3)]
    for pending in pendings:
        writer.submit([pending], 1)
    first, second, third = (p.settle(5) for p in pendings)
    assert (first, third) == (None, None)
    assert second == Failure(Reason.NO_SPACE, "full", maybe_stored=False)


def test_a_lost_connection_leaves_sent_writes_in_doubt_and_the_next_one_reconnects() -> None:
    pump = make_pump()
    writer = make_writer(pump)
    pump.gate.clear()
    pending = PendingWrite(prewrite(1))
    writer.submit([pending], 1)
    assert pump.arrived.acquire(timeout=5)
    pump.stop()
    failure = pending.settle(5)
    assert failure is not None
    assert (failure.reason, failure.maybe_stored) == (Reason.BROKEN, True)
    again = make_pump(port=pump.port)
    assert write(writer, prewrite(2)) is None
    assert [b.start_ts for b in again.binlogs] == [2]


def test_a_pump_that_is_not_there_stores_nothing() -> None:
    pump = make_pump()
    pump.stop()
    failure = write(make_writer(pump), prewrite(1))
    assert failure is not None
    assert (failure.reason, failure.maybe_stored) == (Reason.BROKEN, False)


def test_nothing_is_sent_to_another_node_on_the_pumps_address() -> None:
    other = make_pump("pump-2")
    failure = write(make_writer(other, node_id="pump-1"), prewrite(1))
    assert failure is not None
    assert not failure.maybe_stored
    assert "pump-2" in failure.message
    assert other.binlogs == []


def test_no_answer_in_time_is_a_failure_in_doubt() -> None:
    pump = make_pump()
    pump.gate.clear()
    pending = PendingWrite(prewrite(1))
    make_writer(pump).submit([pending], 5)
    assert pump.arrived.acquire(timeout=30)
    failure = pending.settle(0.2)
    assert failure is not None
    assert (failure.reason, failure.maybe_stored) == (Reason.TIMED_OUT, True)
    pump.gate.set()


def test_dropping_the_connection_frees_everyone_who_waits() -> None:
    pump = make_pump()
    writer = make_writer(pump)
    pump.gate.clear()
    pending = PendingWrite(prewrite(1))
    writer.submit([pending], 1)
    assert pump.arrived.acquire(timeout=5)
    writer.drop_connection()
    failure = pending.settle(5)
    assert failure is not None
    assert failure.reason is Reason.BROKEN
    pump.gate.set()


def test_a_pump_without_batches_gets_one_call_per_binlog() -> None:
    pump = make_pump(has_batches=False)
    writer = make_writer(pump)
    assert [write(writer, prewrite(ts)) for ts in (1, 2)] == [None, None]
    assert pump.unary_calls == 2
    assert pump.cluster_ids == {7}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("rpc error: code = ResourceExhausted desc = x", Reason.NO_SPACE),
        ("no available space, available: 1, StopWriteAtAvailableSpace: 2", Reason.NO_SPACE),
        ("no online: paused", Reason.NOT_ONLINE),
        ("cluster ID are mismatch, 1 vs 2", Reason.CLUSTER_MISMATCH),
        ("disk on fire", Reason.ERROR),
    ],
)
def test_the_errors_of_tidb_binlog_are_recognized_by_their_text(
    message: str, reason: Reason
) -> None:
    pump = make_pump(has_batches=False, verdict=lambda p: (0, message))
    failure = write(make_writer(pump), prewrite(1))
    assert failure is not None
    assert failure.reason is reason
    assert message in failure.message


def test_what_must_only_go_to_a_known_node_does_not_go_to_one_without_an_identity() -> None:
    pump = make_pump(has_batches=False)
    pending = PendingWrite(prewrite(1), needs_known=True)
    make_writer(pump).submit([pending], 1)
    failure = pending.settle(5)
    assert failure is not None
    assert failure.reason is Reason.INVALID
    assert pump.unary_calls == 0


def test_closing_sends_what_is_queued_and_ends_all_threads() -> None:
    pump = make_pump()
    before = set(threading.enumerate())
    writer = make_writer(pump)
    pendings = [PendingWrite(prewrite(ts)) for ts in range(1, 4)]
    for pending in pendings:
        writer.submit([pending], 1)
    writer.close(5)
    assert [p.settle(0) for p in pendings] == [None] * 3
    ours = ("pumpclient", "penstock")
    left = {t for t in set(threading.enumerate()) - before if t.name.startswith(ours)}
    assert not left


def test_closing_does_not_wait_without_end_for_a_pump_that_hangs() -> None:
    pump = make_pump()
    writer = make_writer(pump)
    pump.gate.clear()
    pending = PendingWrite(prewrite(1))
    writer.submit([pending], 1)
    assert pump.arrived.acquire(timeout=5)
    writer.close(0.1)
    assert pending.settle(0) is not None
    pump.gate.set()
