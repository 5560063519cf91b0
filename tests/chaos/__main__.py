"""`python -m tests.chaos --minutes 60 [--seed 7] [--copies 1]`: exit code 0, or 1, all is kept."""

import argparse
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.cluster import Cluster
from tests.chaos.plan import plan
from tests.chaos.result import table
from tests.chaos.run import Run, say


def chaos(home: Path, seed: int, length_s: float, copies: int = 2) -> list[str]:
    """Run a chaos in a new folder, show how it goes; return what was found to be wrong."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=home / "chaos.log", format=form)
    faults = plan(seed, length_s, copies)
    say(f"seed {seed}, copies {copies}: {len(faults)} faults in {length_s / 60:g} minutes")
    with Cluster(home, seed, copies=copies) as cluster:
        run = Run(cluster, faults, length_s)
        result = run.run()
        say(table(result, seed, length_s))
    return result.problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a chaos in a temporary folder, which is removed if all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--copies", type=int, default=2, help="of each Pump's log; 1: no disk dies")
    asked = parser.parse_args(arguments)
    # Ended from outside, it ends all that it has started, too.
    signal.signal(signal.SIGTERM, _end)
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    home = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    problems = chaos(home, seed, asked.minutes * 60, asked.copies)
    for problem in problems:
        say(f"WRONG: {problem}")
    if problems:
        say(f"{len(problems)} × wrong; logs, journals and data are kept in {home}")
        return 1
    shutil.rmtree(home)
    say("all is well")
    return 0


def _end(number: int, _: object) -> None:
    say(f"ended by signal {number}")
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
