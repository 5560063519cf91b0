"""Logs: which lines no fault explains. Pure: lines in, lines out.

What a fault takes away, a node says by a warning or an error with a code, and continues. Any other
error is a find, and a traceback always is: it is a defect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.codes import Code

EXPLAINED: Final[dict[Code, str]] = {
    Code.ETCD_AWAY: "etcd is killed, frozen or cut off",
    Code.DISK_FULL: "a Pump's disk is full",
    Code.DRAINER_NOT_NOTIFIED: "a Drainer is frozen, has just been killed or is cut off",
}
"""Codes that may stand in a line of level error, each with the fault that explains it."""
_LEVELS = ("error", "critical")
_TRACEBACK = "Traceback (most recent call last)"
_BY_NAME = {str(code): code for code in Code}


def unexplained(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a person would have to look at, one line for each."""
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            if _TRACEBACK in line or " ERROR " in line:
                yield line.rstrip("\n")
        elif "traceback" in said:
            yield f"{said['message']}\n{said['traceback']}"
        elif said.get("level") in _LEVELS and _BY_NAME.get(said.get("code", "")) not in EXPLAINED:
            yield str(said["message"])
