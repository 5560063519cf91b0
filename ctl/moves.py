"""Moves a log to another Pump, or drains a Pump before its machine is switched off.

    move-log    another Pump serves the log from now on, even if a Drainer is missing much of it
    drain       the Pump hands over its log to the Drainers and the replicas on its disk to others

Both only start a process in the Pump, and show its progress with `--wait`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any, Final

from ctl.nodes import Cluster, add_node, call_pump, known_node, show_change
from ctl.steering import add_skipped, add_wait
from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.output import TEXT
from penstock.pb import penstock_pb2

_TICK_S: Final = 0.25
_SERVED: Final = (NodeState.ONLINE, NodeState.CLOSING, NodeState.OFFLINE)


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    move = commands.add_parser(
        "move-log", parents=[shared], help="pump: let another one serve its log"
    )
    add_node(move)
    move.add_argument(
        "--to", metavar="NODE-ID", default="", help="the Pump; default: one that has a copy"
    )
    add_wait(move)
    move.set_defaults(run=_move_log)
    drain = commands.add_parser(
        "drain", parents=[shared], help="pump: hand everything over, so that its machine may go"
    )
    add_node(drain)
    add_wait(drain)
    add_skipped(drain)
    drain.set_defaults(run=_drain)


def _move_log(arguments: argparse.Namespace) -> int:
    name, cluster = arguments.node_id, Cluster(arguments)
    with cluster as registry:
        status = known_node(registry, NodeKind.PUMP, name)
        before = cluster.entry_of(name)
        request = penstock_pb2.MoveLogRequest(node_id=name, to=arguments.to)
        try:
            to = call_pump(arguments, status.host, "MoveLog", request).to
        except Retryable as error:
            why = _why_not_moved(registry, status)
            raise Retryable(f"{error}; {why}", error.code) from error
        facts = {"node_id": name, "to": to, "is_moved": False}
        text = f"the log of {name} goes to {to}; see `penstock ctl status {name}`, or add --wait"
        if arguments.wait:
            entry = _until_moved(arguments, cluster, registry, status, before)
            facts |= {"to": entry.primary.pump, "is_moved": True, "epoch": entry.epoch}
            text = (
                f"the log of {name} is served by {entry.primary.pump} since epoch {entry.epoch},"
                f" until every Drainer has all of it; then {name} starts a new log under its name"
            )
    show_change(arguments, facts, text)
    return 0


def _why_not_moved(registry: Registry, status: NodeStatus) -> str:
    if status.state is NodeState.OFFLINE:
        return "it is offline, and every Drainer has all of its log"
    # A Pump that died during start-up is also paused, but has left no last word.
    if status.state is NodeState.PAUSED and status.node_id in registry.last_words():
        return (
            "the log of one that was stopped is not taken over: start it, and move its log once it"
            " is online"
        )
    return "the log of one that is dead is taken over without being asked to"


def _until_moved(
    arguments: argparse.Namespace,
    cluster: Cluster,
    registry: Registry,
    status: NodeStatus,
    before: LogEntry | None,
) -> LogEntry:
    progress = _Progress(arguments, status)
    while True:
        with contextlib.suppress(Retryable):
            entry = cluster.entry_of(status.node_id)
            if entry is not None and before is not None and entry.primary != before.primary:
                now = known_node(registry, NodeKind.PUMP, status.node_id)
                progress.show(f"{entry.primary.pump} starts a process on its copy")
                if now.host != status.host and now.state in _SERVED:
                    return entry
        said = progress.ask("moving")
        if said.startswith("given up"):
            raise NeedsOperator(
                f"the log of {status.node_id} was not moved: {said}",
                "name another Pump, or try again",
                Code.NODE_STATE,
            )
        progress.wait(f"the log of {status.node_id} is not served by another Pump")


def _drain(arguments: argparse.Namespace) -> int:
    name, cluster = arguments.node_id, Cluster(arguments)
    with cluster as registry:
        status = known_node(registry, NodeKind.PUMP, name)
        if status.state is NodeState.OFFLINE:
            return _is_drained(arguments, cluster, registry)
        if status.state not in (NodeState.ONLINE, NodeState.CLOSING):
            raise NeedsOperator(
                f"{name} is {status.state}",
                "start it, then drain it: only it can hand over what is on its disk",
                Code.NODE_STATE,
            )
        request = penstock_pb2.CloseRequest(
            node_id=name, skip_drainers=arguments.skip_drainer, empty_disk=True
        )
        call_pump(arguments, status.host, "Close", request)
        state = NodeState.CLOSING
        text = (
            f"{name}: {state}; see `penstock ctl status {name}` for how it goes, or add --wait; to"
            " undo it, restart that Pump"
        )
        if arguments.wait:
            progress = _Progress(arguments, status)
            while (found := _state(registry, name, state)) is not NodeState.OFFLINE:
                state = found
                if state is NodeState.PAUSED:
                    raise NeedsOperator(
                        f"{name} was stopped before it was empty",
                        f"start it, then again: penstock ctl drain {name}",
                        Code.NODE_STATE,
                    )
                progress.ask("closing")
                progress.wait(f"{name} is not empty")
            state = NodeState.OFFLINE
            text = f"no one needs what {name} has: its machine can be switched off"
    show_change(arguments, {"node_id": name, "state": str(state)}, text)
    return 0


def _is_drained(arguments: argparse.Namespace, cluster: Cluster, registry: Registry) -> int:
    name = arguments.node_id
    gone = {
        pump.node_id for pump in registry.list(NodeKind.PUMP) if pump.state is NodeState.OFFLINE
    }
    kept = [node_id for node_id in cluster.logs_on(name) if node_id not in gone]
    if kept:
        raise NeedsOperator(
            f"{name} is offline, and etcd lists its disk for the log of {', '.join(kept)}",
            "start it, then drain it: only it can hand over what is on its disk",
            Code.NODE_STATE,
        )
    text = f"{name} is offline, and no one needs what it has: its machine can be switched off"
    show_change(arguments, {"node_id": name, "state": str(NodeState.OFFLINE)}, text)
    return 0


def _state(registry: Registry, name: str, known: NodeState) -> NodeState:
    try:
        return known_node(registry, NodeKind.PUMP, name).state
    except Retryable:
        return known


class _Progress:
    """A Pump's progress on a long operation, printed whenever it changes."""

    def __init__(self, arguments: argparse.Namespace, status: NodeStatus) -> None:
        self._arguments = arguments
        self._status = status
        self._end_s = time.monotonic() + arguments.timeout
        self._said = ""

    def ask(self, detail: str) -> str:
        """Return a detail of the Pump's status, or its last value while it does not answer."""
        request = penstock_pb2.StatusRequest()
        with contextlib.suppress(PenstockError):
            reply = call_pump(self._arguments, self._status.host, "Status", request)
            if reply.node_id == self._status.node_id:
                self.show(reply.details.get(detail, ""))
        return self._said

    def show(self, said: str) -> None:
        if said and said != self._said and self._arguments.output == TEXT:
            sys.stderr.write(f"{self._status.node_id}: {said}\n")
        self._said = said or self._said

    def wait(self, problem: str) -> None:
        """Wait briefly; raise `Retryable` once the time has expired."""
        if time.monotonic() >= self._end_s:
            raise Retryable(
                f"{problem} after {self._arguments.timeout:g} s: {self._said or 'no answer'}; it"
                " continues",
                Code.WAIT_ENDED,
            )
        time.sleep(_TICK_S)
