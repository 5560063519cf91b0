"""Log lines: one for each, whatever is in it, in a file that others may move away."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.node.logs import JsonLines, LimitFilter, LogFile, TextLines, start_logging

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
