"""Restoring etcd from a backup, step by step as the documentation has it, and its decisions.

A backup that lacks a DDL starts another DDL history, which programs refuse by design. So the writer
that runs DDL is down from before the backup until all Pumps serve again: the cluster must then
continue with nothing lost. Meanwhile transactions are written, and logs are taken over.
"""

import logging
import re
import subprocess
import threading
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.cluster.log_entry import LogEntry
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.process import python_module
from tests.chaos.backups import Backup, Restore, Sizes
from tests.chaos.cluster import Cluster
from tests.chaos.plan import DRAINERS, ETCD, PUMPS, WRITERS
from tests.kit.crash import etcd_backup

log = logging.getLogger(__name__)

SERVE_S_MAX: Final = 120.0
"""How long Pumps may compare their disks until each log is served, on an idle machine."""
_LOOK_EVERY_S: Final = 2.0
_PARTED: Final = f'"code": "{Code.LOG_PUT_BACK}"'
_MAY_WAIT: Final = "To decide without them"
_DISK = re.compile(r"disk (\w+): (\d+) \(")
_ONLINE = re.compile(rb"\bpump (\S+) is online at ")
_COMMAND = re.compile(
    r"penstock ctl (adopt-log (\S+) --pump \S+ --disk (\w+) --epoch \d+ (?:--from \d+|--empty))"
)


def put_back(cluster: Cluster, backup: Backup, patience: float, *, in_order: bool) -> None:
    """Stop all programs, or kill them, restore the backup, start all Pumps, then the others."""
    for name in WRITERS:
        cluster.kill(name)
    for name in (*DRAINERS, *PUMPS):
        if in_order:
            cluster.may_be_down.add(name)
            cluster.processes[name].stop()
        else:
            cluster.kill(name)
    before = cluster.copies.entries()
    cluster.may_be_down.add(ETCD)
    with suppress(Retryable):  # It may start later than it should.
        etcd_backup.put_back(cluster.etcd, backup.path)
    after = _entries(cluster, SERVE_S_MAX * patience)
    cluster.may_be_down.discard(ETCD)
    moved = frozenset(name for name in PUMPS if before[name] != after[name])
    # What etcd says of them is from before the restore.
    restore = Restore(time.monotonic() - backup.taken_s, moved, _sizes(cluster))
    cluster.restores.append(restore)
    for name in PUMPS:
        cluster.start(name, may_end=True)
    _until_served(cluster, restore.begun, SERVE_S_MAX * patience)
    for name in (*PUMPS, *DRAINERS, *WRITERS):
        cluster.start_if_ended(name)
    threading.Thread(target=_follow, args=(cluster, restore), daemon=True).start()


def _entries(cluster: Cluster, within_s: float) -> dict[str, LogEntry | None]:
    """Return the list of each log as soon as etcd answers."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return cluster.copies.entries()
        except Retryable:
            if time.monotonic() > deadline_s:
                raise


def _sizes(cluster: Cluster) -> dict[str, int]:
    return {name: cluster.logs[name].stat().st_size for name in PUMPS}


def _follow(cluster: Cluster, restore: Restore) -> None:
    """Note of each log that was put back when it is whole again."""
    while not cluster.over.wait(_LOOK_EVERY_S) and restore.logs - restore.ended.keys():
        with suppress(Retryable):
            whole = restore.logs - restore.ended.keys() - cluster.copies.problems().keys()
            restore.ended.update((log, _sizes(cluster)) for log in whole)


def _until_served(cluster: Cluster, unread: Sizes, within_s: float) -> None:
    """Return once each log has a Pump that serves it, after an operator's decisions if need be."""
    deadline_s = time.monotonic() + within_s
    undecided = dict(unread)
    while True:
        said = b"".join(_after(cluster.logs[name], at) for name, at in unread.items())
        missing = unserved(said)
        if not missing:
            return
        for command in decisions(_lines(cluster, undecided), missing):
            _adopt(cluster, command)
        if time.monotonic() > deadline_s:
            logs = ", ".join(missing)
            raise AssertionError(f"no Pump serves {logs} {within_s:.0f} s after etcd was restored")
        for name in PUMPS:
            if not cluster.processes[name].is_running:
                cluster.start(name, may_end=True)
        time.sleep(0.5)


def _lines(cluster: Cluster, offsets: dict[str, int]) -> Iterator[str]:
    """Yield the whole lines of the Pumps' logs from offsets on, which move behind them."""
    for name in offsets:
        whole = _after(cluster.logs[name], offsets[name]).rpartition(b"\n")[0]
        offsets[name] += len(whole) + 1 if whole else 0
        yield from whole.decode(errors="replace").splitlines()


def _after(log: Path, offset: int) -> bytes:
    with log.open("rb") as lines:
        lines.seek(offset)
        return lines.read()


def unserved(said: bytes) -> list[str]:
    """Return the Pumps whose logs nobody serves, by what all Pumps have logged since."""
    online = {name.decode() for name in _ONLINE.findall(said)}
    return [name for name in PUMPS if name not in online]


def decisions(lines: Iterable[str], missing: Container[str]) -> list[list[str]]:
    """Return the `adopt-log` of each log that nobody serves, as its Pumps have refused it last.

    A Pump that waits for others names commands, too; they are not needed yet.
    """
    refused = {}
    for line in lines:
        if _PARTED in line and _MAY_WAIT not in line and (found := _COMMAND.search(line)):
            refused[found[2]] = line
    return [decision(line) for log, line in refused.items() if log in missing]


def decision(text: str) -> list[str]:
    """Return the arguments of the `adopt-log` that continues the history with the higher epoch.

    If no disk has the log, every Drainer has it, and the only command begins a new one.
    """
    epochs = {disk: int(epoch) for disk, epoch in _DISK.findall(text)}
    commands = {disk: [*all_.split(), "--confirm", node] for all_, node, disk in
                _COMMAND.findall(text)}  # fmt: skip
    return commands[max(commands, key=lambda disk: epochs.get(disk, 0))]


def _adopt(cluster: Cluster, command: list[str]) -> None:
    """Run a decision; one that is refused is outdated, and Pumps will say so if they still wait."""
    whole = python_module("penstock.ctl.commands", *command, "--etcd-urls", cluster.etcd.url)
    done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)
    text = " ".join(command)
    if done.returncode == 0:
        cluster.decisions.append(text)
    else:
        log.warning("%s: %s", text, done.stderr)
