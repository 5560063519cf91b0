"""The operator's command: who is in the cluster, and pause, take offline or re-label a node.

    pumps, drainers                    a table to standard output
    pause-pump, pause-drainer          the node stops and keeps its place: paused
    offline-pump, offline-drainer      the node hands everything over, then leaves: offline
    update-pump, update-drainer        only writes another state to etcd, for a node that is dead

Exit codes: 0 done, 1 it failed and may work later, 2 somebody must change something first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import grpc

from penstock import __version__, etcd
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.registry import NodeKind, NodeState, NodeStatus, Registry, is_live
from penstock.ts import compose, physical_ms
from pumpclient.options import open_channel

_CALL_S: Final = 10.0
_KINDS: Final = {"pump": NodeKind.PUMP, "drainer": NodeKind.DRAINER}
_COLUMNS: Final = ("NODE ID", "ADDRESS", "STATE", "MAX COMMIT TS", "COMMITTED", "HEARTBEAT")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        client = etcd.connect(arguments.etcd_urls)
        try:
            return _run(Registry(client), arguments)
        finally:
            client.close()
    except NeedsOperator as error:
        print(f"binlogctl: {error}", file=sys.stderr)
        return 2
    except PenstockError as error:
        print(f"binlogctl: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="binlogctl", description="Look at and steer the nodes of a Penstock cluster."
    )
    parser.add_argument("--version", action="version", version=f"binlogctl {__version__}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--etcd-urls",
        default="127.0.0.1:2379",
        metavar="HOST:PORT,…",
        help="where etcd listens (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for kind in _KINDS:
        listing = commands.add_parser(f"{kind}s", parents=[shared], help=f"list the {kind}s")
        listing.add_argument(
            "--show-offline-nodes", action="store_true", help="also those that have left"
        )
        for verb, what in (
            ("pause", "stop it for now; it keeps its place"),
            ("offline", "let it hand everything over and leave"),
            ("update", "write its state to etcd, whatever it does"),
        ):
            command = commands.add_parser(
                f"{verb}-{kind}", parents=[shared], help=f"{kind}: {what}"
            )
            command.add_argument("--node-id", required=True, help=f"as listed by `{kind}s`")
            if verb == "update":
                states = [str(state) for state in NodeState]
                command.add_argument("--state", required=True, choices=states)
    return parser


def _run(registry: Registry, arguments: argparse.Namespace) -> int:
    verb, _, noun = arguments.command.rpartition("-")
    kind = _KINDS[noun.removesuffix("s")]
    if not verb:
        nodes = registry.list(kind)
        shown = arguments.show_offline_nodes
        nodes = [n for n in nodes if shown or n.state is not NodeState.OFFLINE]
        print(table_of(nodes, time.time()))
        return 0
    status = _known(registry, kind, arguments.node_id)
    if verb == "update":
        registry.put(kind, replace(status, state=NodeState(arguments.state)))
        print(f"{status.node_id}: {status.state} -> {arguments.state}")
        return 0
    _tell(kind, status, verb)
    goal = "pausing" if verb == "pause" else "closing"
    print(f"{status.node_id}: {goal}; see `binlogctl {kind} --show-offline-nodes` for how it goes")
    return 0


def _known(registry: Registry, kind: NodeKind, node_id: str) -> NodeStatus:
    status = registry.get(kind, node_id)
    if status is None:
        known = ", ".join(n.node_id for n in registry.list(kind)) or "none at all"
        raise NeedsOperator(
            f"there is no node {node_id!r} among the {kind}", hint=f"known: {known}"
        )
    return status


def _tell(kind: NodeKind, status: NodeStatus, verb: str) -> None:
    """Ask the node itself to stop; only it knows what it still has to finish."""
    if status.state is not NodeState.ONLINE:
        raise NeedsOperator(
            f"{status.node_id} is {status.state}",
            hint="only a node that is online can be stopped; update its state if it is dead",
        )
    stubs: dict[NodeKind, Any] = {
        NodeKind.PUMP: penstock_pb2_grpc.PumpStub,
        NodeKind.DRAINER: penstock_pb2_grpc.DrainerStub,
    }
    with open_channel(status.host, None) as channel:
        stub = stubs[kind](channel)
        try:
            if verb == "pause":
                stub.Pause(penstock_pb2.PauseRequest(node_id=status.node_id), timeout=_CALL_S)
            else:
                stub.Close(penstock_pb2.CloseRequest(node_id=status.node_id), timeout=_CALL_S)
        except grpc.RpcError as error:
            raise _refusal(status, error) from error


def _refusal(status: NodeStatus, error: grpc.RpcError) -> PenstockError:
    what = f"{status.node_id} at {status.host}: {error.code().name}: {error.details()}"
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Retryable(f"{what}; if it is dead for good, update its state")
    return NeedsOperator(what, hint="look at the node's log")


def table_of(nodes: Sequence[NodeStatus], now_s: float) -> str:
    """Return nodes as aligned text, times as UTC with the seconds that have passed since."""
    if not nodes:
        return "no nodes"
    lines = [_COLUMNS, *(_line(node, now_s) for node in nodes)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _line(node: NodeStatus, now_s: float) -> tuple[str, ...]:
    state = str(node.state)
    # A node that was killed still says "online": only its silence tells.
    if node.state is NodeState.ONLINE and not is_live(node, compose(int(now_s * 1000), 0)):
        state += " (silent)"
    return (
        node.node_id,
        node.host,
        state,
        str(node.max_commit_ts),
        _time_of(node.max_commit_ts, now_s),
        _time_of(node.update_ts, now_s),
    )


def _time_of(ts: int, now_s: float) -> str:
    if not ts:
        return "never"
    then_s = physical_ms(ts) / 1000
    try:
        told = datetime.fromtimestamp(then_s, UTC)
    except (ValueError, OverflowError, OSError):
        return "not a time"
    return f"{told:%Y-%m-%d %H:%M:%S} ({now_s - then_s:.1f} s ago)"


if __name__ == "__main__":
    raise SystemExit(main())
