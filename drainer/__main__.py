"""`python -m drainer`: settings, logs, signals, and one Drainer."""

from __future__ import annotations

import os

# The JVM is started by fork and exec while gRPC is in use; gRPC must not take part in the fork,
# and it decides that when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import asyncio
import ctypes
import logging
import sys
from collections.abc import Sequence

from drainer import ddl_command
from drainer.config import DrainerConfig
from drainer.node import run
from drainer.original import load_settings
from penstock import service
from penstock.errors import NeedsOperator
from penstock.settings_text import differing

log = logging.getLogger("drainer")

_MALLOC_SETTINGS = ((-3, 128 << 10), (-8, 2))
"""mallopt: blocks above 128 KiB are mapped, and unmapped when freed; two arenas suffice."""


def _give_memory_back() -> None:
    """Make freed batches leave the process: glibc would keep them, cut up by what is small."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in _MALLOC_SETTINGS:
            mallopt(setting, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a Drainer until it is told to stop, or `drainer ddl …`; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["ddl"]:
        return ddl_command.main(arguments[1:])
    try:
        config, notes = load_settings(arguments, prog="drainer")
    except NeedsOperator as error:
        sys.stderr.write(f"drainer: {error}\n")
        return 2
    # Py4J logs every call into the JVM below warning level.
    logging.getLogger("py4j").setLevel(logging.WARNING)

    _give_memory_back()

    async def drain(stop: asyncio.Event) -> None:
        told = "; ".join(differing(config, DrainerConfig())) or "all defaults"
        log.info("settings: %s", told)
        for note in notes:
            log.info("settings: %s", note)
        await run(config, stop)

    return service.run(drain, log_level=config.log_level, log_file=config.log_file)


if __name__ == "__main__":
    raise SystemExit(main())
