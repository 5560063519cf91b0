"""`python -m pump`, the same as the `pump` script: one Pump in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock import config, service
from penstock.errors import NeedsOperator
from pump.config import PumpConfig
from pump.node import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run a Pump until it is asked to stop; return the exit code as `penstock.service` defines."""
    try:
        settings = config.load(PumpConfig, argv, prog="pump", env_prefix="PUMP")
    except NeedsOperator as error:
        sys.stderr.write(f"pump: {error}\n")
        return 2
    # Half as long as a fast disk takes: else the loop and the pulls' threads wait for each other.
    sys.setswitchinterval(0.0005)
    return service.run(
        lambda stop: run(settings, stop), log_level=settings.log_level, log_file=settings.log_file
    )


if __name__ == "__main__":
    raise SystemExit(main())
