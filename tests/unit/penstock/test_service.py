"""A node ends with a code that tells who must act."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator

import pytest

from penstock import service
from penstock.errors import Corrupt, NeedsOperator, Retryable


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_first_signal_asks_the_node_to_stop() -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)

    assert service.run(main) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NeedsOperator("wrong cluster", hint="check the id"), 2),
        (Retryable("etcd is away"), 1),
        (Corrupt("000001.seg", 12, "flipped"), 1),
        (RuntimeError("a defect"), 1),
    ],
)
def test_the_exit_code_tells_who_must_act(error: Exception, code: int) -> None:
    async def alone(stop: asyncio.Event) -> None:
        raise error

    async def in_a_group(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(alone(stop))

    assert service.run(alone) == code
    assert service.run(in_a_group) == code


def test_the_hint_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    async def main(stop: asyncio.Event) -> None:
        raise NeedsOperator("wrong cluster", hint="check the id")

    service.run(main)
    captured = capfd.readouterr()
    assert "wrong cluster (check the id)" in captured.err
    assert captured.out == ""


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="unknown log level 'loud'"):
        service.start_logging("loud")
