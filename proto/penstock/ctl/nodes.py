"""Finds and asks nodes for a command, lists them, and shows a node's status.

A command takes its node as `pause-pump pump-1` or as `pause-pump --node-id pump-1`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc

from penstock.cluster import etcd
from penstock.cluster.history import History
from penstock.cluster.log_entry import LogEntries, LogEntry
from penstock.cluster.node_registry import (
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    labels_in,
    seems_live,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable, code_of_call, coded
from penstock.node.logs import one_line
from penstock.node.output import facts_in, moment_of, show
from penstock.oracle.client import open_oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_channel
from penstock.settings.load import ETCD_URLS, Parser
from penstock.settings.setting import check_address
from penstock.ts import compose, physical_ms

KINDS: Final = {"pump": NodeKind.PUMP, "drainer": NodeKind.DRAINER}
DEFAULT_ETCD: Final = "127.0.0.1:2379"
READING: Final = frozenset({"pumps", "drainers", "status", "timestamp", "generate_meta"})
"""Commands about a cluster that change nothing there."""
CALL_S: Final = 10.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A fresh channel is a fresh connection, without the backoff of an older connection.
    ("grpc.use_local_subchannel_pool", 1),
)
_GC_S: Final = 600.0
_NODE_HELP = "name of the node, as `pumps` and `drainers` list it"
_COLUMNS: Final = ("NODE ID", "ADDRESS", "STATE", "MAX COMMIT TS", "COMMITTED", "HEARTBEAT")
_STUBS: Final[dict[NodeKind, Any]] = {
    NodeKind.PUMP: penstock_pb2_grpc.PumpStub,
    NodeKind.DRAINER: penstock_pb2_grpc.DrainerStub,
}


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    for kind, folder in KINDS.items():
        listing = commands.add_parser(f"{kind}s", parents=[shared], help=f"list the {kind}s")
        listing.add_argument(
            "--show-offline-nodes", action="store_true", help="also those that have left"
        )
        # For calls in TiDB-Binlog's spelling, whose lines scripts read.
        listing.add_argument("--in-log-form", action="store_true", help=argparse.SUPPRESS)
        listing.set_defaults(run=_list, kind=folder)
    status = commands.add_parser("status", parents=[shared], help="the detailed status of a node")
    gc = commands.add_parser("trigger-gc", parents=[shared], help="pump: purge what may go, now")
    for command in (status, gc):
        add_node(command, or_address=True)
    status.set_defaults(run=_status)
    gc.set_defaults(run=_trigger_gc)
    now = commands.add_parser(
        "timestamp", parents=[shared], help="a timestamp of now, to begin a Drainer at"
    )
    now.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if there is one")
    now.set_defaults(run=_timestamp)


def connection_options() -> argparse.ArgumentParser:
    shared = Parser(add_help=False)
    shared.add_argument(
        "--etcd-urls",
        default=os.environ.get(ETCD_URLS, ""),
        metavar="HOST:PORT,…",
        help=f"etcd of the cluster (default: {ETCD_URLS}; without it {DEFAULT_ETCD} for a command"
        " that only reads, and none for a command that changes something)",
    )
    for flag, what in (
        ("--etcd-ssl-ca", "the CA of an etcd at https:// (default: --ssl-ca)"),
        ("--etcd-ssl-cert", "a certificate to show to it (default: --ssl-cert)"),
        ("--etcd-ssl-key", "its private key"),
        ("--ssl-ca", "the CA of the nodes' certificates; turns TLS on"),
        ("--ssl-cert", "a certificate to show, where nodes have cert-allowed-cn"),
        ("--ssl-key", "its private key"),
    ):
        shared.add_argument(flag, type=Path, metavar="FILE", help=f"PEM file of {what}")
    return shared


class OtherKind(NeedsOperator):
    """The node that answers does not know the method."""


class Cluster:
    """The registry, for as long as a `with` lasts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._client = etcd.connect(arguments.etcd_urls, tls=etcd_tls_of(arguments))

    def __enter__(self) -> Registry:
        return Registry(self._client)

    @property
    def entries(self) -> LogEntries:
        return LogEntries(self._client)

    @property
    def history(self) -> History:
        return History(self._client)

    def copies_of(self, pump: str) -> Sequence[str]:
        """Return the Pumps that etcd lists with a complete replica, besides the log's folder."""
        entry = self.entry_of(pump)
        if entry is None:
            return ()
        copies = entry.copies_known
        # On its own machine a replica may exist beside the folder of the fenced log.
        others = [c for c in copies if c.pump != pump or c in entry.replicas]
        return [c.pump for c in others if entry.may_claim(c.disk)]

    def entry_of(self, pump: str) -> LogEntry | None:
        """Return the disks of a Pump's log, or None for a log that has no replicas."""
        found = LogEntries(self._client).read(pump)
        return None if found is None else found[0]

    def logs_on(self, pump: str) -> Sequence[str]:
        found = LogEntries(self._client).read_all()
        return [
            node_id
            for node_id, entry in sorted(found.items())
            if node_id != pump and pump in {c.pump for c in entry.copies_known}
        ]

    def __exit__(self, *error: object) -> None:
        self._client.close()


