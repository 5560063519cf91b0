"""Log lines: one for each, whatever is in it, in a file that others may move away."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.node.logs import (
    KINDS_MAX,
    JsonLines,
    LimitFilter,
    LogFile,
    RecentProblems,
    TextLines,
    start_logging,
)

log = logging.getLogger("some.part")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def record(text: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "some.part", "levelname": "INFO", "msg": text, **more})
    made.args = arguments
    return made


def test_statements_of_several_lines_stay_one_line_of_text() -> None:
    line = TextLines().format(record("runs %s", "CREATE TABLE t (\n  id INT\r\n)\x1b[2J"))
    assert line.endswith("INFO some.part: runs CREATE TABLE t (\\n  id INT\\r\\n)\\x1b[2J")


@given(st.text())
def test_no_text_breaks_a_line_or_is_lost_in_json(text: str) -> None:
    assert len(TextLines().format(record("%s", text)).splitlines()) == 1
    line = JsonLines().format(record("%s", text))
    assert "\n" not in line
    assert json.loads(line)["message"] == text


def test_json_lines_have_time_level_logger_and_what_was_given_besides() -> None:
    fields = json.loads(JsonLines().format(record("stopped: %s", "why", created=1.5, exit_code=2)))
    assert fields == {
        "time": "1970-01-01T00:00:01.000Z",
        "level": "info",
        "logger": "some.part",
        "message": "stopped: why",
        "template": "stopped: %s",
        "exit_code": 2,
    } | {"time": fields["time"]}
    assert fields["time"].startswith("1970-01-01T00:00:01.")


def test_a_traceback_is_indented_in_text_and_a_field_in_json() -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError as error:
        about = record("a defect", exc_info=(type(error), error, error.__traceback__))
    first, *below = TextLines().format(about).splitlines()
    assert first.endswith("a defect")
    assert all(line.startswith("    ") for line in below)
    assert "RuntimeError: two" in "\n".join(below)
    line = JsonLines().format(about)
    assert "\n" not in line
    assert "RuntimeError: two\nlines" in json.loads(line)["traceback"]


def test_arguments_that_do_not_fit_their_template_do_not_stop_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    start_logging(file=str(path))
    for _ in range(20):  # More than the limit lets pass.
        log.info("%d rows of %s", "many")
    assert "%d rows of %s ('many',)" in path.read_text()


def test_what_a_line_stands_for_is_a_number_in_json(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    start_logging(file=str(path), form="json")
    (handler,) = logging.getLogger().handlers
    (limits,) = handler.filters
    assert isinstance(limits, LimitFilter)
    now_s = 0.0
    limits._clock = lambda: now_s
    for number in range(8):
        log.info("disk %d is slow", number)
    now_s = 60.0
    log.info("disk %d is slow", 8)
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["message"] == "disk 8 is slow (and 3 more like it)"
    assert (last["template"], last["left_out"]) == ("disk %d is slow", 3)


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    start_logging(file=str(path))
    log.info("one")
    path.rename(tmp_path / "node.log.1")
    log.info("two")
    assert "one" in (tmp_path / "node.log.1").read_text()
    assert "one" not in path.read_text()
    assert "two" in path.read_text()


def test_a_file_is_opened_again_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    handler, _ = start_logging(file=str(path))
    log.info("one")
    path.rename(tmp_path / "node.log.1")
    assert isinstance(handler, LogFile)
    handler.reopen()
    assert path.exists()
    log.info("two")
    assert "two" in path.read_text()


def test_a_log_that_cannot_be_written_any_more_does_not_stop_the_node(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    handler, _ = start_logging(file=str(folder / "node.log"))
    folder.rename(tmp_path / "moved")
    assert isinstance(handler, LogFile)
    with pytest.raises(NeedsOperator, match="cannot open the log file"):
        handler.reopen()
    log.info("nowhere")
    folder.mkdir()
    log.info("again")
    assert "again" in (folder / "node.log").read_text()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"level": "loud"}, "unknown log level 'loud'"),
        ({"form": "xml"}, "unknown log format 'xml'"),
        ({"file": "/nowhere/node.log"}, "cannot write the log file /nowhere/node.log"),
        ({"file": "/"}, "cannot write the log file /"),
    ],
)
def test_logs_that_cannot_be_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(NeedsOperator, match=problem):
        start_logging(**settings)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Logged:
    """A logger with a limit of two lines at once and one per five seconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines = Lines()
        self.filter = LimitFilter(burst=2, interval_s=5, clock=self.clock)
        self.lines.addFilter(self.filter)
        root = logging.getLogger()
        self.before = root.handlers[:], root.level
        root.handlers[:] = [self.lines]
        root.setLevel(logging.DEBUG)
        self.log = logging.getLogger("some.part")


