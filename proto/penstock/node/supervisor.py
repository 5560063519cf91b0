"""Supervisor: reports to systemd, by its protocol, that a node is up, lives or stops.

A datagram of `NAME=value` lines to the socket that NOTIFY_SOCKET names: sd_notify(3). Without that
variable nothing is sent. If WATCHDOG_USEC asks for it, the event loop reports twice as often that
it lives, so that a node that hangs is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"


def say(*lines: str, wait_s: float = 1.0) -> None:
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


async def live() -> None:
    """Notify the watchdog periodically until cancelled; return if it is not enabled."""
    asked_us = os.environ.get("WATCHDOG_USEC", "")
    is_for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not asked_us.isdecimal() or not int(asked_us) or not is_for_us:
        return
    while True:
        # Never waited for: a supervisor that has not read the last reports needs no more.
        say(_ALIVE, wait_s=0)
        await asyncio.sleep(int(asked_us) / 2e6)