def _list(arguments: argparse.Namespace) -> int:
    with Cluster(arguments) as registry:
        nodes = nodes_of(registry, arguments.kind)
    shown = arguments.show_offline_nodes
    nodes = [n for n in nodes if shown or n.state is not NodeState.OFFLINE]
    now_s = time.time()
    as_text = log_form if arguments.in_log_form else table_of
    show(arguments, [_listed(node, now_s) for node in nodes], as_text(nodes, now_s))
    return 0


def _listed(node: NodeStatus, now_s: float) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "address": node.host,
        "state": str(node.state),
        "is_alive": seems_live(node, compose(int(now_s * 1000), 0)),
        "max_commit_ts": node.max_commit_ts,
        "committed": moment_of(node.max_commit_ts),
        "heartbeat_ts": node.update_ts,
        "heartbeat": moment_of(node.update_ts),
        "score": node.score,
        "labels": labels_in(node.label),
    }


def _status(arguments: argparse.Namespace) -> int:
    kind, address = _addressed(arguments, list(KINDS.values()))
    tls = tls_of(arguments)
    if not arguments.addr and kind is NodeKind.DRAINER:
        with Cluster(arguments) as registry:
            reader = known_node(registry, kind, arguments.node)
        if reader.is_reader:
            return _of_silent(arguments, reader, "a program that reads the stream")
    try:
        reply = call(kind, address, "Status", penstock_pb2.StatusRequest(), CALL_S, tls)
    except Retryable as error:
        if arguments.addr:
            raise
        return _last_known(arguments, kind, error)
    except OtherKind:
        if not arguments.addr:
            with Cluster(arguments) as registry:
                status = known_node(registry, kind, arguments.node)
            return _of_silent(arguments, status, "a node of TiDB-Binlog")
        # Not a Pump: an address does not reveal the kind of node.
        kind = NodeKind.DRAINER
        reply = call(kind, address, "Status", penstock_pb2.StatusRequest(), CALL_S, tls)
    lines = {
        "node_id": reply.node_id,
        "state": reply.state,
        "max_commit_ts": str(reply.max_commit_ts),
        "committed": time_of(reply.max_commit_ts, time.time()),
        **dict(sorted(reply.details.items())),
    }
    typed = {**facts_in(reply), "answers": True, "committed": moment_of(reply.max_commit_ts)}
    show(arguments, typed, _columns(lines))
    return 0


def _of_silent(arguments: argparse.Namespace, status: NodeStatus, what: str) -> int:
    now_s = time.time()
    lines = {
        "node_id": status.node_id,
        "state": str(status.state),
        "max_commit_ts": str(status.max_commit_ts),
        "committed": time_of(status.max_commit_ts, now_s),
        "heartbeat": time_of(status.update_ts, now_s),
        "address": f"{status.host}, {what}",
    }
    show(arguments, {**_listed(status, now_s), "answers": True}, _columns(lines))
    return 0


def _last_known(arguments: argparse.Namespace, kind: NodeKind, error: Retryable) -> int:
    """Print etcd's data on a silent node; fail unless the node shut down cleanly."""
    with Cluster(arguments) as registry:
        status = known_node(registry, kind, arguments.node)
        word = registry.last_words().get(status.node_id) if kind is NodeKind.PUMP else None
    now_s = time.time()
    lines = {
        "node_id": status.node_id,
        "state": f"{status.state}, the last that was heard of it",
        "max_commit_ts": str(status.max_commit_ts),
        "committed": time_of(status.max_commit_ts, now_s),
        "heartbeat": time_of(status.update_ts, now_s),
        "address": f"{status.host}, no answer: {coded(error)}",
    }
    facts = {**_listed(status, now_s), "answers": False, "problem": coded(error)}
    if kind is NodeKind.PUMP:
        lines["holds_up_to"] = "unknown: it did not shut down cleanly"
        facts |= {"holds_up_to_ts": None, "open_transactions": None}
        if word is not None:
            lines["holds_up_to"] = f"{word.up_to_ts}, said at {word.made}"
            lines["open_transactions"] = str(word.open_count)
            facts |= {"holds_up_to_ts": word.up_to_ts, "open_transactions": word.open_count}
    show(arguments, facts, _columns(lines))
    if status.state in (NodeState.PAUSED, NodeState.OFFLINE):
        return 0
    raise error


