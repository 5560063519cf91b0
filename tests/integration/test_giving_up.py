"""An operator gives up a DDL that a restored etcd lacks."""

from typing import Any

import pytest

from penstock.cluster.history import History
from penstock.ctl.commands import main
from penstock.schema.model import DdlJob, DdlType


@pytest.fixture
def command(etcd: Any, etcd_server: Any) -> list[str]:
    return ["lost-ddl", "7", "--etcd-urls", etcd_server.url]


def test_a_ddl_that_is_given_up_is_never_recorded(command: list[str], etcd: Any) -> None:
    assert main([*command, "--confirm", "7"]) == 0
    assert History(etcd).is_rolled_back(7)
    assert main([*command, "--confirm", "7"]) == 0


def test_nothing_is_given_up_without_the_job_once_more(
    command: list[str], etcd: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--confirm", "8"]) == 2
    assert "add --confirm 7" in capsys.readouterr().err
    assert not History(etcd).is_rolled_back(7)


def test_a_ddl_of_the_history_is_not_given_up(
    command: list[str], etcd: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = DdlJob(
        id=7,
        type=DdlType.DROP_SCHEMA,
        schema_id=2,
        schema_name="shop",
        query="DROP DATABASE shop",
        schema_version=1,
    )
    History(etcd).append(job)
    assert main([*command, "--confirm", "7"]) == 2
    assert "'DROP DATABASE shop'" in capsys.readouterr().err
    assert not History(etcd).is_rolled_back(7)
