"""The suite runs in two parts; one closing line and one exit code speak for both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.__main__ import closing_line, counts, exit_code, run, selected


def test_a_run_s_closing_line_is_counted_whatever_was_printed_before(tmp_path: Path) -> None:
    story = tmp_path / "test_story.py"
    story.write_text(
        "import pytest\n"
        "def test_a():\n    print('== 7 passed in 1.00s ==')\n"
        "def test_b():\n    assert False, '= 9 failed in 2.00s ='\n"
        "@pytest.fixture\ndef broken():\n    raise OSError\n"
        "def test_c(broken):\n    pass\n"
        "def test_d():\n    pytest.skip('later')\n"
    )
    for quiet in ([], ["-q"]):
        code, output = run([*quiet, "-p", "no:cacheprovider", "-c", "/dev/null", str(story)])
        assert code == 1
        assert counts(output) == Counter(failed=1, passed=1, skipped=1, error=1)


def test_nothing_is_counted_of_a_run_that_broke_off() -> None:
    assert counts("ImportError: no module\n") == Counter()


def test_the_closing_line_reads_as_pytest_s_does() -> None:
    line = closing_line(Counter(passed=4260, failed=1), 754.5)
    assert line.strip("=") == " 1 failed, 4260 passed in 754.50s (0:12:34) "
    assert counts(line) == Counter(passed=4260, failed=1)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([1, 0], 1), ([0, 1], 1), ([0, 5], 0), ([5, 5], 5), ([5, 3], 3), ([2], 2)],
)
def test_the_exit_code_is_that_of_the_first_part_that_failed(
    codes: list[int], expected: int
) -> None:
    assert exit_code(codes) == expected


@pytest.mark.parametrize(
    ("arguments", "marks", "rest"),
    [
        ([], "not slow and not tidb", []),
        (["--slow", "-x"], "slow and not tidb", ["-x"]),
        (["-k", "kill", "--tidb"], "tidb", ["-k", "kill"]),
    ],
)
def test_what_needs_a_tidb_runs_when_it_is_asked_for_and_never_else(
    arguments: list[str], marks: str, rest: list[str]
) -> None:
    assert selected(arguments) == (marks, rest)
