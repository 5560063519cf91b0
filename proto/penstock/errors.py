"""Errors: every failure that Penstock raises, sorted by the party that can act on it.

    PenstockError
    ├── Retryable      wait and try again: a Pump restarts, etcd elects, a lock is held
    ├── NeedsOperator  a human must act: bad config, a DDL no one can parse, a wrong cluster
    │   └── Malformed  bytes or values from outside do not follow their format
    └── Corrupt        bytes on disk differ from the written ones; never skipped, never retried

A broken promise inside our code is an `assert`, not one of these errors, and the node stops. A
stopped Drainer loses no data, a wrong one does.

Each error has a code (`penstock.codes`), under which the documentation has its meaning and its
remedy. The text of an error does not contain its code, because other errors may quote the text.
Code that shows an error to a person calls `coded`. Between nodes, the trailing metadata of a failed
call contains the code.
"""

from typing import Any, Final

from penstock.codes import Code, code_named

_FIELD: Final = "penstock-code"


class PenstockError(Exception):
    """The root of every failure that Penstock raises on purpose."""

    def __init__(self, problem: str, code: Code) -> None:
        super().__init__(problem)
        self.code = code
        self.add_note(str(code))  # A traceback shows it below the text.


class Retryable(PenstockError):
    """Waiting and trying again may help; nothing was lost and nothing needs to change."""


class NeedsOperator(PenstockError):
    """Retrying cannot help; `hint` says in one sentence what would."""

    def __init__(self, problem: str, hint: str, code: Code) -> None:
        super().__init__(f"{problem} ({hint})", code=code)
        self.problem = problem
        self.hint = hint


class Malformed(NeedsOperator):
    """Bytes or values that came from outside do not follow their format."""


class Corrupt(PenstockError):
    """Stored bytes are not the bytes that were written; reports the place."""

    def __init__(self, path: str, offset: int, what: str, code: Code) -> None:
        super().__init__(f"{path}, offset {offset}: {what}", code=code)
        self.path = path
        self.offset = offset
        self.what = what


def coded(error: BaseException) -> str:
    """Return the text of an error for a person, with its code at the end.

    A text that quotes another node already shows that node's code, which is nearer to the cause.
    """
    text = str(error)
    if isinstance(error, PenstockError) and shows_none(text):
        return f"{text} [{error.code}]"
    return text


def shows_none(text: str) -> bool:
    """Return whether a text shows no code, so that the code of its error belongs at its end."""
    return "[PS-" not in text


def code_fields(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a call that an error ends."""
    return ((_FIELD, str(error.code)),) if isinstance(error, PenstockError) else ()


def code_of_call(failed: Any) -> Code | None:
    """Return the code of the error with which a server ended a call; None if it sent none."""
    return code_named(dict(failed.trailing_metadata() or ()).get(_FIELD, ""))
