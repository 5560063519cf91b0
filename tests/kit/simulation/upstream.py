"""An upstream that is reset, put back and replaced: a source that follows it, and a Drainer.

    server      binlog files, positions and GTIDs, which a second history gives out again
    source      real: `without_relay`, which decides at each start whether a server continues from
                the checkpoint; `fresh_epoch`; the origin of each transaction
    Drainer     real: `Origins`, which leaves out what was here before

The server is reset, put back to a backup, or replaced by a replica that may lack transactions; it
rotates and deletes files. Each of these breaks the source's connection, so the source starts anew.
The source dies, and its checkpoint in etcd trails or is put back with etcd. It passes on once more
what its relay log has after the checkpoint, and continues where that ends. The relay log may be
lost: the source then continues at the checkpoint. The Drainer restarts.
A transaction adds to a number, so that one that is lost or comes twice leaves a wrong sum.

An operator answers each stop, and each error of the Drainer, by `penstock source reload --all`, and
does the same where all of the source is older (docs/restoring.md): server, checkpoint, relay log.

What must hold once nothing fails any more: downstream has the numbers of the upstream.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from drainer import planner
from drainer.planner import Origins
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.ts import compose
from penstock.wire.binlog import Origin, Place
from pumpclient.mysql.events.frame import description_digest
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set
from pumpclient.mysql.protocol.server import Purged, ServerIdentity
from pumpclient.mysql.relay import resume
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Location
from pumpclient.mysql.relay.resume import History
from pumpclient.mysql.source import first_checkpoint
from pumpclient.mysql.source.first_checkpoint import without_relay
from pumpclient.mysql.source.state.checkpoint import Checkpoint, fresh_epoch
from tests.kit.replicas.world import Violation

STEPS = 300
SOURCE = "orders"
BASE = "bin"
_NOWHERE = Path("/nonexistent/relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRules:
    """What the programs do; each can be switched off, and must then be missed."""

    compares_files: bool = True
    compares_gtids: bool = True
    compares_sizes: bool = True
    begins_above_all: bool = True
    leaves_out_repeated: bool = True
    names_histories: bool = True
    names_ends: bool = True


UPSTREAM_RULES = {
    "a file is known by the moment at which it was begun": UpstreamRules(compares_files=False),
    "another server has all GTIDs that were read": UpstreamRules(compares_gtids=False),
    "a file is as long as what was read of it": UpstreamRules(compares_sizes=False),
    "a load begins an epoch above all that was seen": UpstreamRules(begins_above_all=False),
    "what was here before is left out": UpstreamRules(leaves_out_repeated=False),
    "a transaction names the history of its epoch": UpstreamRules(names_histories=False),
    "an epoch names the place after which it begins": UpstreamRules(names_ends=False),
}


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction: it adds to a number, and is named by a GTID."""

    end: int
    gtid: str
    key: int
    adds: int


@dataclass(slots=True)
class File:
    """A binlog file; `begun` is what its first event has."""

    number: int
    begun: bytes
    changes: list[Change] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.changes[-1].end if self.changes else FIRST_POSITION


@dataclass(slots=True)
class Server:
    """A server: its numbers, its binlog, and the GTIDs of all that it ever committed."""

    identity: ServerIdentity
    files: list[File]
    gtids: GtidSet
    numbers: Counter[int] = field(default_factory=Counter)
    next_number: int = 1
    names: set[str] = field(default_factory=set)
    """The same GTIDs, one by one."""
    history: int = 0
    """Changes where transactions are lost and their GTIDs given out again."""


Weights = Mapping[Callable[["Upstream"], None], int]


