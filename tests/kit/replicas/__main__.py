"""`python -m tests.kit.replicas SEED`: repeat one run and show each step of it.

With `--to N` all seeds from SEED up to N are run and counted instead, a line for each thousand.
"""

import argparse
import sys

from tests.kit.replicas.rules import RULES
from tests.kit.replicas.sweep import sweep
from tests.kit.replicas.world import Rules, Violation, World


def repeat(seed: int, rules: Rules) -> int:
    world = World(seed, rules, trace=True)
    assert world.trace is not None
    try:
        world.run()
        code, end = 0, f"{len(world.acknowledged)} groups acknowledged, {world.store.entry}"
    except Violation as violation:
        code, end = 1, f"violation: {violation}"
    sys.stdout.write("\n".join([*world.trace, end, ""]))
    return code


def main() -> int:
    """Run what is asked for; 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.replicas", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--to", type=int, help="run all seeds from SEED up to this one")
    parser.add_argument("--without", choices=sorted(RULES), help="the rule to switch off")
    asked = parser.parse_args()
    rules = Rules() if asked.without is None else RULES[asked.without]
    if asked.to is None:
        return repeat(asked.seed, rules)
    failed = 0
    for counts in sweep(asked.seed, asked.to, rules):
        sys.stdout.write(f"{counts}\n")
        sys.stdout.flush()
        failed += len(counts.violations)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
