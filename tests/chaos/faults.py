"""The bodies of the faults: each breaks something for as long as its block lasts, then mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tests.chaos.cluster import Cluster
from tests.chaos.plan import Fault, Kind
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


@contextmanager
def _killed(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.kill(fault.target)
    yield
    cluster.start(fault.target)


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


def _disk_slow(cluster: Cluster, fault: Fault) -> AbstractContextManager[None]:
    sleep_s = (0.05, 0.3, 2.0)[fault.number % 3]
    return _with_failpoint(cluster, fault, f"disk.sync=sleep({sleep_s})")


@contextmanager
def _disk_full(cluster: Cluster, fault: Fault) -> Iterator[None]:
    volume = cluster.volumes[fault.target]
    volume.fill()
    try:
        yield
    finally:
        volume.free()


@contextmanager
def _link(cluster: Cluster, fault: Fault) -> Iterator[SlowProxy]:
    """Let what is done to a proxy concern the link alone, and undo it in the end."""
    proxy = cluster.proxies[fault.server]
    proxy.client = fault.client
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
}
