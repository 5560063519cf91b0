"""kill -9 of a TiDB, of a Pump, of the Drainers: nothing is lost, nothing is there twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kit.servers.fix_tidb import TidbRig
from tests.kit.workloads.tidb_writers import TidbWriters, changes, changes_without_key, either

KILLS = 3

pytestmark = pytest.mark.fault


@contextmanager
def written(rig: TidbRig, schema: str) -> Iterator[TidbWriters]:
    rig.tidbs[0].run(
        f"CREATE DATABASE {schema}",
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, n INT, v VARCHAR(40), KEY (n))",
        f"CREATE TABLE {schema}.h (n INT, v VARCHAR(40))",
    )
    transactions = either(changes(f"{schema}.t"), changes_without_key(f"{schema}.h"))
    with TidbWriters(rig.tidbs, transactions, threads=6) as writers:
        writers.wait_for(5)
        yield writers


@pytest.mark.fault(
    "TiDB is killed under load, three times",
    "its open transactions end as TiKV says, after its locks",
    cases="3",
)
def test_a_killed_tidb_s_open_transactions_end_as_tikv_says_after_its_locks(
    tidb_rig: TidbRig,
) -> None:
    with written(tidb_rig, "killed_tidb") as writers:
        for _ in range(KILLS):
            killed = tidb_rig.tidbs[1]
            killed.kill()
            killed_ts = tidb_rig.now_ts()
            killed.start()
            # They would wait for good, and this fail, if TiKV were not asked about those.
            for drainer in tidb_rig.drainers.values():
                drainer.wait_until(killed_ts)
            writers.wait_for(5)
    assert tidb_rig.check("killed_tidb")["t"] > 0


@pytest.mark.fault(
    "a Pump is killed under load; all Drainers are, before a DDL, and start after it",
    "nothing is lost, nothing is there twice",
    cases="6",
)
def test_a_killed_pump_loses_nothing(tidb_rig: TidbRig) -> None:
    with written(tidb_rig, "killed_pump") as writers:
        for n in range(KILLS):
            pump = tidb_rig.pumps[n % 2]
            pump.kill()
            writers.wait_for(5)
            pump.start()
            writers.wait_for(5)
    assert tidb_rig.check("killed_pump")["t"] > 0


def test_killed_drainers_repeat_nothing_and_follow_a_ddl_that_they_missed(
    tidb_rig: TidbRig,
) -> None:
    with written(tidb_rig, "killed_drainer") as writers:
        for n in range(KILLS):
            for drainer in tidb_rig.drainers.values():
                drainer.kill()
            writers.wait_for(5)
            tidb_rig.tidbs[n % 2].run(
                f"ALTER TABLE killed_drainer.t ADD COLUMN w{n} INT DEFAULT {n}",
                f"ALTER TABLE killed_drainer.t ADD INDEX (w{n}), ADD COLUMN x{n} INT AFTER id",
            )
            writers.wait_for(5)
            tidb_rig.start_drainers()
    assert tidb_rig.check("killed_drainer")["t"] > 0
