"""Three Pumps that keep copies of each other's logs."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.cluster.log_entry import LogEntries, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.local.etcd import EtcdServer
from pump.cluster.identity import has_disk_id, kept_disk_id
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import deadline, eventually, present

MakePump = Callable[..., PumpProcess]
WAIT_S = 120.0


class Trio:
    """Three Pumps, or as many as are asked for, with two copies of each log."""

    def __init__(
        self, make: MakePump, etcd_url: str, etcd: Any, *, number: int = 3, **settings: Any
    ) -> None:
        # The first copy of a log goes to a disk that is there, so none is started before another.
        self._make = partial(make, etcd_url, waiting=False, copies=2, **settings)
        self.pumps = [self._make() for _ in range(number)]
        self._entries = LogEntries(etcd)
        self._registry = Registry(etcd)
        for pump in self.pumps:
            self.until_online(pump)

    def add(self) -> PumpProcess:
        """Start one more Pump, and return it once it is online."""
        self.pumps.append(self._make())
        self.until_online(self.pumps[-1])
        return self.pumps[-1]

    def entry(self, pump: PumpProcess) -> LogEntry:
        return present(self._entries.read(pump.node_id))[0]

    def until_online(self, pump: PumpProcess) -> None:
        """Wait until a Pump serves its log at its own address, with all copies."""
        pump.addr = pump.wait_for(r"pump \S+ is online at (\S+)", WAIT_S)[1]
        eventually(lambda: bool(self.entry(pump).replicas), WAIT_S)

    def until_whole(self, within_s: float = 2 * WAIT_S) -> None:
        """Wait until each Pump serves its log on its own disk, with a whole copy on another one."""
        deadline_s = deadline(within_s)
        for pump in self.pumps:
            while not self._is_whole(pump):
                if time.monotonic() > deadline_s:
                    pump.fail(f"its log is not whole: {self.entry(pump)}")
                time.sleep(0.05)

    def _is_whole(self, pump: PumpProcess) -> bool:
        entry, folder = self.entry(pump), pump.data_dir
        if not pump.is_running:
            pump.fail("it has ended by itself")
        if not has_disk_id(folder) or entry.primary.disk != kept_disk_id(folder):
            return False
        status = self._registry.get(NodeKind.PUMP, pump.node_id)
        disks = {kept_disk_id(p.data_dir) for p in self.pumps if has_disk_id(p.data_dir)}
        return (
            status is not None
            and status.state is NodeState.ONLINE
            and "is online at" in pump.log_text()
            and any(c.disk in disks and c.first <= entry.needed for c in entry.replicas)
        )

    def holder(self, pump: PumpProcess) -> PumpProcess | None:
        """Return the Pump that has the copy of a log, None while there is none."""
        names = [copy.pump for copy in self.entry(pump).replicas]
        return next((each for each in self.pumps if each.node_id in names), None)

    def other(self, pump: PumpProcess) -> PumpProcess:
        """Return the Pump that has the copy of a log."""
        return present(self.holder(pump))

    def until_moved(self, pump: PumpProcess) -> None:
        """Wait until another disk is the primary of a log."""
        eventually(lambda: self.entry(pump).primary.pump != pump.node_id, WAIT_S)


def lose_disk(pump: PumpProcess) -> None:
    """Kill all that runs on a Pump's machine, and delete what it had."""
    pump.kill_all()
    shutil.rmtree(pump.data_dir)


@pytest.fixture
def trio(pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer) -> Trio:
    return Trio(pump_factory, etcd_server.url, etcd)
