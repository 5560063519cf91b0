"""Logs: writes a node's log lines, one each, in UTC, as text or JSON, to stderr or to a file.

    2026-11-21T09:30:00.016Z INFO pump.node: text
    {"time":"2026-11-21T09:30:00.016Z","level":"info","logger":"pump.node","message":"text"}

A line break or another control character within a message is escaped, so that SQL of several lines
stays one line and no value can pass for a separate line. The traceback of a defect follows its
line, indented by four spaces; in JSON it is the field `traceback`. JSON also has the `template` of
a message with values, to group lines by, the `code` of an error, the number `left_out`, and the
fields of a call's `extra=`. A line about one of our errors ends with the error's code, `[PS-1001]`.
A file is reopened after it was moved or removed (as logrotate does), or on demand.

*Limits* keep a storm of equal lines from hiding everything else, without hiding the storm. Lines
are equal when they come from the same logger, level and message template, whatever values they
carry. Each kind may be logged a few times in a row, then once per interval. The line after a gap
states how many were suppressed:

    WARNING pump.service.group_commit: indexing failed (and 2381 more like it)

Debug lines, and lines about the end of the process, are never suppressed.

*gRPC's core* logs from C++ to file descriptor 2, each failed handshake on a separate line, and has
no call that would hand over a line. A library and a command switch that off (`GRPC_VERBOSITY`, set
when `penstock` is imported; a value set by the user stands). But a node needs the reason why a
caller's handshake failed, which only gRPC knows. A node therefore reads its own descriptor 2, and
logs those reasons, limited and formatted like all other lines. Other lines of gRPC go to level
debug, and output that is not gRPC's passes unchanged.

*Recent problems* are the last warnings and errors of the process, for its status:

    problem 2026-11-21T09:30:00.016123Z    ERROR drainer.node: Pump pump-2 is away (12 times)

Lines of one kind are one entry, with the last of them and their number. The last `KINDS_MAX` kinds
are kept. They repeat log lines, so they contain no secrets.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import logging.handlers
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, shows_none

log = logging.getLogger(__name__)

FORMATS: Final = ("text", "json")

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_NAMED = {"\n": "\\n", "\r": "\\r"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_INDENT = "    "


def one_line(text: str) -> str:
    """Return a text with its control characters escaped, except tabs."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(lambda found: _NAMED.get(found[0]) or f"\\x{ord(found[0]):02x}", text)


class TextLines(logging.Formatter):
    """`2026-11-21T09:30:00.016Z INFO pump.node: text`."""

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

    def format(self, record: logging.LogRecord) -> str:
        name, text = record.name, one_line(message_of(record))
        line = f"{self.formatTime(record)} {record.levelname} {name}: {text}"
        below = [_INDENT + one_line(each) for each in self.traceback_of(record).splitlines()]
        return "\n".join([line, *below])


class JsonLines(TextLines):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if code := _code_of(record):
            fields["code"] = str(code)
        if record.args:
            fields["template"] = str(record.msg)
        if traceback := self.traceback_of(record):
            fields["traceback"] = traceback
        more = {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in fields}
        return json.dumps({**fields, **more}, ensure_ascii=False, default=str)


class LogFile(logging.handlers.WatchedFileHandler):
    """A log file that other programs may move away."""

    def reopen(self) -> None:
        """Reopen the file by name; keep the open file if that is impossible."""
        self.acquire()
        try:
            before = self.stream
            try:
                self.stream = self._open()
            except OSError as error:
                raise NeedsOperator(
                    f"cannot open the log file {self.baseFilename} again: {error.strerror}",
                    "let the account that runs this write there",
                    Code.PATH_UNUSABLE,
                ) from error
            if before is not None:
                before.close()
            self._statstream()
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; it is lost while a moved file cannot be reopened."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Drop a line that cannot be written, such as on a full disk: the node matters more."""


def start_logging(
    level: str = "info", file: str = "", form: str = "text"
) -> tuple[logging.Handler, LimitFilter]:
    """Log to stderr, or to `file` if it is set; `NeedsOperator` if that is impossible."""
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise NeedsOperator(
            f"unknown log level {level!r}", "use debug, info, warning or error", Code.SETTING_VALUE
        )
    if form not in FORMATS:
        raise NeedsOperator(
            f"unknown log format {form!r}", f"use {' or '.join(FORMATS)}", Code.SETTING_VALUE
        )
    try:
        handler = LogFile(file, encoding="utf-8") if file else logging.StreamHandler()
    except OSError as error:
        raise NeedsOperator(
            f"cannot write the log file {file}: {error.strerror}",
            "name another --log-file, or let the account that runs this write there",
            Code.PATH_UNUSABLE,
        ) from error
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    limits = LimitFilter()
    handler.addFilter(limits)
    logging.basicConfig(level=names[level.upper()], handlers=[handler], force=True)
    logging.captureWarnings(True)
    return handler, limits


BURST = 5
"""The lines of a kind that pass in a row, so that a node's changes of state are logged in full."""
INTERVAL_S = 5.0
_KINDS_MAX = 1000
_EXEMPT = frozenset({"penstock.node.service"})

Kind = tuple[str, int, str]


def message_of(record: logging.LogRecord) -> str:
    """Return the text of a record; never raises, since a log line must not stop its subject.

    It ends with the code of an error that is among its arguments. Arguments that do not fit their
    template are shown beside it.
    """
    try:
        text = record.getMessage()
    except Exception:
        text = f"{record.msg} {record.args!r}"
    code = _code_of(record)
    return f"{text} [{code}]" if code and shows_none(text) else text


