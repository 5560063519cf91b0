"""A node's life: logs to stderr, signals that ask it to stop, and an exit code that says why.

0  stopped as asked
1  a failure that a restart may cure
2  a human must act; the log line ends with a hint
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from penstock.errors import NeedsOperator, PenstockError
from penstock.log_limits import LimitFilter

log = logging.getLogger(__name__)

Main = Callable[[asyncio.Event], Awaitable[None]]


class _Formatter(logging.Formatter):
    """`2026-11-21T09:30:00.016Z INFO pump.node: text`, in UTC."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


def start_logging(level: str = "info", file: str = "") -> LimitFilter:
    """Send log lines to stderr, or to `file` when one is named; return what limits their rate."""
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise NeedsOperator(
            f"unknown log level {level!r}", hint="use debug, info, warning or error"
        )
    handler: logging.Handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    limits = LimitFilter()
    handler.addFilter(limits)
    logging.basicConfig(level=names[level.upper()], handlers=[handler], force=True)
    logging.captureWarnings(True)
    return limits


def run(main: Main, *, log_level: str = "info", log_file: str = "") -> int:
    """Run `main` until it returns or fails; its event is set by the first SIGINT or SIGTERM.

    A second signal of the same kind ends the process at once. Refuses to run with assertions off,
    because a broken promise must stop a node before it does harm.
    """
    if not __debug__:
        sys.stderr.write("refusing to run with python -O: assertions guard the data\n")
        return 2
    limits = start_logging(log_level, log_file)
    try:
        return _lived(main)
    finally:
        limits.tell(log)


def _lived(main: Main) -> int:
    """Run `main` and return the exit code that tells how it ended."""
    try:
        asyncio.run(_with_signals(main))
    except NeedsOperator as error:
        log.error("stopped: %s", error)
        return 2
    except PenstockError as error:
        log.error("stopped: %s", error)
        return 1
    except BaseExceptionGroup as group:
        return _explained(group)
    except Exception:
        log.exception("stopped by a defect; please report it with the lines above")
        return 1
    return 0


def _explained(group: BaseExceptionGroup[BaseException]) -> int:
    """Log the leaves of a task group's failure, the ones for a human last."""
    ours, others = group.split(PenstockError)
    if others is not None:
        log.error("stopped by a defect; please report it", exc_info=others)
    leaves = _leaves(ours) if ours else []
    for leaf in leaves:
        log.error("stopped: %s", leaf)
    return 2 if any(isinstance(leaf, NeedsOperator) for leaf in leaves) else 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return sorted(found, key=lambda error: isinstance(error, NeedsOperator))


async def _with_signals(main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: signal.Signals) -> None:
        log.info("%s: stopping; send it again to end at once", number.name)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)
    await main(stop)
