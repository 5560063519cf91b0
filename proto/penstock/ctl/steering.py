"""Makes a node stop, a Pump read its disk, or another Pump serve a log; waits with `--wait`.

    pause, offline, hand-over    the node stops, temporarily or permanently
    scrub                        the Pump reads its disk
    move-log                     another Pump serves the log, even if a Drainer lacks much of it
    drain                        the Pump hands over its log, and the replicas on its disk

The node does the work; `--wait` shows its progress. The state of a dead node is changed in
`states`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.codes import Code
from penstock.ctl import states
from penstock.ctl.compat import steer_original
from penstock.ctl.nodes import (
    CALL_S,
    KINDS,
    Cluster,
    OtherKind,
    add_node,
    call,
    call_pump,
    known_node,
    show_change,
    tls_of,
)
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.output import TEXT, facts_in
from penstock.pb import penstock_pb2
from penstock.security.tls import Tls
from penstock.settings.load import duration_s

_TICK_S: Final = 0.5


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    for kind in KINDS:
        _add_kind(commands, shared, kind)
    hand_over = commands.add_parser(
        "hand-over", parents=[shared], help="drainer: the active one lets a standby write"
    )
    hand_over.set_defaults(run=_hand_over)
    scrub = commands.add_parser(
        "scrub", parents=[shared], help="pump: read all data on its disk, and repair it"
    )
    scrub.set_defaults(run=_scrub)
    move = commands.add_parser(
        "move-log", parents=[shared], help="pump: let another one serve its log"
    )
    move.set_defaults(run=_move_log)
    drain = commands.add_parser(
        "drain", parents=[shared], help="pump: hand everything over, so that its machine may go"
    )
    drain.set_defaults(run=_drain)
    for command in (hand_over, scrub, move, drain):
        add_node(command)
        if command is move:
            move.add_argument(
                "--to", metavar="NODE-ID", default="", help="the Pump; default: one that has a copy"
            )
        _add_wait(command)
    _add_skipped(drain)


def _add_kind(commands: Any, shared: argparse.ArgumentParser, kind: str) -> None:
    for verb, what in (
        ("pause", "stop it for now; it keeps its place"),
        ("offline", "let it hand everything over and leave"),
        ("update", "write another state to etcd for one that is dead"),
    ):
        command = commands.add_parser(f"{verb}-{kind}", parents=[shared], help=f"{kind}: {what}")
        add_node(command)
        if verb != "update":
            _add_wait(command)
        command.set_defaults(run=_steer, kind=KINDS[kind], verb=verb)
        if verb != "pause":
            command.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if any")
        if (verb, kind) == ("offline", "pump"):
            _add_skipped(command)
        if verb == "update":
            own = (NodeState.STANDBY, NodeState.READING)
            states = [str(state) for state in NodeState if state not in own]
            command.add_argument("--state", required=True, choices=states)


def _steer(arguments: argparse.Namespace) -> int:
    kind, verb = arguments.kind, arguments.verb
    with Cluster(arguments) as registry:
        status = known_node(registry, kind, arguments.node_id)
        if verb == "update":
            return states.update(arguments, registry, kind, status)
        is_stopped_pump = kind is NodeKind.PUMP and status.state is NodeState.PAUSED
        if verb == "offline" and is_stopped_pump:
            return states.retire(arguments, registry, status)
    skipped = getattr(arguments, "skip_drainer", [])
    begin_ending(kind, status, verb, tls_of(arguments), skipped)
    state, goal = NodeState.CLOSING, NodeState.OFFLINE
    if verb == "pause":
        state, goal = NodeState.PAUSING, NodeState.PAUSED
    if arguments.wait:
        _wait_for(arguments, kind, status.node_id, goal)
        state = goal
    text = f"{status.node_id}: {state}"
    if not arguments.wait:
        text += f"; see `penstock ctl status {status.node_id}` for how it goes, or add --wait"
    show_change(arguments, {"node_id": status.node_id, "state": str(state)}, text)
    return 0


def begin_ending(
    kind: NodeKind, status: NodeStatus, verb: str, tls: Tls | None, skipped: Sequence[str] = ()
) -> None:
    """Ask a node to `pause` or go `offline`; raise a `PenstockError` if it does not."""
    method, request = _ending(status, verb, skipped)
    try:
        call(kind, status.host, method, request, CALL_S, tls)
    except OtherKind:
        if skipped:
            raise NeedsOperator(
                f"{status.node_id} is a node of TiDB-Binlog, which waits for every Drainer",
                "leave that option out, and start the Drainers that it waits for",
                Code.COMMAND_INVALID,
            ) from None
        steer_original(status, "pause" if verb == "pause" else "close", CALL_S, tls)


def _hand_over(arguments: argparse.Namespace) -> int:
    with Cluster(arguments) as registry:
        status = known_node(registry, NodeKind.DRAINER, arguments.node_id)
    name, takers = status.node_id, begin_hand_over(status, tls_of(arguments))
    text = f"{name}: makes room for {' or '.join(takers)}, then is on standby"
    facts = {"node_id": name, "state": str(status.state), "standbys": takers}
    if arguments.wait:
        _wait_for(arguments, NodeKind.DRAINER, name, NodeState.STANDBY)
        text = f"{name}: {NodeState.STANDBY}; one of {', '.join(takers)} writes in its place"
        facts["state"] = str(NodeState.STANDBY)
    show_change(arguments, facts, text)
    return 0


def begin_hand_over(status: NodeStatus, tls: Tls | None) -> list[str]:
    """Make the active Drainer yield to a standby; return the candidates."""
    request = penstock_pb2.HandOverRequest(node_id=status.node_id)
    reply = call(NodeKind.DRAINER, status.host, "HandOver", request, CALL_S, tls)
    return list(reply.standbys)


def _ending(status: NodeStatus, verb: str, skip_drainers: Sequence[str]) -> tuple[str, Any]:
    """Return the call that stops a node; only the node knows its remaining work."""
    # A closing Pump can still learn which Drainers not to wait for.
    again = bool(skip_drainers) and status.state is NodeState.CLOSING
    if status.is_reader:
        raise NeedsOperator(
            f"{status.node_id} is a program that reads the stream ({status.state}), which takes no"
            " calls",
            "stop the program, and start it again to continue; if it will never read again:"
            f" penstock ctl update-drainer {status.node_id} --state offline lets go of what only it"
            " needs, for good",
            Code.NODE_STATE,
        )
    if status.state not in (NodeState.ONLINE, NodeState.STANDBY) and not again:
        raise NeedsOperator(
            f"{status.node_id} is {status.state}",
            "only a node that is online can be stopped; start one that does not run",
            Code.NODE_STATE,
        )
    if verb == "pause":
        return "Pause", penstock_pb2.PauseRequest(node_id=status.node_id)
    request = penstock_pb2.CloseRequest(node_id=status.node_id, skip_drainers=skip_drainers)
    return "Close", request


def _add_skipped(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--skip-drainer",
        action="append",
        default=[],
        metavar="NODE-ID",
        help="do not wait for this Drainer as long as it is dead; may be repeated",
    )


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument("--wait", action="store_true", help="return when it is done")
    command.add_argument(
        "--timeout",
        type=_duration,
        default=300.0,
        metavar="TIME",
        help="with --wait: fail after so long, such as 90s or 10m; what was begun continues"
        " (default: 5m)",
    )


def _wait_for(arguments: argparse.Namespace, kind: NodeKind, node_id: str, goal: NodeState) -> None:
    """Return when a node has the state; raise `Retryable` with its progress on timeout.

    If etcd is away during the wait, it is asked again.
    """
    end_s = time.monotonic() + arguments.timeout
    problem = ""
    with Cluster(arguments) as registry:
        while True:
            try:
                status = known_node(registry, kind, node_id)
            except Retryable as error:
                problem = str(error)
            else:
                problem = f"it is {status.state}"
                if status.state is goal:
                    return
            if time.monotonic() >= end_s:
                break
            time.sleep(min(_TICK_S, max(0.0, end_s - time.monotonic())))
        with contextlib.suppress(PenstockError):
            address = known_node(registry, kind, node_id).host
            request = penstock_pb2.StatusRequest()
            reply = call(kind, address, "Status", request, CALL_S, tls_of(arguments))
            problem += f": {reply.details['closing']}" if reply.details.get("closing") else ""
    raise Retryable(
        f"{node_id} is not {goal} after {arguments.timeout:g} s, {problem}; it continues",
        Code.WAIT_ENDED,
    )


def _duration(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_SAID_EVERY_S: Final = 5.0


def _scrub(arguments: argparse.Namespace) -> int:
    with Cluster(arguments) as registry:
        status = known_node(registry, NodeKind.PUMP, arguments.node_id)
    name = status.node_id
    request = penstock_pb2.ScrubRequest(node_id=name)
    message = call_pump(arguments, status.host, "Scrub", request).message
    facts: dict[str, Any] = {"node_id": name, "scrub": message}
    if not arguments.wait:
        show_change(
            arguments, facts, f"{name}: {message}; see `penstock ctl status {name}` for how it goes"
        )
        return 0
    ended = _ended(arguments, name)
    left = ended.get("damaged_places", 0)
    facts |= {"scrub": ended["scrub"], "damaged_places": left}
    if left:
        places = [f"damaged {each['place']}" for each in ended["damages"]]
        raise NeedsOperator(
            f"{name}: {ended['scrub']}: {', '.join(places)}",
            "no other disk has these places intact; back up the files before you change anything",
            Code.SEGMENT_DAMAGED,
        )
    show_change(arguments, facts, f"{name}: {ended['scrub']}")
    return 0


def _ended(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    end_s, said_s = time.monotonic() + arguments.timeout, time.monotonic()
    problem = "it has not answered"
    while time.monotonic() < end_s:
        time.sleep(min(_TICK_S, max(0.0, end_s - time.monotonic())))
        try:
            with Cluster(arguments) as registry:
                host = known_node(registry, NodeKind.PUMP, name).host
            request = penstock_pb2.StatusRequest()
            reply = call_pump(arguments, host, "Status", request)
        except Retryable as error:
            problem = str(error)
            continue
        facts = facts_in(reply)
        problem, state = facts["scrub"], facts.get("scrub_state")
        if state == "interrupted":
            break
        if state not in ("pending", "running"):
            return facts
        if time.monotonic() - said_s >= _SAID_EVERY_S:
            said_s = time.monotonic()
            sys.stderr.write(f"{name}: {problem}\n")
    raise Retryable(
        f"{name}: its scrub has not succeeded within {arguments.timeout:g} s: {problem}; it"
        " continues, or is tried again",
        Code.WAIT_ENDED,
    )


_PROGRESS_TICK_S: Final = 0.25
_SERVED: Final = (NodeState.ONLINE, NodeState.CLOSING, NodeState.OFFLINE)


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
        time.sleep(_PROGRESS_TICK_S)
