"""Failpoints: named places where a test lets a node die, wait or fail; without a test, no-ops.

    PENSTOCK_FAILPOINTS="pump.after_sync=kill@3;disk.sync=raise(EIO)@2;disk.read=sleep(0.5)"

    kill          the process ends here, like by kill -9
    sleep(0.5)    seconds pass
    raise(EIO)    an OSError of that number is raised; only at disk.*, where callers expect it
    torn(100)     only at disk.write: its first 100 bytes are written, then as `kill`
    …@3           only the third time that the process comes by; else every time

The variable is read once, when the module that has the place is imported. An invalid variable ends
the process there, because a test whose fault never happens would pass.
"""

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Callable

VARIABLE = "PENSTOCK_FAILPOINTS"

Point = Callable[[], "int | None"]
"""Called at the place; returns how many bytes of a write to keep before a tear, otherwise None."""

known: set[str] = set()
"""All places in the modules imported so far."""

_FAULT = re.compile(r"\s*([\w.]+)=(kill|sleep|raise|torn)(?:\((\w+(?:\.\d+)?)\))?(?:@(\d+))?\s*")


def kill() -> None:
    """End the process as `kill -9` does, without flushing, closing or logging anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def point(name: str, environment: str | None = None) -> Point:
    """Return the function to call at the place `name`; it does nothing without a fault there.

    Raises `ValueError` for an invalid variable.
    """
    known.add(name)
    text = os.environ.get(VARIABLE, "") if environment is None else environment
    faults = [fault for fault in map(_parsed, filter(None, text.split(";"))) if fault[0] == name]
    return _armed([(action, at) for _, action, at in faults]) if faults else _nothing


def _nothing() -> int | None:
    return None


def _armed(faults: list[tuple[Point, int]]) -> Point:
    times = itertools.count(1)

    def hit() -> int | None:
        now, torn = next(times), None
        for action, at in faults:
            if at in (0, now):
                torn = action()
        return torn

    return hit


def _parsed(text: str) -> tuple[str, Point, int]:
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ValueError(f"{VARIABLE}: {text!r} is no fault")
    name, verb, argument, at = found.groups()
    if (verb == "torn" and name != "disk.write") or (verb == "raise" and name[:5] != "disk."):
        raise ValueError(f"{VARIABLE}: {name} cannot {verb}")
    return name, _action(verb, argument or ""), int(at or 0)


def _action(verb: str, argument: str) -> Point:
    if verb == "torn":
        return lambda: int(argument)

    def act() -> None:
        if verb == "kill":
            kill()
        elif verb == "sleep":
            time.sleep(float(argument))
        else:
            number = int(getattr(errno, argument))
            raise OSError(number, f"{os.strerror(number)} ({VARIABLE})")

    return act
