"""The checkpoint of a source in etcd: its position, and its owner.

    /penstock/v1/sources/<id>         JSON, the fields of `Checkpoint`
    /penstock/v1/sources/<id>/owner   the process that runs it, on that process' lease
    /penstock/v1/sources/<id>/pages   the URL of that process' status pages, on the same lease
    /penstock/v1/sources/<id>/epoch   JSON, the last epoch, see `Begun`; stays when the first goes
    /penstock/v1/sources/<id>/keys    JSON, the server's foreign keys, see `FollowedKeys`

Only the owner writes the first and the last two, in an etcd transaction that demands the second.
`done` is a place in the relay log: all transactions up to it are committed. The relay log's
sub-directories count histories, and so does `epoch`: both grow by one together. If etcd was
restored and the relay log is lost, an epoch may therefore come again with another history. The
origin of each transaction tells a Drainer (`drainer.planner`) two facts by which it detects this:

* `history`, a digest of the binlog file in which the epoch begins.
* `after`, the place up to which the source had committed before the epoch. It is present until the
  source commits in the epoch. If the checkpoint was behind, a Drainer has seen more: the server
  that the source follows now repeats these transactions at other places.

The first epoch of
a source that starts without a checkpoint is the time in milliseconds (`fresh_epoch`). It is above
all epochs that any Drainer has seen of this id, even if etcd was restored and knows less than the
Drainers.

A process that slept, or whose etcd did, loses its lease although no other process claimed it. It
takes the source again when the owner's key is free and the checkpoint is the same that it stored
itself: then no other process had the source in between.

A reload has its own checkpoint, in a file (`FollowFile`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cluster.etcd import EtcdClient, Lease, read, read_prefix, transact
from penstock.cluster.node_registry import SOURCES
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.ts import physical_ms
from penstock.wire.binlog import Origin, Place
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.source.state.skipped import SkippedTable

if TYPE_CHECKING:
    from pumpclient.client import PumpClient
from collections.abc import Callable
from pathlib import Path

from penstock.log.files import replace_file

log = logging.getLogger(__name__)

_WAIT_S = 0.5
_HINT = "restore the key, or delete it and load the tables again (penstock source reload --all)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The position of a source; places are texts as `Location` writes them."""

    epoch: int
    server: str
    done: str
    restart: str = ""
    """Where events must be read again from, when that is before `done` (XA)."""
    gtids: str = ""
    since_s: int = 0
    """Transactions before this time (seconds since 1970) are skipped."""
    skips_known: bool = False
    """True where transactions in `gtids` may be repeated."""
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The state of online DDL."""
    rulings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Operators' overrides by "file:position"."""
    left_out: tuple[SkippedTable, ...] = ()
    """Tables that are skipped, and how much was skipped of any, up to `done`."""
    reloads: int = 0
    """The number of the last requested reload."""
    described: int = 0
    """Digest of the FORMAT_DESCRIPTION of the binlog file of `done`, 0 where that is not known."""
    accepts: str = ""
    """The history of the server that an operator decided to follow from its start."""
    written: str = ""
    """Where the last transaction with rows at or before `done` ends, "" for none of this epoch."""
    loaded: str = ""
    """The place up to which the load has rows of some tables: file number and position; "" for
    none.

    It is of the same server as `done`.
    """
    history: int = 0
    """Digest of the file in which the epoch begins, 0 where that is not known."""
    after: str = ""
    """The last place before the epoch, "epoch:file:position", until the epoch has a commit."""
    cascaded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables that foreign keys may have changed up to `done`, see `CascadedTables`."""
    reloaded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The results of the last reloads, by table: number, rows, time, and where its DROP was
    read.
    """

    @property
    def place(self) -> Location:
        """The position up to which everything is committed."""
        return _place(self.done)

    @property
    def is_within_load(self) -> bool:
        """Return whether events after `done` may already be in the load."""
        place = self.place
        loaded = tuple(map(int, self.loaded.split(":"))) if self.loaded else ()
        return (place.file.number, place.position) < loaded

    @property
    def last(self) -> str:
        """The `after` of an epoch that follows this one."""
        # An epoch without commits is passed over: no Drainer has seen its history.
        return self.after or f"{self.epoch}:{self.place.file.number}:{self.place.position}"

    def epoch_of(self, location: Location) -> int:
        return self.epoch + location.suffix - self.place.suffix

    @property
    def written_place(self) -> Location | None:
        return _place(self.written) if self.written else None

    def origin(
        self, source_id: str, end: Location, gtid: str, written: Location | None = None
    ) -> Origin:
        """Return the origin that ends at `end`; `written` is the field's value before it."""
        assert written is None or written.suffix == end.suffix, "an epoch begins with none"
        epoch = self.epoch_of(end)
        return Origin(
            source=source_id,
            epoch=epoch,
            file=end.file.number,
            position=end.position,
            gtid=gtid,
            previous=None if written is None else (written.file.number, written.position),
            history=self.history,
            after=_after(self.after) if self.after else None,
        )

    @classmethod
    def parse(cls, text: bytes, key: str) -> Checkpoint:
        """Return the stored checkpoint; raise `Malformed` if it is invalid."""
        try:
            fields = json.loads(text)
            left_out = tuple(SkippedTable(**each) for each in fields.pop("left_out", ()))
            known = {name: value for name, value in fields.items() if name in _FIELDS}
            found = cls(**known, left_out=left_out)
            _ = found.place, found.written_place, found.is_within_load
            _ = found.after and _after(found.after)
        except (ValueError, TypeError, AttributeError) as error:
            raise Malformed(
                f"{key} in etcd cannot be read: {error}", _HINT, Code.ETCD_VALUE
            ) from error
        return found


