"""Many runs, counted: of one log's core (`tests.kit.replicas`), or whole Pumps (`.simulation`)."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.kit.replicas.world import Rules, Stalled, Violation, World

BLOCK = 1000
PROGRAM = "tests.kit.replicas"


class Run(Protocol):
    """One run of a world; what it has counted is there once it is over."""

    def run(self) -> None:
        """Let things happen; raise `Violation`."""

    def counted(self) -> dict[str, int]:
        """Return what happened, in words."""


Begin = Callable[[int], Run]
"""Makes the world of a seed."""


@dataclass
class Counts:
    """What came of the seeds from `first` up to `end`."""

    first: int
    program: str
    without: str
    end: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    """Each with the command that repeats it."""

    def add(self, seed: int, run: Run) -> None:
        try:
            run.run()
        except Violation as violation:
            without = f" --without '{self.without}'" if self.without else ""
            self.violations.append(f"python -m {self.program} {seed}{without}: {violation}")
        self.end = seed + 1
        for what, count in run.counted().items():
            self.counted[what] = self.counted.get(what, 0) + count

    def __str__(self) -> str:
        what = ", ".join(f"{count} {what}" for what, count in self.counted.items())
        counted = (
            f"seeds {self.first} to {self.end - 1}: {what}, {len(self.violations)} violations,"
            f" {self.took_s:.1f} s"
        )
        return "\n".join([counted, *self.violations])


def sweep(first: int, end: int, rules: Rules | None = None) -> Iterator[Counts]:
    """Run all seeds of one log's core from `first` up to `end`; count them in blocks."""
    found = rules or Rules()
    return sweep_of(lambda seed: World(seed, found), first, end, PROGRAM, without=found.name)


def sweep_of(
    begin: Begin, first: int, end: int, program: str, *, without: str = "", block: int = BLOCK
) -> Iterator[Counts]:
    """Run all seeds from `first` up to `end`, and count them in blocks."""
    for begin_at in range(first, end, block):
        began_s = time.monotonic()
        found = Counts(begin_at, program, without)
        for seed in range(begin_at, min(begin_at + block, end)):
            found.add(seed, begin(seed))
        found.took_s = time.monotonic() - began_s
        yield found


def found_at(rules: Rules, seeds: int) -> tuple[int, Violation] | None:
    """Return the first seed whose run stores or streams something wrong, and what that is."""
    return found_by(lambda seed: World(seed, rules), seeds)


def found_by(begin: Begin, seeds: int) -> tuple[int, Violation] | None:
    for seed in range(seeds):
        try:
            begin(seed).run()
        except Stalled:
            continue
        except Violation as violation:
            return seed, violation
    return None


def command(program: str, world: Any, rules: Mapping[str, Any], block: int = BLOCK) -> int:
    """Repeat one run and show each step of it, or count many; 1 when something did not hold.

    With `--to N` all seeds from SEED up to N are run and counted instead, a line for each block.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=command.__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--to", type=int, help="run all seeds from SEED up to this one")
    parser.add_argument("--without", choices=sorted(rules), help="the rule to switch off")
    asked = parser.parse_args()
    switched = None if asked.without is None else rules[asked.without]
    if asked.to is None:
        one = world(asked.seed, switched, trace=True)
        try:
            one.run()
            end = str(one.counted())
        except Violation as violation:
            end = f"violation: {violation}"
        sys.stdout.write("\n".join([*one.trace, end, ""]))
        return int(end.startswith("violation"))
    failed = 0
    runs = sweep_of(
        lambda seed: world(seed, switched), asked.seed, asked.to, program,
        without=asked.without or "", block=block,
    )  # fmt: skip
    for counts in runs:
        sys.stdout.write(f"{counts}\n")
        sys.stdout.flush()
        failed += len(counts.violations)
    return 1 if failed else 0
