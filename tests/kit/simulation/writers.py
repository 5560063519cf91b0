"""Writers: scripted transactions, with real Prewrites and Commits, by way of a bad network.

    start_ts ── Prewrite, on another Pump after no answer ── commit_ts ── Commit, until it is heard

A source passes on decided transactions, one place after the other, each until it is acknowledged.

Some roll back, some are gone before they have decided, some after. Requests and answers get lost,
and some requests arrive twice.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.cluster.node_registry import NodeState
from penstock.errors import PenstockError, Retryable
from pump.store.record import Record
from tests.kit.fakes.storage import commit, prewrite, rollback
from tests.kit.simulation.ledger import Transaction
from tests.kit.simulation.tasks import Threading

if TYPE_CHECKING:
    from tests.kit.simulation.pump import Pump
    from tests.kit.simulation.world import World

PREWRITE_TRIES = 3
COMMIT_TRIES = 8
ANSWER_WITHIN_S = 2.0


class Writer:
    """One that writes one transaction after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance

    def run(self) -> None:
        while not self.world.is_calm:
            self.transact()
            self.world.tasks.sleep(self.chance.uniform(0.0, 0.4))

    def transact(self) -> Transaction:
        """Write one transaction; faults decide what becomes of it."""
        world = self.world
        start_ts = world.oracle()
        value = b"%d:" % start_ts + bytes(self.chance.choice((0, 10, 100, 700)))
        found = world.ledger.begun(start_ts, value)
        commit_ts = 0 if world.rules.prewrites_first else world.oracle()
        log = self._prewrite(found)
        fate = self.chance.random() if not world.is_calm else 1.0
        if log is None or fate < 0.1 or found.is_rolled_back:
            self._rolled_back(found, log)
        elif fate < 0.15:
            found.writer_is_gone = True
        else:
            found.commit_ts = commit_ts or world.oracle()
            if fate > 0.2:
                self._commit(found, log)
        found.writer_is_gone = True
        return found

    def _prewrite(self, found: Transaction) -> str | None:
        """Return the log whose Pump has acknowledged the Prewrite; None when none has."""
        world = self.world
        record = prewrite(found.start_ts, found.value)
        for _ in range(PREWRITE_TRIES):
            states = {NodeState.ONLINE}
            if self.chance.random() < 0.1:  # What it knows of them may be old.
                states.add(NodeState.CLOSING)
            online = [name for name, s in world.etcd.statuses.items() if s.state in states]
            if online:
                log = self.chance.choice(sorted(online))
                if self._ask(log, record) is True:
                    found.is_durable = True
                    return log
            world.tasks.sleep(self.chance.uniform(0.0, 0.3))
        return None

    def _rolled_back(self, found: Transaction, log: str | None) -> None:
        found.is_rolled_back = True
        if log is not None:
            self._ask(log, rollback(found.start_ts))

    def _commit(self, found: Transaction, log: str) -> None:
        """Send the Commit to the log that has the Prewrite, wherever that is, until it is heard."""
        record = commit(found.start_ts, found.commit_ts)
        for _ in range(COMMIT_TRIES):
            answer = self._ask(log, record)
            if answer is True:
                found.is_acknowledged = True
                return
            if isinstance(answer, PenstockError) and not isinstance(answer, Retryable):
                raise AssertionError(f"{found} is refused by {log}: {answer}")
            self.world.tasks.sleep(self.chance.uniform(0.1, 0.6))

    def _ask(self, log: str, record: Record) -> PenstockError | bool:
        """Return True once it is stored; False when no answer came; else why it is not."""
        world = self.world
        pump = world.pump_of(log)
        if pump is None:
            return False
        world.network.delay()
        if world.network.is_lost(pump.machine.name):
            world.tasks.sleep(0.2)
            return False
        if self.chance.random() < world.network.doubling:
            world.tasks.later(self.chance.uniform(0.0, 3.0), lambda: _again(pump, record))
        over, said = Threading(world.tasks).Event(), list[BaseException | None]()

        def settle(why: BaseException | None) -> None:
            said.append(why)
            over.set()

        try:
            pump.write(record, settle, is_new=record.tp == 0)
        except Retryable as error:
            return error
        over.wait(ANSWER_WITHIN_S)
        if not said or world.network.is_lost(pump.machine.name):
            return False
        world.network.delay()
        return said[0] if isinstance(said[0], PenstockError) else said[0] is None


def _again(pump: Pump, record: Record) -> None:
    with contextlib.suppress(Retryable):
        pump.write(record, lambda why: None, is_new=record.tp == 0)


class Source(Writer):
    """One that passes on decided transactions; it repeats a place until a Pump has taken it."""

    place = 1

    def transact(self) -> Transaction:
        while True:
            self.world.tasks.sleep(self.chance.uniform(0.0, 0.3))
            online = [n for n, s in self.world.etcd.statuses.items() if s.state is NodeState.ONLINE]
            if online and (found := self._passed_on(self.chance.choice(sorted(online)))):
                self.place += 1
                return found

    def _passed_on(self, log: str) -> Transaction | None:
        """Return the transaction once it is acknowledged; None while that is not known."""
        world, place = self.world, self.place
        pump = world.pump_of(log)
        if pump is None or world.network.is_lost(pump.machine.name):
            return None
        over, said = Threading(world.tasks).Event(), list[BaseException | None]()
        made: list[Transaction] = []

        def begun(start_ts: int, commit_ts: int) -> bytes:
            found = world.ledger.begun(start_ts, b"%d:%d" % (start_ts, place))
            found.place, found.commit_ts, found.writer_is_gone = place, commit_ts, True
            made.append(found)
            return found.value

        def settle(why: BaseException | None) -> None:
            said.append(why)
            over.set()

        with contextlib.suppress(Retryable):
            pump.decide(begun, settle)
            over.wait(ANSWER_WITHIN_S)
        if said and said[0] is not None and not isinstance(said[0], Retryable):
            raise AssertionError(f"place {place} is refused by {log}: {said[0]}")
        if not said or said[0] is not None or world.network.is_lost(pump.machine.name):
            return None
        made[0].is_durable = made[0].is_acknowledged = True
        return made[0]
