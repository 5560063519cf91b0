"""Logs: which lines no fault explains. Pure: lines in, lines out.

What a fault takes away, a node says by a warning or an error with a code, and continues. Any other
error is a find, and a traceback always is: it is a defect.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.codes import Code

EXPLAINED: Final[dict[Code, str]] = {
    Code.ETCD_AWAY: "etcd is killed, frozen or cut off",
    Code.DISK_FULL: "a Pump's disk is full",
    Code.LOG_WRITE_FAILED: "a Pump's disk is full",
    Code.DISK_FAILING: "a Pump starts on a copy on a full disk, and will again",
    Code.PATH_UNUSABLE: "the same, where it has written nothing yet",
    Code.ORACLE_AWAY: "a Pump starts while the one with the oracle is dead, frozen or cut off",
    Code.CHECKPOINT_TAKEN: "a Drainer was frozen or cut off, or began together with the other one",
    Code.LOG_DEPOSED: "a Pump was killed, frozen or cut off, and another one took its log over",
    Code.DRAINER_NOT_NOTIFIED: "a Drainer is frozen, has just been killed or is cut off",
}
"""Codes that may stand in a line of level error, each with the fault that explains it."""
_OF_LOG: Final = re.compile(r"adopt-log (\S+)|the copy of pump (\S+) has")
"""Of which log a Pump says that its list is older than a disk (PS-3312)."""
_ONLY_WITH: Final = dict.fromkeys(
    (Code.LOG_WRITE_FAILED, Code.DISK_FAILING, Code.PATH_UNUSABLE), "No space left on device"
)
"""What a line of such a code has to say; no fault explains another failure of a disk."""
_CLOCK_AHEAD: Final = "this machine's clock is"
"""What the leader of the oracle says, without a code, when its wall clock has jumped ahead."""
_LEVELS = ("error", "critical")
_TRACEBACK = "Traceback (most recent call last)"
_BY_NAME = {str(code): code for code in Code}


def unexplained(
    lines: Iterable[bytes], put_back: Sequence[Mapping[str, range]] = ()
) -> Iterator[str]:
    """Yield what a person would have to look at, one line for each.

    `put_back` are the bytes within which the list of a log may be said to have been put back, for
    each restore of etcd by logs.
    """
    begin = end = 0
    for line in lines:
        begin, end = end, end + len(line)
        text = line.decode(errors="replace")
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            if _TRACEBACK in text or " ERROR " in text:
                yield text.rstrip("\n")
        elif "traceback" in said:
            yield f"{said['message']}\n{said['traceback']}"
        elif said.get("level") in _LEVELS:
            code, message = _BY_NAME.get(said.get("code", "")), str(said["message"])
            if code is Code.LOG_PUT_BACK:
                logs = {name for names in _OF_LOG.findall(message) for name in names if name}
                is_explained = logs and all(_is_put_back(put_back, log, begin) for log in logs)
            elif code is None:
                is_explained = message.startswith(_CLOCK_AHEAD)
            else:
                is_explained = code in EXPLAINED and _ONLY_WITH.get(code, "") in message
            if not is_explained:
                yield message


def _is_put_back(put_back: Sequence[Mapping[str, range]], log: str, at: int) -> bool:
    return any(at in windows[log] for windows in put_back if log in windows)
