"""Failover: decides when a standby may take over, from what it sees of the active Drainer (pure).

    the row in my downstream names run W      etcd lists W?     W's process answers?
    ────────────────────────────────────      ─────────────     ────────────────────
    yes, and it moves with W's checkpoint     yes               yes, or no answer   wait
                                              yes               refused, twice      take over
                                              no                yes                 wait
                                              no                refused             take over
                                              no                no answer, twice    take over
    it stands still while W's moves on        yes               yes                 a copy: continue

The checkpoint's fence, and not this module, keeps two Drainers from writing at a time. This module
only keeps the standby from replacing a healthy Drainer, and lets it act quickly after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_LOOKS = 2
"""So many consecutive observations must agree before an uncertain one is believed."""
_COPY_LOOKS = 4
_COPY_S = 6.0
"""An idle Drainer saves its checkpoint every three seconds, and publishes it within one more."""


class RunAnswer(Enum):
    """The active Drainer's answer about its run."""

    IT_IS = "it is"
    REFUSED = "refused"
    """Nothing listens there, or another run does: this run has ended."""
    NONE = "none"


class Verdict(Enum):
    """A standby's next action."""

    WAIT = "wait"
    TAKE_OVER = "take over"
    CONTINUE = "continue"
    """The downstream is a copy of the one that the other Drainer writes, so nothing writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One observation; `published_ts` was read before `stored_ts`."""

    at_s: float
    is_listed: bool
    answer: RunAnswer
    published_ts: int
    """The checkpoint in the active Drainer's entry; it is stored before it is published."""
    stored_ts: int
    """The checkpoint in our downstream."""


@dataclass(slots=True)
class ActiveWatch:
    """The observations of one run since it was first found in the downstream."""

    is_ours: bool = False
    """True once the row was seen to move: that run writes the very downstream that we read."""
    _first_ts: int | None = None
    _has_answered: bool = False
    _gone: int = 0
    _behind: list[float] = field(default_factory=list)

    def saw(self, look: Look) -> Verdict:
        if self._first_ts is None:
            self._first_ts = look.stored_ts
        if look.stored_ts > self._first_ts:
            self.is_ours = True
        self._has_answered |= look.answer is RunAnswer.IT_IS
        if self._is_gone(look):
            return Verdict.TAKE_OVER
        if self._is_copy(look):
            return Verdict.CONTINUE
        return Verdict.WAIT

    def _is_gone(self, look: Look) -> bool:
        if look.answer is RunAnswer.IT_IS:
            self._gone = 0
            return False
        if look.answer is RunAnswer.REFUSED:
            # An address that never answered may be unreachable from here.
            seems_gone = self._has_answered or not look.is_listed
        else:
            seems_gone = not look.is_listed
        self._gone = self._gone + 1 if seems_gone else 0
        sure = look.answer is RunAnswer.REFUSED and not look.is_listed
        return self._gone >= (1 if sure else _LOOKS)

    def _is_copy(self, look: Look) -> bool:
        if (
            self.is_ours
            or look.answer is not RunAnswer.IT_IS
            or look.published_ts <= look.stored_ts
        ):
            self._behind.clear()
            return False
        self._behind.append(look.at_s)
        return len(self._behind) >= _COPY_LOOKS and look.at_s - self._behind[0] >= _COPY_S
