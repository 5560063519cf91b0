"""What operators and bad luck do to Pumps with copies: each is refused, said, or loses nothing."""

import shutil
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import Registry
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from penstock.node.command import NEEDS_OPERATOR
from tests.kit.crash.preload import preloaded
from tests.kit.servers.fix_copies import WAIT_S, MakePump, Trio, lose_disk
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.judged_stream import judged_stream
from tests.kit.workloads.random_writer import RandomWriter

pytestmark = [pytest.mark.fault, pytest.mark.alone, pytest.mark.thorough]

LOAD_S = 1.0


def more_than(writer: RandomWriter, written: int) -> bool:
    return len(writer.items) > written


@pytest.mark.fault(
    "the folder of a copy is brought elsewhere, and a Pump started on it",
    "it refuses, under any name",
    cases="1 / 1",
)
def test_a_copy_that_was_brought_elsewhere_is_no_data_folder_of_a_pump(
    trio: Trio, nodes: Nodes, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    holder = trio.other(pump)
    epoch = trio.entry(pump).epoch
    brought = tmp_path / "brought"
    shutil.copytree(holder.data_dir / "copies" / pump.node_id, brought)
    for node_id in (pump.node_id, "pump-9"):
        started = nodes.add_pump(waiting=False, node_id=node_id, data_dir=brought, copies=2)
        started.wait_for("is a copy of a log, on the disk of another Pump", WAIT_S)
        assert started.wait() == NEEDS_OPERATOR
    assert trio.entry(pump).epoch == epoch
    trio.until_whole()


@pytest.mark.fault(
    "a data folder is replaced by the one of a backup",
    "refused, and the copy takes over",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_data_folder_from_a_backup_is_refused_and_the_log_served_from_its_copy(
    pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = Trio(pump_factory, etcd_server.url, etcd, takeover_after_s=8)
    pump, backup = trio.pumps[0], tmp_path / "backup"
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=7):
        time.sleep(LOAD_S)
        pump.stop()
        shutil.copytree(pump.data_dir, backup)
        pump.spawn()
        trio.until_whole()
        time.sleep(LOAD_S)
        lose_disk(pump)
        backup.rename(pump.data_dir)
        pump.spawn()
        pump.wait_for("the data folder on disk .* is older than the log: .*PS-3311", WAIT_S)
        assert pump.wait() == NEEDS_OPERATOR
        trio.until_moved(pump)
        pump.spawn()  # What it has is no part of the log any more, and is set aside.
        trio.until_whole()


@pytest.mark.fault(
    "a sync of a primary does not return",
    "it refuses new transactions, and the copy takes over after 10 s",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_whose_disk_takes_nothing_any_more_loses_its_log_to_a_copy_and_no_binlog(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=8) as writer:
        time.sleep(LOAD_S)
        pump.stop()
        pump.spawn("disk.sync=sleep(90)@150")
        trio.until_moved(pump)
        until_commits_go_on(writer)
        pump.kill_all()  # It waits for its disk, and no one for it.
        pump.spawn()
        trio.until_whole()


@pytest.mark.fault(
    "all copies are gone, with `copies-min = 1`",
    "the primary continues alone and says so; later it has copies again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_whose_copies_are_all_gone_continues_alone_if_it_may_and_says_so(
    pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = Trio(pump_factory, etcd_server.url, etcd, copies_min=1)
    alone, *others = trio.pumps
    with judged_stream(etcd_server.url, tmp_path / "audit.db") as writer:
        time.sleep(LOAD_S)
        for pump in others:
            pump.stop()
        eventually(lambda: not trio.entry(alone).replicas, WAIT_S)
        eventually(lambda: "1 of 2 copies" in alone.status().details["copies_problem"], WAIT_S)
        eventually(partial(more_than, writer, len(writer.items)), WAIT_S)
        for pump in others:
            pump.spawn()
        trio.until_whole()
        assert "copies_problem" not in alone.status().details
        lose_disk(alone)
        trio.until_moved(alone)
        alone.spawn()
        trio.until_online(alone)


@pytest.mark.fault(
    "a copy leaves the list as the last one, then the primary's disk is lost",
    "the disk that left is eligible, and takes over when it is back",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_disk_that_left_last_takes_over_when_the_primary_s_is_lost_as_well(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=2):
        time.sleep(LOAD_S)
        left = trio.other(pump)
        (third,) = {*trio.pumps} - {pump, left}
        third.kill()
        left.kill()
        eventually(lambda: bool(trio.entry(pump).eligible), WAIT_S)
        assert [copy.pump for copy in trio.entry(pump).eligible] == [left.node_id]
        lose_disk(pump)
        for each in (third, left):
            each.spawn()
        trio.until_moved(pump)
        assert trio.entry(pump).primary.pump == left.node_id
        pump.spawn()
        trio.until_whole()


def until_commits_go_on(writer: RandomWriter) -> None:
    """Wait until a transaction is acknowledged that began from now on."""
    for _ in range(2):
        eventually(partial(_is_after, writer, writer.last_ts), WAIT_S)


def _is_after(writer: RandomWriter, before_ts: int) -> bool:
    return writer.last_ts > before_ts


@pytest.mark.fault(
    "etcd is frozen, or killed, when a disk is lost", "the take-over waits for it", cases="0 / 2"
)
@pytest.mark.slow
def test_a_take_over_waits_while_etcd_is_gone_and_loses_nothing(
    pump_factory: MakePump, fresh_etcd: EtcdServer, tmp_path: Path
) -> None:
    with closing(connect(fresh_etcd.url)) as etcd:
        trio = Trio(pump_factory, fresh_etcd.url, etcd)
        pump = trio.pumps[0]
        with judged_stream(fresh_etcd.url, tmp_path / "audit.db", seed=3):
            for away, back in (
                (fresh_etcd.freeze, fresh_etcd.thaw),
                (fresh_etcd.kill, fresh_etcd.start),
            ):
                time.sleep(LOAD_S)
                lose_disk(pump)
                time.sleep(1.2)
                away()  # Before the copy has waited for long enough, and back when it has.
                time.sleep(1.5)  # Not so long that writers lose their lease.
                back()
                trio.until_moved(pump)
                pump.spawn()
                trio.until_whole()


@pytest.mark.fault(
    "the wall clocks of two Pumps jump an hour ahead and back", "no log moves", cases="0 / 6"
)
@pytest.mark.slow
def test_a_clock_that_jumps_moves_no_log_and_loses_nothing(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(preloaded("jumping_clock", tmp_path)))
    ahead = {pump: tmp_path / f"{pump.node_id}.ahead" for pump in trio.pumps[:2]}
    for pump, path in ahead.items():
        monkeypatch.setenv("CLOCK_AHEAD", str(path))
        pump.restart()
    monkeypatch.delenv("LD_PRELOAD")
    trio.until_whole()
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=4) as writer:
        for seconds in (3600, -3600, 0):
            for jumping, path in enumerate(ahead.values()):
                path.write_text(str(seconds * (1 - 2 * jumping)))
                written = len(writer.items)
                time.sleep(2 * LOAD_S)
                eventually(partial(more_than, writer, written), WAIT_S)
        assert [trio.entry(pump).primary.pump for pump in trio.pumps] == [
            pump.node_id for pump in trio.pumps
        ]
        lose_disk(trio.pumps[0])
        trio.until_moved(trio.pumps[0])
        trio.pumps[0].spawn()
        trio.until_whole()


@pytest.mark.fault(
    "both disks of a log are lost at once",
    "`lost-pump` refuses until an operator says that the copies are gone, and names the range",
    cases="0 / 1",
)
@pytest.mark.slow
def test_both_disks_of_a_log_are_lost_and_an_operator_has_to_say_so_before_others_continue(
    trio: Trio, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    pump = trio.pumps[0]
    holder = trio.other(pump)

    def lost_pump(*more: str) -> str:
        asked = ["lost-pump", pump.node_id, "--etcd-urls", nodes.url, *more]
        code = main([*asked, "--accept-loss-after", "0", "--confirm", pump.node_id])
        printed = capsys.readouterr()
        return f"{code}: {printed.out}{printed.err}"

    for each in (pump, holder):
        lose_disk(each)
    holder.spawn()
    nodes.add_pump(waiting=False, copies=2).wait_for("is online at", WAIT_S)
    refusal = f"etcd lists a whole copy of its log on {holder.node_id}"
    eventually(lambda: refusal in lost_pump(), WAIT_S)
    assert Registry(nodes.etcd).lost() == {}
    said = lost_pump("--copies-are-gone")
    assert said.startswith("0: "), said
    assert "what would be lost is (0," in said
    assert pump.node_id in Registry(nodes.etcd).lost()
    pump.spawn()
    pump.wait_for("was declared lost", WAIT_S)
    client = nodes.connect()
    client.execute_ddl("CREATE DATABASE still_here")
