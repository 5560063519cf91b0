"""`binlogctl lost-pump`: a Pump's disk is gone for ever, and Drainers are to go on without it.

    who is it, is it dead ── how far has each Drainer got it ── what that gives up ── the node id,
    typed once more ── the decision in etcd ── offline

The decision comes first and the state second: whoever sees the Pump offline can know why. Drainers
take notice within seconds; those that do not run, when they start.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import NeedsOperator
from penstock.lost import LostPump
from penstock.pb import penstock_pb2
from penstock.registry import NodeKind, NodeState, NodeStatus, Registry, is_live
from pumpclient.binlogctl.liveness import refuse_living
from pumpclient.binlogctl.nodes import CALL_S, Cluster, call, known_node, now_ts, time_of, tls_of


@dataclass(frozen=True, slots=True)
class _Received:
    """Up to where a Drainer has the Pump's binlogs; `how` says who says so."""

    drainer: str
    ts: int
    how: str


def add_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "lost-pump", parents=[shared], help="give up what a Pump held whose disk is gone for ever"
    )
    command.add_argument("node", metavar="NODE-ID", help="as listed by `pumps`")
    command.add_argument(
        "--accept-loss-after",
        type=int,
        required=True,
        metavar="TS",
        help="the commit_ts after which its binlogs are given up; every Drainer must have those"
        " before (0: see what they have, change nothing)",
    )
    command.add_argument(
        "--confirm", metavar="NODE-ID", default="", help="the node id once more, for scripts"
    )
    command.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if there is one")
    command.set_defaults(run=_lost_pump)


def _lost_pump(arguments: argparse.Namespace) -> int:
    with Cluster(arguments) as registry:
        status = known_node(registry, NodeKind.PUMP, arguments.node)
        cluster_ts = now_ts(arguments)
        hint = "let it hand over what it has: binlogctl offline-pump; only a dead Pump can be lost"
        refuse_living(arguments, registry, NodeKind.PUMP, status, hint)
        known = registry.lost().get(status.node_id)
        word = registry.last_words().get(status.node_id)
        # One that is offline without a final word of its own is waited for still.
        is_done = status.state is NodeState.OFFLINE and word is not None and word.is_final
        if known is None and is_done:
            raise NeedsOperator(
                f"{status.node_id} is offline: no Drainer waits for it",
                hint="nothing is to be done",
            )
        received = _received(arguments, registry, status.node_id, cluster_ts)
        up_to_ts = known.up_to_ts if known else cluster_ts
        _tell(status, received, arguments.accept_loss_after, up_to_ts, known)
        _refuse_more_than_accepted(received, arguments.accept_loss_after, known)
        _confirm(arguments, status.node_id)
        lost = LostPump(
            pump=status.node_id,
            after_ts=arguments.accept_loss_after,
            up_to_ts=up_to_ts,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        registry.put_lost(lost)
        registry.put(NodeKind.PUMP, replace(status, state=NodeState.OFFLINE))
    print(f"{status.node_id}: lost; Drainers go on without what it held after {lost.after_ts}")
    return 0


def _received(
    arguments: argparse.Namespace, registry: Registry, pump: str, cluster_ts: int
) -> Sequence[_Received]:
    """Return how far each Drainer that is not offline has the Pump's binlogs."""
    found = []
    for drainer in registry.list(NodeKind.DRAINER):
        if drainer.state is NodeState.OFFLINE:
            continue
        name = drainer.node_id
        if not is_live(drainer, cluster_ts):
            found.append(_Received(name, drainer.max_commit_ts, "does not run; its checkpoint"))
            continue
        request = penstock_pb2.StatusRequest()
        reply = call(NodeKind.DRAINER, drainer.host, "Status", request, CALL_S, tls_of(arguments))
        told = reply.details.get(f"pump {pump} received_ts")
        if told is None:
            found.append(_Received(name, reply.max_commit_ts, "does not pull it; its checkpoint"))
        else:
            found.append(_Received(name, int(told), "has received it up to there"))
    return found


def _tell(
    status: NodeStatus,
    received: Sequence[_Received],
    after_ts: int,
    up_to_ts: int,
    known: LostPump | None,
) -> None:
    now_s = time.time()
    heard = time_of(status.update_ts, now_s)
    print(f"pump {status.node_id} at {status.host}, last heartbeat {heard}")
    print(f"it had sorted up to {status.max_commit_ts}")
    if known is not None:
        print(f"declared lost at {known.made} after {known.after_ts}")
    for each in received:
        print(f"drainer {each.drainer} {each.how}: {each.ts}, {time_of(each.ts, now_s)};"
              f" it would lose ({each.ts}, {up_to_ts}]")  # fmt: skip
    if not received:
        print(f"no Drainer: what would be given up is ({after_ts}, {up_to_ts}]")
    print(
        f"given up is what commits in these ranges and was on {status.node_id}, for ever; and what"
        " was prepared there and its writer commits only from now on"
    )


def _refuse_more_than_accepted(
    received: Sequence[_Received], after_ts: int, known: LostPump | None
) -> None:
    """Raise `NeedsOperator` when a Drainer would lose more than the operator accepts."""
    least = min(received, key=lambda each: each.ts, default=None)
    if least is not None and least.ts < after_ts:
        raise NeedsOperator(
            f"drainer {least.drainer} has only what is up to {least.ts}, not up to {after_ts}",
            hint="wait for it; or give up for ever what it lacks, and accept more:"
            f" --accept-loss-after {least.ts}",
        )
    if known is not None and known.after_ts < after_ts:
        raise NeedsOperator(
            f"more is given up already: what is after {known.after_ts}",
            hint="a decision can be widened, not taken back",
        )


def _confirm(arguments: argparse.Namespace, name: str) -> None:
    """Return when the operator has said the node id once more."""
    typed = arguments.confirm
    if not typed and sys.stdin.isatty():
        typed = input(f"type the node id to give this up for ever ({name}): ").strip()
    if typed != name:
        raise NeedsOperator(
            "nothing was changed: this has to be confirmed", hint=f"add --confirm {name}"
        )
