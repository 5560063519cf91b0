"""The cluster under chaos: every process, and a proxy before each server.

    writer-1 writer-2 ──┐              ┌──> pump-1 … pump-3     each on a small disk of its own
    drainer-1 drainer-2 ┼── proxies ───┼──> etcd
    pump-1 … pump-3 ────┘              └──> mariadb <── the reader, by a way of its own

Every caller has an address of loopback of its own at which it reaches all proxies, so that a fault
concerns one link alone: a Drainer may be cut off from a Pump that writers reach. Pumps advertise a
name for that, which each caller's own /etc/hosts resolves. A Pump listens at an address of its own,
too: so it is known on which machine one runs that another Pump has started (`tests.chaos.ways`).

Each Pump has its supervisor, as in production: one that ends because another one has its log is
started again.
"""

import os
import subprocess
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from penstock.cluster import etcd
from penstock.cluster.records import standbys
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.failpoints import VARIABLE
from penstock.local.etcd import EtcdServer
from penstock.local.process import ServerProcess, flags, free_port, python_module
from penstock.local.sql_server import MariadbServer
from penstock.log.files import replace_file
from penstock.node.command import FAILED
from tests.chaos.backups import Backup, Restore
from tests.chaos.copies import LogCopies
from tests.chaos.machine import Machine
from tests.chaos.plan import ALL_WRITERS, DRAINERS, ETCD, MARIADB, PUMPS, WRITERS
from tests.chaos.ways import Ways
from tests.chaos.writer import COMMIT_TIMEOUT_S, FOUNDER, NO_DDL
from tests.kit.crash.disks import Volume
from tests.kit.crash.namespaces import inside, mounted
from tests.kit.crash.preload import preloaded
from tests.kit.crash.slow_proxy import SlowProxy

FOUND_S_MAX: Final = 600.0
TXN_TIMEOUT_S: Final = COMMIT_TIMEOUT_S + 5
"""After this a Pump rolls back what a dead writer left open."""
DISK_BYTES: Final = 256 << 20
_NET: Final = f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"
"""Addresses of loopback that no other run has."""
_CALLERS: Final = {
    f"{_NET}.{number}": name for number, name in enumerate((ALL_WRITERS, *DRAINERS, *PUMPS), 1)
}
_ADDRESSES: Final = {name: address for address, name in _CALLERS.items()}
_MACHINES: Final = {name: f"{_NET}.{number}" for number, name in enumerate(PUMPS, 101)}
_HOST: Final = "proxy.penstock"
"""What resolves to the caller's own address of the proxies."""
_PUMP: Final[dict[str, Any]] = {
    "txn_timeout_s": TXN_TIMEOUT_S,
    "storage_segment_bytes_max": 4 << 20,
    # What all Drainers have is purged after some minutes.
    "gc_days": 0.003,
    "log_format": "json",
}
_DEPOSED: Final = f'"code": "{Code.LOG_DEPOSED}"'
_DRAINER: Final[dict[str, Any]] = {"spark_tasks": 1, "log_format": "json"}


