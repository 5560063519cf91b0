"""A segment of the log is gone: who learns what, and the way on that an operator can choose."""

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import Registry
from penstock.errors import Corrupt
from penstock.local.etcd import EtcdServer
from penstock.log.segment import segment_name
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from pump.store.recovery import SET_ASIDE_FOLDER
from pump.store.storage import NoPrewrite, NotStored, PurgedRange, Record, Storage
from tests.kit.fakes.storage import SMALL, commit, commits, fake, opened, prewrite, rollback, write
from tests.kit.servers.fix_pump import PumpProcess

pytestmark = pytest.mark.fault

ENDS = re.compile(r"timestamps in \((\d+), (\d+)\]")


def filled(path: Path) -> list[list[tuple[int, int]]]:
    """Fill a storage and return its transactions by the segment that their Prewrites are in."""
    storage = opened(path)
    by_segment: list[list[tuple[int, int]]] = []
    write(storage, prewrite(1))  # Open through several segments.
    ts, ends = 10, list[Record]()
    while len(by_segment) < 6:
        # A Commit with the next Prewrite, so that pairs are cut apart by the ends of segments.
        write(storage, *ends, prewrite(ts))
        number = storage._segments.end.segment
        ends = [commit(ts, ts + 1)]
        while len(by_segment) <= number:
            by_segment.append([])
        by_segment[number].append((ts, ts + 1))
        ts += 2
        if ts == 80:
            write(storage, commit(1, ts))
            ts += 2
    write(storage, *ends)
    write(storage, fake(ts))
    storage.close()
    return by_segment


def refusal(path: Path, accepted_ts: int = 0) -> Corrupt:
    with pytest.raises(Corrupt) as raised:
        opened(path, config=replace(SMALL, accept_loss_up_to_ts=accepted_ts))
    return raised.value


def accepting(path: Path, ts: int) -> Storage:
    return opened(path, config=replace(SMALL, accept_loss_up_to_ts=ts))


GAPS: list[tuple[int, ...]] = [(1,), (2,), (3,), (1, 2), (2, 3, 4)]
# Without an index a missing beginning cannot be distinguished from a purge.
CASES = [(gap, has) for gap in GAPS for has in (True, False)] + [((0,), True), ((0, 1, 2), True)]


@pytest.mark.fault(
    "a segment missing (removed: the oldest, in the middle, several; with index and without)"
)
@pytest.mark.parametrize(("gap", "has_index"), CASES)
def test_a_gap_is_named_and_abandoned_only_by_its_name(
    tmp_path: Path, gap: tuple[int, ...], has_index: bool, caplog: pytest.LogCaptureFixture
) -> None:
    by_segment = filled(tmp_path)
    every = [txn for segment in by_segment for txn in segment]
    for number in gap:
        (tmp_path / "log" / segment_name(number)).unlink()
    if not has_index:
        shutil.rmtree(tmp_path / "index")
    problem = refusal(tmp_path)
    assert segment_name(gap[0]) in str(problem)
    assert f"accept-loss-up-to-ts = {ENDS.findall(str(problem))[0][1]} " in str(problem)
    after_ts, up_to_ts = map(int, ENDS.findall(str(problem))[0])
    lost = [txn for number in gap for txn in by_segment[number]]
    # The one that was open all the time may begin before.
    assert all(after_ts < start_ts <= up_to_ts for start_ts, _ in lost if start_ts != 1)
    refusal(tmp_path, up_to_ts - 1)
    refusal(tmp_path, up_to_ts + 1)

    with caplog.at_level(logging.ERROR):
        storage = accepting(tmp_path, up_to_ts)
    assert f"the binlogs in ({after_ts}, {up_to_ts}] are lost" in caplog.text
    set_aside = sorted(path.name for path in (tmp_path / SET_ASIDE_FOLDER).iterdir())
    assert set_aside == [segment_name(n) for n in range(gap[0])]
    purged_ts = storage.purged_ts
    assert purged_ts >= up_to_ts
    for ts in (0, after_ts, up_to_ts - 1):
        with pytest.raises(PurgedRange, match=rf"\({ts}, {purged_ts}\]"):
            commits(storage, ts)
    assert commits(storage, purged_ts) == [txn for txn in every if txn[1] > purged_ts]
    # Whatever is not abandoned is all there: nothing is missing in silence.
    write(storage, prewrite(1000), commit(1000, 1001))
    storage.close()
    again = opened(tmp_path)
    assert commits(again, purged_ts)[-1] == (1000, 1001)
    assert again.purged_ts == purged_ts
    again.close()


