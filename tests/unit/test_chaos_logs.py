"""What stands in the logs of a chaos is explained by a fault, or a find."""

import json

import pytest

from penstock.oracle.server import _warn_ahead
from tests.chaos.backups import Restore
from tests.chaos.logs import EXPLAINED, unexplained


def line(level: str, message: str, **more: str) -> bytes:
    return json.dumps({"level": level, "message": message, **more}).encode() + b"\n"


def test_what_is_said_in_passing_is_no_find() -> None:
    assert list(unexplained([line("info", "online"), line("warning", "late"), b"plain\n"])) == []


@pytest.mark.parametrize("code", sorted(map(str, EXPLAINED)))
def test_an_error_that_a_fault_explains_is_none(code: str) -> None:
    said = "No space left on device"
    assert list(unexplained([line("error", said, code=code)])) == []


def test_a_clock_that_has_jumped_ahead_is_said_and_explained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn_ahead(90.0)
    (message,) = caplog.messages
    assert list(unexplained([line("error", message)])) == []


@pytest.mark.parametrize(
    "found",
    [
        line("error", "a defect"),
        line("error", "a damaged file", code="PS-3005"),
        line("critical", "no such code", code="PS-99999"),
        line("warning", "passing", traceback="Traceback …"),
        b"Traceback (most recent call last):\n",
        b"2026-11-23 ERROR writer: a defect\n",
    ],
)
def test_a_defect_damage_or_a_traceback_is_a_find(found: bytes) -> None:
    assert len(list(unexplained([line("info", "before"), found]))) == 1


def put_back(log: str) -> bytes:
    """Return what a Pump says of a log whose list in etcd is older than a disk."""
    return line("error", f"the copy of pump {log} has segment 3, which is of", code="PS-3312")


def test_a_list_that_was_put_back_is_explained_of_that_log_until_it_is_whole_again() -> None:
    lines = [put_back("pump-1") for _ in range(3)]
    within = {"pump-1": range(len(lines[0]), 2 * len(lines[0]))}
    assert len(list(unexplained(lines, [within]))) == 2
    assert list(unexplained(lines[:2], [{"pump-1": range(1)}, within])) == []
    assert len(list(unexplained([put_back("pump-2")], [{"pump-1": range(1)}]))) == 1
    assert len(list(unexplained([put_back("pump-1")]))) == 1


def test_a_refusal_with_commands_is_explained_by_the_log_that_they_are_of() -> None:
    said = line("error", "etcd lists epoch 3: penstock ctl adopt-log pump-2 --pump", code="PS-3312")
    assert list(unexplained([said], [{"pump-2": range(1)}])) == []
    assert list(unexplained([said], [{"pump-1": range(1)}])) != []
    unnamed = line("error", "which is of another history", code="PS-3312")
    assert list(unexplained([unnamed], [{"pump-1": range(1)}])) != []


def test_a_restore_explains_what_pumps_say_from_then_on_until_each_log_is_whole() -> None:
    restore = Restore(3.0, frozenset({"pump-1", "pump-2"}), {"pump-1": 10, "pump-3": 20})
    restore.ended["pump-1"] = {"pump-1": 15, "pump-3": 25}
    assert restore.windows("pump-1")["pump-1"] == range(10, 15)
    assert 1 << 40 in restore.windows("pump-3")["pump-2"]
    assert 19 not in restore.windows("pump-3")["pump-2"]
    assert restore.windows("drainer-1") == {}
