"""Many runs, counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.kit.replicas.world import Rules, Stalled, Violation, World

BLOCK = 1000


@dataclass
class Counts:
    """What came of the seeds from `first` up to `end`."""

    first: int
    end: int = 0
    steps: int = 0
    frames: int = 0
    epochs: int = 0
    disks: int = 0
    took_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    """Each with the command that repeats it."""

    def add(self, seed: int, rules: Rules) -> None:
        """Run one seed."""
        world = World(seed, rules)
        try:
            world.run()
        except Violation as violation:
            without = f" --without '{rules.name}'" if rules.name else ""
            self.violations.append(f"python -m tests.kit.replicas {seed}{without}: {violation}")
        self.end = seed + 1
        self.steps += world.steps
        self.frames += len(world.acknowledged)
        self.epochs += world.store.entry.epoch
        self.disks += world.lost_disks

    def __str__(self) -> str:
        counted = (
            f"seeds {self.first} to {self.end - 1}, {self.steps} steps: {self.frames} frames"
            f" acknowledged, {self.epochs} epochs, {self.disks} listed disks lost,"
            f" {len(self.violations)} violations, {self.took_s:.1f} s"
        )
        return "\n".join([counted, *self.violations])


def sweep(first: int, end: int, rules: Rules | None = None) -> Iterator[Counts]:
    """Run all seeds from `first` up to `end`; count them in blocks."""
    for begin in range(first, end, BLOCK):
        began_s = time.monotonic()
        counts = Counts(begin)
        for seed in range(begin, min(begin + BLOCK, end)):
            counts.add(seed, rules or Rules())
        counts.took_s = time.monotonic() - began_s
        yield counts


def found_at(rules: Rules, seeds: int) -> tuple[int, Violation] | None:
    """Return the first seed whose run stores or streams something wrong, and what that is."""
    for seed in range(seeds):
        try:
            World(seed, rules).run()
        except Stalled:
            continue
        except Violation as violation:
            return seed, violation
    return None
