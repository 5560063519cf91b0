"""The cluster under chaos: every process, and a proxy before each server.

    writer-1 writer-2 ──┐              ┌──> pump-1 … pump-3     each on a small disk of its own
    drainer-1 drainer-2 ┼── proxies ───┼──> etcd
    pump-1 … pump-3 ────┘              └──> mariadb <── the reader, by a way of its own

Every caller has an address of loopback of its own at which it reaches all proxies, so that a fault
concerns one link alone: a Drainer may be cut off from a Pump that writers reach. Pumps advertise a
name for that, which each caller's own /etc/hosts resolves.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from deploy.local.etcd import EtcdServer
from deploy.local.mariadb import MariadbServer
from deploy.local.process import ServerProcess, flags, free_port, python_module
from penstock.cluster import etcd
from penstock.cluster.drainer_runs import standbys
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.failpoints import VARIABLE
from tests.chaos.plan import ALL_WRITERS, DRAINERS, ETCD, MARIADB, PUMPS, WRITERS
from tests.chaos.writer import COMMIT_TIMEOUT_S, FOUNDER
from tests.kit.crash.disks import Volume
from tests.kit.crash.namespaces import inside, mounted
from tests.kit.crash.slow_proxy import SlowProxy

TXN_TIMEOUT_S: Final = COMMIT_TIMEOUT_S + 5
"""After this a Pump rolls back what a dead writer left open."""
DISK_BYTES: Final = 256 << 20
_CALLERS: Final = {
    f"127.0.1.{number}": name for number, name in enumerate((ALL_WRITERS, *DRAINERS, *PUMPS), 1)
}
_ADDRESSES: Final = {name: address for address, name in _CALLERS.items()}
_HOST: Final = "proxy.penstock"
"""What resolves to the caller's own address of the proxies."""
_PUMP: Final[dict[str, Any]] = {
    "txn_timeout_s": TXN_TIMEOUT_S,
    "storage_segment_bytes_max": 4 << 20,
    # What all Drainers have is purged after some minutes.
    "gc_days": 0.003,
    "log_format": "json",
}
_DRAINER: Final[dict[str, Any]] = {"spark_tasks": 1, "log_format": "json"}


