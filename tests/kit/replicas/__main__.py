"""`python -m tests.kit.replicas SEED`: repeat a run of one log; `--to N`: count many."""

from tests.kit.replicas.sweep import PROGRAM, command
from tests.kit.replicas.switches import RULES
from tests.kit.replicas.world import World

if __name__ == "__main__":
    raise SystemExit(command(PROGRAM, World, RULES))
