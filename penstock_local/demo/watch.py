"""Watches the processes of a demo, their memory, and the Drainer's progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

import grpc

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.oracle.client import Oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import open_channel
from penstock_local.cluster import Cluster, lag_s
from penstock_local.process import ServerProcess

ANSWER_S_MAX = 5.0


class Watch:
    """A cluster's nodes and `others` beside them, by name; those in `killed` may be down."""

    def __init__(self, cluster: Cluster, others: Mapping[str, ServerProcess] | None = None) -> None:
        self._cluster = cluster
        self._others = dict(others or {})
        self.killed: set[str] = set()
        self._rss_max: dict[str, int] = {}
        self._applied_ts = 0
        self._channel = open_channel(cluster.drainer_addr, None)
        self._drainer = penstock_pb2_grpc.DrainerStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._channel.close()

    def note_memory(self) -> None:
        for name, node in self._nodes().items():
            if node.is_running:
                self._rss_max[name] = max(self._rss_max.get(name, 0), node.rss_bytes())

    def memory_line(self) -> str:
        memory = ", ".join(f"{name} {rss >> 20} MiB" for name, rss in sorted(self._rss_max.items()))
        return f"largest resident memory: {memory}"

    def status(self) -> penstock_pb2.StatusReply:
        """Return the Drainer's status; raise gRPC's error when there is none."""
        asked = penstock_pb2.StatusRequest()
        reply: penstock_pb2.StatusReply = self._drainer.Status(asked, timeout=ANSWER_S_MAX)
        return reply

    def applied_ts(self) -> int:
        """Return the Drainer's checkpoint, the last known value while it does not answer."""
        with contextlib.suppress(grpc.RpcError):
            self._applied_ts = self.status().max_commit_ts
        return self._applied_ts

    def downstream_line(self, oracle: Oracle) -> str:
        with contextlib.suppress(PenstockError):
            now_ts, applied_ts = oracle.get_ts(), self.applied_ts()
            behind_s = lag_s(now_ts, applied_ts)
            return f"downstream as of {behind_s:.1f} s ago" if applied_ts else "downstream empty"
        return "no time to be had"

    def until(self, what: str, within_s: float, is_done: Callable[[], bool]) -> None:
        """Wait; raise `Retryable` with log tails if a process exited, or after `within_s`."""
        deadline_s = time.monotonic() + within_s
        while not is_done():
            self.check()
            if time.monotonic() > deadline_s:
                tails = [f"{name}:\n{node.log_tail(8)}" for name, node in self._nodes().items()]
                raise Retryable(
                    f"{what} takes more than {within_s:.0f} s\n" + "\n".join(tails),
                    code=Code.CHILD_FAILED,
                )
            time.sleep(0.1)

    def check(self) -> None:
        """Raise `Retryable` with the log tail of a process that exited but was not killed."""
        for name, node in self._nodes().items():
            if not node.is_running and name not in self.killed:
                raise Retryable(f"{name} ended:\n{node.log_tail()}", code=Code.CHILD_FAILED)

    def _nodes(self) -> dict[str, ServerProcess]:
        return {**self._cluster.nodes, **self._others}
