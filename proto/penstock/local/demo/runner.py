"""Runs a demo: a line of progress, the watch over its processes, and the verdict.

The line changes in place on a terminal; elsewhere it is printed periodically.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing

import grpc
from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from penstock.local.demo.comparison import Verdict
from penstock.local.process import ServerProcess
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import open_channel

ANSWER_S_MAX = 5.0
CATCH_UP_S_MAX = 300.0
LINE_EVERY_S, _LIVE_EVERY_S = 2.0, 0.2
Say = Callable[[str], None]


class Demo:
    """One run over a running cluster and `others` beside it, by name; `stage` is its present part.

    A process whose name is in `killed` may be down.
    """

    def __init__(self, cluster: Cluster, others: Mapping[str, ServerProcess] | None = None) -> None:
        self.cluster = cluster
        self.stage = "starting"
        self.killed: set[str] = set()
        self._others = dict(others or {})
        self._rss_max: dict[str, int] = {}
        self._applied_ts = 0
        self._channel = open_channel(cluster.drainer_addr, None)
        self._drainer = penstock_pb2_grpc.DrainerStub(self._channel)  # type: ignore[no-untyped-call]

    def look(self) -> str:
        raise NotImplementedError

    def run(self, say: Say) -> None:
        """Write, disturb, and wait until all of it is downstream."""
        raise NotImplementedError

    def report(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        self._channel.close()

    def catch_up(self, until_ts: int) -> None:
        self.stage = "catching up"
        self.until("the Drainer", CATCH_UP_S_MAX, lambda: self.applied_ts() >= until_ts)

    def verdict(self, verdicts: list[Verdict], tables_min: int, *, is_equal: bool = True) -> bool:
        """Print the memory and the last line; return whether all is identical."""
        memory = ", ".join(f"{name} {rss >> 20} MiB" for name, rss in sorted(self._rss_max.items()))
        print(f"largest resident memory: {memory}")
        found = is_equal and len(verdicts) >= tables_min and all(v.identical for v in verdicts)
        print("identical" if found else "NOT identical: see what is marked DIFFERENT")
        return found

    def note_memory(self) -> None:
        for name, node in self._nodes().items():
            if node.is_running:
                self._rss_max[name] = max(self._rss_max.get(name, 0), node.rss_bytes())

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

    def until(self, what: str, within_s: float, is_done: Callable[[], bool]) -> None:
        """Wait; raise `Retryable` with log tails if a process exited, or after `within_s`."""
        deadline_s = time.monotonic() + within_s
        while not is_done():
            self.check()
            if time.monotonic() > deadline_s:
                tails = [f"{name}:\n{node.log_tail(8)}" for name, node in self._nodes().items()]
                raise Retryable(
                    f"{what} takes more than {within_s:.0f} s\n" + "\n".join(tails),
                    Code.CHILD_FAILED,
                )
            time.sleep(0.1)

    def check(self) -> None:
        """Raise `Retryable` with the log tail of a process that exited but was not killed."""
        for name, node in self._nodes().items():
            if not node.is_running and name not in self.killed:
                raise Retryable(f"{name} ended:\n{node.log_tail()}", Code.CHILD_FAILED)

    def _nodes(self) -> dict[str, ServerProcess]:
        return {**self.cluster.nodes, **self._others}


def shown(demo: Demo) -> bool:
    with closing(demo):
        console = Console(file=sys.stdout, highlight=False)
        live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        started_s, done = time.monotonic(), threading.Event()

        def say(text: str) -> None:
            elapsed_s = time.monotonic() - started_s
            console.print(f"[{elapsed_s:6.1f} s] {text}", markup=False, soft_wrap=True)

        def follow() -> None:
            while not done.wait(_LIVE_EVERY_S if live else LINE_EVERY_S):
                if live:
                    live.update(Text(demo.look()), refresh=True)
                else:
                    say(demo.look())

        follower = threading.Thread(target=follow, name="display", daemon=True)
        with live or contextlib.nullcontext():
            follower.start()
            try:
                demo.run(say)
            finally:
                done.set()
                follower.join()
        return demo.report()
