"""Clocks that jump, and a DDL history that is put back: nothing changes without a word."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import connect
from penstock.cluster.history import Guard, History
from penstock.codes import Code
from penstock.ctl import commands
from penstock.errors import NeedsOperator, PenstockError
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import OracleClient
from penstock.schema.model import DdlJob
from penstock.stream import BEGINNING, Ddl, Reader, Transaction
from penstock.ts import physical_ms
from pumpclient import Options, PumpClient
from tests.kit.crash import etcd_backup
from tests.kit.crash.preload import preloaded
from tests.kit.servers.fix_pump import PumpProcess

pytestmark = pytest.mark.thorough

MakePump = Callable[..., PumpProcess]
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
WAIT_S = 60.0
HOUR_S = 3600


def insert(client: PumpClient, table: str, **row: int) -> int:
    with client.begin("s") as txn:
        txn.insert(table, row)
    assert txn.commit_ts
    return txn.commit_ts


def rows_of(reader: Reader, count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        each = reader.get(WAIT_S)
        assert each is not None, reader.waits_for()
        if isinstance(each, Transaction):
            found += [(change.table, change.after) for change in each.changes]
    return found


@pytest.fixture
def jumping(
    tmp_path: Path, fresh_etcd: EtcdServer, pump_factory: MakePump, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], PumpProcess]:
    """Start a Pump that leads the oracle; set its wall clock ahead by so many seconds.

    The function returns the Pump.
    """
    ahead = tmp_path / "ahead"
    monkeypatch.setenv("LD_PRELOAD", str(preloaded("jumping_clock", tmp_path)))
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))
    pump = pump_factory(fresh_etcd.url)
    monkeypatch.delenv("LD_PRELOAD")

    def jump(seconds: int) -> PumpProcess:
        ahead.write_text(str(seconds))
        return pump

    return jump


@pytest.mark.fault(
    "the oracle's clock jumps by an hour while a DDL is decided",
    "the DDL is done, and in the stream",
    cases="1",
)
def test_a_clock_that_jumps_while_a_ddl_is_decided_does_not_lose_the_ddl(
    jumping: Callable[[int], PumpProcess], fresh_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = History.append

    def late(self: History, job: DdlJob, *, guards: Sequence[Guard] = ()) -> None:
        jumping(HOUR_S)
        time.sleep(4)  # By now the resolver has asked about the Prewrite, more than once.
        append(self, job, guards=guards)

    with PumpClient.connect(fresh_etcd.url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE s")
        with monkeypatch.context() as patch:
            patch.setattr(History, "append", late)
            client.execute_ddl("CREATE TABLE s.a (id INT PRIMARY KEY)")
        insert(client, "a", id=1)
        with Reader.connect(fresh_etcd.url, after=BEGINNING) as reader:
            made = [reader.get(WAIT_S), reader.get(WAIT_S)]
            assert [type(each) for each in made] == [Ddl, Ddl]
            assert rows_of(reader, 1) == [("a", {"id": 1})]


@pytest.mark.fault(
    "the clock jumps (± 100,000 s at random, over elections)",
    "timestamps grow; half or double speed until it agrees with the clock; not followed"
    " beyond a day",
    cases="100 histories + 4",
)
def test_a_leader_whose_clock_jumps_ahead_hands_out_no_time_that_is_far_ahead(
    jumping: Callable[[int], PumpProcess], fresh_etcd: EtcdServer
) -> None:
    with closing(connect(fresh_etcd.url)) as etcd, closing(OracleClient(etcd)) as oracle:
        for ahead_s in (HOUR_S, 400 * 24 * HOUR_S, -HOUR_S, 0):
            begin_s, before_ms = time.monotonic(), physical_ms(oracle.get_ts())
            pump = jumping(ahead_s)
            time.sleep(2)
            taken = [oracle.get_ts() for _ in range(3)]
            passed_ms = (time.monotonic() - begin_s) * 1000
            assert 0 <= physical_ms(taken[-1]) - before_ms <= 2 * passed_ms + 1000
            assert taken == sorted(set(taken))
            if ahead_s > 0:
                pump.wait_for(
                    r"clock is \d+ s ahead of the cluster's time.*set the clock right by NTP"
                )


def until_done(ddl: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            ddl()
            return
        except NeedsOperator:
            raise
        except PenstockError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


@pytest.mark.fault(
    "etcd is restored to what it was before a DDL",
    "a writer that knows the DDL writes nothing, nor does one that starts while a Pump has"
    " the DDL, before an operator gives it up; who follows the stream stops at the DDL of the"
    " other history, naming both",
    cases="1 + 12 + 6 + 3",
)
def test_after_a_restore_of_etcd_no_row_is_read_with_the_schema_of_the_other_history(
    fresh_etcd: EtcdServer, pump_factory: MakePump, tmp_path: Path
) -> None:
    pump_factory(fresh_etcd.url)
    with (
        PumpClient.connect(fresh_etcd.url, options=QUICK) as old,
        Reader.connect(fresh_etcd.url, after=BEGINNING) as reader,
    ):
        old.execute_ddl("CREATE DATABASE s")
        old.execute_ddl("CREATE TABLE s.a (id INT PRIMARY KEY, v INT)")
        backup = etcd_backup.take(fresh_etcd, tmp_path / "backup")
        old.execute_ddl("ALTER TABLE s.a ADD COLUMN discount INT")
        insert(old, "a", id=1, v=1, discount=50)
        assert rows_of(reader, 1) == [("a", {"id": 1, "v": 1, "discount": 50})]
        etcd_backup.put_back(fresh_etcd, backup)
        # A writer that knows the DDL which etcd has lost writes nothing under its version.
        with pytest.raises(NeedsOperator, match="discount") as refused:
            until_done(lambda: old.execute_ddl("CREATE TABLE s.b (id INT PRIMARY KEY)"))
        assert refused.value.code is Code.DDL_HISTORY
        with PumpClient.connect(fresh_etcd.url, options=QUICK) as new:

            def other_ddl() -> list[int]:
                return new.execute_ddl("ALTER TABLE s.a ADD COLUMN price INT")

            # Nor does one that starts now, as a Pump has the DDL, before an operator gives it up.
            for written in (other_ddl, lambda: insert(new, "a", id=2, v=2)):
                with pytest.raises(NeedsOperator, match=r"discount.*ends with.*CREATE") as e:
                    until_done(written)
                assert e.value.code is Code.DDL_HISTORY
            with closing(connect(fresh_etcd.url)) as etcd:
                assert History(etcd).schema_version() == 2
            (give_up,) = re.findall(r"penstock ctl (lost-ddl (\d+))", e.value.hint)
            on = ("--etcd-urls", fresh_etcd.url, "--confirm", give_up[1])
            assert commands.main([*give_up[0].split(), *on]) == 0
            until_done(other_ddl)
            insert(new, "a", id=2, v=2, price=70)
        # Who has followed the first history stops at the DDL of the second one.
        with pytest.raises(NeedsOperator, match="price") as stopped:
            rows_of(reader, 1)
        assert "discount" in stopped.value.problem
        assert stopped.value.code is Code.DDL_HISTORY
