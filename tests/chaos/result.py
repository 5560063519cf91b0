"""What a run comes to: its faults and how they went, its figures, and the table at its end."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.cluster import TXN_TIMEOUT_S
from tests.chaos.history import History, Outcome
from tests.chaos.plan import Fault

_NOTHING_S: Final = 0.05
_STARVED_SHARE: Final = 0.1
_LEFT_OUT_SHARE: Final = 0.5
_ALWAYS_MAX: Final = 2
"""So many may be left out of however few."""
NO_TIME: Final = "no time was left for it"


@dataclass(slots=True)
class Happening:
    """A fault as it came: times by `time.time`."""

    fault: Fault
    note: str
    began_s: float
    ended_s: float = 0.0
    left_out: str = ""
    """Why it was not made, in a few words that several may share."""
    is_starved: bool = False
    """Left out as a step of it failed, and not as the cluster could not bear it."""


@dataclass(slots=True)
class Result:
    """What a run comes to."""

    problems: list[str] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    history: History = field(default_factory=History)
    checks: int = 0
    advances: list[tuple[float, int]] = field(default_factory=list)
    whole_after_s: float = 0.0
    restores: list[str] = field(default_factory=list)
    """Of each etcd that was put back, how old the backup was and which logs it put back."""
    decisions: int = 0
    """How often an operator chose a history after etcd was restored."""
    deposed: int = 0
    """How often a Pump ended as another one had its log."""


def left_out_too_often(happenings: Sequence[Happening]) -> Iterator[str]:
    """Yield which faults were left out so often that a defect of the harness may be the reason.

    A busy machine may leave no time for some; and now and then a step takes too long on it. But
    most of each kind must have come to pass.
    """
    begun = [each for each in happenings if each.left_out != NO_TIME]
    starved = [each for each in begun if each.is_starved]
    if len(starved) > max(_ALWAYS_MAX, _STARVED_SHARE * len(begun)):
        yield f"{len(starved)} of {len(begun)} faults could not be made: {_reasons(starved)}"
    for kind, count in Counter(each.fault.kind for each in begun).items():
        missed = [each for each in begun if each.fault.kind is kind and each.left_out]
        if len(missed) > max(_ALWAYS_MAX, _LEFT_OUT_SHARE * count):
            yield f"{len(missed)} of {count} × {kind.title} were left out: {_reasons(missed)}"


def _reasons(happenings: Sequence[Happening]) -> str:
    counted = Counter(each.left_out for each in happenings)
    return "; ".join(f"{count} × {why}" for why, count in counted.most_common())


def longest_stall(result: Result) -> tuple[float, list[str]]:
    """Return how long the checkpoint stood still at most, and what was broken just then."""
    longest_s, around = 0.0, (0.0, 0.0)
    for (one_s, _), (next_s, _) in zip(result.advances, result.advances[1:], strict=False):
        if next_s - one_s > longest_s:
            longest_s, around = next_s - one_s, (one_s, next_s)
    begin_s, end_s = around
    return longest_s, [
        f"{h.fault}{' ' + h.note if h.note else ''} for {h.ended_s - h.began_s:.0f} s"
        for h in result.happenings
        if h.began_s < end_s
        and not (h.left_out and h.ended_s - h.began_s < _NOTHING_S)
        and (h.ended_s or end_s) > begin_s - TXN_TIMEOUT_S
        and (h.ended_s > begin_s or "writer" in h.fault.target)
    ]


def table(result: Result, seed: int, length_s: float) -> str:
    made = Counter(_name(each) for each in result.happenings if not each.left_out)
    missed = Counter(each.left_out for each in result.happenings if each.left_out)
    history = result.history
    stall_s, causes = longest_stall(result)
    rows = [
        ("seed", seed),
        ("minutes", f"{length_s / 60:g}"),
        *sorted(made.items()),
        ("faults", made.total()),
        *((f"left out: {why}", count) for why, count in missed.most_common()),
        *((f"transactions {outcome}", history.count(outcome)) for outcome in Outcome),
        ("DDL statements", len(history.ddl)),
        ("Pumps that were deposed", result.deposed),
        ("restored etcds", "; ".join(result.restores) or "none"),
        ("decisions after a restore", result.decisions),
        ("snapshots checked", result.checks),
        ("longest stall", f"{stall_s:.1f} s"),
        *(("  meanwhile", cause) for cause in causes),
        ("whole again after", f"{result.whole_after_s:.1f} s"),
    ]
    return "\n".join(f"{name:46} {value}" for name, value in rows)


def _name(happening: Happening) -> str:
    return happening.fault.kind.title + (f" ({happening.note})" if happening.note else "")
