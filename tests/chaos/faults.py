"""The bodies of the faults: each breaks something for as long as its block lasts, then mends it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from penstock.errors import Retryable
from tests.chaos.backups import Backup
from tests.chaos.cluster import Cluster
from tests.chaos.plan import EVERYONE, PUMPS, WRITERS, Fault, Kind
from tests.chaos.restoring import put_back
from tests.kit.crash.slow_proxy import SlowProxy

Body = Callable[[Cluster, Fault], AbstractContextManager[None]]

STEPS: Final = (
    "pump.after_write",
    "pump.after_sync",
    "pump.after_append",
    "pump.after_index",
    "log.rotate.renamed",
    "pump.flush.done",
    "disk.write=torn(100)",
)
"""Failpoints at which a Pump dies; without an action of their own it is a plain kill."""
_PASSINGS_MAX: Final = 40
OF_COPYING: Final = {
    **dict.fromkeys(("written", "own_synced", "stored", "copy.written", "copy.synced"), 60),
    **dict.fromkeys(("swapped", "begun", "claimed", "joining"), 2),
    **dict.fromkeys(("copy.cut", "copy.cleared", "set_aside", "listed_again"), 1),
}
"""Failpoints of copying (`copies.…`), and at which passing a Pump dies at most."""
OF_TAKING_OVER: Final = ("takeover.due", "takeover.let_go", "claimed", "begun", "written")
_FRESH_OF: Final = 3
"""Of so many restores one takes a backup of its own, which is seconds old."""
JUMPS_S: Final = (2, 15, 90, 600, 3600)
"""By how much clocks jump, ahead or back."""
PATIENCE_MAX: Final = 3.0
_SPARE_S: Final = 20.0
"""How long the deletion of a disk waits for another one that has all of each log."""


class LeftOut(Exception):
    """A fault that was not made, as it would have taken more than a cluster has to bear."""


def patience() -> float:
    """Return how many times longer than on an idle machine everything may take now."""
    return patience_of(os.getloadavg()[0], os.cpu_count() or 1)


def patience_of(load: float, cores: int) -> float:
    """Return by how much a machine of so many cores is slower under this load, if not stuck."""
    return min(max(1.0, load / cores), PATIENCE_MAX)


@contextmanager
def _killed(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.kill(fault.target)
    yield
    cluster.start(fault.target)


@contextmanager
def _killed_alone(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.kill_alone(fault.target)
    yield
    cluster.start(fault.target)


@contextmanager
def _disk_deleted(cluster: Cluster, fault: Fault) -> Iterator[None]:
    deadline_s = time.monotonic() + _SPARE_S
    while needed := _needed(cluster, fault.target):
        if time.monotonic() > deadline_s:
            raise LeftOut(needed)
        time.sleep(0.2)
    with cluster.deleting:
        cluster.kill(fault.target)
        # It may have put another disk off a list before it died.
        needed = _needed(cluster, fault.target)
        if not needed:
            cluster.machines[fault.target].lose_disk()
    if not needed:
        yield
    cluster.start(fault.target)
    if needed:
        raise LeftOut(needed)


def _needed(cluster: Cluster, pump: str) -> str:
    """Return why a Pump's disk must stay; empty if it may go."""
    try:
        logs = cluster.copies.last_whole(pump)
    except Retryable:
        return "etcd does not say which disks have all"
    return f"no other disk has all of {', '.join(logs)}" if logs else ""


@contextmanager
def _frozen(cluster: Cluster, fault: Fault) -> Iterator[None]:
    process = cluster.processes[fault.target]
    process.freeze()
    try:
        yield
    finally:
        process.thaw()


@contextmanager
def _with_failpoint(cluster: Cluster, fault: Fault, failpoint: str) -> Iterator[None]:
    cluster.kill(fault.target)
    cluster.start(fault.target, failpoint)
    yield
    cluster.kill(fault.target)
    cluster.start(fault.target)


def _killed_at_step(cluster: Cluster, fault: Fault) -> AbstractContextManager[None]:
    step, passing = STEPS[fault.number % len(STEPS)], fault.number // 7 % _PASSINGS_MAX + 1
    what = step if "=" in step else f"{step}=kill"
    return _with_failpoint(cluster, fault, f"{what}@{passing}")


def _killed_at_copying(cluster: Cluster, fault: Fault) -> AbstractContextManager[None]:
    steps = list(OF_COPYING)
    step = steps[fault.number % len(steps)]
    passing = fault.number // len(steps) % OF_COPYING[step] + 1
    return _with_failpoint(cluster, fault, f"copies.{step}=kill@{passing}")


@contextmanager
def _killed_taking_over(cluster: Cluster, fault: Fault) -> Iterator[None]:
    taker, _, silent = fault.target.partition("+")
    step = OF_TAKING_OVER[fault.number % len(OF_TAKING_OVER)]
    cluster.kill(taker)
    cluster.start(taker, f"copies.{step}=kill@1")
    try:
        cluster.kill(silent)
        yield
    finally:
        cluster.kill(taker)
        for pump in (taker, silent):
            cluster.start(pump)


def _disk_slow(cluster: Cluster, fault: Fault) -> AbstractContextManager[None]:
    sleep_s = (0.05, 0.3, 2.0)[fault.number % 3]
    return _with_failpoint(cluster, fault, f"disk.sync=sleep({sleep_s})")


