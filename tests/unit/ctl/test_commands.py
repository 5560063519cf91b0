import pytest

from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.ctl.commands import main
from penstock.ctl.nodes import table_of
from penstock.ts import compose

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


def test_a_node_that_says_online_and_is_silent_is_set_apart() -> None:
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
    assert "penstock ctl" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["update-pump", "x", "--state", "sleepy"], ["pumps", "-o", "xml"]]
)
def test_a_command_that_makes_no_sense_ends_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


NAMING = [
    "pause-pump", "offline-pump", "pause-drainer", "offline-drainer", "hand-over", "status",
    "trigger-gc", "scrub", "move-log", "drain",
]  # fmt: skip


@pytest.mark.parametrize("command", NAMING)
def test_a_node_is_named_by_place_or_by_option_and_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ("--etcd-urls", "127.0.0.1:1")
    assert main([command, *away]) == 2
    assert "no node is named (give a node id" in capsys.readouterr().err
    assert main([command, "a", "--node-id", "b", *away]) == 2
    assert "two nodes are named: a and b" in capsys.readouterr().err
    for named in (["a"], ["--node-id", "a"], ["a", "--node-id", "a"]):
        assert main([command, *named, *away]) == 1  # As far as etcd, which is away.


def test_every_command_that_names_a_node_says_it_in_the_same_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in [*NAMING, "update-pump", "update-drainer", "lost-pump"]:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        out = " ".join(capsys.readouterr().out.split())
        assert "NODE-ID name of the node, as `pumps` and `drainers` list it" in out, command
        assert "--node-id NODE-ID the same as an option" in out
        assert "-o {text,json}" in out


def test_the_environment_says_where_etcd_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_ETCD_URLS", "127.0.0.1:2")
    assert main(["pumps"]) == 1
    assert "etcd at 127.0.0.1:2 failed" in capsys.readouterr().err
    assert main(["pumps", "--etcd-urls", "127.0.0.1:1"]) == 1
    assert "etcd at 127.0.0.1:1 failed" in capsys.readouterr().err


def test_an_etcd_that_is_no_address_needs_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pumps", "--etcd-urls", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_an_etcd_that_is_away_may_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pumps", "--etcd-urls", "127.0.0.1:1"]) == 1
    assert "etcd" in capsys.readouterr().err
