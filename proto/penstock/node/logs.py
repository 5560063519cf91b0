"""Log lines of a node: one line for each, in UTC, as text or JSON, to stderr or to a file.

    2026-11-21T09:30:00.016Z INFO pump.node: text
    {"time":"2026-11-21T09:30:00.016Z","level":"info","logger":"pump.node","message":"text"}

A line break or another control character within a message is written as an escape, so that SQL of
several lines stays one line and no value can pass for a line of its own. The traceback of a defect
follows its line, indented by four spaces; in JSON it is the field `traceback`. JSON also has the
`template` of a message with values, to group lines by, the `left_out` of
`penstock.node.log_limits`, and what a call gives as `extra=`.

A file is opened again when it was moved or removed (as logrotate does), or on demand.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import time
from typing import Final

from penstock.errors import NeedsOperator
from penstock.node.log_limits import LimitFilter, message_of

FORMATS: Final = ("text", "json")

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_NAMED = {"\n": "\\n", "\r": "\\r"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_INDENT = "    "


def one_line(text: str) -> str:
    """Return a text with its control characters, but for tabs, as escapes."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(lambda found: _NAMED.get(found[0]) or f"\\x{ord(found[0]):02x}", text)


class _Lines(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def traceback_of(self, record: logging.LogRecord) -> str:
        parts = []
        if record.exc_info:
            record.exc_text = record.exc_text or self.formatException(record.exc_info)
        if record.exc_text:
            parts.append(record.exc_text)
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class TextLines(_Lines):
    """`2026-11-21T09:30:00.016Z INFO pump.node: text`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it a defect's traceback, indented."""
        name, text = record.name, one_line(message_of(record))
        line = f"{self.formatTime(record)} {record.levelname} {name}: {text}"
        below = [_INDENT + one_line(each) for each in self.traceback_of(record).splitlines()]
        return "\n".join([line, *below])


class JsonLines(_Lines):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, on one line."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if record.args:
            fields["template"] = str(record.msg)
        if traceback := self.traceback_of(record):
            fields["traceback"] = traceback
        more = {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in fields}
        return json.dumps({**fields, **more}, ensure_ascii=False, default=str)


class LogFile(logging.handlers.WatchedFileHandler):
    """A log file that others may move away."""

    def reopen(self) -> None:
        """Open the file again, by its name; keep the open one when that is impossible."""
        self.acquire()
        try:
            before = self.stream
            try:
                self.stream = self._open()
            except OSError as error:
                raise NeedsOperator(
                    f"cannot open the log file {self.baseFilename} again: {error.strerror}",
                    hint="let the account that runs this write there",
                ) from error
            if before is not None:
                before.close()
            self._statstream()
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; it is lost while a file that was moved away cannot be opened again."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Let a line go that cannot be written, as to a full disk: the node matters more."""


class Logs:
    """Where a node's lines go."""

    def __init__(self, handler: logging.Handler, limits: LimitFilter) -> None:
        self._handler = handler
        self._limits = limits

    def reopen(self) -> None:
        """Open the log file again, if there is one; raise `NeedsOperator` when that fails."""
        if isinstance(self._handler, LogFile):
            self._handler.reopen()

    def tell_left_out(self, log: logging.Logger) -> None:
        """Log how many lines of each kind were left out and not yet spoken of."""
        self._limits.tell(log)


def start_logging(level: str = "info", file: str = "", form: str = "text") -> Logs:
    """Send log lines to stderr, or to `file` when one is named; `NeedsOperator` if it cannot be."""
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise NeedsOperator(
            f"unknown log level {level!r}", hint="use debug, info, warning or error"
        )
    if form not in FORMATS:
        raise NeedsOperator(f"unknown log format {form!r}", hint=f"use {' or '.join(FORMATS)}")
    try:
        handler = LogFile(file, encoding="utf-8") if file else logging.StreamHandler()
    except OSError as error:
        raise NeedsOperator(
            f"cannot write the log file {file}: {error.strerror}",
            hint="name another --log-file, or let the account that runs this write there",
        ) from error
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    limits = LimitFilter()
    handler.addFilter(limits)
    logging.basicConfig(level=names[level.upper()], handlers=[handler], force=True)
    logging.captureWarnings(True)
    return Logs(handler, limits)
