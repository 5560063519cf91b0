"""A machine with a Pump: its process, those that it started on copies, its disk, and its ports.

A Pump starts another one for each log that it takes over. They run on if it is killed, and listen
on ports that nobody knows before; a machine that dies or stands still takes all of them along.
"""

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from penstock.local.process import STOP_S_MAX, ServerProcess
from tests.kit.crash.disks import Volume

_LISTENS: Final = "0A"
"""The state of a socket in `/proc/net/tcp`."""


class Machine(ServerProcess):
    """A Pump that is killed, frozen and stopped together with those that it started."""

    def __init__(self, name: str, *, log: Path, data: Path, volume: Volume, keeper: int) -> None:
        """`data` is its data folder as it sees it, on a disk that is `volume` to others.

        `keeper` is the process that keeps its mounts: what else has them runs on this machine.
        """
        super().__init__([name], log=log)
        self.lock = threading.RLock()
        """Held by whoever starts, ends or freezes it."""
        self.volume = volume
        self.folder = volume.path / data.name
        """Its data folder, as others see it."""
        self._keeper = keeper

    def start(self) -> Self:
        """Start the Pump; what it has set aside is removed first, as an operator does."""
        shutil.rmtree(self.folder / "displaced", ignore_errors=True)
        return super().start()

    def guests(self) -> list[psutil.Process]:
        """Return what runs here beside the Pump, whichever run of it has started that.

        A child that has not come to its own command line yet is among them.
        """
        others = {self._keeper, self.pid if self.is_running else 0}
        here = _mounts(self._keeper)
        found = []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if pid not in others and _mounts(pid) == here:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def kill(self) -> None:
        with self.lock:
            super().kill()
            self._end_guests()

    def _end_guests(self) -> None:
        """Kill until nothing is left: one may start another one meanwhile."""
        deadline_s = time.monotonic() + STOP_S_MAX
        while guests := self.guests():
            for guest in guests:
                with suppress(psutil.Error):
                    guest.kill()
            _, left = psutil.wait_procs(guests, timeout=1)
            if left and time.monotonic() > deadline_s:
                raise TimeoutError(f"{left} did not die within {STOP_S_MAX:g} s")

    def kill_alone(self) -> None:
        """Kill the Pump itself; what it has started runs on."""
        with self.lock:
            super().kill()

    def freeze(self) -> None:
        """Let nothing run here, connections staying open."""
        with self.lock:
            if self.is_running:
                super().freeze()
            for guest in self.guests():
                with suppress(psutil.Error):
                    guest.suspend()

    def thaw(self) -> None:
        with self.lock:
            for guest in self.guests():
                with suppress(psutil.Error):
                    guest.resume()
            super().thaw()

    def stop(self, timeout_s: float = STOP_S_MAX) -> int | None:
        """End the Pump in order and return its exit code, then all that runs on."""
        with self.lock:
            code = super().stop(timeout_s)
            self.kill()
        return code

    def lose_disk(self) -> None:
        """Delete the data folder, if the Pump has come to make one; nothing may run."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


def _mounts(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def listening() -> dict[str, set[int]]:
    """Return the ports on which someone listens, by their IPv4 addresses."""
    found: dict[str, set[int]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == _LISTENS:
            address, _, port = local.partition(":")
            host = ".".join(str(part) for part in reversed(bytes.fromhex(address)))
            found.setdefault(host, set()).add(int(port, 16))
    return found
