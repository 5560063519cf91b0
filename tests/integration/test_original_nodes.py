"""A cluster with Pumps of TiDB-Binlog beside ours: one command for both, and the way over."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import OracleClient
from tests.kit.fakes.original_pump import OriginalPump
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.wait import eventually

Run = Callable[..., tuple[int, str, str]]
MakeOriginal = Callable[[str], OriginalPump]


@pytest.fixture
def run(etcd_server: EtcdServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "-pd-urls", etcd_server.url])
        return code, *capsys.readouterr()

    return run_it


@pytest.fixture
def original(etcd: Any) -> Iterator[MakeOriginal]:
    """Start Pumps of TiDB-Binlog; one of ours must be there, which hands out the timestamps."""
    with ExitStack() as stack:
        oracle = OracleClient(etcd)
        stack.callback(oracle.close)
        yield lambda name: stack.enter_context(OriginalPump(etcd, oracle, name))


def test_pumps_of_both_kinds_are_listed_and_steered_alike(
    run: Run, nodes: Nodes, original: MakeOriginal
) -> None:
    nodes.add_pump()
    old, other = original("host-1:8250"), original("host-2:8250")
    code, out, err = run("-cmd", "pumps")
    assert (code, err) == (0, "")
    lines = re.findall(
        r'\["query node"\] \[node="\{NodeID: (\S+), Addr: (\S+), State: (\S+),'
        r" MaxCommitTS: \d+, UpdateTime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC\}\"\]",
        out,
    )
    assert {(name, state) for name, _, state in lines} == {
        ("host-1:8250", "online"), ("host-2:8250", "online"), ("pump-1", "online"),
    }  # fmt: skip
    assert dict((name, addr) for name, addr, _ in lines)["host-1:8250"] == old.address
    assert main(["status", "host-1:8250", "--etcd-urls", nodes.url]) == 0
    assert main(["status", "host-1:8250", "-o", "json", "--etcd-urls", nodes.url]) == 0
    # A state is not changed by hand while the node is alive, in whichever spelling.
    for state in ("offline", "paused", "online"):
        code, _, err = run("-cmd", "update-pump", "-node-id", "host-1:8250", "-state", state)
        assert (code, "host-1:8250 is alive" in err) == (2, True), err
    assert old.state is NodeState.ONLINE
    # A Drainer that lacks something of it keeps it here; one that has left does not.
    behind = NodeStatus(
        node_id="d", host="127.0.0.1:1", state=NodeState.PAUSED, max_commit_ts=5, update_ts=5
    )
    registry = Registry(nodes.etcd)
    registry.put(NodeKind.DRAINER, behind)
    code, out, _ = run("-cmd", "offline-pump", "-node-id", "host-1:8250")
    assert (code, out.startswith("host-1:8250: closing")) == (0, True)
    assert (
        main(["offline-pump", "host-1:8250", "--wait", "--timeout", "1s", "--etcd-urls", nodes.url])
        == 2
    )  # It is closing already.
    eventually(lambda: old.state is NodeState.CLOSING, 20)
    registry.put(NodeKind.DRAINER, NodeStatus(node_id="d", host="127.0.0.1:1",
                 state=NodeState.PAUSED, max_commit_ts=2**62, update_ts=5))  # fmt: skip
    eventually(lambda: old.state is NodeState.OFFLINE, 20)
    eventually(lambda: "host-1:8250" not in run("-cmd", "pumps")[1])
    assert "host-1:8250" in run("-cmd", "pumps", "-show-offline-nodes")[1]
    # The other one is paused, in our spelling.
    argv = ["pause-pump", "host-2:8250", "--wait", "--etcd-urls", nodes.url]
    assert main(argv) == 0
    eventually(lambda: other.state is NodeState.PAUSED, 20)


def test_what_a_node_of_tidb_binlog_refuses_is_passed_on(
    run: Run, nodes: Nodes, original: MakeOriginal
) -> None:
    nodes.add_pump()
    old = original("host-1:8250")
    argv = ["offline-pump", "host-1:8250", "--skip-drainer", "d", "--etcd-urls", nodes.url]
    assert main(argv) == 2
    assert old.state is NodeState.ONLINE
    old.refusal = "apply close failed!"
    code, _, err = run("-cmd", "offline-pump", "-node-id", "host-1:8250")
    assert (code, "of TiDB-Binlog, refuses: apply close failed!" in err) == (2, True), err
    assert old.state is NodeState.ONLINE


def test_the_present_is_written_to_a_file_as_tidb_binlog_does(
    run: Run, nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.add_pump()
    folder = tmp_path / "binlog_position"
    argv = ["generate_meta", "--data-dir", str(folder), "--etcd-urls", nodes.url]
    assert main([*argv, "--time-zone", "Asia/Shanghai"]) == 0
    printed = capsys.readouterr().out
    first, utc, there = (folder / "savepoint").read_text().splitlines()
    ts = int(first.removeprefix("commitTS = "))
    assert f"commitTS: {ts}; a Drainer takes it as --initial-commit-ts {ts}" in printed
    assert (utc.endswith("+0000 UTC"), there.endswith("+0800 CST")) == (True, True)
    assert main([*argv, "--time-zone", "Nowhere/At-all"]) == 2
    assert main(argv) == 0
    assert (folder / "savepoint").read_text().count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["savepoint"]


@pytest.mark.slow
def test_a_running_cluster_moves_over_pump_by_pump_without_a_break(
    replication: Replication, original: MakeOriginal, etcd_server: EtcdServer
) -> None:
    """The way of `drainer/guide/from_tidb_binlog.md`, while a writer never stops."""
    drainer = replication.start()
    olds = [original(f"host-{i}:8250") for i in (1, 2)]
    writer = replication.begin()
    ended = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not ended.is_set():
            writer.transact(1)
            written += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        eventually(lambda: all(old.taken > 5 for old in olds), 180)
        replication.add_pump()
        for old in olds:
            before = written
            name, url = old.node_id, etcd_server.url
            assert main(["-cmd", "offline-pump", "-pd-urls", url, "-node-id", name]) == 0
            eventually(lambda old=old: old.state is NodeState.OFFLINE, 180)  # type: ignore[misc]
            eventually(lambda before=before: written > before + 20, 180)  # type: ignore[misc]
            if old is olds[0]:
                # A Drainer that stops and starts in the middle of the way knows who is left.
                assert drainer.stop() == 0
                drainer.start()
    finally:
        ended.set()
        writing.join()
    replication.check(drainer)
    # What left stays left, for a Drainer that starts later too.
    assert drainer.stop() == 0
    drainer.start()
    writer.transact(10)
    replication.check(drainer)
    assert {old.taken > 5 for old in olds} == {True}
