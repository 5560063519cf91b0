"""Changes a dead node's state in etcd, never skipping data that it still holds.

    update-pump, update-drainer     another state for a dead node
    offline-pump of a stopped Pump  offline, if its last word says that every Drainer has all of it

Offline means that a node is not waited for any more. A Pump gets there only when all of its data is
downstream of every Drainer; a Drainer loses its claim to the data that Pumps keep for it.

A node is dead when no heartbeat arrives during the watch and nothing answers at its address. A
running node would overwrite an operator's change of its entry at its next heartbeat, but processes
that read the entry in between would have continued without the node. Therefore a node that may
still run is not changed.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from dataclasses import replace
from typing import Final

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.cluster.records import LastWord
from penstock.codes import Code
from penstock.ctl.nodes import CALL_S, call, show_change, time_of, tls_of
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.pb import penstock_pb2

WATCHED_S: Final = 12.0
"""How long a heartbeat is watched; it is written every few seconds."""

_CONNECT_S: Final = 3.0


def update(
    arguments: argparse.Namespace, registry: Registry, kind: NodeKind, status: NodeStatus
) -> int:
    state = NodeState(arguments.state)
    if kind is NodeKind.PUMP and state is NodeState.OFFLINE:
        return retire(arguments, registry, status)
    one = "pump" if kind is NodeKind.PUMP else "drainer"
    refuse_living(
        arguments, registry, kind, status,
        hint="stop the program that reads by this name"
        if status.is_reader
        else f"it keeps its state itself; to stop it: penstock ctl pause-{one} or offline-{one}",
    )  # fmt: skip
    registry.put(kind, replace(status, state=state))
    note = ""
    if kind is NodeKind.DRAINER and state is NodeState.OFFLINE:
        note = (
            "Pumps keep no binlogs for it any more: should it start again, it continues from its"
            f" checkpoint {status.max_commit_ts}, or stops if some after that are gone by then"
        )
    _show(arguments, status, state, note and f"\n{note}", note)
    return 0


def _show(
    arguments: argparse.Namespace, status: NodeStatus, state: NodeState, text: str, note: str
) -> None:
    facts = {
        "node_id": status.node_id,
        "before": str(status.state),
        "state": str(state),
        "max_commit_ts": status.max_commit_ts,
        "note": note,
    }
    show_change(arguments, facts, f"{status.node_id}: {status.state} -> {state}{text}")


def retire(arguments: argparse.Namespace, registry: Registry, status: NodeStatus) -> int:
    """Take a stopped Pump offline if every Drainer has all it holds; else report the gap."""
    name = status.node_id
    if status.state is NodeState.OFFLINE:
        raise NeedsOperator(f"{name} is offline", "nothing is to be done", Code.NODE_STATE)
    refuse_living(
        arguments, registry, NodeKind.PUMP, status,
        hint=f"let it hand over what it has: penstock ctl offline-pump {name}",
    )  # fmt: skip
    word = registry.last_words().get(name)
    _refuse_unknown(name, word)
    assert word is not None
    behind = [
        drainer
        for drainer in registry.list(NodeKind.DRAINER)
        if drainer.state is not NodeState.OFFLINE and drainer.max_commit_ts < word.up_to_ts
    ]
    if behind:
        missing = "; ".join(
            f"drainer {drainer.node_id} ({drainer.state}) is missing those in"
            f" ({drainer.max_commit_ts}, {word.up_to_ts}]"
            for drainer in behind
        )
        raise NeedsOperator(
            f"{name} still holds binlogs that are only on its disk: {missing}",
            f"start {name} again, and each of these Drainers that does not run: it hands them"
            " over; then try again",
            Code.NODE_HOLDS_BINLOGS,
        )
    if not registry.retire(status, word):
        raise Retryable(f"{name} was heard of just now; nothing was changed", Code.NODE_STATE)
    note = "every Drainer has all that it held"
    _show(arguments, status, NodeState.OFFLINE, f"; {note}", note)
    return 0


def _refuse_unknown(name: str, word: LastWord | None) -> None:
    start = f"start {name} again with its data-dir, then: penstock ctl offline-pump {name}"
    if word is None:
        raise NeedsOperator(
            f"{name} did not shut down cleanly, so it is unknown which binlogs only it holds",
            f"{start}; only if its disk is gone and it cannot start again: penstock ctl"
            f" lost-pump {name} --accept-loss-after 0, which changes nothing and shows what each"
            " Drainer would lose",
            Code.NODE_HOLDS_BINLOGS,
        )
    if not word.is_final:
        raise NeedsOperator(
            f"{name} stopped with {word.open_count} transactions open, which may be committed",
            f"{start}: it finds out what became of them",
            Code.NODE_HOLDS_BINLOGS,
        )


def refuse_living(
    arguments: argparse.Namespace, registry: Registry, kind: NodeKind, status: NodeStatus, hint: str
) -> None:
    """Raise `NeedsOperator` with `hint` on any sign that the node may still run."""
    name = status.node_id
    says_it_runs = status.state not in (NodeState.PAUSED, NodeState.OFFLINE)
    if says_it_runs and is_heard_of(registry, kind, status):
        since = time_of(status.update_ts, time.time())
        raise NeedsOperator(
            f"{name} is alive: its last heartbeat is of {since}", hint, Code.NODE_STATE
        )
    if not _listens(status.host):
        return
    request = penstock_pb2.StatusRequest()
    try:
        reply = call(kind, status.host, "Status", request, CALL_S, tls_of(arguments))
    except PenstockError as error:
        raise NeedsOperator(
            f"something listens at {status.host} that does not say who it is: {error}",
            f"make sure that no process of {name} is left there, frozen or starting",
            Code.NODE_STATE,
        ) from error
    if reply.node_id == name:
        raise NeedsOperator(f"{name} is alive: it answers at {status.host}", hint, Code.NODE_STATE)


def is_heard_of(registry: Registry, kind: NodeKind, status: NodeStatus) -> bool:
    """Return whether another heartbeat comes; False if a Pump already found it silent."""
    silent_ts = registry.silent().get(status.node_id) if kind is NodeKind.DRAINER else None
    if not status.update_ts or silent_ts == status.update_ts:
        return False
    sys.stderr.write(f"watching {status.node_id} for up to {WATCHED_S:.0f} s\n")
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        time.sleep(0.5)
        found = registry.get(kind, status.node_id)
        if found is not None and found.update_ts != status.update_ts:
            return True
    return False


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True
