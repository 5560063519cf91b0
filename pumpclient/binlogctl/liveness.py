"""Whether a node is dead: its heartbeat is stale, and nobody answers at its address.

What an operator does to a node's entry in etcd, a living node undoes at its next heartbeat, and who
believed the entry in between has gone on without it. So nothing is done to one that may live.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from typing import Final

from penstock.cluster.registry import NodeKind, NodeState, NodeStatus, Registry, is_live
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.pb import penstock_pb2
from pumpclient.binlogctl.nodes import CALL_S, call, now_ts, time_of, tls_of

WATCHED_S: Final = 12.0
"""How long a heartbeat is watched where nobody tells the time; it comes every few seconds."""

_CONNECT_S: Final = 3.0


def refuse_living(
    arguments: argparse.Namespace, registry: Registry, kind: NodeKind, status: NodeStatus, hint: str
) -> None:
    """Raise `NeedsOperator` with the hint when there is any sign that the node may still live."""
    name = status.node_id
    says_it_runs = status.state not in (NodeState.PAUSED, NodeState.OFFLINE)
    if says_it_runs and _is_heard_of(arguments, registry, kind, status):
        since = time_of(status.update_ts, time.time())
        raise NeedsOperator(f"{name} is alive: its last heartbeat is of {since}", hint=hint)
    if not _listens(status.host):
        return
    request = penstock_pb2.StatusRequest()
    try:
        reply = call(kind, status.host, "Status", request, CALL_S, tls_of(arguments))
    except PenstockError as error:
        raise NeedsOperator(
            f"something listens at {status.host} that does not say who it is: {error}",
            hint=f"make sure that no process of {name} is left there, frozen or starting",
        ) from error
    if reply.node_id == name:
        raise NeedsOperator(f"{name} is alive: it answers at {status.host}", hint=hint)


def _is_heard_of(
    arguments: argparse.Namespace, registry: Registry, kind: NodeKind, status: NodeStatus
) -> bool:
    """Tell whether a heartbeat is fresh by the cluster's time; else whether another one comes."""
    if not status.update_ts:
        return False
    try:
        return is_live(status, now_ts(arguments))
    except Retryable:
        sys.stderr.write(
            f"nobody tells the time: watching {status.node_id} for {WATCHED_S:.0f} s\n"
        )
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
