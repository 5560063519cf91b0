"""Task orders: the messages between the Drainer and a task that commits partitions.

An order names the partitions by their content, and the fences that they pass. Both directions are
JSON:

    order     {"content": …, "passage": [table, cluster id, epoch, commit_ts]}
    answer    {"took_s": [0.5, …]}                the partitions are committed, now or before
              {"gone": true}                      the task has no such partitions: make them again
              {"error": "Refused", "problem": …, "hint": …, "code": …}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from drainer.sinks.checkpoint import TakenOver
from drainer.sinks.protocol import Passage, Refused
from drainer.task.work_unit import failure_of
from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator, PenstockError, Retryable

_ERRORS: dict[str, type[PenstockError]] = {
    each.__name__: each for each in (NeedsOperator, Refused, Retryable, TakenOver)
}


class Order(NamedTuple):
    """An order to commit the partitions with this content."""

    content: str
    passage: Passage

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        fields = json.loads(data)
        return cls(fields["content"], Passage(*fields["passage"]))


def committed(took_s: Sequence[float]) -> bytes:
    return json.dumps({"took_s": took_s}).encode()


GONE = json.dumps({"gone": True}).encode()


def failed(error: Exception) -> bytes:
    """Return the answer for an error; the Drainer raises it as the class that it belongs to."""
    fields = failure_of(error, "the partitions of a batch were not committed")
    known = (each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS)
    return json.dumps({"error": next(known, NeedsOperator.__name__), **fields}).encode()


def outcome_of(answer: bytes, task: int) -> list[float] | None:
    """Return the seconds of each partition, None if they are gone; raise the `task`'s error."""
    fields = json.loads(answer)
    if "error" not in fields:
        return None if "gone" in fields else list(fields["took_s"])
    code = code_named(fields["code"]) or Code.DEFECT
    problem = f"Spark task {task}: {fields['problem']}"
    if fields["error"] == Retryable.__name__:
        raise Retryable(problem, code)
    kind = _ERRORS[fields["error"]]
    assert issubclass(kind, NeedsOperator)
    raise kind(problem, fields["hint"], code)
