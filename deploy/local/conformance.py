"""Others' tests of an HTTP/2 and gRPC server: what `deploy/go.sh` has built."""

from __future__ import annotations

from deploy.local.programs import UNPACKED
from penstock.errors import NeedsOperator

BUILT = UNPACKED / "conformance"
"""Where `deploy/go.sh` leaves a link to what it has built."""


def conformance_program(name: str) -> str:
    """Return the path of h2spec or grpc-interop; raise `NeedsOperator` when it is not built."""
    path = BUILT / name
    if not path.exists():
        raise NeedsOperator(f"no {name} in {BUILT}", hint=f"deploy/go.sh {UNPACKED} conformance")
    return str(path)
