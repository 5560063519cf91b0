"""A data folder with the only copy of a log starts only if its Pump wrote it last."""

import shutil
from pathlib import Path

import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator
from pump.cluster.identity import begin_run
from tests.kit.fakes.etcd import MemoryEtcd


class Rig:
    """A Pump's entries in etcd, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(MemoryEtcd())
        self.folder = folder / "data"
        self.folder.mkdir()

    def start(self, up_to_ts: int | None, state: NodeState = NodeState.ONLINE) -> None:
        """Start the Pump on what is in the folder; it then has sorted that much."""
        begin_run(self.registry, "pump-1", self.folder, up_to_ts)
        self.registry.put(
            NodeKind.PUMP,
            NodeStatus(node_id="pump-1", host="h:1", state=state, max_commit_ts=up_to_ts or 0),
        )

    def kept(self, name: str) -> Path:
        return Path(shutil.copytree(self.folder, self.folder.with_name(name)))

    def put_back(self, kept: Path) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(kept, self.folder)

    def is_refused(self, up_to_ts: int, why: str) -> None:
        with pytest.raises(NeedsOperator, match=why) as refused:
            self.start(up_to_ts)
        assert refused.value.code is Code.LOG_OLDER


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_the_folder_that_was_written_last_starts_each_time(rig: Rig) -> None:
    for up_to_ts in (0, 5, 5, 9):
        rig.start(up_to_ts)
    assert len((rig.folder / ".runs").read_text().split()) == 4


def test_a_folder_from_before_the_last_start_is_refused(rig: Rig) -> None:
    rig.start(5)
    backup = rig.kept("backup")
    rig.start(5)
    rig.put_back(backup)
    rig.is_refused(5, "it lacks the Pump's last start")


def test_a_folder_from_within_the_last_run_is_refused_by_what_the_pump_had_sorted(rig: Rig) -> None:
    rig.start(5)
    backup = rig.kept("backup")
    rig.registry.put(
        NodeKind.PUMP,
        NodeStatus(node_id="pump-1", host="h:1", state=NodeState.PAUSED, max_commit_ts=8),
    )
    rig.put_back(backup)
    rig.is_refused(5, "it ends at 5, but the Pump had sorted up to 8")


def test_an_empty_folder_under_the_name_of_a_pump_with_binlogs_is_refused(rig: Rig) -> None:
    rig.start(5)
    (rig.folder / ".runs").unlink()
    rig.is_refused(0, "it lacks the Pump's last start")


def test_of_two_folders_of_one_name_only_the_one_that_ran_last_starts(rig: Rig) -> None:
    rig.start(5)
    backup = rig.kept("backup")
    rig.start(6)
    newer = rig.kept("newer")
    rig.put_back(backup)
    rig.registry.put_run("pump-1", "")  # Someone had the older one start all the same.
    rig.registry.put(
        NodeKind.PUMP, NodeStatus(node_id="pump-1", host="h:1", state=NodeState.PAUSED)
    )
    rig.start(7)
    rig.put_back(newer)
    rig.is_refused(9, "it lacks the Pump's last start")


def test_a_folder_that_is_newer_than_etcd_starts(rig: Rig) -> None:
    rig.start(5)
    earlier = rig.registry.last_run("pump-1")
    for _ in range(3):
        rig.start(9)
    rig.registry.put_run("pump-1", earlier)
    rig.start(9)


def test_a_start_that_died_before_etcd_heard_of_it_is_repeated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.start(5)
    with monkeypatch.context() as died:
        died.setattr(rig.registry, "put_run", lambda *run: None)
        rig.start(5)
    rig.start(5)


def test_a_pump_that_is_offline_starts_with_any_folder(rig: Rig) -> None:
    rig.start(5, NodeState.OFFLINE)
    (rig.folder / ".runs").unlink()
    rig.start(0)


def test_without_synced_writes_only_the_last_start_counts(rig: Rig) -> None:
    rig.start(5)
    begin_run(rig.registry, "pump-1", rig.folder, None)
