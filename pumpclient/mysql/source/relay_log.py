"""The relay log of a source: its receiver, which may fail and be restarted, and its purger.

The purger deletes files that are not needed any more:

    inactive   all before the file that is read            by hand
    filename   all before a file, in one sub-directory     by hand
    time       all that were last written long ago         periodically, by hand
    space      all before the file that is read            periodically, when the disk is short

The file that is read and all later files are never deleted. An empty sub-directory is removed; its
line in the index stays until the next start (`RelayFolder.trim`), because only the receiver writes
the index while it runs.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Location, files_in, sub_dirs_of
from pumpclient.mysql.relay.receiver import RelayOptions, RelayReceiver, start_thread
from pumpclient.mysql.relay.resume import Start
from pumpclient.mysql.source.config import RelayConfig

_OPENED_HINT = (
    "look at the disk and the rights there, or move the folder away and start the source again"
)


class RelayLog:
    """One relay log; `close` ends all threads that `begin` starts."""

    def __init__(
        self,
        config: RelayConfig,
        address: ServerAddress,
        stream: StreamOptions,
        needed: Needed,
        ended: Callable[[], None],
    ) -> None:
        """Start nothing yet; a failed writer calls `ended` from another thread."""
        self._config = config
        self._address = address
        self._stream = stream
        self._ended = ended
        self._thread: threading.Thread | None = None
        self._receiver: RelayReceiver | None = None
        self.failure: PenstockError | None = None
        """The error that ended the receiver."""
        self.purger = Purger(
            config.dir,
            needed,
            expires_s=config.purge_expires_s,
            remain_space_bytes=config.purge_remain_space_bytes,
        )

    @property
    def dir(self) -> Path:
        return self._config.dir

    @property
    def receiver(self) -> RelayReceiver | None:
        return self._receiver

    def begin(self, place: Location, accepts: str) -> RelayReceiver:
        """Return a running receiver; a new relay log starts with the file of `place`.

        `accepts` names a history of the server that an operator accepts.
        """
        if self._receiver is not None and self.failure is None:
            return self._receiver
        if self._thread is None:
            self.purger.start()
        else:
            self._thread.join()
        self.failure = None
        options = RelayOptions(
            stream=self._stream, start=Start(file=str(place.file), accepts=accepts)
        )
        self._receiver = RelayReceiver(self.dir, self._address, options)
        self._thread = start_thread(self._receiver, self._failed)
        return self._receiver

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            error = NeedsOperator(
                f"the relay log in {self.dir}: {error}", _OPENED_HINT, Code.RELAY_UNUSABLE
            )
        self.failure = error
        self._ended()

    def close(self) -> None:
        if self._thread is None or self._receiver is None:
            return
        self.purger.close()
        self._receiver.stop()
        self._thread.join()


log = logging.getLogger(__name__)

Needed = Callable[[], Location | None]
"""The earliest place that must still be read; None if it is not known."""


class Purger:
    """Purges one relay log; one purge at a time."""

    def __init__(
        self,
        root: Path,
        needed: Needed,
        *,
        interval_s: float = 3600.0,
        expires_s: float = 0.0,
        remain_space_bytes: int = 15 << 30,
    ) -> None:
        self._root = root
        self._needed = needed
        self._interval_s = interval_s
        self._expires_s = expires_s
        self._remain_space_bytes = remain_space_bytes
        self._busy = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay purge", daemon=True)
        self.purged = 0
        """The number of files deleted so far."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def inactive(self) -> list[str]:
        """Delete all files before the file that is read; return the deleted names.

        This and the other purges raise `NeedsOperator` when the place that is read is not known, or
        while another purge is running.
        """
        return self._purge(lambda path: True)

    def before(self, file: FileName, suffix: int | None = None) -> list[str]:
        """Delete all files before `file`; the sub-directory is by default the one being read."""
        needed = self._place()
        end = Location(suffix or needed.suffix, file, FIRST_POSITION)
        return self._purge(lambda path: True, min(end, needed))

    def expired(self, age_s: float, now_s: float | None = None) -> list[str]:
        """Delete the oldest files, up to the first file written within `age_s`."""
        oldest_s = (time.time() if now_s is None else now_s) - age_s
        return self._purge(lambda path: path.stat().st_mtime < oldest_s)

    def check(self) -> list[str]:
        """Purge files that are due by free space, or else by age."""
        if shutil.disk_usage(self._root).free < self._remain_space_bytes:
            return self.inactive()
        return self.expired(self._expires_s) if self._expires_s else []

    def _place(self) -> Location:
        needed = self._needed()
        if needed is None:
            raise NeedsOperator(
                "no one has said which files are still to be read",
                "start the source first",
                Code.NODE_STATE,
            )
        return needed

    def _purge(self, may_go: Callable[[Path], bool], end: Location | None = None) -> list[str]:
        if not self._busy.acquire(blocking=False):
            raise NeedsOperator("another purge is under way", "wait for its end", Code.NODE_STATE)
        try:
            return self._purged(may_go, end or self._place())
        finally:
            self._busy.release()

    def _purged(self, may_go: Callable[[Path], bool], end: Location) -> list[str]:
        gone: list[str] = []
        for sub_dir in sub_dirs_of(self._root):
            folder = self._root / str(sub_dir)
            if sub_dir.suffix > end.suffix:
                break
            if not folder.is_dir():
                continue
            files = files_in(folder)
            old = [f for f in files if sub_dir.suffix < end.suffix or f < end.file]
            for file in old:
                path = folder / str(file)
                if not may_go(path):
                    return self._reported(gone)
                path.unlink()
                gone.append(f"{sub_dir}/{file}")
            if sub_dir.suffix < end.suffix:
                shutil.rmtree(folder)
        return self._reported(gone)

    def _reported(self, gone: list[str]) -> list[str]:
        self.purged += len(gone)
        if gone:
            log.info("purged %d relay log files, %s to %s", len(gone), gone[0], gone[-1])
        return gone

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self.check()
            except (PenstockError, OSError) as error:
                log.warning("purge of the relay log: %s", error)
