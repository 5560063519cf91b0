"""`adopt-log` names the disk that continues a log after etcd was restored from a backup.

A Pump refuses a log whose entry in etcd is older than a disk (PS-3312), and its error contains the
command for each disk that was found. The entry gets the newest epoch that was found anywhere, so
that every later epoch is new, and this disk as the only place of the log. Data that only another
disk has is thereby given up.

With `--empty` a new log starts on the disk, where no disk has the log that etcd lists.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from penstock.cluster.log_entry import LOGS, Copy, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeStatus
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.output import show
from penstock.pb import penstock_pb2
from pumpclient.binlogctl.lost import confirm
from pumpclient.binlogctl.nodes import Cluster, add_node, call_pump


def add_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser(
        "adopt-log",
        parents=[shared],
        help="continue a Pump's log from one disk after etcd was restored",
    )
    add_node(command)
    options: dict[str, dict[str, Any]] = {
        "--pump": {"metavar": "NODE-ID", "help": "the Pump whose disk continues the log"},
        "--disk": {"metavar": "ID", "help": "the id of that disk"},
        "--epoch": {"metavar": "N", "type": int, "help": "the newest epoch found on any disk"},
    }
    for option, how in options.items():
        command.add_argument(option, required=True, **how)
    begin = command.add_mutually_exclusive_group(required=True)
    begin.add_argument("--from", metavar="N", type=int, dest="first", help="its first segment")
    begin.add_argument(
        "--empty", action="store_true", help="begin a new log: no disk has the one in etcd"
    )
    command.add_argument(
        "--confirm", metavar="NODE-ID", default="", help="the node id once more, for scripts"
    )
    command.set_defaults(run=_adopt_log)


def _adopt_log(arguments: argparse.Namespace) -> int:
    name, cluster = arguments.node_id, Cluster(arguments)
    with cluster as registry:
        entries = cluster.entries
        own = Copy(arguments.pump, arguments.disk)
        entry, revision = entries.read(name) or (LogEntry(epoch=0, primary=own), 0)
        status = registry.get(NodeKind.PUMP, name)
        if entry.epoch > arguments.epoch:
            raise NeedsOperator(
                f"etcd lists epoch {entry.epoch} of the log of {name}, which is newer than"
                f" {arguments.epoch}",
                hint="the log has continued since that error: start its Pumps, and see whether they"
                " still refuse it",
                code=Code.LOG_PUT_BACK,
            )
        if status is not None and _is_served(arguments, status):
            raise NeedsOperator(
                f"the log of {name} is served at {status.host}",
                hint="stop the Pump there if another disk is to continue the log",
                code=Code.NODE_STATE,
            )
        confirm(arguments, name, "let only this disk continue the log")
        adopted = _adopted(arguments, entry, own)
        if entries.swap(name, revision, adopted) is None:
            raise Retryable(f"{LOGS}{name} has changed", code=Code.LOG_PUT_BACK)
    facts = {"node_id": name, "to": own.pump, "disk": own.disk, "epoch": adopted.epoch}
    how = "begins again" if arguments.empty else "continues"
    show(arguments, facts, f"the log of {name} {how} on disk {own.disk} of {own.pump}")
    return 0


def _adopted(arguments: argparse.Namespace, entry: LogEntry, own: Copy) -> LogEntry:
    if arguments.empty:
        return entry.begun_again(own, entry.copies, entry.copies_min)
    return replace(
        entry,
        epoch=arguments.epoch,
        primary=own,
        replicas=(),
        eligible=(),
        needed=arguments.first,
        ids=(),
        mark=None,
    )


def _is_served(arguments: argparse.Namespace, status: NodeStatus) -> bool:
    """Return whether a Pump serves the log; a waiting or refusing Pump reports no node id."""
    request = penstock_pb2.StatusRequest()
    try:
        reply = call_pump(arguments, status.host, "Status", request)
    except PenstockError:
        return False
    return bool(reply.node_id == status.node_id)
