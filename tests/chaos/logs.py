"""Logs: which lines no fault explains. Pure: lines in, lines out.

What a fault takes away, a node says by a warning or an error with a code, and continues. Any other
error is a find, and a traceback always is: it is a defect.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from typing import Final

from penstock.codes import Code

EXPLAINED: Final[dict[Code, str]] = {
    Code.ETCD_AWAY: "etcd is killed, frozen or cut off",
    Code.DISK_FULL: "a Pump's disk is full",
    Code.LOG_WRITE_FAILED: "a Pump's disk is full",
    Code.INDEX_AWAY: "a Pump starts on a copy on a full disk, and will again",
    Code.ORACLE_AWAY: "a Pump starts while the one with the oracle is dead, frozen or cut off",
    Code.CHECKPOINT_TAKEN: "a Drainer was frozen or cut off, or began together with the other one",
    Code.LOG_DEPOSED: "a Pump was killed, frozen or cut off, and another one took its log over",
    Code.DRAINER_NOT_NOTIFIED: "a Drainer is frozen, has just been killed or is cut off",
}
"""Codes that may stand in a line of level error, each with the fault that explains it."""
AFTER_A_RESTORE: Final = frozenset({Code.LOG_PUT_BACK})
"""Codes that only a restored etcd explains: the disks are newer than it."""
_ONLY_WITH: Final = dict.fromkeys(
    (Code.LOG_WRITE_FAILED, Code.INDEX_AWAY), "No space left on device"
)
"""What a line of such a code has to say; no fault explains another failure of a disk."""
_LEVELS = ("error", "critical")
_TRACEBACK = "Traceback (most recent call last)"
_BY_NAME = {str(code): code for code in Code}


def unexplained(lines: Iterable[str], also: Container[Code | None] = ()) -> Iterator[str]:
    """Yield what a person would have to look at, one line for each; `also` are explained, too."""
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
        elif said.get("level") in _LEVELS:
            code, message = _BY_NAME.get(said.get("code", "")), str(said["message"])
            if code in also:
                continue
            if code not in EXPLAINED or _ONLY_WITH.get(code, "") not in message:
                yield message
