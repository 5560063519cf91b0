"""Makes a node stop, temporarily or permanently, or a Pump read its disk, and waits with `--wait`.

The state of a dead node is changed in `states`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from ctl import states
from ctl.compat import steer_original
from ctl.nodes import (
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
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.output import facts_in
from penstock.pb import penstock_pb2
from penstock.settings.load import duration_s
from pumpclient.options import Tls

_TICK_S: Final = 0.5


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    for kind in KINDS:
        _add_kind(commands, shared, kind)
    hand_over = commands.add_parser(
        "hand-over", parents=[shared], help="drainer: the active one lets a standby write"
    )
    add_node(hand_over)
    add_wait(hand_over)
    hand_over.set_defaults(run=_hand_over)
    _add_scrub(commands, shared)


def _add_kind(commands: Any, shared: argparse.ArgumentParser, kind: str) -> None:
    for verb, what in (
        ("pause", "stop it for now; it keeps its place"),
        ("offline", "let it hand everything over and leave"),
        ("update", "write another state to etcd for one that is dead"),
    ):
        command = commands.add_parser(f"{verb}-{kind}", parents=[shared], help=f"{kind}: {what}")
        add_node(command)
        if verb != "update":
            add_wait(command)
        command.set_defaults(run=_steer, kind=KINDS[kind], verb=verb)
        if verb != "pause":
            command.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if any")
        if (verb, kind) == ("offline", "pump"):
            add_skipped(command)
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
        _steer_original(status, verb, tls, skipped)


def _steer_original(status: NodeStatus, verb: str, tls: Tls | None, skipped: Sequence[str]) -> None:
    if skipped:
        raise NeedsOperator(
            f"{status.node_id} is a node of TiDB-Binlog, which waits for every Drainer",
            "leave that option out, and start the Drainers that it waits for",
            Code.COMMAND_INVALID,
        )
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


def add_skipped(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--skip-drainer",
        action="append",
        default=[],
        metavar="NODE-ID",
        help="do not wait for this Drainer as long as it is dead; may be repeated",
    )


def add_wait(command: argparse.ArgumentParser) -> None:
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


def _add_scrub(commands: Any, shared: argparse.ArgumentParser) -> None:
    scrub = commands.add_parser(
        "scrub", parents=[shared], help="pump: read all data on its disk, and repair it"
    )
    add_node(scrub)
    add_wait(scrub)
    scrub.set_defaults(run=_scrub)


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
