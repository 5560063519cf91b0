"""`make fresh` runs what the README says, on each release, and ends with what failed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose bare machines only write down what they are asked, and fail one command."""
    (tmp_path / "deploy").mkdir()
    for name in ("README.md", "deploy/fresh.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    bare = tmp_path / "deploy" / "bare.sh"
    bare.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$*" >> asked\necho "out of $*"\n'
        'case "$*" in "trixie make demo SINK=mysql") exit 3 ;; esac\n'
    )
    bare.chmod(0o755)
    return tmp_path


def fresh(clone: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["deploy/fresh.sh", *options],
        cwd=clone, capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(clone)},
    )  # fmt: skip


def test_the_commands_are_those_of_the_readme(clone: Path) -> None:
    listed = fresh(clone, "-l").stdout.splitlines()
    assert {"make demo", "make demo SINK=mysql", "make demo SOURCE=mysql", "make test"} <= set(
        listed
    )
    goals = {command.split()[1] for command in listed}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{goal}:", makefile, re.MULTILINE) for goal in goals)


def test_each_command_runs_on_each_release_and_the_demo_without_names_too(clone: Path) -> None:
    done = fresh(clone, "-o", "demo( SOURCE=mysql)?$")
    assert done.returncode == 0, done.stderr
    assert (clone / "asked").read_text().splitlines() == [
        f"{option}{release} make {goal}"
        for release in ("bookworm", "trixie")
        for option, goal in (("", "demo"), ("-n ", "demo"), ("", "demo SOURCE=mysql"))
    ]
    assert done.stdout.splitlines()[-1] == "fresh: all of them ran on bare machines"


def test_one_that_fails_is_in_the_summary_with_its_log_and_the_others_run(clone: Path) -> None:
    done = fresh(clone, "-r", "trixie", "-o", "demo")
    assert done.returncode == 1
    *_, closing = lines = done.stdout.splitlines()
    assert closing == "fresh: 1 failed"
    summary = lines[lines.index("") + 1 : -1]
    (failed,) = (line for line in summary if " ok " not in line)
    worked = "\n".join(line for line in summary if " ok " in line)
    for what in ("make demo ", "make demo (no names) ", "SINK=files", "SOURCE=mysql"):
        assert what in worked
    assert "make demo SINK=mysql " in failed
    assert " exit 3 " in failed
    assert Path(failed.split()[-1]).read_text() == "out of trixie make demo SINK=mysql\n"


def test_a_pattern_that_no_command_is_like_is_refused(clone: Path) -> None:
    done = fresh(clone, "-o", "dmo")
    assert done.returncode == 2
    assert "no command of the README is like 'dmo'" in done.stdout
