"""`python -m tests.kit.simulation SEED`: repeat a run of whole Pumps; `--to N`: count many."""

from tests.kit.replicas.sweep import command
from tests.kit.simulation.switches import RULES
from tests.kit.simulation.world import World

PROGRAM = "tests.kit.simulation"

if __name__ == "__main__":
    raise SystemExit(command(PROGRAM, World, RULES, 25))
