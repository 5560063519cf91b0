"""The example of a third party's sink: built, installed, tested, and written to by a Drainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.plugin import EXAMPLE, install_example, path_with
from tests.kit.servers.fix_replication import Replication


def test_the_example_is_installed_by_pip_and_keeps_the_promises_of_every_sink(
    tmp_path: Path,
) -> None:
    site = install_example(tmp_path)
    here = tmp_path / "tests_of_the_example"
    here.mkdir()
    shutil.copy(EXAMPLE / "test_json_lines.py", here)
    (here / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", "."],
        cwd=here, env={**os.environ, "PYTHONPATH": path_with(site)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.fault(
    "a Drainer with a third party's sink is killed after the sink has stored a write",
    "each row is in the file once",
)
def test_a_drainer_writes_each_change_once_over_a_kill(
    replication: Replication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with(install_example(tmp_path)))
    replication.add_pump()
    file = tmp_path / "changes.jsonl"
    drainer = replication.drain_into(f"jsonl://{file}", started=False)
    writer = replication.begin()
    writer.transact(40)
    drainer.spawn("drainer.transaction_committed=kill@3")
    assert drainer.wait() == -9
    writer.transact(40)
    drainer.start().wait_until(writer.last_ts)
    assert replayed(file) == writer.expected()


def replayed(file: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows that the changes come to; each must meet the row that it changes."""
    rows: dict[str, Counter[tuple[Any, ...]]] = {n: Counter() for n in ("item", "stock", "note")}
    for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
        change = json.loads(line)
        if "kind" not in change:
            continue
        of_table = rows[change["table"].removeprefix("shop.")]
        before, after = (plain(change[name]) for name in ("before", "after"))
        if before is not None:
            assert of_table[before] > 0, line
            of_table -= Counter([before])
        if after is not None:
            of_table[after] += 1
        rows[change["table"].removeprefix("shop.")] = of_table
    return rows


def plain(row: dict[str, Any] | None) -> tuple[Any, ...] | None:
    if row is None:
        return None
    return tuple(None if value is None else str(value) for value in row.values())