@contextmanager
def _disk_full(cluster: Cluster, fault: Fault) -> Iterator[None]:
    volume = cluster.machines[fault.target].volume
    volume.fill()
    try:
        yield
    finally:
        volume.free()


@contextmanager
def _link(cluster: Cluster, fault: Fault) -> Iterator[SlowProxy]:
    """Let what is done to a proxy concern the link alone, and undo it in the end."""
    proxy = cluster.proxies[fault.server]
    proxy.client = "" if fault.client == EVERYONE else fault.client
    try:
        yield proxy
    finally:
        if proxy.is_black_hole:
            # What was swallowed is missing in these streams: they must not continue.
            proxy.reset()
        proxy.delay_s, proxy.bytes_per_s, proxy.is_black_hole, proxy.client = 0.0, 0, False, ""


@contextmanager
def _cut(cluster: Cluster, fault: Fault) -> Iterator[None]:
    with _link(cluster, fault) as proxy:
        proxy.is_black_hole = True
        yield


@contextmanager
def _slow(cluster: Cluster, fault: Fault) -> Iterator[None]:
    with _link(cluster, fault) as proxy:
        proxy.delay_s = (0.2, 1.0, 3.0)[fault.number % 3]
        yield


@contextmanager
def _narrow(cluster: Cluster, fault: Fault) -> Iterator[None]:
    with _link(cluster, fault) as proxy:
        proxy.bytes_per_s = (2_000, 20_000, 200_000)[fault.number % 3]
        yield


@contextmanager
def _reset(cluster: Cluster, fault: Fault) -> Iterator[None]:
    with _link(cluster, fault) as proxy:
        proxy.reset()
        yield


@contextmanager
def _clock_jumped(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.jump_clock(fault.target, jump_s(fault.number))
    try:
        yield
    finally:
        cluster.jump_clock(fault.target, 0)


def jump_s(number: int) -> int:
    """Return by how much a clock jumps: seconds to an hour, ahead or back."""
    size_s = JUMPS_S[number // 2 % len(JUMPS_S)]
    return -size_s if number % 2 else size_s


def _backup(cluster: Cluster, fault: Fault) -> Backup:
    to = cluster.folder("backups") / str(fault.number)
    return Backup.taken(cluster.etcd, to)


@contextmanager
def _etcd_backed_up(cluster: Cluster, fault: Fault) -> Iterator[None]:
    """Take a backup that has all DDL until it is restored: none is run meanwhile."""
    cluster.kill(WRITERS[0])  # It runs DDL.
    cluster.hold_ddl()
    try:
        time.sleep(1)  # What it has sent is there.
        cluster.backup = _backup(cluster, fault)
        yield
    finally:
        if cluster.backup is None:
            cluster.allow_ddl()
        cluster.start_if_ended(WRITERS[0])


@contextmanager
def _etcd_restored(cluster: Cluster, fault: Fault) -> Iterator[None]:
    """Restore etcd to before what its block does, or to an earlier backup.

    The log of a Pump that is down moves meanwhile.
    """
    cluster.kill(WRITERS[0])
    silent = (*PUMPS, "")[fault.number % (len(PUMPS) + 1)]
    is_fresh = fault.number // 8 % _FRESH_OF == 0
    time.sleep(1)
    try:
        backup = None if is_fresh else cluster.backup
        if backup is None:
            backup = _backup(cluster, fault)
        if silent:
            cluster.kill(silent)
        yield
        put_back(cluster, backup, patience(), in_order=fault.number // 4 % 2 == 0)
    finally:
        cluster.allow_ddl()
        for name in sorted(fault.occupies & cluster.processes.keys()):
            cluster.start_if_ended(name)


BODIES: Final[dict[Kind, Body]] = {
    Kind.PUMP_KILLED: _killed,
    Kind.PUMP_FROZEN: _frozen,
    Kind.PUMP_KILLED_AT_STEP: _killed_at_step,
    Kind.PUMP_DISK_SLOW: _disk_slow,
    Kind.PUMP_DISK_FULL: _disk_full,
    Kind.DRAINER_KILLED: _killed,
    Kind.DRAINER_FROZEN: _frozen,
    Kind.WRITER_KILLED: _killed,
    Kind.WRITER_FROZEN: _frozen,
    Kind.ETCD_KILLED: _killed,
    Kind.ETCD_FROZEN: _frozen,
    Kind.MARIADB_KILLED: _killed,
    Kind.MARIADB_FROZEN: _frozen,
    Kind.LINK_CUT: _cut,
    Kind.LINK_SLOW: _slow,
    Kind.LINK_NARROW: _narrow,
    Kind.LINK_RESET: _reset,
    Kind.CLOCK_JUMPED: _clock_jumped,
    Kind.DISK_DELETED: _disk_deleted,
    Kind.PUMP_KILLED_ALONE: _killed_alone,
    Kind.PUMP_KILLED_AT_COPYING: _killed_at_copying,
    Kind.PUMP_KILLED_TAKING_OVER: _killed_taking_over,
    Kind.PUMPS_CUT: _cut,
    Kind.PUMPS_SLOW: _slow,
    Kind.PUMP_UNREACHABLE: _cut,
    Kind.ETCD_BACKED_UP: _etcd_backed_up,
    Kind.ETCD_RESTORED: _etcd_restored,
}