@pytest.fixture
def logged() -> Iterator[Logged]:
    logged = Logged()
    yield logged
    root = logging.getLogger()
    root.handlers[:], level = logged.before
    root.setLevel(level)


def test_a_storm_becomes_a_line_now_and_then_that_says_how_many_were_left_out(
    logged: Logged,
) -> None:
    for second in range(30):
        for number in range(10):
            logged.log.warning("disk %d is slow", second * 10 + number)
        logged.clock.now_s += 1
    assert logged.lines.texts[:3] == [
        "disk 0 is slow",
        "disk 1 is slow",
        "disk 50 is slow (and 48 more like it)",
    ]
    assert len(logged.lines.texts) == 2 + 5
    assert all("and 49 more like it" in text for text in logged.lines.texts[3:])


def test_lines_of_other_kinds_pass_meanwhile(logged: Logged) -> None:
    for number in range(50):
        logged.log.warning("disk %d is slow", number)
    logged.log.error("disk %d is slow", 1)
    logged.log.warning("pump is paused")
    logging.getLogger("other").warning("disk %d is slow", 2)
    assert len(logged.lines.texts) == 5


def test_debug_lines_and_the_end_of_the_process_are_never_left_out(logged: Logged) -> None:
    for _ in range(10):
        logged.log.debug("step")
        logging.getLogger("penstock.node.service").error("stopped: %s", "why")
    assert len(logged.lines.texts) == 20


def test_what_was_never_logged_is_logged_at_the_end(logged: Logged) -> None:
    for number in range(9):
        logged.log.warning("disk %d is slow, 100%% busy", number)
    for _ in range(2):
        logged.filter.report(logging.getLogger("penstock.node.service"))
    assert logged.lines.texts[2:] == [
        "left out 7 lines of some.part like: disk 8 is slow, 100% busy"
    ]


def test_kinds_without_end_do_not_fill_the_memory(logged: Logged) -> None:
    for number in range(5000):
        logged.log.warning(f"line {number}")
    for number in (4999, 4999, 0):  # The last kind is known and left out now, the first forgotten.
        logged.log.warning(f"line {number}")
    assert logged.lines.texts[4999:] == ["line 4999", "line 4999", "line 0"]
    assert len(logged.filter._buckets) <= 1000


def log_to(problems: RecentProblems) -> logging.Logger:
    log = logging.Logger("pump.node")
    log.addHandler(problems)
    return log


def test_warnings_and_errors_are_kept_with_their_moment_and_nothing_else_is() -> None:
    problems = RecentProblems()
    log = log_to(problems)
    log.info("fine")
    log.warning("slow: %s", "pump-2")
    log.error("broken\nin two lines")
    slow, broken = problems.facts()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", slow.time)
    assert slow.summary == "WARNING pump.node: slow: pump-2"
    assert broken.summary == "ERROR pump.node: broken\\nin two lines"


def test_lines_of_one_kind_are_one_entry_with_their_number_and_the_last_of_them() -> None:
    problems = RecentProblems()
    for second in range(12):
        log_to(problems).warning("no answer for %d s", second)
    assert [each.summary for each in problems.facts()] == [
        "WARNING pump.node: no answer for 11 s (12 times)"
    ]


def test_the_oldest_kinds_give_way_and_long_lines_are_cut() -> None:
    problems = RecentProblems()
    for number in range(KINDS_MAX + 3):
        log_to(problems).error(f"kind {number} " + "x" * 10_000)
    lines = [each.summary for each in problems.facts()]
    assert len(lines) == KINDS_MAX
    assert "kind 12 " in lines[-1]
    assert max(map(len, lines)) < 3000