def changed_within_load() -> NeedsOperator:
    """Return the error for another server, whose places cannot be compared with the load."""
    return NeedsOperator(
        "the server was changed or reset before its binlog had passed the load",
        "stop the source and load again: penstock source reload --all",
        Code.SERVER_RESET,
    )


_FIELDS = {each.name for each in fields_of(Checkpoint)}


class Begun(NamedTuple):
    """The last epoch of a source, and whether it had a checkpoint in it."""

    epoch: int = 0
    is_followed: bool = False


def fresh_epoch(client: PumpClient, source: str, known: int = 0) -> int:
    """Return an epoch above `known` and above every epoch ever committed for a source."""
    last = client.last_ddl_origin(source)
    known = max(known, 0 if last is None else last.epoch)
    return max(known + 1, physical_ms(client.session.oracle.get_many(1)[0]))


@lru_cache(maxsize=64)
def _place(text: str) -> Location:
    """Parse a place; cached, because each transaction parses the previous checkpoint's."""
    return Location.parse(text)


@lru_cache(maxsize=64)
def _after(text: str) -> Place:
    epoch, file, position = map(int, text.split(":"))
    return epoch, file, position


class SourceTaken(Retryable):
    """Another process has the source, or had it since we lost it."""


def sources(etcd: EtcdClient) -> list[str]:
    """Return the ids of all sources that have a checkpoint; raises `Retryable`."""
    found, _ = read_prefix(etcd, SOURCES)
    names = [key.removeprefix(SOURCES) for key in found]
    return [name for name in names if "/" not in name]


