"""What gRPC's core writes to standard error by itself: it becomes our lines, or none.

The core logs from C++ to file descriptor 2, each handshake that fails on a line of its own, and
has no call that would hand a line over. A library and a command switch that off (`GRPC_VERBOSITY`,
set when `penstock` is imported; a value of the user's own stands). A node needs one thing of it:
why a caller's handshake failed is known to nobody else. So a node reads its own descriptor 2, and
says that in its log, where it is limited and formatted like all else. Other lines of gRPC are for
level debug, and what is not gRPC's passes unchanged.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

log = logging.getLogger(__name__)

VERBOSITY = "GRPC_VERBOSITY"
NODES = "INFO"
"""What a node's program sets: gRPC reads it when it is imported, and says at no other level why."""

_LINE = re.compile(r"[IWEF](\d{4} \d\d:\d\d:\d\d\.\d+|0000 \d\d:\d\d:\d+\.\d+)\s+\d+ [\w.]+:\d+\] ")
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog()"
_REASON = re.compile(r"[Hh]andshake failed.*?:(?:OPENSSL_internal:)?([A-Z_]{8,}.*)")


def reason_of(line: str) -> str:
    """Return why a handshake failed, as a line of gRPC says; empty for any other line."""
    found = _REASON.search(line) if _LINE.match(line) else None
    return found[1].removesuffix(": Invalid certificate verification context") if found else ""


@contextlib.contextmanager
def as_ours() -> Iterator[None]:
    """Turn gRPC's lines into ours meanwhile, in a program that set `NODES` before its imports.

    To be entered before anything uses gRPC or logs.
    """
    if os.environ.get(VERBOSITY) != NODES:
        yield
        return
    try:
        kept, before = os.dup(2), sys.stderr
    except OSError:  # There is no standard error.
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(kept, "w", closefd=False), encoding="utf-8", errors="replace", write_through=True
    )
    with contextlib.suppress(ValueError, OSError):
        faulthandler.enable(kept)  # A crash ends the thread that reads what C code writes.
    reader = threading.Thread(target=_read, args=(reading, kept), name="grpc lines", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)  # Which closes the pipe's end, and so ends the reader.
        reader.join(timeout=1)


def _read(reading: int, kept: int) -> None:
    with os.fdopen(reading, "rb") as lines:
        for data in lines:
            line = data.decode("utf-8", "replace").rstrip("\n")
            if reason := reason_of(line):
                log.warning("the TLS handshake of a caller failed: %s", reason)
            elif _LINE.match(line) or line.startswith(_PREAMBLE):
                log.debug("gRPC: %s", line)
            else:
                with contextlib.suppress(OSError):
                    os.write(kept, data)
