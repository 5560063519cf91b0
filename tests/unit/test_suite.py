"""The suite runs in two parts and repeats some failures; one closing line and exit code for all."""

from collections import Counter
from pathlib import Path

import pytest

from tests import __main__ as suite
from tests.__main__ import (
    closing_line,
    exit_code,
    run,
    selected,
    slowest,
    times,
    to_repeat,
    without_flaky,
)
from tests.kit.report import Report

KILL = "tests/fault/test_pump_kill.py::test_a"
CODEC = "tests/unit/penstock/test_codec.py::test_b"
STORY = """
import pytest
def test_a():
    print('== 7 passed in 1.00s ==')
def test_b():
    assert False, '= 9 failed in 2.00s ='
@pytest.fixture
def broken():
    raise OSError
def test_c(broken):
    pass
def test_d():
    pytest.skip('later')
def test_e():
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_run_reports_outcomes_and_times_of_its_tests(tmp_path: Path, workers: list[str]) -> None:
    story = tmp_path / "test_story.py"
    story.write_text(STORY)
    quiet = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-k", "not test_e"]
    code, report = run([*quiet, *workers, str(story)])
    assert code == 1
    assert report.counts == Counter(failed=1, passed=1, skipped=1, error=1)
    assert [test.rpartition("::")[2] for test in report.problems] == ["test_b", "test_c"]
    assert {test.rpartition("::")[2] for test in report.seconds} == {f"test_{n}" for n in "abcd"}


def test_a_run_that_ends_before_it_collects_reports_nothing(tmp_path: Path) -> None:
    code, report = run(["-q", "-c", "/dev/null", str(tmp_path / "missing.py")])
    assert code == 4
    assert not report.counts
    assert not report.problems


def test_the_closing_line_reads_as_pytest_s_does() -> None:
    line = closing_line(Counter(passed=4260, failed=1, flaky=2), 754.5)
    assert line.strip("=") == " 1 failed, 4260 passed, 2 flaky in 754.50s (0:12:34) "


def test_the_time_of_each_tier_is_the_sum_over_its_tests() -> None:
    seconds = {KILL: 2.0, f"{KILL}[2]": 1.5, CODEC: 0.25, "tests/test_house.py::test_c": 0.0}
    assert [line.split() for line in times(seconds)] == [
        ["fault", "2", "tests", "3.5", "s"],
        ["unit", "1", "tests", "0.2", "s"],
        ["house", "1", "tests", "0.0", "s"],
    ]


def test_the_slowest_files_come_first() -> None:
    seconds = {KILL: 2.0, f"{KILL}[2]": 1.5, CODEC: 4.25}
    assert [line.split() for line in slowest(seconds)] == [
        ["4.2", "s", CODEC.partition("::")[0]],
        ["3.5", "s", KILL.partition("::")[0]],
    ]


def test_only_failures_of_tests_with_real_processes_are_repeated() -> None:
    assert to_repeat(1, [KILL]) == [KILL]
    assert to_repeat(1, [KILL, CODEC]) == []
    assert to_repeat(1, ["tests/fault/test_pump_kill.py"]) == []  # It cannot be imported.
    assert to_repeat(2, [KILL]) == []
    assert to_repeat(1, [f"{KILL}[{n}]" for n in range(11)]) == []


def test_a_failure_that_passes_when_it_is_repeated_counts_as_flaky() -> None:
    both = Report(Counter(passed=5, failed=1, error=1), [KILL, f"{KILL}[2]"], {KILL: 1.0})
    again = Report(Counter(passed=1, failed=1), [f"{KILL}[2]"], {})
    found = without_flaky(both, again)
    assert found.counts == Counter(passed=5, failed=1, flaky=1)
    assert found.problems == [f"{KILL}[2]"]


def test_a_flaky_test_is_noted_in_a_file_and_the_run_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Report(Counter(passed=3, failed=1), [KILL], {KILL: 1.0})
    runs = [(1, failed), (5, Report(Counter(), [], {})), (0, Report(Counter(passed=1), [], {}))]
    asked: list[list[str]] = []

    def fake_run(arguments: list[str]) -> tuple[int, Report]:
        asked.append(arguments)
        return runs[len(asked) - 1]

    monkeypatch.setattr(suite, "run", fake_run)
    monkeypatch.setattr(suite, "FLAKY_FILE", tmp_path / "flaky-tests.txt")
    assert suite.main([]) == 0
    assert asked[-1][-1] == KILL
    assert (tmp_path / "flaky-tests.txt").read_text().split()[1:] == [KILL]
    assert " 3 passed, 1 flaky in " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([1, 0], 1), ([0, 1], 1), ([0, 5], 0), ([5, 5], 5), ([5, 3], 3), ([2], 2)],
)
def test_the_exit_code_is_that_of_the_first_part_that_failed(
    codes: list[int], expected: int
) -> None:
    assert exit_code(codes) == expected


def test_the_second_part_collects_the_files_of_tests_that_run_alone() -> None:
    files = suite.files_alone()
    assert "tests/fault/test_moves.py" in files
    assert "tests/tidb" in files
    assert "tests/unit/test_docs.py" not in files


@pytest.mark.parametrize(
    ("arguments", "marks", "rest"),
    [
        ([], "not slow and not tidb and not thorough", []),
        (["--all"], "not slow and not tidb", []),
        (["--slow", "-x"], "slow and not tidb", ["-x"]),
        (["-k", "kill", "--tidb"], "tidb", ["-k", "kill"]),
    ],
)
def test_an_option_selects_tests_by_their_marks(
    arguments: list[str], marks: str, rest: list[str]
) -> None:
    assert selected(arguments) == (marks, rest)
