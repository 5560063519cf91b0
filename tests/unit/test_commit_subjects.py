"""A commit subject names an area and fits into 72 characters."""

from pathlib import Path

import pytest

from deploy.commit_subjects import main, problems


@pytest.mark.parametrize(
    "subject",
    ["pump: reject negative settings", "cluster, pump: write the status once", "Merge branch 'a'"],
)
def test_a_subject_that_names_its_area_is_accepted(subject: str) -> None:
    assert problems([subject]) == []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("Reject negative settings", "not of the form"),
        ("pump: " + "x" * 67, "73 characters, at most 72"),
        ("", "not of the form"),
    ],
)
def test_a_subject_that_is_long_or_names_no_area_is_refused(subject: str, problem: str) -> None:
    (found,) = problems([subject])
    assert found.startswith(problem)


def test_a_hook_reads_the_first_line_that_is_no_comment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("# a hint of git\nFix\n\n" + "a long reason " * 20)
    assert main([str(message)]) == 1
    assert "not of the form `area: imperative`: Fix" in capsys.readouterr().err
    message.write_text("pump: fix it\n\n" + "a long reason " * 20)
    assert main([str(message)]) == 0
