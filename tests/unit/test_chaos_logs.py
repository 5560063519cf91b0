"""What stands in the logs of a chaos is explained by a fault, or a find."""

from __future__ import annotations

import json

import pytest

from tests.chaos.logs import AFTER_A_RESTORE, EXPLAINED, unexplained


def line(level: str, message: str, **more: str) -> str:
    return json.dumps({"level": level, "message": message, **more}) + "\n"


def test_what_is_said_in_passing_is_no_find() -> None:
    assert list(unexplained([line("info", "online"), line("warning", "late"), "plain\n"])) == []


@pytest.mark.parametrize("code", sorted(map(str, EXPLAINED)))
def test_an_error_that_a_fault_explains_is_none(code: str) -> None:
    said = "No space left on device"
    assert list(unexplained([line("error", said, code=code)])) == []


@pytest.mark.parametrize(
    "found",
    [
        line("error", "a defect"),
        line("error", "a damaged file", code="PS-3005"),
        line("critical", "no such code", code="PS-99999"),
        line("warning", "passing", traceback="Traceback …"),
        "Traceback (most recent call last):\n",
        "2026-11-23 ERROR writer: a defect\n",
    ],
)
def test_a_defect_damage_or_a_traceback_is_a_find(found: str) -> None:
    assert len(list(unexplained([line("info", "before"), found]))) == 1


def test_two_histories_are_explained_by_a_restored_etcd_and_by_nothing_else() -> None:
    said = [line("error", "which is of another history", code="PS-3312")]
    assert list(unexplained(said, AFTER_A_RESTORE)) == []
    assert len(list(unexplained(said))) == 1
    assert len(list(unexplained([line("error", "a defect")], AFTER_A_RESTORE))) == 1
