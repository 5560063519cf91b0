"""Patience: retries while a downstream is unreachable, locked or restarting.

attempt ──> done
   │ a transient error: release all resources, pause, longer each time
   └──> again, until `retry_s_max` has passed since the first error

`locked` lets one program at a time write in a folder.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import Sink
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.waiting import doubling

log = logging.getLogger(__name__)

PASSING_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR, errno.ESTALE})
"""Transient errors: a full disk, a lock that is held, a file server that restarts."""
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 5.0
T = TypeVar("T")


class Patience:
    """Runs attempts one at a time; `problem` may be read from any thread."""

    def __init__(
        self,
        name: str,
        *,
        retry_s_max: float,
        let_go: Callable[[], None],
        passing: Callable[[Exception], str],
        closing: threading.Event | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; `name` is the downstream's in logs and errors.

        `let_go` is called after every failure. `passing` returns the condition that the downstream
        waits for, in the downstream's words, or raises: the error itself if it does not recognize
        it, or its replacement for an error that is not transient. Instances that share `closing`
        stop waiting together. `changed` is called when `problem` has changed.
        """
        self._name = name
        self._retry_s_max = retry_s_max
        self._let_go = let_go
        self._passing = passing
        self.closing = closing or threading.Event()
        self.using = threading.Lock()
        """Held by the thread that uses the downstream."""
        self._changed = changed
        self.problem = ""
        """The condition that is waited for; empty while there is no error."""

    def retrying(self, attempt: Callable[[bool], T]) -> T:
        """Return the result of `attempt`, whose argument says whether it was tried before.

        Raises `Retryable` when errors have lasted for `retry_s_max`, and once `closing` is set.
        """
        with self.using:
            return self._until_it_passes(attempt)

    def close(self) -> None:
        self.closing.set()
        with self.using:
            self._let_go()

    def _until_it_passes(self, attempt: Callable[[bool], T]) -> T:
        deadline_s = time.monotonic() + self._retry_s_max
        pauses, is_retried = doubling(_PAUSE_S_MIN, _PAUSE_S_MAX), False
        while True:
            if self.closing.is_set():
                raise Retryable("the sink is closed", Code.CLOSED)
            began_s = time.monotonic()
            try:
                made = attempt(is_retried)
                self._note("")
                return made
            except Exception as error:
                self._let_go()
                failure = error
                self._note(self._passing(error))
            except BaseException:
                self._let_go()
                raise
            pause_s, is_retried = next(pauses), True
            if time.monotonic() - began_s > self._retry_s_max:
                # The attempt ran long: the time to wait starts with the error.
                deadline_s = time.monotonic() + self._retry_s_max
            if time.monotonic() + pause_s > deadline_s:
                raise Retryable(
                    f"{self._name}: {self.problem}, for {self._retry_s_max:.0f} s", Code.SINK_AWAY
                ) from failure
            log.warning("%s: %s; trying again", self._name, self.problem)
            if self.closing.wait(pause_s):
                raise Retryable("the sink was closed while it waited", Code.CLOSED) from failure

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            if self._changed is not None:
                self._changed()


LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an existing folder; `BlockingIOError` if another program holds it."""
    lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


class RetryingSink(Sink):
    """A sink whose calls all retry in the same way."""

    def __init__(self, name: str, *, cluster_id: int, retry_s_max: float) -> None:
        super().__init__(cluster_id)
        self._patience = Patience(
            name, retry_s_max=retry_s_max, let_go=self._let_go, passing=self._passing
        )

    def waits_for(self) -> str:
        return self._patience.problem

    def close(self) -> None:
        self._patience.close()

    def _storing(self, attempt: Callable[[str, bool], T], checkpoint: Checkpoint) -> T:
        """Retry `attempt`, which stores the text of a checkpoint, until it has succeeded.

        Its second argument says whether an earlier attempt may have stored the text.
        """
        text, is_doubtful = self._ledger.attempt(checkpoint)
        made = self._patience.retrying(lambda retried: attempt(text, retried or is_doubtful))
        self._ledger.wrote(text)
        return made

    def _let_go(self) -> None:
        raise NotImplementedError

    def _passing(self, error: Exception) -> str:
        raise NotImplementedError
