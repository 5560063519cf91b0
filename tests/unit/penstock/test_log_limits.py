import logging
from collections.abc import Iterator

import pytest

from penstock.node.logs import LimitFilter


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
