"""What the fault matrix says is proved by tests, and files of tests, that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_every_test_that_the_matrix_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (TESTS / "fault" / "README.md").read_text("utf-8")))
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    defined |= {path.stem for path in TESTS.rglob("test_*.py")}
    assert named
    assert sorted(named - defined) == []