class Cluster:
    """Starts everything; use as a context manager. Processes have their names of the plan."""

    def __init__(self, home: Path, seed: int, *, copies: int = 1) -> None:
        self._home, self._seed = home, seed
        self.copies_wanted = copies
        self._stack = ExitStack()
        self._runs = dict.fromkeys((FOUNDER, *WRITERS), 0)
        self._ports: dict[str, int] = {}
        self._keepers: dict[str, int] = {}
        self.etcd = EtcdServer(home / ETCD, durable=False)
        self.mariadb = MariadbServer(home / MARIADB)
        self.processes: dict[str, ServerProcess] = {ETCD: self.etcd, MARIADB: self.mariadb}
        self.proxies: dict[str, SlowProxy] = {}
        self.machines: dict[str, Machine] = {}
        self.copies = LogCopies(self.etcd.url, self.machines)
        self.deleting = threading.Lock()
        """Held while a disk is chosen and deleted: what else is whole must stay so."""
        self.backup: Backup | None = None
        """Of etcd; it has all DDL, as none was run since."""
        self.restores: list[Restore] = []
        self.over = threading.Event()
        """Set once all ends."""
        self.decisions: list[str] = []
        """What an operator decided after etcd was restored, as commands."""
        self.deposed: list[str] = []
        """Pumps that ended as another one had their log, and were started again."""
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
        self.stop()

    def _start_servers(self) -> None:
        (self._home / ETCD).mkdir(parents=True)
        self._clock_library = preloaded("jumping_clock", self._home)
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
            self._prepare_pump(name)
        for name in DRAINERS:
            self._settings[name] |= {
                **{"addr": f"127.0.0.1:{free_port()}", "data_dir": self._home / name},
                **{"sink": f"mysql://{user}:{password}@{self._way(name, MARIADB)}/", **_DRAINER},
            }
        for name in (*DRAINERS, *WRITERS):
            self.processes[name] = ServerProcess([name], log=self._home / f"{name}.log")
        self._stack.enter_context(Ways({_MACHINES[name]: self.proxies[name] for name in PUMPS}))
        for name in (*PUMPS, *DRAINERS):
            self.start(name)

    def _prepare_pump(self, name: str) -> None:
        addr, data = f"{_MACHINES[name]}:{free_port()}", self._disk(name) / "data"
        self._add_proxy(name, addr)
        volume = Volume(Path(f"/proc/{self._keepers[name]}/root{data.parent}"))
        log = self._home / f"{name}.log"
        keeper = self._keepers[name]
        self.machines[name] = Machine(name, log=log, data=data, volume=volume, keeper=keeper)
        self.processes[name] = self.machines[name]
        self._settings[name] |= {
            **{"addr": addr, "advertise_addr": f"{_HOST}:{self._ports[name]}"},
            **{"data_dir": data, "copies": self.copies_wanted, **_PUMP},
        }

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
        return mounted(*mounts)

    def found(self) -> None:
        command = self._command(FOUNDER)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=FOUND_S_MAX
        )
        if done.returncode != 0:
            raise Retryable(f"no bank was founded:\n{done.stderr}", code=Code.CHILD_FAILED)

    def journal(self, writer: str) -> Path:
        """Return where a writer, or whoever else writes, notes what it does."""
        return self._home / f"{writer}.journal"

    def start(self, name: str, failpoints: str = "", *, may_end: bool = False) -> None:
        """Start a process, again on its port and data; a server answers afterwards.

        With failpoints, or if it `may_end`, its end is no find. `Retryable` once all ends.
        """
        if self.over.is_set():
            raise Retryable(f"{name} is not started any more", code=Code.CHILD_FAILED)
        process = self.processes[name]
        process.command = self._command(name, failpoints)
        process.start()
        if not failpoints and not may_end:
            self.may_be_down.discard(name)

    def start_if_ended(self, name: str) -> None:
        """Let a process run on, or start it if it does not run; from now on it must not end."""
        process = self.processes[name]
        with self.machines[name].lock if name in self.machines else nullcontext():
            process.thaw()
            if not process.is_running:
                self.start(name)
            self.may_be_down.discard(name)

    def hold_ddl(self) -> None:
        """Let no writer begin a DDL, one that is started meanwhile neither."""
        (self._home / NO_DDL).touch()

    def allow_ddl(self) -> None:
        """Let writers run DDL again: the backup of etcd will lack some."""
        self.backup = None
        (self._home / NO_DDL).unlink(missing_ok=True)

    def jump_clock(self, name: str, ahead_s: int) -> None:
        """Let the wall clock of a process jump, on a Pump's machine that of all processes."""
        replace_file(self._clock(name), str(ahead_s).encode())

    def _clock(self, name: str) -> Path:
        return self._home / f"clock-of-{name}"

    def folder(self, name: str) -> Path:
        made = self._home / name
        made.mkdir(exist_ok=True)
        return made

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
        clock = (f"LD_PRELOAD={self._clock_library}", f"CLOCK_AHEAD={self._clock(name)}")
        variables = (f"{VARIABLE}={failpoints}", *clock)
        return [*inside(self._keepers[caller]), "env", *variables, *command]

    def kill(self, name: str) -> None:
        """Kill a process as kill -9 does; of a Pump all that runs on its machine."""
        with self.machines[name].lock if name in self.machines else nullcontext():
            self.may_be_down.add(name)
            self.processes[name].kill()

    def kill_alone(self, pump: str) -> None:
        """Kill a Pump, but not what it has started on copies."""
        with self.machines[pump].lock:
            self.may_be_down.add(pump)
            self.machines[pump].kill_alone()

    def supervise(self) -> None:
        """Start each Pump again that has ended because another one has its log, or a full disk."""
        for name, machine in self.machines.items():
            with machine.lock:
                if self._has_ended(name) and self._will_try_again(name):
                    if _DEPOSED in machine.log_tail():
                        self.deposed.append(name)
                    self.start(name)

    def _has_ended(self, name: str) -> bool:
        return not self.processes[name].is_running and name not in self.may_be_down

    def _will_try_again(self, name: str) -> bool:
        machine = self.machines.get(name)
        if machine is None or machine.wait() != FAILED:
            return False
        return _DEPOSED in machine.log_tail() or "No space left on device" in machine.log_tail(1)

    def dead(self) -> dict[str, str]:
        """Return the ends of the logs of processes that have ended by themselves, for no reason."""
        ended = [n for n in self.processes if self._has_ended(n) and not self._will_try_again(n)]
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
        self.over.set()
        for name in (*WRITERS, *DRAINERS, *PUMPS, MARIADB, ETCD):
            if name in self.processes:
                self.may_be_down.add(name)
                self.processes[name].stop()
        self._stack.close()
