"""Command `drainer`: reads settings, sets up logs and signals, and runs one Drainer."""

from __future__ import annotations

import os

# The JVM is started by fork and exec while gRPC is in use. gRPC must not take part in the fork, and
# it decides that when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import ctypes
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.node import command
from penstock.node.logs import log_grpc

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("drainer")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MALLOC_SETTINGS = ((_M_MMAP_THRESHOLD, 4 << 20), (_M_TRIM_THRESHOLD, 16 << 20), (_M_ARENA_MAX, 2))
"""mallopt: map blocks above 4 MiB and unmap them when freed; two arenas suffice.

Smaller blocks, such as the messages and statements of every batch, are cheaper to reuse. With 128
KiB, a third of the Drainer's CPU time in a backlog went to fresh pages in the kernel. The larger
threshold takes 30 MiB more.
"""


def _give_memory_back() -> None:
    """Make freed memory leave the process: glibc would keep it, fragmented by small blocks."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in _MALLOC_SETTINGS:
            mallopt(setting, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a Drainer until it is asked to stop, or a command `ddl …`; return the exit code."""
    return command.run("penstock drainer", lambda: _run(argv), extra="drainer")


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["ddl"]:
        from drainer import ddl_command

        return ddl_command.main(arguments[1:])
    command.outlive_hangup()
    log_grpc()
    from drainer.node import run
    from drainer.settings.compat import load_settings
    from drainer.settings.config import DrainerConfig
    from penstock.node import service
    from penstock.settings.load import check_command
    from penstock.settings.setting import changed_text

    if {"-h", "--help"} & set(arguments):
        from drainer.ddl_command import USAGE

        sys.stdout.write(f"{USAGE}\n")
    check_command("penstock drainer", arguments, ("ddl",))
    config, notes = load_settings(arguments, prog="penstock drainer")
    # Py4J logs every call into the JVM below warning level.
    logging.getLogger("py4j").setLevel(logging.WARNING)

    _give_memory_back()

    async def drain(stop: asyncio.Event) -> None:
        changed = changed_text(config, DrainerConfig())
        log.info("settings: %s", changed)
        for note in notes:
            log.info("settings: %s", note)
        await run(config, stop)

    return service.run(
        drain,
        log_level=config.log_level,
        log_file=config.log_file,
        log_format=config.log_format,
        extra="drainer",
    )


if __name__ == "__main__":
    raise SystemExit(main())
