"""Command: `python -m pump.stand_in` has a Pump's program, and waits to hear on which copy it runs.

It reads lines of JSON from its parent, which is a Pump (`pump.copies.takeover`):

    ["--node-id=pump-1", ...]                 the arguments of `pump`: it is that Pump now
    {"parent": 14, "lease": 7587874, "arguments": [...]}
                                              the parent's process id, on which lease in etcd it
                                              leads the oracle, and what it runs with
    {}                                        it does not lead the oracle

Without a line it ends, as it does with its parent. Where that one has died and led the oracle, it
gives the lease back: all writers would wait until etcd lets it go, although no one leads any more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from pump import __main__ as pump  # First: it says what gRPC is to log.
from pump import node as _loaded  # noqa: F401

_DIES_WITHIN_S = 1.0
_ETCD_WITHIN_S = 2.0


def main() -> int:
    """Wait until the parent ends or sends a Pump's arguments; return the exit code."""
    led: dict[str, Any] = {}
    for line in iter(sys.stdin.readline, ""):
        said = json.loads(line)
        if isinstance(said, list):
            return pump.main(said)
        led = said
    if led and _has_died(led["parent"]):
        _give_back(led["lease"], led["arguments"])
    return 0


def _has_died(parent: int) -> bool:
    until_s = time.monotonic() + _DIES_WITHIN_S
    while os.getppid() == parent:  # Of a process that dies, files are closed before it is gone.
        if time.monotonic() > until_s:
            return False
        time.sleep(0.005)
    return True


def _give_back(lease: int, arguments: Sequence[str]) -> None:
    # Not above: what imports gRPC comes after `pump.__main__`.
    from penstock.cluster.etcd import connect, etcd_errors
    from penstock.errors import PenstockError
    from penstock.security.tls import Security
    from pump.config import load_settings

    settings, _ = load_settings(arguments)
    tls = Security(settings.security).etcd_tls
    etcd = connect(settings.etcd_urls, timeout_s=_ETCD_WITHIN_S, tls=tls)
    with closing(etcd), suppress(PenstockError), etcd_errors(etcd):
        etcd.revoke_lease(lease)  # Else it ends by itself, as it would have.


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # While it waits, it has nothing to end in order.
    raise SystemExit(main())
