"""`drainer ddl`: what an operator decides about a DDL that stops a Drainer.

    drainer ddl list [settings]                          the checkpoint, what comes next, decisions
    drainer ddl skip <commit_ts> [settings]              neither run it downstream nor track it
    drainer ddl replace <commit_ts> "<sql>" [settings]   run and track this statement in its place

The settings are those that the Drainer itself is started with (`--config`, `--data-dir`,
`--etcd-urls`, …): they tell its name and its etcd. It may be stopped, and usually is; a decision is
read when it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from drainer.config import DrainerConfig
from drainer.decisions import decide, decisions
from drainer.home import Home
from drainer.original import load_settings
from drainer.sinks import Checkpoint, open_sink
from penstock.ddl.parse import parse
from penstock.errors import NeedsOperator
from penstock.etcd import EtcdClient, connect
from penstock.history import History
from penstock.registry import Registry
from penstock.schema import DdlJob
from penstock.security import Security

_ARGUMENTS = {"list": 0, "skip": 1, "replace": 2}
_SHOWN_MAX = 20
_SINK_S_MAX = 10.0


def main(argv: Sequence[str]) -> int:
    """Carry out one command and return the exit code; raise what `penstock.command` sorts."""
    verb, *rest = argv or ("",)
    if verb not in _ARGUMENTS or len(rest) < _ARGUMENTS[verb]:
        raise NeedsOperator(
            f"unknown command: drainer ddl {' '.join(argv)}",
            hint="use list, skip <commit_ts>, or replace <commit_ts> <sql>; settings come last",
        )
    given, flags = rest[: _ARGUMENTS[verb]], rest[_ARGUMENTS[verb] :]
    config, _ = load_settings(flags, prog=f"drainer ddl {verb}")
    etcd = connect(config.etcd_urls, tls=Security(config.security).etcd_tls)
    try:
        lines = _list(config, etcd) if verb == "list" else _decide(config, etcd, given)
    finally:
        etcd.close()
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _name(config: DrainerConfig) -> str:
    address = config.advertise_addr or config.addr
    return Home(config.data_dir).known_node_id(config.node_id, address)


def _decide(config: DrainerConfig, etcd: EtcdClient, given: Sequence[str]) -> list[str]:
    if not given[0].isdecimal():
        raise NeedsOperator(f"{given[0]!r} is no commit_ts", hint="it is in the Drainer's log")
    commit_ts = int(given[0])
    sql = given[1] if len(given) > 1 else None
    if sql is not None:
        _, statements = parse(sql)
        if len(statements) != 1:
            raise NeedsOperator("more than one statement", hint="give exactly one")
    checkpoint = _checkpoint(config, etcd)
    if checkpoint is not None and commit_ts <= checkpoint.commit_ts:
        raise NeedsOperator(
            f"the DDL at {commit_ts} is behind the checkpoint at {checkpoint.commit_ts}",
            hint="what was followed and run stays; a decision is for a DDL that is still to come",
        )
    name = _name(config)
    known = [job for job in History(etcd).jobs() if job.finished_ts == commit_ts]
    decision = decide(etcd, name, commit_ts, sql)
    about = repr(known[0].query) if known else "which the DDL history does not have (yet)"
    return [
        f"drainer {name}: the DDL at {commit_ts}, {about}, will be {decision.describe()}",
        "this takes effect when the Drainer is started next",
    ]


def _list(config: DrainerConfig, etcd: EtcdClient) -> list[str]:
    name = _name(config)
    checkpoint = _checkpoint(config, etcd)
    after_ts = checkpoint.commit_ts if checkpoint is not None else config.initial_commit_ts
    decided = decisions(etcd, name)
    coming = [job for job in History(etcd).jobs() if job.finished_ts > after_ts]
    lines = [f"drainer {name}: the checkpoint is at {after_ts}, {len(coming)} DDLs come after it"]
    if checkpoint is not None and checkpoint.ddl_intent_ts > after_ts:
        lines.append(f"the DDL at {checkpoint.ddl_intent_ts} was begun and is not known to be done")
    for job in coming[:_SHOWN_MAX]:
        decision = decided.get(job.finished_ts)
        lines.append(_line(job) + (f"   [{decision.describe()}]" if decision else ""))
    shown = {job.finished_ts for job in coming[:_SHOWN_MAX]}
    for ts, decision in sorted(decided.items()):
        if ts not in shown:
            lines.append(f"{ts}  decided {decision.made}: {decision.describe()}")
    return lines


def _line(job: DdlJob) -> str:
    return f"{job.finished_ts}  {job.schema_name or '-'}  {' '.join(job.query.split())[:200]}"


def _checkpoint(config: DrainerConfig, etcd: EtcdClient) -> Checkpoint | None:
    """Return what the downstream holds; at most an empty checkpoint table is made there."""
    cluster_id = Registry(etcd).cluster_id()
    sink = open_sink(config.downstream, cluster_id=cluster_id, retry_s_max=_SINK_S_MAX)
    try:
        return sink.load_checkpoint()
    finally:
        sink.close()
