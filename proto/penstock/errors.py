"""Errors: every failure Penstock raises, sorted by who can do something about it.

    PenstockError
    ├── Retryable      wait and try again: a Pump restarts, etcd elects, a lock is held
    ├── NeedsOperator  a human must act: bad config, a DDL no one can parse, a wrong cluster
    │   └── Malformed  bytes or values from outside are not what their format says
    └── Corrupt        bytes on disk are not what we wrote; never skipped, never retried

A broken promise inside our own code is none of these: it is an `assert`, and the node stops.
A stopped Drainer loses no data, a wrong one does.
"""

from __future__ import annotations


class PenstockError(Exception):
    """The root of every failure that Penstock raises on purpose."""


class Retryable(PenstockError):
    """Waiting and trying again may help; nothing was lost and nothing needs to change."""


class NeedsOperator(PenstockError):
    """Retrying cannot help; `hint` says in one sentence what would."""

    def __init__(self, problem: str, *, hint: str) -> None:
        super().__init__(f"{problem} ({hint})")
        self.problem = problem
        self.hint = hint


class Malformed(NeedsOperator):
    """Bytes or values that came from outside do not follow their format."""


class Corrupt(PenstockError):
    """Stored bytes are not the bytes that were written; says where."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}, offset {offset}: {what}")
        self.path = path
        self.offset = offset
        self.what = what
