"""Command `penstock pump`: runs one Pump in the foreground."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.node import command
from penstock.node.logs import log_grpc

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("pump")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run a Pump until asked to stop; return the exit code as `penstock.node.command` defines."""
    return command.run("penstock pump", lambda: _run(argv), extra="pump")


def _run(argv: Sequence[str] | None) -> int:
    command.outlive_hangup()
    log_grpc()
    from penstock.node import service
    from penstock.settings.setting import changed_text
    from pump.config import PumpConfig, load_settings
    from pump.node import run

    settings, notes = load_settings(argv)
    # Half of a fast disk's write time; else the loop and the threads of pulls wait for each other.
    sys.setswitchinterval(0.0005)
    _tune_memory()

    async def serve(stop: asyncio.Event) -> None:
        changed = changed_text(settings, PumpConfig())
        for line in (changed, *notes):
            log.info("settings: %s", line)
        await run(settings, stop)

    return service.run(
        serve,
        log_level=settings.log_level,
        log_file=settings.log_file,
        log_format=settings.log_format,
        extra="pump",
    )


def _tune_memory() -> None:
    """Avoid useless garbage collection, and keep freed memory in the process.

    The ledger holds some 100,000 tuples without cycles, which the collector need not visit. A
    group's buffers of some MiB, returned to the kernel each time, come back as page faults, which
    took a sixth of the CPU time at 100 KB per binlog. Up to 64 MiB therefore stay in the process.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    with contextlib.suppress(AttributeError, OSError):  # The C library is not GNU's.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