class Cluster:
    """Starts everything; use as a context manager. Processes have their names of the plan."""

    def __init__(self, home: Path, seed: int, *, lasts_s: int) -> None:
        """The disks of the Pumps are gone after `lasts_s` even if this process is killed."""
        self._home, self._seed, self._lasts_s = home, seed, lasts_s
        self._stack = ExitStack()
        self._runs = dict.fromkeys((FOUNDER, *WRITERS), 0)
        self._ports: dict[str, int] = {}
        self._keepers: dict[str, int] = {}
        self.etcd = EtcdServer(home / ETCD, durable=False)
        self.mariadb = MariadbServer(home / MARIADB)
        self.processes: dict[str, ServerProcess] = {ETCD: self.etcd, MARIADB: self.mariadb}
        self.proxies: dict[str, SlowProxy] = {}
        self.volumes: dict[str, Volume] = {}
        self.may_be_down: set[str] = {*PUMPS, *DRAINERS, *WRITERS}
        """Processes that are not started yet, that a fault has ended, or may end at any moment."""
        self._settings: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        """Start all but the writers, who need a bank first: `found`, then `start`."""
        try:
            self._start_servers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End everything that runs."""
        self.stop()

    def _start_servers(self) -> None:
        (self._home / ETCD).mkdir(parents=True)
        self.etcd.start()
        self.mariadb.install()
        self.mariadb.start()
        self._add_proxy(ETCD, self.etcd.url)
        self._add_proxy(MARIADB, f"127.0.0.1:{self.mariadb.port}")
        user, password = self.mariadb.user, quote(self.mariadb.password, safe="")
        for name in _ADDRESSES:
            self._settings[name] = {"node_id": name, "etcd_urls": self._way(name, ETCD)}
            self._keepers[name] = self._stack.enter_context(self._own_files(name))
        for name in PUMPS:
            addr = f"127.0.0.1:{free_port()}"
            self._add_proxy(name, addr)
            disk = Path(f"/proc/{self._keepers[name]}/root{self._disk(name)}")
            self.volumes[name] = Volume(disk)
            self._settings[name] |= {
                **{"addr": addr, "advertise_addr": f"{_HOST}:{self._ports[name]}"},
                **{"data_dir": self._disk(name) / "data", **_PUMP},
            }
        for name in DRAINERS:
            self._settings[name] |= {
                **{"addr": f"127.0.0.1:{free_port()}", "data_dir": self._home / name},
                **{"sink": f"mysql://{user}:{password}@{self._way(name, MARIADB)}/", **_DRAINER},
            }
        for name in (*PUMPS, *DRAINERS, *WRITERS):
            self.processes[name] = ServerProcess([name], log=self._home / f"{name}.log")
        for name in (*PUMPS, *DRAINERS):
            self.start(name)

    def _add_proxy(self, name: str, address: str) -> None:
        self._ports[name] = free_port()
        proxy = SlowProxy(address, listen_port=self._ports[name], callers=_CALLERS)
        self.proxies[name] = self._stack.enter_context(proxy)

    def _way(self, caller: str, server: str) -> str:
        return f"{_ADDRESSES[caller]}:{self._ports[server]}"

    def _disk(self, pump: str) -> Path:
        return self._home / f"disk-of-{pump}"

    def _own_files(self, caller: str) -> AbstractContextManager[int]:
        """Give a caller its own /etc/hosts, and a Pump a small disk as well."""
        hosts = self._home / f"hosts-of-{caller}"
        hosts.write_text(f"{Path('/etc/hosts').read_text()}\n{_ADDRESSES[caller]} {_HOST}\n")
        mounts = [f"--bind {hosts} /etc/hosts"]
        if caller in PUMPS:
            self._disk(caller).mkdir()
            mounts.append(f"-t tmpfs -o size={DISK_BYTES} penstock {self._disk(caller)}")
        return mounted(*mounts, lasts_s=self._lasts_s)

    def found(self) -> None:
        """Create the tables and the bank's money upstream."""
        command = self._command(FOUNDER)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise Retryable(f"no bank was founded:\n{done.stderr}", code=Code.CHILD_FAILED)

    def journal(self, writer: str) -> Path:
        """Return where a writer, or whoever else writes, notes what it does."""
        return self._home / f"{writer}.journal"

    def start(self, name: str, failpoints: str = "") -> None:
        """Start a process, again on its port and data; a server answers afterwards."""
        process = self.processes[name]
        process.command = self._command(name, failpoints)
        process.start()
        if not failpoints:
            self.may_be_down.discard(name)

    def _command(self, name: str, failpoints: str = "") -> list[str]:
        if name in (ETCD, MARIADB):
            return self.processes[name].command
        caller = name if name in _ADDRESSES else ALL_WRITERS
        if caller is ALL_WRITERS:
            self._runs[name] += 1
            own = (name, str(self._runs[name]), self._way(ALL_WRITERS, ETCD))
            command = python_module("tests.chaos.writer", *own, str(self.journal(name)))
            command.append(str(self._seed))
        else:
            command = python_module(name.partition("-")[0], *flags(self._settings[name]))
        return [*inside(self._keepers[caller]), "env", f"{VARIABLE}={failpoints}", *command]

    def kill(self, name: str) -> None:
        """Kill a process as kill -9 does."""
        self.may_be_down.add(name)
        self.processes[name].kill()

    def dead(self) -> dict[str, str]:
        """Return the ends of the logs of processes that have ended by themselves."""
        ended = [
            name
            for name, process in self.processes.items()
            if not process.is_running and name not in self.may_be_down
        ]
        return {name: self.processes[name].log_tail(5) for name in ended}

    def role(self, drainer: str) -> str:
        """Return whether a Drainer stands by, as far as etcd knows now."""
        try:
            connection = etcd.connect(self.etcd.url)
        except Retryable:
            return ""
        try:
            return "standby" if drainer in {s.node_id for s in standbys(connection)} else "active"
        except Retryable:
            return ""
        finally:
            connection.close()

    @property
    def logs(self) -> Mapping[str, Path]:
        """The logs of our own programs, of this one too; those that exist."""
        names = ("chaos", *PUMPS, *DRAINERS, *WRITERS)
        logs = {name: self._home / f"{name}.log" for name in names}
        return {name: path for name, path in logs.items() if path.exists()}

    def stop(self) -> None:
        """End all processes in order, then what they stood on."""
        for name in (*WRITERS, *DRAINERS, *PUMPS, MARIADB, ETCD):
            if name in self.processes:
                self.may_be_down.add(name)
                self.processes[name].stop()
        self._stack.close()
