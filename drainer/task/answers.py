"""Answers: a task's answer to any unit that contains its rows, by the kind of unit."""

from __future__ import annotations

from drainer.task.events import event_unit
from drainer.task.sql import generate


def answer(payload: bytes) -> bytes:
    """Return `Messages` for an `EventUnit`, SQL for a `WorkUnit`; a pure function."""
    if payload.startswith(event_unit.MAGIC):
        return event_unit.answer(payload)
    return generate.answer(payload)
