"""Killed at each step of the storage, a real process loses nothing that it acknowledged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import failpoints
from tests.kit.crash.storage_process import CONFIG, GROUP
from tests.kit.fakes.storage import commit, commits, opened, prewrite, write

pytestmark = pytest.mark.fault

STEPS = sorted(name for name in failpoints.known if name.startswith(("log.", "pump.")))
ROOT = Path(__file__).resolve().parents[2]


def ran(folder: Path, faults: str) -> tuple[int, list[list[str]]]:
    """Run the process that dies with `faults`; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.crash.storage_process", str(folder), "1"],
        cwd=ROOT,
        env=os.environ | {failpoints.VARIABLE: faults, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        stdout=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    return done.returncode, [line.split() for line in done.stdout.decode().splitlines()]


def survives(folder: Path, said: list[list[str]]) -> None:
    """Start on what is left: all that was acknowledged, nothing that was never issued."""
    reported: dict[str, list[tuple[int, int]]] = {"issued": [], "acked": []}
    purging_ts = 0
    for word, *numbers in said:
        if word == "purging":
            purging_ts = int(numbers[0])
        else:
            reported[word].append((int(numbers[0]), int(numbers[1])))
    storage = opened(folder, config=CONFIG)
    assert storage.purged_ts < max(1, purging_ts)
    found = commits(storage, storage.purged_ts)
    left = {
        name: [p for p in pairs if p[1] > storage.purged_ts] for name, pairs in reported.items()
    }
    waits_ts = min((u.start_ts for u in storage.unmatched()), default=1 << 62)
    assert found == [pair for pair in left["issued"] if pair in found], "order, or invented"
    missing = [pair for pair in left["acked"] if pair not in found and pair[1] < waits_ts]
    assert missing == []
    for unmatched in storage.unmatched():
        start_ts = unmatched.start_ts
        write(storage, commit(start_ts, start_ts + 1_000_000))
    now_ts = 2_000_000
    write(storage, prewrite(now_ts), commit(now_ts, now_ts + GROUP))
    again = commits(storage, storage.purged_ts)
    assert again[: len(found)] == found
    assert set(left["acked"]) <= set(again)
    assert again[-1] == (now_ts, now_ts + GROUP)
    storage.close()


def test_without_a_fault_it_runs_to_the_end(tmp_path: Path) -> None:
    code, said = ran(tmp_path / "pump", "")
    assert code == 0
    survives(tmp_path / "pump", said)


@pytest.mark.fault(
    "kill between write and sync (failpoint `pump.after_write`)",
    "not acknowledged; there once after the writer repeats, or not at all",
    cases="1 / all passings",
)
@pytest.mark.fault(
    "kill between sync and index (`pump.after_sync`, `pump.after_append`)",
    "replayed at the start, served",
    cases="2 / all passings",
)
@pytest.mark.fault(
    "kill at every step (all 21 failpoints, in a storage process; real Pumps; random runs;"
    " `kill -9` under load)",
    "opens, nothing lost",
    cases=(
        "21 + 2 Pumps + 12 runs + 25 histories + 6 kills / every passing of every step + 14 Pumps"
        " + 1000 runs + 20 kills"
    ),
)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_it_loses_nothing(tmp_path: Path, step: str) -> None:
    code, said = ran(tmp_path / "pump", f"{step}=kill")
    assert code == -signal.SIGKILL, "it never came by"
    survives(tmp_path / "pump", said)


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STEPS, "disk.write", "disk.sync", "disk.create"])
def test_killed_at_every_passing_of_a_step_it_loses_nothing(tmp_path: Path, step: str) -> None:
    for time in range(1, 200):
        folder = tmp_path / str(time)
        code, said = ran(folder, f"{step}=kill@{time}")
        survives(folder, said)
        if code == 0:
            assert time > 1
            return
        assert code == -signal.SIGKILL
    pytest.fail("it never came to an end")


@pytest.mark.fault(
    "torn write of a real process (failpoint `disk.write=torn(n)`)", "same", cases="4 / 371"
)
@pytest.mark.parametrize(
    "torn", [0, 23, 24, 700, pytest.param(range(1, 1100, 3), marks=pytest.mark.slow)]
)
def test_killed_within_a_write_it_loses_nothing(tmp_path: Path, torn: int | range) -> None:
    for cut in [torn] if isinstance(torn, int) else torn:
        folder = tmp_path / str(cut)
        code, said = ran(folder, f"disk.write=torn({cut})@9")
        assert code == -signal.SIGKILL
        survives(folder, said)


@pytest.mark.parametrize(
    "text", ["x", "disk.sync=EIO", "pump.after_sync=raise(EIO)", "a=kill(", "log=torn(1)"]
)
def test_a_fault_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=failpoints.VARIABLE):
        failpoints.point("disk.sync", text)


def test_a_fault_happens_where_and_when_it_was_asked_for() -> None:
    hit = failpoints.point(
        "disk.sync", "disk.sync=raise(EIO)@2; disk.write=torn(3);disk.sync=sleep(0)"
    )
    assert hit() is None
    with pytest.raises(OSError, match="Input/output error"):
        hit()
    assert hit() is None
    assert failpoints.point("disk.write", "disk.write=torn(3)")() == 3
    assert failpoints.point("disk.read", "disk.sync=kill") is failpoints.point("disk.read", "")