def test_a_second_gap_needs_a_word_of_its_own(tmp_path: Path) -> None:
    filled(tmp_path)
    for number in (1, 3):
        (tmp_path / "log" / segment_name(number)).unlink()
    first = int(ENDS.findall(str(refusal(tmp_path)))[0][1])
    second = refusal(tmp_path, first)
    assert segment_name(3) in str(second)
    storage = accepting(tmp_path, int(ENDS.findall(str(second))[0][1]))
    assert storage.purged_ts > first
    storage.close()


def test_abandoning_continues_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    (tmp_path / "log" / segment_name(2)).unlink()
    up_to_ts = int(ENDS.findall(str(refusal(tmp_path)))[0][1])

    for killed_in in ("os.rename", "shutil.rmtree"):

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(f"pump.store.recovery.{killed_in}", killed)
            with pytest.raises(KeyboardInterrupt):
                accepting(tmp_path, up_to_ts)
    storage = accepting(tmp_path, up_to_ts)
    assert storage.purged_ts >= up_to_ts
    storage.close()


def test_a_commit_of_a_transaction_that_was_abandoned_is_refused(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(5))
    for ts in range(10, 200, 2):
        write(storage, prewrite(ts), commit(ts, ts + 1))
    storage.close()
    (tmp_path / "log" / segment_name(1)).unlink()
    up_to_ts = int(ENDS.findall(str(refusal(tmp_path)))[0][1])
    storage = accepting(tmp_path, up_to_ts)
    with pytest.raises(NotStored) as raised:
        storage.append([commit(5, 1000)])
    assert isinstance(raised.value.refused[0], NoPrewrite)
    write(storage, rollback(5))
    storage.close()


def test_a_missing_end_of_the_log_cannot_be_abandoned(tmp_path: Path) -> None:
    filled(tmp_path)
    last = max((tmp_path / "log").iterdir())
    last.unlink()
    assert last.name in str(refusal(tmp_path, 1 << 60))


@pytest.mark.thorough
def test_a_pump_names_the_range_refuses_late_pulls_and_continues_with_others(
    fresh_etcd: EtcdServer, pump_factory: Callable[..., PumpProcess], tmp_path: Path
) -> None:
    data = tmp_path / "pump-1"
    every = filled(data)
    (data / "log" / segment_name(2)).unlink()
    small = {"storage_segment_bytes_max": 2000, "storage_stop_write_at_available_bytes": 0}
    pump = pump_factory(fresh_etcd.url, waiting=False, data_dir=data, **small)
    found = pump.wait_for(r"accept-loss-up-to-ts = (\d+) in .storage.")
    assert pump.wait() != 0
    up_to_ts = int(found[1])
    pump = pump_factory(
        fresh_etcd.url, data_dir=data, storage_accept_loss_up_to_ts=up_to_ts, **small
    )
    pump.wait_for("as accepted: the binlogs in")
    client = connect(fresh_etcd.url)
    cluster_id = Registry(client).cluster_id()
    client.close()
    with pump.channel() as channel:
        stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        late = penstock_pb2.PullRequest(cluster_id=cluster_id, after_ts=up_to_ts - 1)
        with pytest.raises(grpc.RpcError, match=rf"\({up_to_ts - 1}, \d+\] are purged") as raised:
            next(iter(stub.Pull(late, timeout=60)))
        assert raised.value.code() is grpc.StatusCode.OUT_OF_RANGE
        purged_ts = int(re.findall(r", (\d+)\]", raised.value.details())[0])
        has_all = penstock_pb2.PullRequest(cluster_id=cluster_id, after_ts=purged_ts)
        batch = next(iter(stub.Pull(has_all, timeout=60)))
    expected = [commit_ts for segment in every for _, commit_ts in segment]
    left = [ts for ts in expected if ts > purged_ts]
    assert list(batch.commit_ts)[: len(left)] == left
