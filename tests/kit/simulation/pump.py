"""Pump: one process with the real storage, claim and shipping of a log; deterministic else.

The event loop of a Pump cannot be repeated from a seed, so what `pump/node.py`, group commit, fake
binlogs, resolver, membership and operator do for a log is done here once more, as small as can be:

    serve      opened ─ claimed ─ shipped ─ whole ─ joined ─ upkeep ─ stopped, displaced or deposed
    append     what waits becomes one group: appended, answered, indexed
    duties     fake binlogs and watermarks; the outcome of transactions that stay open
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cluster.log_entry import Copy, Disk, LogEntry
from penstock.cluster.node_registry import EntryGuard, NodeKind, NodeState, NodeStatus, Registry
from penstock.cluster.records import LastWord
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.log.segment import BEGIN
from penstock.log.segments import Place, begin_log
from pump.replication.claiming import (
    Claimed,
    Fenced,
    PreviousLog,
    Unseen,
    Wanted,
    claim,
    is_nowhere,
    is_out_of,
    refuse_gone,
    refuse_older,
    refuse_other_history,
    reinitialise,
)
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Chain, Link, Seen
from pump.replication.protocol.messages import Acknowledge, Action
from pump.replication.shipping import Deposed
from pump.store.record import NotStored, Record
from pump.store.storage import Storage, StorageConfig
from tests.kit.fakes.storage import commit, fake, prewrite, rollback
from tests.kit.replicas.world import Violation
from tests.kit.simulation.etcd import Etcd
from tests.kit.simulation.tasks import Process, SimpleQueue
from tests.kit.wait import present

if TYPE_CHECKING:
    from tests.kit.simulation.machine import Machine
    from tests.kit.simulation.world import World

CLUSTER = 7
CONFIG = StorageConfig(
    stop_write_at_available_bytes=0, index_write_buffer_bytes=1 << 16, index_cache_bytes=1 << 16
)
REPLICA_TIMEOUT_S = 0.8
GROUP_MAX = 20
RESOLVE_AFTER_S = 1.0
FAKE_EVERY_S = 0.1
INDEXED_WITHIN_S = 0.005

Settle = Callable[[BaseException | None], object]
"""Takes why a record was not stored; None when it is."""


class Pump(Process):
    """One process on the log `log`, in `folder` of a machine; a guest in that of a copy."""

    def __init__(self, world: World, machine: Machine, log: str, folder: Path) -> None:
        super().__init__(f"{log}@{machine.name}#{world.number()}")
        self.world = world
        self.machine = machine
        self.log = log
        self.folder = folder
        self.files = machine.files
        self.own = Copy(machine.name, machine.disk)
        self.is_failover = folder != machine.own_folder
        self.state = NodeState.PAUSED
        self.is_serving = False
        self.is_asked_to_stop = False
        self.storage: Storage | None = None
        self.storages: list[Storage] = []
        self.shipping: Any = None
        self.waiting: SimpleQueue = SimpleQueue(world.tasks)
        self._registry = Registry(world.etcd, self._guard)
        self._peers = Peers(CLUSTER, self.own)
        self._peers.logs, self._peers.disks = _Logs(world.etcd), _Disks(world.machines)

    def _guard(self) -> EntryGuard | None:
        return self.shipping.guard() if self.world.rules.compares_for_status else None

    def start(self) -> None:
        self.world.tasks.spawn(self._serve, f"serve {self.name}", self)

    def bury(self) -> None:
        for storage in self.storages:
            storage._closed = True
            storage._flusher.join()
            storage._index.close()
            os.close(storage._lock_file)
        self.storages.clear()

    # What writers and Drainers ask.

    def write(self, record: Record, settle: Settle, *, is_new: bool) -> None:
        """Queue a record; raise `Retryable` when this Pump does not take it."""
        if not self.is_serving:
            raise Retryable("it does not serve", code=Code.LOG_DEPOSED)
        if is_new and self.state is not NodeState.ONLINE and self.world.rules.refuses_when_closing:
            raise Retryable(f"it is {self.state}", code=Code.LOG_DEPOSED)
        if is_new:
            self.shipping.check()
        self.waiting.put(((record,), settle))

    def decide(self, begun: Callable[[int, int], bytes], settle: Settle) -> None:
        """Do what `DecidedWrites` does for one transaction, whose value `begun` returns."""
        if not self.is_serving or self.state is not NodeState.ONLINE:
            raise Retryable(f"it is {self.state}", code=Code.LOG_DEPOSED)
        self.shipping.check()
        self.world.tasks.spawn(partial(self._decide, begun, settle), f"decide {self.name}", self)

    def _decide(self, begun: Callable[[int, int], bytes], settle: Settle) -> None:
        world, storage = self.world, present(self.storage)
        held = storage.hold()
        if not world.rules.holds_for_decided:
            storage.release(held)
        world.tasks.sleep(world.chance.uniform(0.0, 0.05))
        start_ts, commit_ts = world.oracle(), world.oracle()
        held.start_ts = range(start_ts, start_ts + 1)
        world.tasks.sleep(world.chance.uniform(0.0, 0.05))

        def stored(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, Deposed):
                storage.release(held)
            settle(error)

        if self.is_serving:
            value = begun(start_ts, commit_ts)
            records = (prewrite(start_ts, value), commit(start_ts, commit_ts))
            self.waiting.put((records, stored))
        else:
            stored(Retryable("it ends", code=Code.LOG_DEPOSED))

    def check_stream(self) -> None:
        """Raise `Violation` when more can be pulled than is on enough disks."""
        assert self.storage is not None
        head = self.storage._indexed_head
        if head.offset > BEGIN and self.shipping.acknowledged < head:  # Else there is nothing yet.
            raise Violation(f"stream: {self.name} has {head}, {self.shipping.acknowledged} counts")

    # Its life.

    def _serve(self) -> None:
        world = self.world
        try:
            if self._begun():
                world.note("%s serves", self.name)
                self.is_serving = True
                world.tasks.spawn(self._append, f"append {self.name}")
                world.tasks.spawn(self._duties, f"duties {self.name}")
                self._joined()
                while not (self.is_asked_to_stop or self.shipping.over or self.is_drained):
                    world.tasks.sleep(0.25)
                    with contextlib.suppress(Retryable):
                        self._look_after()
                self._end()
        except (PenstockError, OSError) as error:
            world.failed(self, error)
        self._closed()
        world.note("%s ends", self.name)
        world.tasks.kill(self)

    def _begun(self) -> bool:
        """Do what `Startup` of `pump.node` does."""
        world = self.world
        storage = self._opened()
        while not self.is_asked_to_stop:
            try:
                claimed = self._claim(storage)
                self.shipping = self._ship(claimed, storage)
                storage.ship_with(self.shipping)
                self.shipping.start()
                if world.rules.waits_until_complete:
                    while not self.shipping.wait_until_complete(1.0):
                        if self.is_asked_to_stop:
                            return False
                self.storage = storage
                return True
            except Fenced as fenced:
                world.note("%s: %s", self.name, fenced)
                if self.is_failover:
                    return False
                storage = self._reinitialised(fenced, storage)
            except Retryable as error:
                world.note("%s does not begin: %s", self.name, error)
                world.restoring.refused_claim(self.log, error)
                if self.is_failover and isinstance(error, Deposed):
                    return False
            world.tasks.sleep(1.0)
        return False

    def _opened(self) -> Storage:
        world = self.world
        storage = world.rules.storage.open(
            self.folder,
            replace(CONFIG, segment_bytes_max=world.segment_bytes),
            files=self.files,
            clock=lambda: world.tasks.now_s,
        )
        storage._flusher.join()
        self.storages.append(storage)
        return storage

    def _close_storage(self, storage: Storage) -> None:
        storage.close()
        self.storages.remove(storage)  # One whose close was cut short is left to `bury`.

    def _claim(self, storage: Storage) -> Claimed:
        world = self.world
        chain = Chain(Link(*link) for link in storage.log.links())
        is_told = world.rules.tells_folders_apart and not self.is_failover
        former = self.machine.former_since if is_told else None
        found = world.etcd.entries.read(self.log)
        if found is None or not is_out_of(found[0], former):
            self._refuse(chain)
        claimed = claim(
            *(world.etcd.entries, self.log, self.own, chain, Wanted(*world.wanted)),
            former_since=former,
        )
        assert claimed is not None
        self._takes_own(False)
        if not self.is_failover:
            self.machine.former_since = None
        return claimed

    def _refuse(self, chain: Chain) -> None:
        """Compare the entry and this disk with all other disks, as `Replication.claim` does."""
        world = self.world
        with self._peers.sources(self.log) as others:
            if world.rules.compares_histories:
                seen = [each for other in others if (each := other.seen(chain)) is not None]
                refuse_other_history(
                    *(world.etcd.entries, self.log, self.own, chain, seen),
                    missing=self._unseen(each.copy.pump for each in seen),
                    withdraw_offline=self._withdraw_offline,
                )
            found = world.etcd.entries.read(self.log)
            if found is not None and world.rules.refuses_older:
                refuse_older(self.log, self.own, chain, found[0], others)

    def _withdraw_offline(self) -> None:
        """Do what `Replication._withdraw_offline` does."""
        etcd, name = self.world.etcd, self.log
        status, word = etcd.statuses.get(name), etcd.known.last_words().get(name)
        if status is None or status.state is not NodeState.OFFLINE:
            return
        if word is not None:
            etcd.enter(name, word.up_to_ts)
        etcd.registry.put(NodeKind.PUMP, replace(status, state=NodeState.PAUSED))
        etcd.registry.forget_last_word(name)

    def _unseen(self, seen: Iterable[str]) -> Unseen:
        states = {name: status.state for name, status in self.world.etcd.statuses.items()}
        return Unseen.of(states, [self.own.pump, *seen])

    def _ship(self, claimed: Claimed, storage: Storage) -> Any:
        world = self.world
        return world.shipping(self)(
            claimed,
            storage.log,
            node_id=self.log,
            entries=world.etcd.entries,
            peers=self._peers,
            replica_timeout_s=REPLICA_TIMEOUT_S,
        )

    def _reinitialised(self, fenced: Fenced, storage: Storage) -> Storage:
        """Begin the log again in an empty folder, once no one needs the former one."""
        world, entry = self.world, fenced.found[0]
        if not isinstance(fenced, PreviousLog):
            listed = entry.copies_known
            if self.own.disk not in {copy.disk for copy in listed}:
                self.machine.former_since = entry.since
            if self.machine.former_since == entry.since:
                self._takes_own(True)
            try:
                status = world.etcd.registry.get(NodeKind.PUMP, self.log)
                if status is not None and status.state is NodeState.PAUSED:
                    world.etcd.registry.forget_last_word(self.log)
                if status is None or status.state is not NodeState.OFFLINE:
                    is_new = status is None and self.log not in world.etcd.known.entered()
                    if not self._is_nowhere(entry, is_new):
                        return storage
                found, wanted = fenced.found, Wanted(*world.wanted)
                entry = reinitialise(world.etcd.entries, self.log, self.own, found, wanted)
            except Retryable as error:
                world.restoring.refused_claim(self.log, error)
                return storage
        self._takes_own(False)
        self._close_storage(storage)
        world.note("%s begins again in epoch %d", self.name, entry.since)
        self.machine.forget_folder(self.folder)
        since_id = entry.id_of(entry.since) or 0
        begin_log(self.files, self.folder / "log", entry.since, since_id)
        self.machine.former_since = None
        return self._opened()

    def _is_nowhere(self, entry: LogEntry, is_new: bool) -> bool:
        """Do what `Replication._is_nowhere` does."""
        copies, edges = self.machine.copies, []
        if copies is not None and self.log in copies.copies:
            edges.append(Seen(self.own, copies.copies[self.log].log.links))
            if not edges[0].links or entry.may_claim(self.own.disk):  # It is served, or is to be.
                return False
        with self._peers.sources(self.log) as others:
            edges += [each for other in others if (each := other.edges()) is not None]
        missing = self._unseen(each.copy.pump for each in edges)
        if is_new and is_nowhere(self.own, entry, edges, missing):
            return True
        refuse_gone(self.log, self.own, entry, edges, missing)
        return False

    def _takes_own(self, is_so: bool) -> None:
        """Say whether this machine takes a copy of its own log."""
        if not self.is_failover and self.machine.copies is not None:
            self.machine.copies.takes_own = is_so

    def _joined(self) -> None:
        """Do what `Membership.join` does, and the operator for a log that was taken over."""
        world, etcd = self.world, self.world.etcd
        while not (self.is_asked_to_stop or self.shipping.over):
            try:
                now_ts = world.oracle()
                etcd.enter(self.log, now_ts)
                present(self.storage).begin(now_ts)
                self._registry.forget_last_word(self.log)
                self._put(NodeState.PAUSED)
                world.drainer.notify()
                self._put(NodeState.ONLINE)
            except Retryable:
                world.tasks.sleep(1.0)
                continue
            self.state = NodeState.ONLINE
            self._close_guest()
            return

    def _put(self, state: NodeState) -> None:
        assert self.storage is not None
        status = NodeStatus(
            node_id=self.log,
            host=self.name,
            state=state,
            score=self.shipping.entry.epoch,
            max_commit_ts=self.storage.logged_ts,
        )
        self._registry.put(NodeKind.PUMP, status)

    def _look_after(self) -> None:
        world, storage = self.world, self.storage
        assert storage is not None
        self._close_guest()
        self._put(self.state)
        drained_ts = world.drained_ts
        self.shipping.needs(storage.needed_from(drained_ts))
        if world.chance.random() < world.purging:
            storage.gc(drained_ts if world.rules.purges_what_is_drained else world.oracle())
        if self.state is NodeState.CLOSING:
            self._drain()

    def _close_guest(self) -> None:
        is_to_close = self.world.is_calm or not self.world.guests_stay
        if self.is_failover and self.state is NodeState.ONLINE and is_to_close:
            self.state = NodeState.CLOSING

    _end_ts = 0
    is_drained = False

    def _drain(self) -> None:
        """Do what `Operator._drain` does."""
        world, storage = self.world, self.storage
        assert storage is not None
        if not self._end_ts:
            end_ts = world.oracle()
            self.write(fake(end_ts), lambda error: self._drain_began(end_ts, error), is_new=False)
        elif storage.max_commit_ts >= self._end_ts and world.drained_ts >= self._end_ts:
            self.is_drained = True

    def _drain_began(self, end_ts: int, error: BaseException | None) -> None:
        if error is None:
            self._end_ts = end_ts

    def _end(self) -> None:
        """Write what waits; then leave the last word, unless another process has the log."""
        world = self.world
        self.is_serving = False
        self.waiting.put(None)
        for _ in range(20):
            if self.waiting.empty() and not self._is_appending:
                break
            world.tasks.sleep(0.25)
        else:
            self.shipping.close()
            world.tasks.sleep(0.1)
        if self._was_deposed:
            return
        storage = present(self.storage)
        state = NodeState.OFFLINE if self.is_drained else NodeState.PAUSED
        word = LastWord(
            pump=self.log,
            up_to_ts=storage.holds_up_to_ts(),
            open_count=len(storage.unmatched()),
            made="",
        )
        for _ in range(20):
            try:
                self._registry.put_last_word(word)
                if self.is_drained:
                    self._registry.forget_entered(self.log)
                self._put(state)
                return
            except Retryable:
                world.tasks.sleep(1.0)

    @property
    def _was_deposed(self) -> bool:
        return bool(self.shipping.over) and self.shipping.over != "this Pump stops"

    def _closed(self) -> None:
        self.is_serving = False
        try:
            if self.shipping is not None:
                self.shipping.close()
            for storage in list(self.storages):
                self._close_storage(storage)
        except (PenstockError, OSError) as error:
            self.world.failed(self, error)
        self.bury()

    # Appending.

    _is_appending = False

    def _append(self) -> None:
        """Do what `pump.service.group_commit` does."""
        while True:
            group = [self.waiting.get()]
            while not (callable(group[-1]) or self.waiting.empty()) and len(group) < GROUP_MAX:
                group.append(self.waiting.get())
            between = group.pop() if callable(group[-1]) else None
            self._is_appending = True
            self._append_group(
                [
                    (record, settle if record is records[-1] else lambda error: None)
                    for records, settle in filter(None, group)
                    for record in records
                ]
            )
            self._is_appending = False
            if between is not None:
                between()

    def _append_group(self, group: list[tuple[Record, Settle]]) -> None:
        storage = present(self.storage)
        while group:
            try:
                appended = storage.append([record for record, _ in group])
            except NotStored as error:
                for i, why in error.refused.items():
                    group[i][1](why)
                group = [each for i, each in enumerate(group) if i not in error.refused]
            except PenstockError as error:
                for _, settle in group:
                    settle(error)
                return
            else:
                if self.world.rules.indexes_last:
                    self.world.tasks.give_way()
                else:
                    storage.index(appended)
                    while self.shipping.acknowledged < appended.head and not self.shipping.over:
                        self.world.tasks.sleep(0.01)
                for _, settle in group:
                    settle(None)
                self.world.tasks.sleep(self.world.chance.uniform(0.0, INDEXED_WITHIN_S))
                if self.world.rules.indexes_last:
                    storage.index(appended)
                return

    def _duties(self) -> None:
        """Do what `FakeBinlogs` and the resolver do."""
        world, storage = self.world, self.storage
        assert storage is not None
        while self.is_serving:
            world.tasks.sleep(FAKE_EVERY_S)
            for found in storage.unmatched(RESOLVE_AFTER_S):
                outcome = world.ledger.outcome(found.start_ts)
                if outcome is not None:
                    is_late = outcome <= found.floor_ts
                    self._note(
                        rollback(found.start_ts) if is_late else commit(found.start_ts, outcome)
                    )
            if storage.max_commit_ts < self._fake_ts:
                continue
            if world.chance.random() > world.fakes:
                with contextlib.suppress(Retryable):
                    self._advance(storage)
            elif self.waiting.empty():
                ts = world.oracle()
                world.tasks.sleep(world.chance.uniform(0.0, 0.01))
                self._note(fake(ts), partial(self._fake_settled, ts))

    def _advance(self, storage: Storage) -> None:
        """Do what `FakeBinlogs.advance` does."""
        world, rules = self.world, self.world.rules
        ts = world.oracle() + (0 if rules.takes_what_is_handed_out else 10)
        if rules.confirms:
            self.shipping.confirm()
        world.tasks.sleep(world.chance.uniform(0.0, 0.01))
        publish = partial(storage.advance, ts)
        if rules.advances_between_groups:
            self.waiting.put(publish)
        else:
            publish()
        self._fake_ts = ts
        world.watermarks += 1

    _fake_ts = 0

    def _fake_settled(self, ts: int, error: BaseException | None) -> None:
        if error is None:
            self._fake_ts = max(self._fake_ts, ts)

    def _note(self, record: Record, settle: Settle = lambda error: None) -> None:
        with contextlib.suppress(Retryable):
            self.write(record, settle, is_new=False)


class _Logs(Mapping[str, LogEntry]):
    """The entries as a watch has them, which may be behind; iterated, as they are."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd

    def __getitem__(self, name: str) -> LogEntry:
        if (entry := self._etcd.seen(name)) is None:
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._etcd.logs)

    def __len__(self) -> int:
        return len(self._etcd.logs)

    def values(self) -> Any:
        return [found[0] for found in self._etcd.logs.values()]


class _Disks(Mapping[str, Disk]):
    """The disks of the machines that are up."""

    def __init__(self, machines: list[Machine]) -> None:
        self._machines = machines

    def __getitem__(self, disk: str) -> Disk:
        for machine in self._machines:
            if machine.is_up and machine.disk == disk:
                return Disk(disk, machine.name, machine.name)
        raise KeyError(disk)

    def __iter__(self) -> Iterator[str]:
        return iter([m.disk for m in self._machines if m.is_up])

    def __len__(self) -> int:
        return len(list(iter(self)))


class Watched:
    """Mixed into a shipping: what it acknowledges is held against the disks."""

    on_acknowledged: Callable[[Place], object]

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Acknowledge):
            self.on_acknowledged(action.place)
        super()._carry_out(action)  # type: ignore[misc]

    def failed(self, what: str) -> None:
        """Raise again what ended a thread: a defect is a violation."""
        raise