def _columns(facts: Mapping[str, str]) -> str:
    width = max(map(len, facts))
    lines = (f"{name.ljust(width)}  {one_line(value)}" for name, value in facts.items())
    return "\n".join(map(str.rstrip, lines))


def _trigger_gc(arguments: argparse.Namespace) -> int:
    kind, address = _addressed(arguments, [NodeKind.PUMP])
    request, tls = penstock_pb2.TriggerGcRequest(), tls_of(arguments)
    message = call(kind, address, "TriggerGc", request, _GC_S, tls).message
    show_change(arguments, {"address": address, "message": message}, message)
    return 0


def _timestamp(arguments: argparse.Namespace) -> int:
    ts = now_ts(arguments)
    show(arguments, {"ts": ts, "time": moment_of(ts)}, str(ts))
    return 0


def now_ts(arguments: argparse.Namespace) -> int:
    connection, tls = (
        etcd.connect(arguments.etcd_urls, tls=etcd_tls_of(arguments)),
        tls_of(arguments),
    )
    try:
        oracle = open_oracle(connection, arguments.pd_address, tls, pd_tls=tls)
        try:
            return oracle.get_ts()
        finally:
            oracle.close()
    finally:
        connection.close()


def _addressed(arguments: argparse.Namespace, kinds: list[NodeKind]) -> tuple[NodeKind, str]:
    if arguments.addr:
        check_address("addr", arguments.addr)
        return kinds[0], arguments.addr
    with Cluster(arguments) as registry:
        for kind in kinds:
            status = _found(registry, kind, arguments.node)
            if status is not None:
                return kind, status.host
        return kinds[0], known_node(registry, kinds[0], arguments.node).host


def nodes_of(registry: Registry, kind: NodeKind) -> list[NodeStatus]:
    """Return all nodes of a kind by node id; a standby Drainer appears only as standby."""
    found = {node.node_id: node for node in registry.list(kind)}
    if kind is NodeKind.DRAINER:
        found |= {node.node_id: node for node in registry.standbys()}
    return [found[node_id] for node_id in sorted(found)]


def _found(registry: Registry, kind: NodeKind, node_id: str) -> NodeStatus | None:
    standbys = registry.standbys() if kind is NodeKind.DRAINER else []
    waiting = (node for node in standbys if node.node_id == node_id)
    return next(waiting, None) or registry.get(kind, node_id)


def known_node(registry: Registry, kind: NodeKind, node_id: str) -> NodeStatus:
    """Return a node's status; raise `NeedsOperator`, naming the known nodes, if it has none."""
    status = _found(registry, kind, node_id)
    if status is None:
        known = ", ".join(n.node_id for n in nodes_of(registry, kind)) or "none at all"
        raise NeedsOperator(
            f"there is no node {node_id!r} among the {kind}", f"known: {known}", Code.NODE_UNKNOWN
        )
    return status


def resolve_cluster(arguments: argparse.Namespace, *, has_default: bool) -> None:
    """Set `etcd_urls` to the intended cluster; raise `NeedsOperator` for a change without it.

    `has_default` gives a change the default of a query, which TiDB-Binlog's command also does.
    """
    is_named = getattr(arguments, "etcd_urls", None) != "" or bool(getattr(arguments, "addr", ""))
    if is_named:
        return
    if not has_default and arguments.command not in READING:
        raise NeedsOperator(
            f"{arguments.command} changes a cluster, and none is named",
            f"name its etcd: --etcd-urls HOST:PORT, or {ETCD_URLS} in the environment",
            Code.COMMAND_INVALID,
        )
    arguments.etcd_urls = DEFAULT_ETCD


def show_change(arguments: argparse.Namespace, facts: Mapping[str, Any], text: str) -> None:
    where = arguments.etcd_urls or arguments.addr
    show(arguments, {"cluster": where, **facts}, f"{text}\ncluster: {where}" if text else "")


def tls_of(arguments: argparse.Namespace) -> Tls | None:
    ca, cert, key = arguments.ssl_ca, arguments.ssl_cert, arguments.ssl_key
    if ca is None and (cert or key):
        raise NeedsOperator("there is --ssl-cert or --ssl-key", "give --ssl-ca too", Code.TLS_FILES)
    return Tls(ca=ca, cert=cert, key=key) if ca else None


