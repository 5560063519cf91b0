"""Machines are emptied, logs are moved and Pumps upgraded under load: no writer waits for it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from tests.kit.servers.fix_copies import WAIT_S, MakePump, Trio
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.judged_stream import judged_stream, read_up_to
from tests.kit.workloads.random_writer import RandomWriter
from tests.kit.workloads.stalls import stalls

pytestmark = [pytest.mark.fault, pytest.mark.alone]

Ctl = Callable[..., tuple[int, str]]

LOAD_S = 1.0
TAKEOVER_AFTER_S = 20.0
WRITERS_WAIT_S_MAX = 0.8 * TAKEOVER_AFTER_S
"""In real time: a commit to a log that is not handed over waits until a takeover is due."""


@contextmanager
def measured(
    etcd_server: EtcdServer, folder: Path, seed: int
) -> Iterator[tuple[RandomWriter, dict[str, float]]]:
    """Write and read; the block gets the longest time without a commit, and without a read one."""
    path = folder / "audit.db"
    with judged_stream(etcd_server.url, path, seed=seed) as writer:
        eventually(lambda: len(writer.items) > 100)
        watched = {"commit": lambda: writer.last_ts, "merge": lambda: read_up_to(path)}
        with stalls(watched) as longest_s:
            yield writer, longest_s
            time.sleep(LOAD_S)
        sys.stderr.write(f"longest time without, in s: {longest_s}\n")


@pytest.fixture
def ctl(etcd_server: EtcdServer, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs `penstock ctl`; returns its exit code and all that it has printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--etcd-urls", etcd_server.url])
        printed = capsys.readouterr()
        return code, printed.err + printed.out

    return run


@pytest.fixture
def slow_to_take_over(pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer) -> Trio:
    return Trio(pump_factory, etcd_server.url, etcd, takeover_after_s=TAKEOVER_AFTER_S)


@pytest.mark.fault(
    "Pumps are stopped in order and started again, one after the other, under load",
    "the copies on their disks are elsewhere first: no writer waits",
    cases="0 / 1, three Pumps",
)
@pytest.mark.slow
def test_pumps_are_restarted_in_order_one_after_the_other_and_no_writer_waits(
    slow_to_take_over: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = slow_to_take_over
    with measured(etcd_server, tmp_path, seed=11) as (_, longest_s):
        for pump in trio.pumps:
            pump.stop()
            pump.spawn()
            trio.until_online(pump)
            trio.until_whole()
            time.sleep(LOAD_S)
    assert longest_s["commit"] < WRITERS_WAIT_S_MAX


@pytest.mark.slow
def test_logs_are_moved_while_their_pumps_are_upgraded_and_the_merge_hardly_waits(
    slow_to_take_over: Trio, ctl: Ctl, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = slow_to_take_over
    with measured(etcd_server, tmp_path, seed=12) as (_, longest_s):
        for pump in trio.pumps:
            code, said = ctl("move-log", pump.node_id, "--wait")
            assert code == 0, said
            eventually(lambda: not pump.is_running, WAIT_S)  # noqa: B023  # Asked at once.
            pump.spawn()
            trio.until_online(pump)
            trio.until_whole()
            time.sleep(LOAD_S)
    assert longest_s["commit"] < WRITERS_WAIT_S_MAX


@pytest.mark.fault(
    "a log is moved under load; of each of three Pumps in turn, which are upgraded",
    "another Pump serves it at once, its own begins again; nothing is missing or twice",
    cases="1 / 2",
)
def test_a_log_is_moved_under_load_and_its_pump_begins_again(
    slow_to_take_over: Trio, ctl: Ctl, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = slow_to_take_over
    pump = trio.pumps[0]
    with measured(etcd_server, tmp_path, seed=13) as (_, longest_s):
        holder = trio.holder(pump)
        other = next(each for each in trio.pumps if each not in (pump, holder))
        code, said = ctl("move-log", pump.node_id, "--to", other.node_id, "--wait")
        assert code == 0, said
        assert f"is served by {other.node_id} since epoch" in said
        eventually(lambda: not pump.is_running, WAIT_S)
        pump.spawn()
        trio.until_whole()
    assert "the log was moved to pump" in pump.log.read_text()
    assert longest_s["commit"] < WRITERS_WAIT_S_MAX


@pytest.mark.fault(
    "a machine is drained under load; there is no other Pump for its copies",
    "no one needs it; it waits, and says for what",
    cases="0 / 2",
)
@pytest.mark.slow
def test_a_machine_is_drained_under_load_and_no_one_needs_it(
    slow_to_take_over: Trio, ctl: Ctl, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    trio = slow_to_take_over
    pump = trio.pumps[1]
    with measured(etcd_server, tmp_path, seed=14) as (_, longest_s):
        code, said = ctl("drain", pump.node_id, "--wait")
        assert code == 0, said
        assert "its machine can be switched off" in said
        eventually(lambda: not pump.is_running, WAIT_S)
        for each in trio.pumps:
            if each is not pump:
                assert pump.node_id not in [copy.pump for copy in trio.entry(each).replicas]
    assert longest_s["commit"] < WRITERS_WAIT_S_MAX


@pytest.mark.fault(
    "a log is moved under load: the Pump dies once the copies are whole, as it takes no new"
    " transactions, as it gives the log away",
    "the log stays, or is moved",
    cases="0 / 3",
)
@pytest.mark.slow
@pytest.mark.parametrize("step", ["whole", "pausing", "giving"])
def test_a_pump_that_dies_while_its_log_is_moved_loses_nothing(
    trio: Trio, ctl: Ctl, etcd_server: EtcdServer, tmp_path: Path, step: str
) -> None:
    pump = trio.pumps[0]
    pump.kill()
    pump.spawn(f"copies.move.{step}=kill")
    trio.until_online(pump)
    trio.until_whole()
    with measured(etcd_server, tmp_path, seed=15):
        assert ctl("move-log", pump.node_id)[0] == 0
        eventually(lambda: not pump.is_running, WAIT_S)
        pump.spawn()
        trio.until_whole()


@pytest.mark.fault(
    "a log is moved under load: the other Pump dies as it begins to serve",
    "as after a take-over that failed",
    cases="0 / 2",
)
@pytest.mark.slow
@pytest.mark.parametrize("step", ["due", "let_go"])
def test_the_other_pump_dies_as_it_begins_to_serve_and_nothing_is_lost(
    trio: Trio, ctl: Ctl, etcd_server: EtcdServer, tmp_path: Path, step: str
) -> None:
    pump, other = trio.pumps[0], trio.holder(trio.pumps[0])
    assert other is not None
    other.kill()
    other.spawn(f"copies.takeover.{step}=kill")
    trio.until_online(other)
    trio.until_whole()
    with measured(etcd_server, tmp_path, seed=16):
        assert ctl("move-log", pump.node_id, "--to", other.node_id)[0] == 0
        eventually(lambda: not other.is_running and not pump.is_running, WAIT_S)
        for each in (pump, other):
            each.spawn()
        trio.until_whole()


@pytest.mark.fault(
    "an operator moves a log twice: while it goes on, where it is, back, on to a third; one"
    " that cannot be drained; to no Pump, to one that leaves, to the same zone, with too few"
    " Pumps, with one copy",
    "each has its answer; what can be done is done",
    cases="1 + 9",
)
@pytest.mark.thorough
def test_a_log_that_cannot_be_drained_is_moved_and_moved_again_but_not_where_it_is(
    trio: Trio, ctl: Ctl, nodes: Nodes
) -> None:
    registry, pump = Registry(nodes.etcd), trio.pumps[0]
    late = NodeStatus(node_id="d", host="127.0.0.1:1", state=NodeState.PAUSED, max_commit_ts=5)
    registry.put(NodeKind.DRAINER, late)
    fourth = nodes.add_pump(copies=2)
    code, said = ctl("drain", "pump-1", "--wait", "--timeout", "2s")
    assert (code, "pump-1 is not empty after 2 s" in said) == (1, True), said
    assert "drainer d (paused) is" in said
    code, said = ctl("move-log", "pump-1", "--to", "pump-9")
    assert (code, "no pump 'pump-9' that takes copies" in said) == (2, True), said
    assert "is served by pump pump-1 already" in ctl("move-log", "pump-1", "--to", "pump-1")[1]
    assert "there is no node 'pump-9'" in ctl("move-log", "pump-9")[1]
    code, said = ctl("move-log", "pump-1", "--wait")
    assert code == 0, said
    there = trio.entry(pump).primary.pump
    assert there != "pump-1"
    eventually(lambda: not pump.is_running, WAIT_S)
    pump.spawn()
    code, said = ctl("move-log", "pump-1")
    assert (code, f"was moved already: pump {there} serves it" in said) == (2, True), said
    assert f"is served by pump {there} already" in ctl("move-log", "pump-1", "--to", there)[1]
    assert "does not go back" in ctl("move-log", "pump-1", "--to", "pump-1")[1]
    code, said = ctl("drain", "pump-1")
    assert (code, f"is served by pump {there} now" in said) == (2, True), said
    code, said = ctl("move-log", "pump-1", "--to", fourth.node_id, "--wait")
    assert code == 0, said
    assert trio.entry(pump).primary.pump == fourth.node_id
    registry.put(NodeKind.DRAINER, replace(late, max_commit_ts=(1 << 62)))
    pump.wait_for("pump pump-1 begins again", WAIT_S)
    trio.until_online(pump)


@pytest.mark.slow
def test_a_machine_without_another_one_for_its_copies_is_not_empty(nodes: Nodes, ctl: Ctl) -> None:
    forever = {"leave_grace_s": 3600}
    pumps = [nodes.add_pump(waiting=False, copies=2, **forever) for _ in range(2)]
    for pump in pumps:
        pump.wait_for(r"pump \S+ is online at")
    code, said = ctl("drain", "pump-1", "--wait", "--timeout", "2s")
    assert (code, "no other Pump can take one (start one more)" in said) == (1, True), said
    code, said = ctl("move-log", "pump-2")
    assert (code, "would have 0 of 2 copies" in said or "nowhere to go" in said) == (2, True), said
    assert pumps[0].stop(60) == 0, "it waits until another Pump has the copies"


@pytest.mark.thorough
def test_a_log_with_one_copy_is_not_moved(nodes: Nodes, ctl: Ctl) -> None:
    nodes.add_pump()
    code, said = ctl("move-log", "pump-1")
    assert (code, "has one copy only" in said) == (2, True), said
