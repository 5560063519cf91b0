"""Outages: retries until there is an answer, or until the Drainer must stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.errors import Retryable

log = logging.getLogger(__name__)

RETRY_S = 2.0

T = TypeVar("T")


class StoppedEarly(Exception):
    """The Drainer was asked to stop before its start was complete."""


async def unless_stopped(asking: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """Return the answer; raise `StoppedEarly` if asked to stop before it arrives."""
    answering, stopping = asyncio.create_task(asking), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((answering, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise StoppedEarly
        return answering.result()
    finally:
        answering.cancel()
        stopping.cancel()


async def within(timeout_s: float, asking: Coroutine[Any, Any, T]) -> T | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await asking
    except TimeoutError:
        return None


async def insist(stop: asyncio.Event, what: str, ask: Callable[[], T]) -> T:
    """Return the first answer, through outages; raise `StoppedEarly` if stopped before."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(ask)
        except Retryable as error:
            log.error("cannot get %s, trying again: %s", what, error)
        try:
            async with asyncio.timeout(RETRY_S):
                await stop.wait()
        except TimeoutError:
            continue
    raise StoppedEarly
