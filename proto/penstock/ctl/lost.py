"""`lost-pump`, `adopt-log`, `lost-ddl`: continue a cluster without data that is lost for good.

    lost-pump   identify the Pump, is it dead ── each Drainer's progress on it ── the possible loss
                ── the node id, typed once more ── the declaration in etcd ── offline

The declaration precedes the state: a process that sees the Pump offline can read the reason.
Running Drainers notice within seconds, stopped Drainers when they start.

    adopt-log   the disk that continues a log after etcd was restored from a backup

A Pump refuses a log whose entry in etcd is older than a disk (PS-3312), and its error contains the
command for each disk that was found. The entry gets the newest epoch that was found anywhere, so
that every later epoch is new, and this disk as the only place of the log. Data that only another
disk has is thereby given up. With `--empty` a new log starts on the disk, where no disk has the log
that etcd lists.

    lost-ddl    a DDL that a restored etcd does not have

Writers refuse to continue while a Pump's stream has a newer DDL than the history in etcd (PS-2205).
The command records in etcd that the job will never be recorded. The stream keeps the DDL, and a
Drainer that has not passed it stops there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.cluster.log_entry import LOGS, Copy, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.cluster.records import LostPump
from penstock.codes import Code
from penstock.ctl.nodes import (
    CALL_S,
    Cluster,
    add_node,
    call,
    call_pump,
    known_node,
    now_ts,
    show_change,
    time_of,
    tls_of,
)
from penstock.ctl.states import is_heard_of, refuse_living
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.output import JSON, TEXT, moment_of, show
from penstock.pb import penstock_pb2


class _Received(NamedTuple):
    """A Drainer's progress on the Pump's binlogs; `how` names the source of this information."""

    drainer: str
    ts: int
    how: str


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    _add_lost_pump(commands, shared)
    _add_adopt_log(commands, shared)
    command = commands.add_parser(
        "lost-ddl",
        parents=[shared],
        help="give up a DDL that an etcd restored from a backup does not have",
    )
    command.add_argument("job", type=int, metavar="JOB", help="the job that the error names")
    command.add_argument(
        "--confirm", metavar="JOB", default="", help="the job once more, for scripts"
    )
    command.set_defaults(run=_lost_ddl)


def _add_lost_pump(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser(
        "lost-pump", parents=[shared], help="give up the binlogs of a Pump whose disk is gone"
    )
    add_node(command)
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
    command.add_argument(
        "--copies-are-gone",
        action="store_true",
        help="the disks with copies of its log are gone for good, too",
    )
    command.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if there is one")
    command.set_defaults(run=_lost_pump)


def _lost_pump(arguments: argparse.Namespace) -> int:
    cluster = Cluster(arguments)
    with cluster as registry:
        status = known_node(registry, NodeKind.PUMP, arguments.node)
        cluster_ts = now_ts(arguments)
        hint = (
            "let it hand over what it has: penstock ctl offline-pump; only a dead Pump can be lost"
        )
        refuse_living(arguments, registry, NodeKind.PUMP, status, hint)
        known = registry.lost().get(status.node_id)
        word = registry.last_words().get(status.node_id)
        # An offline Pump without its own final word is still waited for.
        is_done = status.state is NodeState.OFFLINE and word is not None and word.is_final
        if known is None and is_done:
            raise NeedsOperator(
                f"{status.node_id} is offline: no Drainer waits for it",
                "nothing is to be done",
                Code.NODE_STATE,
            )
        if not arguments.copies_are_gone and (copies := cluster.copies_of(status.node_id)):
            raise NeedsOperator(
                f"nothing of {status.node_id} is lost: etcd lists a whole copy of its log on"
                f" {', '.join(copies)}",
                "start what is listed there and does not run: it serves the log, and hands all"
                " of it over",
                Code.NODE_HOLDS_BINLOGS,
            )
        received = _received(arguments, registry, status.node_id)
        up_to_ts = known.up_to_ts if known else cluster_ts
        report = _Report(status, received, arguments.accept_loss_after, up_to_ts, known)
        if arguments.output == TEXT:
            print(report.text())
        try:
            _refuse_more_than_accepted(received, arguments.accept_loss_after, known)
            confirm(arguments, status.node_id, "declare this lost for good")
        except NeedsOperator:
            if arguments.output == JSON:
                show_change(arguments, report.facts(is_lost=False), "")
            raise
        lost = LostPump(
            pump=status.node_id,
            after_ts=arguments.accept_loss_after,
            up_to_ts=up_to_ts,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        registry.put_lost(lost)
        registry.put(NodeKind.PUMP, replace(status, state=NodeState.OFFLINE))
    text = f"{status.node_id}: lost; Drainers continue without what it held after {lost.after_ts}"
    show_change(arguments, report.facts(is_lost=True), text)
    return 0


def _received(arguments: argparse.Namespace, registry: Registry, pump: str) -> Sequence[_Received]:
    found = []
    for drainer in registry.list(NodeKind.DRAINER):
        if drainer.state is NodeState.OFFLINE:
            continue
        name = drainer.node_id
        if drainer.is_reader:
            found.append(_Received(name, drainer.max_commit_ts, "reads; its checkpoint"))
            continue
        request = penstock_pb2.StatusRequest()
        try:
            tls = tls_of(arguments)
            reply = call(NodeKind.DRAINER, drainer.host, "Status", request, CALL_S, tls)
        except PenstockError:
            is_stopped = drainer.state is NodeState.PAUSED
            if not is_stopped and is_heard_of(registry, NodeKind.DRAINER, drainer):
                raise
            found.append(_Received(name, drainer.max_commit_ts, "does not run; its checkpoint"))
            continue
        received_ts = reply.details.get(f"pump {pump} received_ts")
        if received_ts is None:
            found.append(_Received(name, reply.max_commit_ts, "does not pull it; its checkpoint"))
        else:
            found.append(_Received(name, int(received_ts), "has received it up to there"))
    return found


@dataclass(frozen=True, slots=True)
class _Report:
    """The known facts about the Pump, and the loss of each Drainer."""

    status: NodeStatus
    received: Sequence[_Received]
    after_ts: int
    up_to_ts: int
    known: LostPump | None

    def text(self) -> str:
        status, now_s = self.status, time.time()
        heard = time_of(status.update_ts, now_s)
        lines = [f"pump {status.node_id} at {status.host}, last heartbeat {heard}"]
        lines.append(f"it had sorted up to {status.max_commit_ts}")
        if self.known is not None:
            lines.append(f"declared lost at {self.known.made} after {self.known.after_ts}")
        for each in self.received:
            got = f"drainer {each.drainer} {each.how}: {each.ts}, {time_of(each.ts, now_s)}"
            lines.append(f"{got}; it would lose ({each.ts}, {self.up_to_ts}]")
        if not self.received:
            lines.append(f"no Drainer: what would be lost is ({self.after_ts}, {self.up_to_ts}]")
        lines.append(
            f"lost is what commits in these ranges and was on {status.node_id}, for good; and"
            " what was prepared there and its writer commits only from now on"
        )
        return "\n".join(lines)

    def facts(self, *, is_lost: bool) -> dict[str, Any]:
        return {
            "node_id": self.status.node_id,
            "address": self.status.host,
            "heartbeat": moment_of(self.status.update_ts),
            "max_commit_ts": self.status.max_commit_ts,
            "accept_loss_after_ts": self.after_ts,
            "up_to_ts": self.up_to_ts,
            "drainers": [
                {"node_id": each.drainer, "has_up_to_ts": each.ts, "how": each.how}
                for each in self.received
            ],
            "was_lost_after_ts": self.known.after_ts if self.known else None,
            "is_lost": is_lost or self.known is not None,
        }


def _refuse_more_than_accepted(
    received: Sequence[_Received], after_ts: int, known: LostPump | None
) -> None:
    least = min(received, key=lambda each: each.ts, default=None)
    if least is not None and least.ts < after_ts:
        raise NeedsOperator(
            f"drainer {least.drainer} has only what is up to {least.ts}, not up to {after_ts}",
            f"wait for it; what it does not have is lost with --accept-loss-after {least.ts}",
            Code.NODE_HOLDS_BINLOGS,
        )
    if known is not None and known.after_ts < after_ts:
        raise NeedsOperator(
            f"more is declared lost already: what is after {known.after_ts}",
            "a declaration can be widened, not taken back",
            Code.NODE_HOLDS_BINLOGS,
        )


def confirm(arguments: argparse.Namespace, name: str, what: str) -> None:
    """Return once the operator has typed the name again."""
    typed = arguments.confirm
    if not typed and sys.stdin.isatty():
        typed = input(f"type {name} to {what}: ").strip()
    if typed != name:
        raise NeedsOperator(
            "nothing was changed: this has to be confirmed",
            f"add --confirm {name}",
            Code.NOT_CONFIRMED,
        )


def _add_adopt_log(commands: Any, shared: argparse.ArgumentParser) -> None:
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
                "the log has continued since that error: start its Pumps, and see whether they"
                " still refuse it",
                Code.LOG_PUT_BACK,
            )
        if status is not None and _is_served(arguments, status):
            raise NeedsOperator(
                f"the log of {name} is served at {status.host}",
                "stop the Pump there if another disk is to continue the log",
                Code.NODE_STATE,
            )
        confirm(arguments, name, "let only this disk continue the log")
        if arguments.empty:
            adopted = entry.begun_again(own, entry.copies, entry.copies_min)
        else:
            adopted = replace(entry, epoch=arguments.epoch, primary=own, replicas=(), eligible=(),
                              needed=arguments.first, ids=(), mark=None)  # fmt: skip
        if entries.swap(name, revision, adopted) is None:
            raise Retryable(f"{LOGS}{name} has changed", Code.LOG_PUT_BACK)
    facts = {"node_id": name, "to": own.pump, "disk": own.disk, "epoch": adopted.epoch}
    how = "is re-initialised" if arguments.empty else "continues"
    show(arguments, facts, f"the log of {name} {how} on disk {own.disk} of {own.pump}")
    return 0


def _is_served(arguments: argparse.Namespace, status: NodeStatus) -> bool:
    """Return whether a Pump serves the log; a waiting or refusing Pump reports no node id."""
    request = penstock_pb2.StatusRequest()
    try:
        reply = call_pump(arguments, status.host, "Status", request)
    except PenstockError:
        return False
    return bool(reply.node_id == status.node_id)


def _lost_ddl(arguments: argparse.Namespace) -> int:
    job_id, cluster = arguments.job, Cluster(arguments)
    with cluster:
        confirm(arguments, str(job_id), "continue without this DDL")
        job = cluster.history.roll_back(job_id)
    if job is not None:
        raise NeedsOperator(
            f"DDL job {job_id} is in the history in etcd: {job.query!r}",
            "nothing is lost: start the writers",
            Code.DDL_HISTORY,
        )
    text = f"DDL job {job_id}: given up; writers continue with the history in etcd"
    show(arguments, {"job_id": job_id}, text)
    return 0