def etcd_tls_of(arguments: argparse.Namespace) -> Tls | None:
    ca, cert, key = arguments.etcd_ssl_ca, arguments.etcd_ssl_cert, arguments.etcd_ssl_key
    if not (ca or cert or key):
        return tls_of(arguments)
    if cert is None:
        cert, key = arguments.ssl_cert, arguments.ssl_key
    return Tls(ca=ca or arguments.ssl_ca, cert=cert, key=key)


def call(
    kind: NodeKind, address: str, method: str, request: Any, within_s: float, tls: Tls | None
) -> Any:
    """Return a node's answer; raise a `PenstockError` that explains a failed call."""
    with open_channel(address, tls, _CHANNEL_OPTIONS) as channel:
        try:
            return getattr(_STUBS[kind](channel), method)(request, timeout=within_s)
        except grpc.RpcError as error:
            raise (refusal_of(address, tls, error) or error_of(address, error)) from error


def call_pump(arguments: argparse.Namespace, address: str, method: str, request: Any) -> Any:
    return call(NodeKind.PUMP, address, method, request, CALL_S, tls_of(arguments))


def error_of(address: str, error: Any) -> PenstockError:
    what = f"{address}: {error.code().name}: {error.details()}"
    if "Socket closed" in error.details():
        what += "; if it wants TLS, give --ssl-ca, and maybe --ssl-cert and --ssl-key"
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        hint = "if it does not run, start it; otherwise check its address"
        return Retryable(f"{what}; {hint}", Code.NODE_AWAY)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return OtherKind(
            what, hint="is it another kind of node, or another version?", code=Code.NODE_OTHER
        )
    code = code_of_call(error) or Code.NODE_REFUSES
    return NeedsOperator(what, "look at the node's log", code)


def table_of(nodes: Sequence[NodeStatus], now_s: float) -> str:
    """Return nodes as aligned text; times are in UTC, with their age in seconds."""
    if not nodes:
        return "no nodes"
    lines = [_COLUMNS, *(_line(node, now_s) for node in nodes)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def log_form(nodes: Sequence[NodeStatus], now_s: float) -> str:
    """Return nodes as TiDB-Binlog's command logs them, a line each."""
    now = datetime.fromtimestamp(now_s, UTC)
    head = f"[{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03} +00:00] [INFO]"
    lines = []
    for node in nodes:
        updated = time_of(node.update_ts, now_s).partition(" (")[0]
        facts = (
            f"{{NodeID: {node.node_id}, Addr: {node.host}, State: {node.state},"
            f" MaxCommitTS: {node.max_commit_ts}, UpdateTime: {updated} +0000 UTC}}"
        )
        lines.append(f'{head} ["query node"] [node="{facts}"]')
    return "\n".join(lines) or f'{head} ["no nodes"]'


def _line(node: NodeStatus, now_s: float) -> tuple[str, ...]:
    state = str(node.state)
    # A killed node is still listed as "online": only its silence reveals its death.
    runs = node.state in (NodeState.ONLINE, NodeState.READING)
    if runs and not seems_live(node, compose(int(now_s * 1000), 0)):
        state += " (silent)"
    return (
        node.node_id,
        node.host,
        state,
        str(node.max_commit_ts),
        time_of(node.max_commit_ts, now_s),
        time_of(node.update_ts, now_s),
    )


def time_of(ts: int, now_s: float) -> str:
    if not ts:
        return "never"
    then_s = physical_ms(ts) / 1000
    try:
        then = datetime.fromtimestamp(then_s, UTC)
    except (ValueError, OverflowError, OSError):
        return "not a time"
    return f"{then:%Y-%m-%d %H:%M:%S} ({now_s - then_s:.1f} s ago)"


def add_node(command: argparse.ArgumentParser, *, or_address: bool = False) -> None:
    command.add_argument("node", metavar="NODE-ID", nargs="?", help=_NODE_HELP)
    command.add_argument("--node-id", metavar="NODE-ID", help="the same as an option")
    if or_address:
        command.add_argument(
            "--addr", metavar="HOST:PORT", help="ask this address, and leave etcd alone"
        )
    command.set_defaults(names_node=True)


def resolve_node(arguments: argparse.Namespace) -> None:
    """Set `node` and `node_id` to the named node; raise `NeedsOperator` for none or two."""
    if not getattr(arguments, "names_node", False):
        return
    first, second = arguments.node, arguments.node_id
    if first and second and first != second:
        raise NeedsOperator(
            f"two nodes are named: {first} and {second}", "name one of them", Code.COMMAND_INVALID
        )
    arguments.node = arguments.node_id = first or second
    if not arguments.node and not getattr(arguments, "addr", None):
        more = ", or --addr" if hasattr(arguments, "addr") else ""
        raise NeedsOperator("no node is named", f"give a node id{more}", Code.COMMAND_INVALID)
