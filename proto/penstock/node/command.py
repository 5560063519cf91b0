"""Command: starts a program, and turns an error into one line and an exit code.

0     done; a node that stopped as asked; a comparison without a difference
1     a failure that a restart or another try may cure, or a defect; `penstock verify` found
      differences, `penstock ctl dump` found damage
2     a person must act first: the line ends with a hint and a code
130   interrupted by Ctrl-C
141   the reader of the output went away, as `head` does

`main()` of every program is `run`, and a running node sorts its failures by the same `ending`. A
program imports its packages within `run`, so a package that is not installed is an ordinary error,
with the command that installs it.
"""

import contextlib
import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, coded
from penstock.node.logs import one_line
from penstock.settings.load import check_variables

DONE, FAILED, NEEDS_OPERATOR = 0, 1, 2
INTERRUPTED, CUT_OFF = 130, 141

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "plyvel": ("pump", "demo"),
    "grpc_health": ("pump", "demo"),
    "grpc_reflection": ("pump", "demo"),
    "prometheus_client": ("pump", "drainer", "stream", "demo"),
    "numpy": ("drainer", "stream", "demo"),
    "pyarrow": ("drainer", "stream", "demo"),
    "pyspark": ("drainer", "demo"),
    "py4j": ("drainer", "demo"),
    "pymysql": ("mysql", "drainer", "demo"),
    "confluent_kafka": ("kafka",),
    "deltalake": ("delta", "demo"),
    "obstore": ("s3",),
    "zstandard": ("mysql", "demo"),
    "cryptography": ("mysql", "demo"),
    "grpc": (),
    "google": (),
    "google_crc32c": (),
    "etcd3": (),
    "aiohttp": ("console",),
    "jinja2": ("console",),
    "markupsafe": ("console",),
    "psutil": ("demo", "run"),
    "rich": ("demo",),
}
"""The extras of the distribution that contain a package; none for the distribution's own."""

VARIABLES: Final = frozenset(
    {
        "PENSTOCK_ETCD_URLS",
        "PENSTOCK_ETCD_USER",
        "PENSTOCK_ETCD_PASSWORD",
        "PENSTOCK_CONSOLE_TOKEN",
        "PENSTOCK_UPSTREAM_PASSWORD",
        "PENSTOCK_DOWNSTREAM_PASSWORD",
        "PENSTOCK_FAILPOINTS",
    }
)
"""Environment variables that programs read besides the settings of one of them."""

_HINTS: Final[Mapping[int, str]] = {
    errno.EACCES: "let the account that runs this read and write there, or name another place",
    errno.EPERM: "let the account that runs this read and write there, or name another place",
    errno.EROFS: "name a place on a file system that can be written",
    errno.ENOENT: "create it, or name another place",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.EISDIR: "it is a directory: name a file",
    errno.EEXIST: "it is there already: name another place, or move it away",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "make room, or raise the quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
}
_FILES_MAX: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""A supervisor restarts the program, because space may be freed while no one watches it."""
_WITHOUT_NAME: Final = _FULL | {errno.EMFILE}
"""Errors that an operator can act on even if the system does not name the file."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an error ends a program: exit code, one line with the reason, and the error's code."""

    code: int
    line: str
    reason: Code


def open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MAX if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Raise the limit of open files to the system's maximum, at most a million."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a second, lower limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def ending(error: BaseException, extra: str = "") -> Ending | None:
    """Return how an error ends a program; None for a defect, which needs its traceback.

    `extra` is the distribution's extra that the program belongs to.
    """
    if isinstance(error, NeedsOperator):
        return Ending(NEEDS_OPERATOR, coded(error), error.code)
    if isinstance(error, PenstockError):
        return Ending(FAILED, coded(error), error.code)
    if isinstance(error, ImportError):
        return _of_import(error, extra)
    return _of_system(error) if isinstance(error, OSError) else None


def _of_system(error: OSError) -> Ending | None:
    hint = _HINTS.get(error.errno or 0)
    if hint is None or (error.filename is None and error.errno not in _WITHOUT_NAME):
        return None
    where = f"cannot use {os.fsdecode(error.filename)}: " if error.filename else ""
    code = FAILED if error.errno in _FULL else NEEDS_OPERATOR
    line = f"{where}{error.strerror} ({hint}) [{Code.PATH_UNUSABLE}]"
    return Ending(code, line, Code.PATH_UNUSABLE)


def _of_import(error: ImportError, extra: str) -> Ending | None:
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None  # A module of our own, or one that another package lacks.
    extras = EXTRAS[package]
    chosen = extra if extra in extras or not extras else extras[0]
    wanted = f"install Penstock with the extra {chosen}" if chosen else "install Penstock again"
    what = f"cannot be loaded: {error}"
    if isinstance(error, ModuleNotFoundError):
        what = "is not installed"
    line = f"the package {package} {what} ({wanted}) [{Code.PACKAGE_MISSING}]"
    return Ending(NEEDS_OPERATOR, line, Code.PACKAGE_MISSING)


def run(prog: str, body: Callable[[], int], *, extra: str = "") -> int:
    """Run a program's `body` and return its exit code; an error is one line on stderr.

    A defect keeps its traceback. `SystemExit`, such as from `--help`, passes through.
    """
    try:
        check_variables(os.environ, "PENSTOCK", VARIABLES)
        try:
            return body()
        finally:
            sys.stdout.flush()  # Here, because a reader that went away is handled below.
    except BrokenPipeError:
        _mute(sys.stdout, sys.stderr)
        return CUT_OFF
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        found = ending(error, extra)
        if found is None:
            raise
        sys.stderr.write(f"{prog}: {one_line(found.line)}\n")
        return found.code


@contextmanager
def private_files() -> Iterator[None]:
    """Create files of this process and its children for their account alone.

    LevelDB, SQLite, Delta and the JVM ask for modes that others may read.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def outlive_hangup() -> None:
    """Ignore SIGHUP from now on, because nodes use it for something other than to exit."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _mute(*streams: TextIO) -> None:
    """Discard output still to be flushed: a closed pipe would cause an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
