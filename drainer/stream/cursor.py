"""Cursor: a reader's part of the stream, and its position, element by element (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from drainer.stream.decoder import Portion
from drainer.stream.transaction import Changes, Committed, Reached, Transaction
from penstock.codes import Code
from penstock.errors import NeedsOperator


class Cursor:
    """The elements of the last portion, and the element that the program has."""

    def __init__(self, start: Reached, release: Callable[[Changes], None]) -> None:
        """`release` frees a large transaction's changes when its turn is over."""
        self.reached = start
        """Everything up to here was given to the program, including its current element."""
        self._release = release
        self._through = start
        self._waiting: deque[Committed] = deque()
        self._large: Changes | None = None

    def take(self, portion: Portion) -> None:
        """Accept a portion; all elements of the previous portion must have been returned."""
        assert not self._waiting
        self._waiting.extend(portion.committed)
        self._through = portion.reached

    def next(self) -> Committed | None:
        """Return the next element, or None if another portion is needed."""
        self.let_go()
        if not self._waiting:
            self.reached = self._through
            return None
        one = self._waiting.popleft()
        if isinstance(one, Transaction) and one.is_large:
            self._large = one.changes
        self.reached = one.reached
        return one

    def acknowledged(self, text: str) -> int:
        """Return a checkpoint's commit_ts; raise `NeedsOperator` if it is not reached yet."""
        cluster_id, checkpoint = Reached.from_text(text)
        own, reached = self.reached
        if cluster_id != own or checkpoint.commit_ts > reached.commit_ts:
            raise NeedsOperator(
                f"this reader has given nothing up to the checkpoint at {checkpoint.commit_ts}",
                hint="acknowledge a checkpoint of this reader, once it is stored",
                code=Code.READER_MISUSED,
            )
        return checkpoint.commit_ts

    def let_go(self) -> None:
        if self._large is not None:
            self._large.expire()
            self._release(self._large)
            self._large = None
