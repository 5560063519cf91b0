"""On a machine that is too busy a chaos leaves faults out, says so, and judges in any case."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.process import ServerProcess
from tests.chaos import run as runs
from tests.chaos.faults import BODIES
from tests.chaos.judge import Snapshot
from tests.chaos.machine import Machine
from tests.chaos.plan import Fault, Kind
from tests.chaos.result import NO_TIME, Happening, left_out_too_often
from tests.chaos.run import Run
from tests.kit.crash.disks import Volume
from tests.kit.wait import eventually

FAULT = Fault(0.0, Kind.PUMP_KILLED, "pump-1", 0.0, 1)


class Cluster:
    """Notes what is started again; nothing runs."""

    def __init__(self, folder: Path) -> None:
        self.mariadb, self.processes, self._folder = None, {"pump-1": None}, folder
        self.started: list[str] = []
        self.fails = 0
        self.may_be_down: set[str] = set()

    def dead(self) -> dict[str, str]:
        return {"pump-1": "its log"}

    def journal(self, name: str) -> Path:
        return self._folder / name

    def start_if_ended(self, name: str) -> None:
        if self.fails:
            self.fails -= 1
            raise Retryable(f"{name} does not start", code=Code.CHILD_FAILED)
        self.started.append(name)

    def kill(self, name: str) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def run_of(cluster: Any) -> Run:
    return Run(cluster, (FAULT,), 1.0)


def failing_with(error: Exception) -> Any:
    @contextmanager
    def body(*_: Any) -> Iterator[None]:
        raise error
        yield

    return body


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a folder"), psutil.NoSuchProcess(1), TimeoutError()]
)
def test_a_fault_that_a_busy_machine_cannot_make_is_left_out_and_its_target_started(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setitem(BODIES, Kind.PUMP_KILLED, failing_with(error))
    said: list[str] = []
    monkeypatch.setattr(runs, "say", said.append)
    run = run_of(cluster)
    cluster.fails = 1  # It is started as often as that takes.
    run._happen(FAULT)
    (happening,) = run.result.happenings
    assert happening.left_out == f"{type(error).__name__} in body"
    assert (happening.fault, happening.is_starved, bool(happening.ended_s)) == (FAULT, True, True)
    assert cluster.started == ["pump-1"]
    assert run._failures == []
    assert len(said) == 1
    assert type(error).__name__ in said[0]


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("a defect"),
        PermissionError("a defect"),
        subprocess.CalledProcessError(1, "a defect"),
    ],
)
def test_a_defect_of_a_body_is_a_find(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setitem(BODIES, Kind.PUMP_KILLED, failing_with(error))
    run = run_of(cluster)
    run._happen(FAULT)
    assert len(run._failures) == 1
    assert "a defect" in run._failures[0]


def happenings(made: int, missed: int, *, starved: bool, why: str = "too busy") -> list[Happening]:
    left_out = [Happening(FAULT, "", 1.0, 2.0, why, starved) for _ in range(missed)]
    return [*(Happening(FAULT, "", 1.0, 2.0) for _ in range(made)), *left_out]


def test_a_few_faults_may_be_left_out_and_no_more() -> None:
    for fine in (happenings(1, 2, starved=True), happenings(90, 10, starved=True)):
        assert list(left_out_too_often(fine)) == []
    assert list(left_out_too_often(happenings(5, 5, starved=False))) == []
    (found,) = left_out_too_often(happenings(88, 12, starved=True))
    assert "12 of 100 faults could not be made: 12 × too busy" in found
    (found,) = left_out_too_often(happenings(5, 6, starved=False))
    assert "6 of 11 × Pump killed were left out: 6 × too busy" in found


def test_faults_for_which_no_time_was_left_are_not_called_left_out_too_often() -> None:
    assert list(left_out_too_often(happenings(1, 50, starved=False, why=NO_TIME))) == []


def test_a_run_without_a_snapshot_says_that_nothing_was_judged(cluster: Cluster) -> None:
    (problem,) = run_of(cluster)._verdict(is_whole=False)
    assert "nothing was judged" in problem


@pytest.mark.parametrize("comes_downstream", [True, False])
def test_a_run_that_breaks_off_is_made_whole_as_far_as_that_goes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, comes_downstream: bool
) -> None:
    run = run_of(cluster)
    run._reader.snapshots = [Snapshot(1, 0, {})]
    run._reader.problem = "a find"
    monkeypatch.setattr(run, "_begin", lambda: None)
    monkeypatch.setattr(run, "_chaos", partial(breaking_off, "first"))
    until_whole = (lambda: None) if comes_downstream else partial(breaking_off, "second")
    monkeypatch.setattr(run, "_until_whole", until_whole)
    assert run._lived() is comes_downstream
    assert run.result.problems == (["first"] if comes_downstream else ["first", "second"])
    assert run._calm.is_set()
    assert (run._reader.problem, cluster.may_be_down) == ("", {"pump-1"})  # It is said once.


def breaking_off(why: str) -> None:
    raise runs.Broken(why)


def test_the_disk_of_a_pump_that_has_not_come_to_make_its_folder_can_be_lost(
    tmp_path: Path,
) -> None:
    volume, data = Volume(tmp_path), tmp_path / "data"
    machine = Machine("m", log=tmp_path / "log", data=data, volume=volume, keeper=1)
    machine.lose_disk()
    (data / "segments").mkdir(parents=True)
    machine.lose_disk()
    assert not data.exists()


def test_a_process_that_ends_by_itself_can_be_frozen(tmp_path: Path) -> None:
    process = ServerProcess([sys.executable, "-c", ""], log=tmp_path / "log").start()
    ended = psutil.Process(process.pid)
    eventually(lambda: ended.status() == psutil.STATUS_ZOMBIE, 60)
    process.freeze()
    process.thaw()
    assert process.wait() == 0


def test_a_fault_comes_later_while_its_target_is_still_being_made_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, alive, dead = run_of(cluster), threading.Thread(), threading.Thread()
    monkeypatch.setattr(alive, "is_alive", lambda: True)
    threads = [alive, alive, dead]
    assert run._may_happen(threads, FAULT)
    assert not run._may_happen([*threads, alive], FAULT)
    with run._whole["pump-1"]:
        assert not run._may_happen(threads, FAULT)


def test_no_fault_comes_before_something_is_acknowledged_and_downstream_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, alive = run_of(cluster), threading.Thread()
    monkeypatch.setattr(alive, "is_alive", lambda: True)
    now_s = time.time()
    for acknowledged_s, advanced_s, is_alive in ((5, 50, True), (40, 5, False), (5, 70, False)):
        run._journals.acknowledged_s = now_s - acknowledged_s
        run._reader.advances = [(now_s - advanced_s, 1)]
        assert run._breathes([alive]) is is_alive
    ended = Happening(FAULT, "", now_s - 9000, now_s - 100)
    run.result.happenings.append(ended)
    run._reader.advances = [(now_s - 9000, 1)]
    assert not run._breathes([])
    ended.ended_s = now_s - 8000
    assert not run._breathes([alive])
    with pytest.raises(
        runs.Broken, match="no transaction is downstream, and no fault lasts, within"
    ):
        run._breathes([])
