"""What a lake keeps, what it removes, and what it waits for."""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.settings.targets import LakeTarget
from drainer.sinks.delta import lake as lake_module
from drainer.sinks.delta import sink as sink_module
from drainer.sinks.delta.sink import DeltaSink
from drainer.sinks.opening import open_table_sink
from drainer.task.sql import lake_files
from penstock.errors import NeedsOperator
from tests.contract.test_lake_sink import Lake, lake
from tests.kit.crash.disks import small_volume
from tests.kit.sink_target import sink_target
from tests.kit.wait import eventually
from tests.kit.workloads.sink_stream import Change, inserts

__all__ = ["lake"]  # A fixture.


@pytest.mark.slow
def test_upkeep_joins_small_files_and_keeps_every_version_that_is_promised(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "MARGIN_HOURS", 0)
    sink = lake.begun("optimize=0")
    points = [lake.put(sink, heap=inserts((number, "x"))) for number in range(6)]
    wanted = {point.commit_ts: lake.rows_at(point.commit_ts, "heap") for point in points}
    assert len(lake.table("heap").file_uris()) == 6
    newest = points[-1]
    for retention, kept in (("7d", 6), ("0", 1)):
        tidy = lake.open(f"retention={retention}&optimize=1h")
        tidy.load_checkpoint()
        for _ in range(12):
            tidy.save_checkpoint(newest)
        last = lake.put(tidy, heap=inserts((9, "y")))
        assert lake.rows("heap") == sorted([*wanted[points[-1].commit_ts], (9, "y")], key=repr)
        promised = {ts for ts in wanted if ts in lake.states()}
        assert len(promised) == (kept if retention == "7d" else 0)
        for ts in promised:
            assert lake.rows_at(ts, "heap") == wanted[ts]
        newest = lake.put(tidy, heap=[((9, "y"), None)])
        tidy.close()
    assert last.commit_ts in lake.states()
    assert len(list((lake.folder / "shop/heap").glob("*.parquet"))) <= 4


@pytest.mark.slow
def test_a_dropped_table_is_removed_when_its_retention_has_passed(lake: Lake) -> None:
    sink = lake.begun()
    point = lake.ddl(sink, "DROP TABLE t")
    aside = lake.folder / f"_penstock/dropped/{point.commit_ts}"
    long_ago = time.time() - 8 * 86400
    for retention, stays in (("10d", True), ("7d", False)):
        os.utime(aside, (long_ago, long_ago))
        following = lake.open(f"retention={retention}")
        following.load_checkpoint()
        lake.put(following, u=inserts((random.randrange(1000), "x")))
        assert aside.exists() is stays


@pytest.mark.fault(
    "a disk is full in the middle of a file", "the Drainer waits, says why, and goes on", cases="1"
)
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    with small_volume(tmp_path / "disk", 6 << 20) as disk:
        lake = Lake(disk.path / "lake")
        sink = lake.begun("optimize=0")
        lake.put(sink, t=inserts((0, "a")))
        disk.fill()
        rows = inserts(*((number, "b" * 20) for number in range(1, 20_000)))
        writing = threading.Thread(target=lake.put, args=(sink,), kwargs={"t": rows})
        writing.start()
        eventually(lambda: "No space left" in sink.waits_for())
        disk.free()
        writing.join(30)
        assert not writing.is_alive()
        assert len(lake.rows()) == 20_000
        assert sink.waits_for() == ""
        sink.close()


KEYS = st.integers(0, 5)
STEPS = st.lists(st.lists(st.tuples(KEYS, KEYS, st.booleans()), max_size=8), max_size=4)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=STEPS, rows_min=st.sampled_from([1000, 0]))
def test_a_lake_has_what_upstream_has_after_any_batches(
    batches: list[list[tuple[int, int, bool]]],
    rows_min: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_module, "MERGE_ROWS_MIN", rows_min)
    monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", rows_min or 2)
    lake = Lake(tmp_path_factory.mktemp("lake"))
    sink = lake.begun()
    keyed: dict[int, str] = {}
    heap: Counter[tuple[int, str]] = Counter()
    wanted = {}
    for number, batch in enumerate(batches):
        changes: list[Change] = []
        counted: list[Change] = []
        for key, other, goes in batch:
            row, held = (key, f"{number}.{other}"), (other, "held")
            if key not in keyed:
                changes.append((None, row))
                keyed[key] = row[1]
            elif goes:
                changes.append(((key, keyed.pop(key)), None))
            elif other not in keyed:
                changes.append(((key, keyed.pop(key)), (other, row[1])))
                keyed[other] = row[1]
            if goes and heap[held]:
                counted.append((held, None))
                heap[held] -= 1
            else:
                counted.append((None, held))
                heap[held] += 1
        point = lake.put(sink, t=changes, heap=counted)
        wanted[point.commit_ts] = sorted(keyed.items()), Counter(heap)
    for ts, (rows, counts) in wanted.items():
        states = lake.states()
        if ts in states:
            assert sorted(lake.rows_at(ts)) == rows
            assert Counter(lake.rows_at(ts, "heap")) == +counts
    sink.close()


def test_a_url_says_where_a_lake_is_and_how_it_is_kept() -> None:
    target = sink_target(
        LakeTarget, "delta:///srv/my%20lake?interval=5s&retention=1d&accept=a.b@7,c.d@1"
    )
    assert target.folder == Path("/srv/my lake")
    assert (target.interval_s, target.batch_bytes) == (5.0, 64 << 20)
    assert (target.retention_s, target.optimize_s) == (86400.0, 3600.0)
    assert target.accepted == {("a.b", 7), ("c.d", 1)}
    gathering = DeltaSink(target, cluster_id=1, retry_s_max=0)
    assert (gathering.gathers_s, gathering.gathered_rows_max) == (5, 1 << 20)
    sink = DeltaSink(sink_target(LakeTarget, "delta:lake?interval=0"), cluster_id=1, retry_s_max=0)
    assert sink.gathers_s == 0


@pytest.mark.parametrize(
    "apply",
    [
        ApplyConfig(strategy="statements"),
        ApplyConfig(strategy="events"),
        ApplyConfig(mode="parallel"),
    ],
)
def test_a_lake_takes_merge_in_mode_snapshot_alone(apply: ApplyConfig) -> None:
    with pytest.raises(NeedsOperator):
        DrainerConfig(sink="delta:///srv/lake", apply=apply)
    assert DrainerConfig(sink="delta:///srv/lake").strategy == "merge"


def test_who_needs_sql_is_not_given_a_lake() -> None:
    with pytest.raises(NeedsOperator, match="no sink for downstream scheme 'delta'"):
        open_table_sink("delta:///srv/lake", cluster_id=1)
