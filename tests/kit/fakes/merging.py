"""The Drainer's pulling and merging in a thread of its own, without Spark and downstream.

What it emits is what a Drainer would apply, in that order; a ledger can judge it.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from drainer.facts import MergeFacts
from drainer.intake.merge_holder import PumpView
from drainer.intake.merger import Merger
from drainer.intake.puller import SILENCE_S_MAX, Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from penstock.cluster.node_registry import NodeKind, NodeStatus, Registry
from penstock.cluster.records import LastWord, LostPump
from penstock.oracle.client import Oracle
from penstock.security.tls import Tls

_PASS_S = 0.2

T = TypeVar("T")


class Merging:
    """Pulls all Pumps of a registry; `by_way_of` gives other addresses for some of them."""

    def __init__(
        self,
        registry: Registry,
        oracle: Oracle,
        folder: Path,
        *,
        by_way_of: Mapping[str, str],
        room_bytes: int = 16 << 20,
        tls: Tls | None = None,
        silence_s_max: float = SILENCE_S_MAX,
    ) -> None:
        self.found: list[tuple[int, bytes]] = []
        self.peak_bytes = 0
        self.lost: Mapping[str, LostPump] = {}
        self.last_words: Mapping[str, LastWord] = {}
        self.entered: Mapping[str, int] = {}
        self._registry = registry
        self._oracle = oracle
        self._by_way_of = by_way_of
        self._merger = Merger(0)
        spool = Spool(folder / "spool", bytes_max=8 << 20)
        self._who = Who(
            registry.cluster_id(), "merging", spool, tls=tls, silence_s_max=silence_s_max
        )
        self._room_bytes = room_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="merging", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._pumps: Pumps | None = None
        self._closing = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(30)
        self._loop.close()
        assert self._failure is None, self._failure

    async def publish_and_list(self) -> Sequence[NodeStatus]:
        found = await asyncio.to_thread(self._registry.list, NodeKind.PUMP)
        self.lost = await asyncio.to_thread(self._registry.lost)
        self.last_words = await asyncio.to_thread(self._registry.last_words)
        self.entered = await asyncio.to_thread(self._registry.entered)
        return [replace(s, host=self._by_way_of.get(s.node_id, s.host)) for s in found]

    async def list_again(self, pump: NodeStatus) -> None:
        await asyncio.to_thread(self._registry.put, NodeKind.PUMP, pump)

    def now_ts(self) -> int:
        return self._oracle.get_ts()

    def views(self) -> dict[str, PumpView]:
        return self._ask(lambda pumps: {view.name: view for view in pumps.views()})

    def facts(self) -> MergeFacts:
        return self._ask(Pumps.facts)

    def breaks(self) -> int:
        """Return how often a stream broke or could not be had."""
        return self._ask(lambda pumps: pumps.counters.errors["pull"])

    def _ask(self, what: Callable[[Pumps], T]) -> T:
        async def asked() -> T:
            assert self._pumps is not None
            return what(self._pumps)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(30)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _live(self) -> None:
        pumps = self._pumps = Pumps(self._merger, self, self._who, self._room_bytes)
        await pumps.refresh()
        self._ready.set()
        tasks = [
            asyncio.create_task(pumps.run(_PASS_S)),
            asyncio.create_task(self._merge(pumps)),
            asyncio.create_task(self._closing.wait()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await pumps.close()
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure

    async def _merge(self, pumps: Pumps) -> None:
        while True:
            pumps.arrived.clear()
            self.peak_bytes = max(self.peak_bytes, self._merger.bytes)
            merged = pumps.take()
            if merged is None:
                await pumps.arrived.wait()
                continue
            payloads = [payload for payload in merged.payloads if isinstance(payload, bytes)]
            assert len(payloads) == len(merged.payloads), "nothing here is large"
            self.found += zip(merged.commit_ts, payloads, strict=True)
            await asyncio.sleep(0)