def _code_of(record: logging.LogRecord) -> Code | None:
    """Return the code among the arguments of a record, or the code of an error among them."""
    given = record.args if isinstance(record.args, tuple) else ()
    for each in given:
        if isinstance(each, Code | PenstockError):
            return each if isinstance(each, Code) else each.code
    return None


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    left_out: int = 0
    last: str = ""
    """The last suppressed line."""


class LimitFilter(logging.Filter):
    """A filter for a handler; at the end, its `report` logs how many lines were suppressed."""

    def __init__(
        self,
        *,
        burst: int = BURST,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._burst = burst
        self._interval_s = interval_s
        self._clock = clock
        self._buckets: dict[Kind, _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes; after a gap it states how many were suppressed."""
        if record.levelno <= logging.DEBUG or record.name in _EXEMPT:
            return True
        kind, now_s = (record.name, record.levelno, str(record.msg)), self._clock()
        bucket = self._buckets.pop(kind, None) or _Bucket(self._burst, now_s)
        self._buckets[kind] = bucket  # The kind last seen goes to the end.
        if len(self._buckets) > _KINDS_MAX:
            del self._buckets[next(iter(self._buckets))]
        gained = (now_s - bucket.at_s) / self._interval_s
        bucket.tokens = min(self._burst, bucket.tokens + gained)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            bucket.left_out += 1
            bucket.last = message_of(record)
            return False
        bucket.tokens -= 1
        if bucket.left_out:
            record.template, record.left_out = str(record.msg), bucket.left_out
            record.msg = f"{message_of(record)} (and {bucket.left_out} more like it)"
            record.args = None
            bucket.left_out = 0
        return True

    def report(self, log: logging.Logger) -> None:
        """Log the lines suppressed since, a line for each kind; `log` must be exempt."""
        assert log.name in _EXEMPT, "else these lines could be left out themselves"
        for (name, level, _), bucket in list(self._buckets.items()):
            if count := bucket.left_out:
                bucket.left_out = 0
                log.log(level, "left out %d lines of %s like: %s", count, name, bucket.last)


GRPC_VERBOSITY = "GRPC_VERBOSITY"
NODE_VERBOSITY = "INFO"
"""The level at which gRPC logs its reasons."""


def log_grpc() -> None:
    """Have gRPC log at `NODE_VERBOSITY`; a node's program calls this before it imports gRPC.

    A level that a parent process has set stays.
    """
    if os.environ.get(GRPC_VERBOSITY, "NONE") == "NONE":
        os.environ[GRPC_VERBOSITY] = NODE_VERBOSITY


_GRPC_LINE = re.compile(
    r"[IWEF](\d{4} \d\d:\d\d:\d\d\.\d+|0000 \d\d:\d\d:\d+\.\d+)\s+\d+ [\w.]+:\d+\] "
)
_GRPC_PREAMBLE = "WARNING: All log messages before absl::InitializeLog()"
_FAILED_HANDSHAKE = re.compile(r"[Hh]andshake failed.*?:(?:OPENSSL_internal:)?([A-Z_]{8,}.*)")


def handshake_failure(line: str) -> str:
    """Return the reason of a failed handshake in a gRPC log line, empty for other lines."""
    found = _FAILED_HANDSHAKE.search(line) if _GRPC_LINE.match(line) else None
    return found[1].removesuffix(": Invalid certificate verification context") if found else ""


@contextlib.contextmanager
def grpc_lines_as_ours() -> Iterator[None]:
    """Turn gRPC's lines into ours, in a program that has called `log_grpc`.

    Must be entered before anything uses gRPC or logs.
    """
    if os.environ.get(GRPC_VERBOSITY) != NODE_VERBOSITY:
        yield
        return
    try:
        kept, before = os.dup(2), sys.stderr
    except OSError:  # The process has no standard error.
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(kept, "w", closefd=False), encoding="utf-8", errors="replace", write_through=True
    )
    with contextlib.suppress(ValueError, OSError):
        faulthandler.enable(kept)  # A crash ends the thread that reads the output of C code.
    reader = threading.Thread(
        target=_read_grpc_lines, args=(reading, kept), name="grpc lines", daemon=True
    )
    reader.start()
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)  # This closes the pipe's end, and so ends the reader.
        reader.join(timeout=1)


def _read_grpc_lines(reading: int, kept: int) -> None:
    with os.fdopen(reading, "rb") as lines:
        for data in lines:
            line = data.decode("utf-8", "replace").rstrip("\n")
            if reason := handshake_failure(line):
                log.warning("the TLS handshake of a caller failed: %s", reason)
            elif _GRPC_LINE.match(line) or line.startswith(_GRPC_PREAMBLE):
                log.debug("gRPC: %s", line)
            else:
                with contextlib.suppress(OSError):
                    os.write(kept, data)


KINDS_MAX: Final = 10
_LINE_CHARS_MAX: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The last line of one kind, and its time in UTC."""

    time: str
    summary: str


class RecentProblems(logging.Handler):
    """Remembers records that pass it; memory is bounded by kinds and by the length of a line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kinds: dict[Kind, tuple[float, str, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, record.levelno, str(record.msg))
        *_, count = self._kinds.pop(kind, (0.0, "", 0))
        text = one_line(message_of(record))[:_LINE_CHARS_MAX]
        line = f"{record.levelname} {record.name}: {text}"
        self._kinds[kind] = record.created, line, count + 1
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def facts(self) -> tuple[Problem, ...]:
        with self.lock:  # type: ignore[union-attr]  # A handler without a lock is one being built.
            kept = list(self._kinds.values())
        found = []
        for at_s, line, count in kept:
            moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6]
            summary = line if count == 1 else f"{line} ({count} times)"
            found.append(Problem(time=f"{moment}Z", summary=summary))
        return tuple(found)


RECENT: Final = RecentProblems()
"""The recent problems of this process: a node's program adds it to its log (`node.service`)."""
