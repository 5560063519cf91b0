"""Restoring etcd from a backup, step by step as the documentation has it, and its decisions.

A backup that lacks a DDL starts another DDL history, which programs refuse by design. So the writer
that runs DDL is down from before the backup until all Pumps serve again: the cluster must then
continue with nothing lost. Meanwhile transactions are written, and logs are taken over.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.local.process import python_module
from penstock.codes import Code
from tests.chaos.cluster import Cluster
from tests.chaos.plan import DRAINERS, ETCD, PUMPS, WRITERS
from tests.kit.crash import etcd_backup

SERVE_S_MAX: Final = 120.0
"""How long Pumps may compare their disks until each log is served, on an idle machine."""
_PARTED: Final = f'"code": "{Code.LOG_PUT_BACK}"'
_DISK = re.compile(r"disk (\w+): (\d+) \(")
_ONLINE = re.compile(rb"\bpump (\S+) is online at ")
_COMMAND = re.compile(
    r"penstock ctl (adopt-log (\S+) --pump \S+ --disk (\w+) --epoch \d+ --from \d+)"
)


def put_back(cluster: Cluster, backup: Path, patience: float, *, in_order: bool) -> None:
    """Stop all programs, or kill them, restore the backup, start all Pumps, then the others."""
    for name in WRITERS:
        cluster.kill(name)
    for name in (*DRAINERS, *PUMPS):
        if in_order:
            cluster.may_be_down.add(name)
            cluster.processes[name].stop()
        else:
            cluster.kill(name)
    cluster.may_be_down.add(ETCD)
    etcd_backup.put_back(cluster.etcd, backup)
    cluster.may_be_down.discard(ETCD)
    # What etcd says of them is from before the restore.
    unread = {name: cluster.logs[name].stat().st_size for name in PUMPS}
    for name in PUMPS:
        cluster.start(name, may_end=True)
    _until_served(cluster, unread, SERVE_S_MAX * patience)
    for name in (*PUMPS, *DRAINERS, *WRITERS):
        cluster.start_if_ended(name)


def _until_served(cluster: Cluster, unread: Mapping[str, int], within_s: float) -> None:
    """Return once each log has a Pump that serves it, after an operator's decisions if need be."""
    deadline_s = time.monotonic() + within_s
    while True:
        for name in PUMPS:
            if not cluster.processes[name].is_running:
                text = cluster.processes[name].log_tail(1)
                if _PARTED in text:
                    _adopt(cluster, decision(text))
                cluster.start(name, may_end=True)
        said = b"".join(_after(cluster.logs[name], at) for name, at in unread.items())
        missing = unserved(said)
        if not missing:
            return
        if time.monotonic() > deadline_s:
            logs = ", ".join(missing)
            raise AssertionError(f"no Pump serves {logs} {within_s:.0f} s after etcd was restored")
        time.sleep(0.5)


def _after(log: Path, offset: int) -> bytes:
    with log.open("rb") as lines:
        lines.seek(offset)
        return lines.read()


def unserved(said: bytes) -> list[str]:
    """Return the Pumps whose logs nobody serves, by what all Pumps have logged since."""
    online = {name.decode() for name in _ONLINE.findall(said)}
    return [name for name in PUMPS if name not in online]


def decision(text: str) -> list[str]:
    """Return the arguments of the `adopt-log` that continues the history with the higher epoch."""
    epochs = {disk: int(epoch) for disk, epoch in _DISK.findall(text)}
    commands = {disk: [*all_.split(), "--confirm", node] for all_, node, disk in
                _COMMAND.findall(text)}  # fmt: skip
    return commands[max(commands, key=lambda disk: epochs[disk])]


def _adopt(cluster: Cluster, command: list[str]) -> None:
    whole = python_module("pumpclient.binlogctl", *command, "--etcd-urls", cluster.etcd.url)
    done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)
    cluster.decisions.append(" ".join(command))
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
