"""Waiting for what a command began: `--wait`, for `--timeout` at most."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Final

from penstock.cluster.registry import NodeKind, NodeState
from penstock.errors import PenstockError, Retryable
from penstock.pb import penstock_pb2
from penstock.settings.config import duration_s
from pumpclient.binlogctl.nodes import CALL_S, Cluster, call, known_node, tls_of

_TICK_S: Final = 0.5


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add the options to a command that begins something."""
    command.add_argument("--wait", action="store_true", help="return when it is done")
    command.add_argument(
        "--timeout",
        type=_duration,
        default=300.0,
        metavar="TIME",
        help="with --wait: fail after so long, such as 90s or 10m; what was begun goes on"
        " (default: 5m)",
    )


def wait_for(arguments: argparse.Namespace, kind: NodeKind, node_id: str, goal: NodeState) -> None:
    """Return when a node has the state; raise `Retryable` with what it waits for when time is up.

    An etcd that is away meanwhile is asked again.
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
        f"{node_id} is not {goal} after {arguments.timeout:g} s, {problem}; it goes on by itself"
    )


def _duration(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
