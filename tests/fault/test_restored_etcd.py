"""Etcd is restored from a backup under Pumps with copies: what was acknowledged stays, or the Pumps
name both histories and refuse to choose.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import connect, read
from penstock.cluster.log_entry import DISKS, LogEntries
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.errors import Retryable
from penstock.local.etcd import EtcdServer
from penstock.wire.binlog import Binlog
from pump.cluster.identity import kept_disk_id
from pump.replication.replicas import REPLICAS_FOLDER
from tests.kit.servers.fix_copies import WAIT_S, MakePump, Trio
from tests.kit.servers.fix_pump import PumpProcess, streamed
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually, present

TO_DECIDE = ".*(choose the history that continues|no disk has it|may continue it has it).*PS-3312.*"

pytestmark = [pytest.mark.fault, pytest.mark.alone, pytest.mark.thorough]


@pytest.fixture
def client(fresh_etcd: EtcdServer) -> Iterator[Any]:
    found = connect(fresh_etcd.url)
    # While it lacks everything, no Pump has nothing to hand over, and none ends.
    waited_for = NodeStatus(node_id="drainer-1", host="127.0.0.1:1", state=NodeState.PAUSED)
    Registry(found).put(NodeKind.DRAINER, waited_for)
    yield found
    found.close()


class Backup:
    """The folder of an etcd as it was, to be put back later."""

    def __init__(self, etcd: EtcdServer, client: Any, folder: Path) -> None:
        self._etcd, self._data, self._kept = etcd, folder / "etcd" / "data", folder / "backup"
        self._client = client
        etcd.stop()
        shutil.copytree(self._data, self._kept)
        self._start()

    def put_back(self) -> None:
        self._etcd.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._kept, self._data)
        self._start()

    def _start(self) -> None:
        self._etcd.start()
        eventually(self._answers, WAIT_S)

    def _answers(self) -> bool:
        try:
            LogEntries(self._client).read_all()
        except Retryable:  # Its connections are those to the process before.
            return False
        return True


def ended(pump: PumpProcess) -> str:
    """Return the log of a Pump that refuses to run, once it has ended."""
    eventually(lambda: not pump.is_running, WAIT_S)
    return pump.log_text()


def session(client: Any, pump: PumpProcess, test: Callable[[PumpSession], Binlog]) -> Binlog:
    """Let a writer do something at a Pump, once that takes it."""
    opened = PumpSession(client, pump)
    try:
        return test(opened)
    finally:
        opened.close()


def moved_with_a_commit(trio: Trio, client: Any) -> Binlog:
    """Let pump-1 die after a Prewrite; return the Commit that the Pump with its log took."""
    lost, trio_entry = trio.pumps[0], trio.entry
    prewrite = session(client, lost, lambda at: written(at, at.prewrite()))
    lost.kill_all()
    trio.until_moved(lost)
    holder = next(p for p in trio.pumps if p.node_id == trio_entry(lost).primary.pump)
    at = holder.wait_for(rf"pump {lost.node_id} is online at (\S+)", WAIT_S)[1]
    there = PumpProcess(lost.data_dir, lost.node_id, {})
    there.addr = at
    return session(client, there, lambda at: written(at, at.commit(prewrite)))


def written(at: PumpSession, binlog: Binlog) -> Binlog:
    at.write(binlog)
    return binlog


def begun_again_and_put_back(trio: Trio, client: Any, backup: Backup) -> Binlog:
    """Let pump-1 begin its log again; return what it took then, with the backup put back."""
    first = trio.pumps[0]
    first.spawn()
    first.wait_for("begins again", WAIT_S)
    trio.until_whole()
    commit = session(client, first, lambda at: at.transaction())
    for pump in trio.pumps:
        pump.kill_all()
    backup.put_back()
    return commit


def commits(client: Any, address: str, pump: PumpProcess) -> list[int]:
    there = PumpProcess(pump.data_dir, pump.node_id, {})
    there.addr = address
    opened = PumpSession(client, there)
    try:
        until_ts = opened.oracle.get_ts()
        return [b.commit_ts for b in streamed(there, opened.cluster_id, until_ts)]
    finally:
        opened.close()


def adopt(server: EtcdServer, refusal: str, disk: str) -> None:
    found = re.search(
        rf"penstock ctl (adopt-log (\S+) \S+ \S+ --disk {disk} .*?(?:--from \d+|--empty))", refusal
    )
    assert found is not None, refusal
    command = [*found[1].split(), "--etcd-urls", server.url, "--confirm", found[2]]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.ctl.commands", *command],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.fault(
    "etcd is put back to a backup from before a take-over; the histories have parted since",
    "the Pump whose disk has all continues the log; else both histories are named, and an"
    " operator chooses one",
    cases="1 / 2",
)
def test_an_older_etcd_does_not_lose_a_commit_that_another_pump_took(
    pump_factory: MakePump, fresh_etcd: EtcdServer, client: Any, tmp_path: Path
) -> None:
    trio = Trio(pump_factory, fresh_etcd.url, client)
    backup = Backup(fresh_etcd, client, tmp_path)
    commit = moved_with_a_commit(trio, client)
    newest = trio.entry(trio.pumps[0])
    for pump in trio.pumps:
        pump.kill_all()
    backup.put_back()
    assert trio.entry(trio.pumps[0]).epoch < newest.epoch
    for pump in trio.pumps:
        pump.spawn()
    first = trio.pumps[0]
    first.wait_for("PS-3312", WAIT_S)
    eventually(lambda: trio.entry(first).epoch > newest.epoch, WAIT_S)
    holder = next(p for p in trio.pumps if p.node_id == trio.entry(first).primary.pump)
    address = holder.wait_for(rf"pump {first.node_id} is online at (\S+)", WAIT_S)[1]
    assert commit.commit_ts in commits(client, address, first)


@pytest.mark.slow
def test_histories_that_have_parted_are_named_and_one_is_chosen_by_an_operator(
    pump_factory: MakePump, fresh_etcd: EtcdServer, client: Any, tmp_path: Path
) -> None:
    trio = Trio(pump_factory, fresh_etcd.url, client)
    backup = Backup(fresh_etcd, client, tmp_path)
    commit = moved_with_a_commit(trio, client)
    first = trio.pumps[0]
    holder = next(p for p in trio.pumps if p.node_id == trio.entry(first).primary.pump)
    disk = trio.entry(first).primary.disk
    for pump in trio.pumps:
        pump.kill_all()
    backup.put_back()
    first.spawn()
    trio.add()
    trio.until_online(first)
    session(client, first, lambda at: at.transaction())
    first.kill_all()
    holder.spawn()
    eventually(lambda: read(client, DISKS + disk) is not None, WAIT_S)
    first.spawn()
    first.wait_for("not seen: ", WAIT_S)  # The third Pump may have what shows who has all.
    third = next(p for p in trio.pumps[:3] if p not in (first, holder))
    third.spawn()
    adopt(fresh_etcd, first.wait_for(TO_DECIDE, WAIT_S)[0], disk)
    address = holder.wait_for(rf"pump {first.node_id} is online at (\S+)", WAIT_S)[1]
    assert commit.commit_ts in commits(client, address, first)


@pytest.mark.fault(
    "etcd is put back to a backup from before a log began again on its own disk",
    "the log continues, and has all of it",
    cases="1",
)
@pytest.mark.slow
def test_a_log_that_has_begun_again_continues_after_a_restore_to_before_that(
    pump_factory: MakePump, fresh_etcd: EtcdServer, tmp_path: Path
) -> None:
    client = connect(fresh_etcd.url)  # Without a Drainer nobody lacks what a Pump has.
    trio = Trio(pump_factory, fresh_etcd.url, client)
    first = trio.pumps[0]
    first.kill_all()
    trio.until_moved(first)
    eventually(lambda: bool(trio.entry(first).replicas), WAIT_S)
    backup = Backup(fresh_etcd, client, tmp_path)
    commit = begun_again_and_put_back(trio, client, backup)
    for pump in trio.pumps:
        pump.spawn()
    said = first.wait_for(f"{TO_DECIDE}|is online at", WAIT_S)[0]
    if "PS-3312" in said:  # A disk has a copy of the former log yet.
        adopt(fresh_etcd, said, kept_disk_id(first.data_dir))
    trio.until_whole()
    assert commit.commit_ts in commits(client, first.addr, first)
    client.close()


@pytest.mark.fault(
    "etcd is put back to a backup from before all copies of a log were deleted, which every"
    " Drainer had",
    "the Pump waits once all disks were seen, and `adopt-log --empty` begins a new log",
    cases="1",
)
@pytest.mark.slow
def test_a_log_that_no_disk_has_any_more_begins_again_after_a_decision(
    pump_factory: MakePump, fresh_etcd: EtcdServer, client: Any, tmp_path: Path
) -> None:
    trio = Trio(pump_factory, fresh_etcd.url, client)
    first, *others = trio.pumps
    moved_with_a_commit(trio, client)
    disk = kept_disk_id(first.data_dir)
    eventually(lambda: all(copy.disk != disk for copy in trio.entry(first).copies_known), WAIT_S)
    backup = Backup(fresh_etcd, client, tmp_path)
    registry = Registry(client)
    waiting = present(registry.get(NodeKind.DRAINER, "drainer-1"))
    registry.put(NodeKind.DRAINER, replace(waiting, state=NodeState.OFFLINE))
    for pump in others:
        pump.wait_for(rf"the copy of pump {first.node_id} goes", WAIT_S)
        copy = pump.data_dir / REPLICAS_FOLDER / first.node_id
        eventually(lambda copy=copy: not copy.exists(), WAIT_S)  # type: ignore[misc]
        pump.kill_all()
    backup.put_back()
    first.spawn()
    others[0].spawn()
    first.wait_for("PS-3306", WAIT_S)  # The third Pump may have the log.
    assert first.is_running
    others[1].spawn()
    adopt(fresh_etcd, first.wait_for(TO_DECIDE, WAIT_S)[0], kept_disk_id(first.data_dir))
    trio.until_whole()
    commit = session(client, first, lambda at: at.transaction())
    assert commits(client, first.addr, first) == [commit.commit_ts]


@pytest.mark.fault(
    "etcd is put back to a moment when a Pump was offline that has taken transactions since",
    "the Pump withdraws the state before its log is served, Drainers wait for it, and its"
    " newest copy is taken over",
    cases="1",
)
@pytest.mark.slow
def test_an_older_etcd_does_not_let_drainers_continue_without_a_pump_that_was_offline_then(
    pump_factory: MakePump, fresh_etcd: EtcdServer, tmp_path: Path
) -> None:
    client = connect(fresh_etcd.url)  # Without a Drainer nobody lacks what a Pump has.
    registry = Registry(client)
    trio = Trio(pump_factory, fresh_etcd.url, client)
    first, *others = trio.pumps

    def state() -> NodeState | None:
        status = registry.get(NodeKind.PUMP, first.node_id)
        return None if status is None else status.state

    moved_with_a_commit(trio, client)
    eventually(lambda: state() is NodeState.OFFLINE, WAIT_S)
    word = registry.last_words()[first.node_id]
    # A disk that keeps the drained log would be a second history after the restore (PS-3312).
    drained = [pump.data_dir / REPLICAS_FOLDER / first.node_id for pump in others]
    eventually(lambda: not any(folder.exists() for folder in drained), WAIT_S)
    backup = Backup(fresh_etcd, client, tmp_path)
    commit = begun_again_and_put_back(trio, client, backup)
    assert state() is NodeState.OFFLINE
    first.spawn()
    eventually(lambda: state() is NodeState.PAUSED, WAIT_S)
    eventually(lambda: first.node_id not in registry.last_words(), WAIT_S)
    for pump in others:
        pump.spawn()
    trio.until_whole()
    assert commit.commit_ts in commits(client, first.addr, first)
    assert registry.entered()[first.node_id] == word.up_to_ts
    client.close()