class Upstream:
    """One run; the same seed, rules and weights give the same one."""

    def __init__(
        self, seed: int, rules: UpstreamRules | None = None, weights: Weights | None = None
    ) -> None:
        """Start with an empty server; `weights` are `WEIGHTS` or `FAILOVERS`."""
        self.rules = rules or UpstreamRules()
        self._weights = weights or WEIGHTS
        self.chance = random.Random(seed)
        self.flavor = self.chance.choice((Flavor.MYSQL, Flavor.MARIADB))
        self.counts: Counter[str] = Counter()
        self._serial = 0
        self._ms = 1_700_000_000_000
        self.server = self._new_server()
        self._begin_file()
        self.backups: list[Server] = []
        self.checkpoint: Checkpoint | None = None
        """That of the source that runs; None while it is down."""
        self.saved: Checkpoint | None = None
        """In etcd."""
        self.etcds: list[Checkpoint | None] = []
        self.relay: list[tuple[Checkpoint, Origin | None, Change | None]] = []
        """What was read since the last load, each with the checkpoint after it."""
        self.last_epoch = 0
        """The newest epoch that was ever committed."""
        self.loaded_epoch = 0
        self.sent: Place = (0, 0, 0)
        self.sent_history = 0
        """The last place that was ever committed, and the history in which it was."""
        self.stream: list[tuple[Origin, Change | Counter[int]]] = []
        self.applied = 0
        self.downstream: Counter[int] = Counter()
        self._seen: dict[str, Place] = {}
        self.origins = Origins({})
        self.needs_reload = True

    # The server.

    def _new_server(self) -> Server:
        self._serial += 1
        name = (
            str(uuid.UUID(int=self._serial)) if self.flavor is Flavor.MYSQL else f"0-{self._serial}"
        )
        identity = ServerIdentity(name, self._serial, self.flavor, "1")
        return Server(identity, [], parse_gtid_set("", self.flavor))

    def _begin_file(self) -> None:
        """Begin a file; no two are begun at the same moment."""
        self._serial += 1
        number = self.server.files[-1].number + 1 if self.server.files else 1
        self.server.files.append(File(number, self._serial.to_bytes(8, "big").ljust(64, b"e")))

    def commit(self) -> None:
        server, file = self.server, self.server.files[-1]
        name = server.identity.uuid
        mark = ":" if self.flavor is Flavor.MYSQL else "-"
        gtid = f"{name}{mark}{server.next_number}"
        server.next_number += 1
        change = Change(file.end + 10, gtid, self.chance.randrange(5), self.chance.randint(1, 99))
        file.changes.append(change)
        server.names.add(gtid)
        server.numbers[change.key] += change.adds
        server.gtids = server.gtids.union(parse_gtid_set(gtid, self.flavor))  # type: ignore
        self.counts["transactions"] += 1

    def rotate(self) -> None:
        """Begin a file; the oldest may go, unless a source that runs reads it."""
        self._begin_file()
        oldest, at = self.server.files[0].number, self.checkpoint
        is_read = at is not None and at.place.file.number <= oldest
        if len(self.server.files) > 2 and not is_read and self.chance.random() < 0.3:
            del self.server.files[0]

    def back_up(self) -> None:
        self.backups.append(copy.deepcopy(self.server))

    def reset(self) -> None:
        """RESET MASTER: files, positions and GTIDs begin once more; the numbers stay."""
        self._broken("resets")
        self.server.files.clear()
        self.server.gtids = parse_gtid_set("", self.flavor)
        self.server.next_number = 1
        self.server.names.clear()
        self._begin_file()
        self.server.history = self._serial

    def put_back(self) -> None:
        """Be again as a backup was; a server that starts begins a file."""
        own = [each for each in self.backups if each.identity == self.server.identity]
        if own:
            self._broken("servers put back")
            self.server = copy.deepcopy(self.chance.choice(own))
            self._begin_file()
            self.server.history = self._serial

    def fail_over(self) -> None:
        """Go on with a replica, which may lack the last transactions.

        Not before the source has seen what became of the server, and not with a replica of another
        history: that has GTIDs of the same names, and nothing else tells them apart.
        """
        if self.checkpoint is None:
            return
        self._broken("failovers")
        before = self.server
        backups = [each for each in self.backups if each.history == before.history]
        if backups and self.chance.random() < 0.5:
            before = copy.deepcopy(self.chance.choice(backups))
        replica = self._new_server()
        replica.gtids, replica.numbers = before.gtids.copy(), Counter(before.numbers)
        for file in before.files:  # A replica's files end elsewhere, and were begun elsewhere.
            self._serial += 1
            begun = self._serial.to_bytes(8, "big").ljust(64, b"e")
            replica.files.append(File(file.number, begun, list(file.changes)))
        replica.history = before.history
        replica.names, replica.next_number = set(before.names), before.next_number
        self.server = replica

    def _broken(self, what: str) -> None:
        self.counts[what] += 1
        self.checkpoint = None

    # The source.

    def start(self) -> None:
        """Start the source, as its service does; an operator answers its stops."""
        if self.checkpoint is not None:
            return
        if self.saved is None or self.needs_reload:
            self.reload()
            return
        if self.saved.epoch < self.loaded_epoch:
            # The DDL of the last load is in the stream and not in this etcd: PS-2205.
            self.counts["stops"] += 1
            self.reload()
            return
        ends = [each[0] for each in self.relay]
        at = self.saved
        if at in ends:
            for end, origin, change in self.relay[ends.index(at) + 1 :]:
                at = end
                if origin is not None and change is not None:
                    self._pass_on(origin, change)
        if self.server.history != self.sent_history and self._place_of(at) < self.sent:
            self.counts["put back together"] += 1
            self.reload()
            return
        with self._asked():
            try:
                found = without_relay(at, _NOWHERE, self._address(), mock.Mock())
            except Purged:
                self.reload()
                return
            except NeedsOperator as error:
                if error.code is not Code.SERVER_RESET:
                    raise
                self.counts["stops"] += 1
                self.reload()
                return
        if found.place.file.number < self.server.files[0].number:
            self.reload()  # A server that is asked for a file that it has deleted says so.
            return
        self.checkpoint = self.saved = found
        self.relay.append((found, None, None))

    def reload(self) -> None:
        self.counts["loads"] += 1
        self._ms += self.chance.randint(1, 1000)
        known = 0 if self.saved is None else self.saved.epoch
        last = Origin(source=SOURCE, epoch=self.last_epoch, file=1, position=4)
        client = SimpleNamespace(
            last_ddl_origin=lambda source: last if self.last_epoch else None,
            session=SimpleNamespace(
                oracle=SimpleNamespace(get_many=lambda count: [compose(self._ms, 0)])
            ),
        )
        above_all: Any = client
        epoch = fresh_epoch(above_all, SOURCE, known) if self.rules.begins_above_all else known + 1
        file = self.server.files[-1]
        self.checkpoint = self.saved = Checkpoint(
            epoch=epoch,
            server=self.server.identity.uuid,
            done=str(Location(1, FileName(BASE, file.number), file.end)),
            gtids=str(self.server.gtids),
            described=description_digest(file.begun),
        )
        self.relay = [(self.checkpoint, None, None)]
        loaded = self.checkpoint.origin(SOURCE, self.checkpoint.place, "")
        self._pass_on(loaded, Counter(self.server.numbers))
        self.loaded_epoch = epoch
        self.needs_reload = False

    def read(self) -> None:
        at = self.checkpoint
        if at is None:
            return
        for file in self.server.files:
            for change in file.changes:
                end = Location(at.place.suffix, FileName(BASE, file.number), change.end)
                if end > at.place:
                    self._read(at, file, change, end)
                    return

    def _read(self, at: Checkpoint, file: File, change: Change, end: Location) -> None:
        known: Any = parse_gtid_set(at.gtids, self.flavor)
        own: Any = parse_gtid_set(change.gtid, self.flavor)
        is_known = at.skips_known and not own.subtract(known)
        origin = None if is_known else at.origin(SOURCE, end, change.gtid)
        if origin is not None and not self.rules.names_histories:
            origin = replace(origin, history=0)
        if origin is not None and not self.rules.names_ends:
            origin = replace(origin, after=None)
        if origin is not None:
            self._pass_on(origin, change)
        digest = description_digest(file.begun)
        gtids = str(known.union(own))
        after = at.after if origin is None else ""
        self.checkpoint = replace(at, done=str(end), gtids=gtids, described=digest, after=after)
        self.relay.append((self.checkpoint, origin, change))
        if self.chance.random() < 0.3:
            self.saved = self.checkpoint

    def _pass_on(self, origin: Origin, what: Change | Counter[int]) -> None:
        self.last_epoch = max(self.last_epoch, origin.epoch)
        if origin.place >= self.sent:
            self.sent, self.sent_history = origin.place, self.server.history
        self.stream.append((origin, what))

    def _place_of(self, at: Checkpoint) -> Place:
        return at.epoch, at.place.file.number, at.place.position

    def die(self) -> None:
        """The source dies; what it read since its checkpoint comes again."""
        self._broken("deaths")

    def lose_relay(self) -> None:
        """The source stops, and its relay log is gone."""
        self._broken("relay logs lost")
        self.relay.clear()

    def back_up_etcd(self) -> None:
        self.etcds.append(self.saved)

    def put_back_etcd(self) -> None:
        """The source stops, and etcd is put back with the checkpoint of then."""
        if self.etcds:
            self._broken("etcds put back")
            self.saved = self.chance.choice(self.etcds)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        server, rules = self.server, self.rules
        nothing = parse_gtid_set("", self.flavor)
        files = {f"{BASE}.{f.number:06d}": f.end for f in server.files}
        if not rules.compares_sizes:
            files = {}
        stands_in: dict[str, Any] = {
            "identify": lambda connection: server.identity,
            "binlog_gtids": lambda connection, flavor: server.gtids,
            "binlog_files": lambda connection: files,
            "history_of": self._history,
            "description_of": self._description,
            "file_after": self._file_after,
        }
        if not rules.compares_gtids:
            stands_in["lacks"] = lambda has, gtids: nothing
        if not rules.compares_files:
            stands_in["has_file"] = lambda *asked: True
        with ExitStack() as stack:
            for module in (first_checkpoint, resume):
                there = {name: each for name, each in stands_in.items() if hasattr(module, name)}
                stack.enter_context(mock.patch.multiple(module, **there))
            yield

    def _address(self) -> Any:
        @contextmanager
        def session() -> Iterator[None]:
            yield None

        return SimpleNamespace(session=session)

    def _history(self, address: object, options: object) -> History:
        first = self.server.files[0]
        digest = description_digest(first.begun)
        return History(self.server.identity, f"{BASE}.{first.number:06d}", 0, digest)

    def _description(self, address: object, options: object, file: str) -> tuple[Any, bytes]:
        number = FileName.parse(file).number
        found = next((each for each in self.server.files if each.number == number), None)
        if found is None:
            raise Purged(file, hint="none", code=Code.BINLOG_PURGED)
        return self.server.identity, found.begun

    def _file_after(self, address: object, options: object, gtids: Any) -> tuple[Any, str]:
        """Return the file with the first transaction that is not known."""
        if self.flavor is Flavor.MARIADB:  # A MySQL server refuses less, and is asked before.
            lacking = [each for each in gtids.position() if str(each) not in self.server.names]
            if lacking:
                raise NeedsOperator(f"no {lacking}", hint="none", code=Code.SERVER_RESET)
        there = {change.gtid for file in self.server.files for change in file.changes}
        for gone in self.server.names - there:
            own: Any = parse_gtid_set(gone, self.flavor)
            if own.subtract(gtids):
                raise Purged(gone, hint="none", code=Code.BINLOG_PURGED)
        for file in self.server.files:
            for change in file.changes:
                own = parse_gtid_set(change.gtid, self.flavor)
                if own.subtract(gtids):
                    return self.server.identity, f"{BASE}.{file.number:06d}"
        return self.server.identity, f"{BASE}.{self.server.files[-1].number:06d}"

    # The Drainer.

    def apply(self) -> None:
        if self.applied == len(self.stream):
            return
        origin, what = self.stream[self.applied]
        self.applied += 1
        if self.rules.leaves_out_repeated and self.origins.is_repeated(self.applied, origin):
            self.counts["left out"] += 1
            # Said as an error; the operator loads again.
            self.needs_reload |= SOURCE in self.origins._in_older_epochs
            return
        if self.rules.leaves_out_repeated and self.origins.gap(self.applied, origin) is not None:
            self.counts["epochs continued"] += 1
            self.origins = Origins(self.origins.now(), {self.applied})  # As the error says.
            assert self.origins.is_repeated(self.applied, origin)
            self.needs_reload = True
            return
        self.origins.note(origin)
        if isinstance(what, Change):
            self.downstream[what.key] += what.adds
        else:
            self.downstream = Counter(what)

    def restart(self) -> None:
        """The Drainer begins again with the places of its checkpoint."""
        self.origins = Origins(self.origins.now())

    # The run.

    def run(self) -> None:
        """Let things happen, then let them settle; raise `Violation`."""
        happenings = self.chance.choices(list(self._weights), list(self._weights.values()), k=STEPS)
        with mock.patch.object(planner, "log"):
            for happen in happenings:
                happen(self)
            self._settle()

    def _settle(self) -> None:
        self.commit()
        for _ in range(3):
            self.start()
            while self._is_behind():
                self.read()
            while self.applied < len(self.stream):
                self.apply()
            if not self.needs_reload:
                break
            self.checkpoint = None
        if +self.downstream != +self.server.numbers:
            raise Violation(f"value: {self.downstream} downstream, {self.server.numbers} upstream")

    def _is_behind(self) -> bool:
        before = self.checkpoint
        self.read()
        return self.checkpoint is not before

    def counted(self) -> dict[str, int]:
        return dict(self.counts)


WEIGHTS: Weights = {
    Upstream.commit: 60,
    Upstream.read: 90,
    Upstream.apply: 70,
    Upstream.start: 40,
    Upstream.rotate: 6,
    Upstream.back_up: 5,
    Upstream.back_up_etcd: 5,
    Upstream.reset: 1,
    Upstream.put_back: 2,
    Upstream.fail_over: 2,
    Upstream.die: 5,
    Upstream.lose_relay: 2,
    Upstream.put_back_etcd: 1,
    Upstream.restart: 3,
}
"""How often each event happens."""
FAILOVERS: Weights = {
    **WEIGHTS,
    Upstream.back_up: 10,
    Upstream.back_up_etcd: 10,
    Upstream.reset: 0,
    Upstream.put_back: 0,
    Upstream.fail_over: 6,
    Upstream.lose_relay: 6,
    Upstream.put_back_etcd: 3,
}
"""Few loads: an epoch comes again only if etcd is put back to between a load and a failover."""
