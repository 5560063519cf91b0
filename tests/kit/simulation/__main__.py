"""`python -m tests.kit.simulation SEED`: repeat one run of whole Pumps and show each step of it.

With `--to N` all seeds from SEED up to N are run and counted instead, a line for each twenty-five.
"""

from __future__ import annotations

import argparse
import sys

from tests.kit.replicas.sweep import Counts, sweep_of
from tests.kit.replicas.world import Violation
from tests.kit.simulation.rules import RULES, Rules
from tests.kit.simulation.world import World

PROGRAM = "tests.kit.simulation"
BLOCK = 25


def repeat(seed: int, rules: Rules) -> int:
    world = World(seed, rules, trace=True)
    assert world.trace is not None
    try:
        world.run()
        code, end = 0, str(world.counted())
    except Violation as violation:
        code, end = 1, f"violation: {violation}"
    sys.stdout.write("\n".join([*world.trace, end, ""]))
    return code


def main() -> int:
    """Run what is asked for; 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--to", type=int, help="run all seeds from SEED up to this one")
    parser.add_argument("--without", choices=sorted(RULES), help="the rule to switch off")
    asked = parser.parse_args()
    rules = Rules() if asked.without is None else RULES[asked.without]
    if asked.to is None:
        return repeat(asked.seed, rules)
    failed = 0
    named = Counts(0, PROGRAM, rules.name)
    for counts in sweep_of(
        lambda seed: World(seed, rules), asked.seed, asked.to, counts=named, block=BLOCK
    ):
        sys.stdout.write(f"{counts}\n")
        sys.stdout.flush()
        failed += len(counts.violations)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
