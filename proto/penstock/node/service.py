"""Service: a node's life: logs, signals to stop or to reload, and an exit code with the reason.

SIGINT, SIGTERM   stop; the second one of a kind ends the process immediately
SIGHUP            log files are reopened, certificates are read again; never stops a node

Under systemd, the node reports by sd_notify(3) that it is up, stops, and lives: a datagram of
`NAME=value` lines to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent. If
WATCHDOG_USEC asks for it, the event loop reports twice as often that it lives, so that a node that
hangs is restarted. The exit codes are those of every program (`penstock.node.command`).
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.node import command
from penstock.node.logs import RECENT, LogFile, grpc_lines_as_ours, start_logging
from penstock.security import tls

log = logging.getLogger(__name__)

Main = Callable[[asyncio.Event], Awaitable[None]]


def run(
    main: Main,
    *,
    log_level: str = "info",
    log_file: str = "",
    log_format: str = "text",
    extra: str = "",
) -> int:
    """Run `main` until it returns or fails; its event is set by the first SIGINT or SIGTERM.

    A second signal of the same kind ends the process immediately. Refuses to run with assertions
    off, because a broken promise must stop a node before it does harm. `extra` is the extra of the
    distribution with the packages that the node imports. Raises `NeedsOperator` for impossible
    logs.
    """
    if not __debug__:
        sys.stderr.write(
            f"refusing to run with python -O: assertions guard the data [{Code.ASSERTIONS_OFF}]\n"
        )
        return command.NEEDS_OPERATOR
    with command.private_files(), grpc_lines_as_ours():
        handler, limits = start_logging(log_level, log_file, log_format)
        logging.getLogger().addHandler(RECENT)
        try:
            return _run(main, handler, extra)
        finally:
            limits.report(log)


def _run(main: Main, handler: logging.Handler, extra: str) -> int:
    command.outlive_hangup()
    command.raise_open_files()
    try:
        asyncio.run(_with_signals(main, handler))
    except BaseExceptionGroup as group:
        return _explained(_leaves(group), extra)
    except Exception as error:
        return _explained([error], extra)
    return command.DONE


def _explained(errors: list[BaseException], extra: str) -> int:
    endings = [(error, command.ending(error, extra)) for error in errors]
    for error, found in endings:
        if found is None:
            log.error(
                "stopped by a defect; please report it with the lines above [%s]",
                Code.DEFECT,
                exc_info=error,
            )
        elif not isinstance(error, PenstockError):  # Its origin may also be useful.
            log.debug("the traceback", exc_info=error)
    ours = [(found, type(error).__name__) for error, found in endings if found is not None]
    for found, name in sorted(ours, key=lambda each: each[0].code):
        fields = {"exit_code": found.code, "error": name, "code": str(found.reason)}
        log.error("stopped: %s", found.line, extra=fields)
    return max((found.code for found, _ in ours), default=command.FAILED)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _with_signals(main: Main, handler: logging.Handler) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: signal.Signals) -> None:
        log.info("%s: stopping; send it again to end at once", number.name)
        notify(STOPPING)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, handler)
    living = asyncio.create_task(feed_watchdog())
    try:
        await main(stop)
    finally:
        living.cancel()


def _reload(handler: logging.Handler) -> None:
    """Reopen log files and reload certificates; log each failure in a single line."""
    try:
        if isinstance(handler, LogFile):
            handler.reopen()
    except NeedsOperator as error:
        log.error("SIGHUP: %s", error)
    log.info("SIGHUP: the log is open again, certificates and passwords are read again")
    tls.read_again()


READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"


def notify(*lines: str, wait_s: float = 1.0) -> None:
    """Notify the supervisor; if it does not read for `wait_s`, log a single line."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(wait_s)
            # A name that starts with @ is one of Linux' abstract names, which start with a zero
            # byte.
            out.sendto("\n".join(lines).encode(), f"\0{path[1:]}" if path[0] == "@" else path)
    except OSError as error:
        log.warning("NOTIFY_SOCKET %s: %s", path, error)


async def feed_watchdog() -> None:
    """Notify the watchdog periodically until cancelled; return if it is not enabled."""
    asked_us = os.environ.get("WATCHDOG_USEC", "")
    is_for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not asked_us.isdecimal() or not int(asked_us) or not is_for_us:
        return
    while True:
        # Never waited for: a supervisor that has not read the last reports needs no more.
        notify(_ALIVE, wait_s=0)
        await asyncio.sleep(int(asked_us) / 2e6)
