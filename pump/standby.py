"""Command `python -m pump.standby`: a warm standby process that can become a Pump on a replica.

It reads lines of JSON from its parent, which is a Pump (`pump.replication.failover`):

    ["--node-id=pump-1", ...]                 the arguments of `pump`: become that Pump now
    {"parent": 14, "lease": 7587874, "arguments": [...]}
                                              the parent's process id and arguments, and the etcd
                                              lease with which it leads the oracle
    {}                                        the parent does not lead the oracle

It ends when the input ends, or with its parent. If the parent died while it led the oracle, this
process revokes the parent's lease. Otherwise all writers would wait until etcd expires it.
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

from penstock.node.logs import log_grpc
from pump import __main__ as pump

log_grpc()  # Before the next line imports gRPC.

from pump import node as _loaded  # noqa: E402, F401

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
    while os.getppid() == parent:  # A dying process closes its files first.
        if time.monotonic() > until_s:
            return False
        time.sleep(0.005)
    return True


def _give_back(lease: int, arguments: Sequence[str]) -> None:
    # Not at the top: modules that import gRPC must follow `pump.__main__`.
    from penstock.cluster.etcd import connect, revoke
    from penstock.errors import PenstockError
    from penstock.security.tls import Security
    from pump.config import load_settings

    settings, _ = load_settings(arguments)
    tls = Security(settings.security).etcd_tls
    etcd = connect(settings.etcd_urls, timeout_s=_ETCD_WITHIN_S, tls=tls)
    with closing(etcd), suppress(PenstockError):
        revoke(etcd, lease)  # If this fails, the lease expires on the usual schedule.


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # A waiting process needs no clean shutdown.
    raise SystemExit(main())
