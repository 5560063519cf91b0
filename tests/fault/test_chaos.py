"""A minute of chaos: random faults on a whole cluster, and everything is right in the end."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import chaos

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.alone, pytest.mark.etcd]


@pytest.mark.fault(
    "processes, networks and disks of a whole cluster fail at random",
    "what `tests/chaos/README.md` says of the end of a run",
    cases="0 / 1 minute",
)
@pytest.mark.mariadb
@pytest.mark.spark
def test_a_minute_of_chaos_loses_nothing_and_doubles_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chaos(tmp_path, seed=11, length_s=60) == []
    said = capsys.readouterr().out
    assert "whole again after" in said
    assert "transactions acknowledged" in said
