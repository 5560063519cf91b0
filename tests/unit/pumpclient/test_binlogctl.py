from __future__ import annotations

import pytest

from penstock.registry import NodeState, NodeStatus
from penstock.ts import compose
from pumpclient.binlogctl import main, table_of

NOW_S = 1_700_000_000.0


def status(node_id: str, state: NodeState, heartbeat_s: float, committed_s: float) -> NodeStatus:
    return NodeStatus(
        node_id=node_id,
        host="10.0.0.1:8250",
        state=state,
        max_commit_ts=compose(int(committed_s * 1000), 5) if committed_s else 0,
        update_ts=compose(int(heartbeat_s * 1000), 0),
    )


def test_nodes_are_shown_with_their_lag_in_seconds() -> None:
    shown = table_of([status("pump-1", NodeState.ONLINE, NOW_S - 1, NOW_S - 2.5)], NOW_S)
    heading, line = shown.splitlines()
    assert heading.split()[:2] == ["NODE", "ID"]
    assert line.startswith("pump-1   10.0.0.1:8250  online")
    assert "2023-11-14 22:13:17 (2.5 s ago)" in line
    assert "(1.0 s ago)" in line


def test_a_node_that_says_online_and_is_silent_is_told_apart() -> None:
    shown = table_of([status("pump-1", NodeState.ONLINE, NOW_S - 60, 0)], NOW_S)
    assert "online (silent)" in shown
    assert "never" in shown


def test_no_nodes_are_said_to_be_none() -> None:
    assert table_of([], NOW_S) == "no nodes"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["pumps", "--help"]])
def test_version_and_help_end_well(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    assert "binlogctl" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["bogus"], ["pause-pump"], ["update-pump", "--node-id", "x", "--state", "sleepy"]],
)
def test_a_command_that_makes_no_sense_ends_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().out == ""


def test_an_etcd_that_is_no_address_needs_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pumps", "--etcd-urls", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_an_etcd_that_is_away_may_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pumps", "--etcd-urls", "127.0.0.1:1"]) == 1
    assert "etcd" in capsys.readouterr().err
