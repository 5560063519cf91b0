"""Drainer: the real merger, fed by pulls from the storages of who serves each log.

Who takes part in the merge is decided as `drainer/intake/pump_set.py` does it, with its `may_part`.
It is killed now and then, and begins again at its checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainer.intake.merger import Merger
from drainer.intake.pump_set import may_part
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.errors import PenstockError, Retryable
from pump.store.record import PurgedRange
from tests.kit.replicas.world import Violation

if TYPE_CHECKING:
    from tests.kit.simulation.pump import Pump
    from tests.kit.simulation.world import World

PULL_EVERY_S = 0.04


class Drainer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.checkpoint_ts = 0
        self.drained_ts = 0
        """Up to where it has saved what it has of every Pump: what is older, in days, is purged."""
        self._standing: dict[str, int] = {}
        """Who took part at the checkpoint, and up to where each was received."""
        self._left: dict[str, int] = {}
        self._had_left: dict[str, int] = {}
        """Up to where those were received that left; now, and at the checkpoint."""
        self.restarts = 0
        self.is_stopped = False
        self._begin()

    def _begin(self) -> None:
        self.merger = Merger(self.checkpoint_ts)
        self._knows_all = bool(self._standing)
        self._left = dict(self._had_left)
        for name, received_ts in self._standing.items():
            self.merger.add(name, received_ts)

    def run(self) -> None:
        """Live until the world ends."""
        world = self.world
        while True:
            world.tasks.sleep(PULL_EVERY_S)
            if self.is_stopped:
                continue
            self.notify()
            for name in self.merger.sources:
                self._pull(name)
            while (merged := self.merger.take()) is not None:
                world.ledger.merged(merged.commit_ts, merged.payloads)  # type: ignore[arg-type]
            world.ledger.check_passed(self.merger.emitted_ts)
            if world.chance.random() < 0.1:
                self.checkpoint_ts = self.merger.emitted_ts
                sources = self.merger.sources
                self._standing = {name: self.merger.received_ts(name) for name in sources}
                self._had_left = dict(self._left)
                self.drained_ts = min([self.checkpoint_ts, *self._standing.values()])
            if not world.is_calm and world.chance.random() < world.drainer_deaths:
                self.restart()

    def restart(self) -> None:
        self.world.note("the Drainer begins again at %d", self.checkpoint_ts)
        self.restarts += 1
        self.world.ledger.taken_back(self.checkpoint_ts)
        self._begin()

    def etcd_was_put_back(self) -> None:
        """Have nothing purged that a Pump has which had left, and may take part again."""
        self.drained_ts = min([self.drained_ts, *self._left.values(), *self._had_left.values()])

    def notify(self) -> None:
        if self.is_stopped:
            return
        etcd, entered = self.world.etcd, self.world.etcd.known.entered()
        for name, status in sorted(etcd.statuses.items()):
            is_in = name in self.merger.sources
            if status.state is not NodeState.OFFLINE:
                if not is_in:
                    after_ts = entered.get(name) if self._knows_all else None
                    if (left_ts := self._left.pop(name, None)) is not None:
                        after_ts = max(left_ts, after_ts or 0)
                    self.merger.add(name, after_ts)
                    self.world.note("%s is in the merge from %d", name, self.merger.emitted_ts)
            elif is_in and self._may_part(status):
                self.world.note("%s leaves the merge", name)
                self._left[name] = self.merger.received_ts(name)
                self.merger.finish(name)
        self._knows_all = self._knows_all or bool(self.merger.sources)

    def _may_part(self, status: NodeStatus) -> bool:
        name = status.node_id
        word = self.world.etcd.known.last_words().get(name)
        return may_part(status, word, self.merger.received_ts(name), takes_part=True)

    def _pull(self, name: str) -> None:
        """Take what there is from the Pump at the log's address, or from one that had it."""
        world = self.world
        pumps: list[Pump] = [pump for pump in world.pumps_of(name) if pump.is_serving]
        if world.chance.random() < 0.9:
            pumps = [pump for pump in pumps if pump is world.pump_of(name)]
        if not pumps:
            return
        pump = world.chance.choice(pumps)
        if world.network.is_lost(pump.machine.name) or pump.storage is None:
            return
        pump.check_stream()
        after_ts, count_max = self.merger.received_ts(name), world.chance.choice((3, 50))
        try:
            found = pump.storage.pull(after_ts, bytes_max=3000, count_max=count_max)
        except PurgedRange as error:
            raise Violation(f"purged: {pump.name} lacks what is needed: {error}") from error
        except Retryable:
            return
        except PenstockError as error:
            raise Violation(f"stored: {pump.name}: {error}") from error
        self.merger.push(name, found.commit_ts, found.payloads)