class SourceStore:
    """One source's checkpoint while this process owns it; `own` first."""

    def __init__(self, etcd: EtcdClient, source_id: str, *, ttl_s: int = 10) -> None:
        """Contact nothing yet. A dead owner keeps the source for `ttl_s` more seconds."""
        if not source_id or "/" in source_id:
            raise NeedsOperator(
                f"source-id is {source_id!r}", "a name without /", Code.SETTING_VALUE
            )
        self._etcd = etcd
        self._ttl_s = ttl_s
        self._key = SOURCES + source_id
        self._owner_key = f"{self._key}/owner"
        self._epoch_key = f"{self._key}/epoch"
        self._keys_key = f"{self._key}/keys"
        self._noted = Begun()
        self.pages_url = ""
        """URL of this process' status pages; must be set before `own`."""
        self._lease: Lease | None = None
        self._created = 0
        self._lock = threading.Lock()
        self._holder = ""
        # Expected values of the checkpoint's key if only this process writes it; two while a save
        # is in doubt.
        self._stored: set[bytes | None] = set()

    def own(self, holder: str) -> None:
        """Take ownership of the source; raise `SourceTaken`, naming its owner."""
        self._take(holder, [])

    def own_again(self) -> None:
        """Retake the source after a lost lease; raise `SourceTaken` if another process had it."""
        found = read(self._etcd, self._key)
        if found not in self._stored:
            raise SourceTaken(
                f"another process has had this source since {self._holder} lost it",
                code=Code.SOURCE_TAKEN,
            )
        do = self._etcd.transactions
        is_same = do.create(self._key) == 0 if found is None else do.value(self._key) == found
        self._take(self._holder, [is_same])

    def _take(self, holder: str, more: list[Any]) -> None:
        lease = Lease(self._etcd, self._ttl_s)
        do = self._etcd.transactions
        try:
            won, answers = transact(
                self._etcd,
                compare=[do.create(self._owner_key) == 0, *more],
                success=[
                    do.put(self._owner_key, holder, lease=lease.id),
                    do.get(self._key),
                    do.put(f"{self._key}/pages", self.pages_url, lease=lease.id),
                    do.get(self._owner_key),
                ],
                failure=[do.get(self._owner_key)],
            )
            owner = answers[-1]
        except BaseException:
            lease.close()
            raise
        if not won:
            lease.close()
            who = owner[0][0].decode() if owner else "another process"
            raise SourceTaken(
                f"{who} runs this source; a dead one is forgotten in {self._ttl_s} s",
                code=Code.SOURCE_TAKEN,
            )
        self._holder, self._lease, self._created = holder, lease, owner[0][1].create_revision
        with self._lock:
            # Read in the same transaction: a lease that ends before the first `load` loses nothing.
            self._stored = {answers[1][0][0] if answers[1] else None}

    def is_ours(self) -> bool:
        """Return whether no other process can own the source, by the local clock."""
        return self._lease is not None and self._lease.is_held()

    def is_lost(self) -> bool:
        """Return whether the source is lost for good, to another process or to none."""
        return self._lease is None or self._lease.is_lost()

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, None before the first; raises `Retryable`, `Malformed`."""
        found = read(self._etcd, self._key)
        return None if found is None else Checkpoint.parse(found, self._key)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, durably; raise `Retryable` when the source is not ours."""
        text = json.dumps(asdict(checkpoint), ensure_ascii=False).encode()
        begun = Begun(checkpoint.epoch, is_followed=True)
        put = self._etcd.transactions.put
        changes = [put(self._key, text)]
        if begun != self._noted:
            changes.append(put(self._epoch_key, json.dumps(begun._asdict())))
        with self._lock:
            self._stored.add(text)
            self._write(changes)
            self._stored = {text}
        self._noted = begun

    def begun(self) -> Begun:
        """Return the last epoch of the source, 0 if etcd has none."""
        found = read(self._etcd, self._epoch_key)
        if found is None:
            return Begun()
        try:
            return Begun(**json.loads(found))
        except (ValueError, TypeError) as error:
            raise Malformed(
                f"{self._epoch_key} in etcd cannot be read: {error}", _HINT, Code.ETCD_VALUE
            ) from error

    def keys(self) -> bytes | None:
        return read(self._etcd, self._keys_key)

    def save_keys(self, text: str) -> None:
        """Replace the foreign keys, durably; raises like `save`."""
        self._write([self._etcd.transactions.put(self._keys_key, text)])

    def begin(self, epoch: int) -> None:
        """Record a new epoch before anything of it is committed; raises like `save`."""
        text = json.dumps(Begun(epoch)._asdict())
        self._write([self._etcd.transactions.put(self._epoch_key, text)])

    def forget(self) -> None:
        """Remove the checkpoint but keep the epoch record; raises like `save`."""
        with self._lock:
            self._write([self._etcd.transactions.delete(self._key)])
            self._stored = {None}

    def _write(self, changes: list[Any]) -> None:
        do = self._etcd.transactions
        done, _ = transact(
            self._etcd, compare=[do.create(self._owner_key) == self._created], success=changes
        )
        if not done:
            raise Retryable(
                f"{self._owner_key} is not ours: this process lost the source", Code.SOURCE_TAKEN
            )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()


def own_once_free(store: SourceStore, stopped: threading.Event) -> None:
    """Take the source, waiting for its owner; raise `Retryable` when stopped first."""
    holder = f"{socket.gethostname()}-{os.getpid()}"
    while True:
        try:
            store.own(holder)
            return
        except Retryable as error:
            log.warning("%s", error)
            if stopped.wait(_WAIT_S):
                raise


def own_once_back(store: SourceStore, stopped: threading.Event) -> None:
    """Retake a lost source; raise `SourceTaken` if another process had it."""
    while not stopped.is_set():
        try:
            store.own_again()
        except SourceTaken:
            raise
        except Retryable as error:
            log.warning("%s", error)
            stopped.wait(_WAIT_S)
        else:
            log.warning(
                "this process, or etcd, was away for longer than lease-s; no other process had the"
                " source meanwhile, so this one continues"
            )
            return


def save_with_retries(store: SourceStore, stopped: threading.Event, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint before anything runs; retake the source if it was lost."""
    while True:
        try:
            return store.save(checkpoint)
        except Retryable:
            if stopped.is_set() or not store.is_lost():
                raise
        own_once_back(store, stopped)


def load_with_retries(store: SourceStore, stopped: threading.Event) -> Checkpoint | None:
    """Return the checkpoint, retrying until etcd answers; None when stopped first."""
    while True:
        try:
            return store.load()
        except Retryable as error:
            log.warning("%s", error)
            if stopped.wait(_WAIT_S):
                return None


class FollowFile:
    """How far a reload has read the binlog; a syncer stores its checkpoint in this file."""

    def __init__(self, path: Path, may_commit: Callable[[], bool]) -> None:
        self._path = path
        self.is_ours = may_commit

    def is_lost(self) -> bool:
        return not self.is_ours()

    def load(self) -> Checkpoint | None:
        try:
            return Checkpoint.parse(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return None

    def save(self, checkpoint: Checkpoint) -> None:
        try:
            replace_file(self._path, json.dumps(asdict(checkpoint)).encode())
        except OSError as error:
            raise NeedsOperator(
                f"{self._path} cannot be written: {error}",
                "free the disk, or its rights",
                Code.PATH_UNUSABLE,
            ) from error
