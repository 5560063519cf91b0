"""Registry: the status that every Pump and Drainer, like TiDB-Binlog's, keeps in etcd.

/tidb-binlog/v1/pumps/<node id>      one JSON object of eight fields each; no lease: a node that
/tidb-binlog/v1/drainers/<node id>   is gone stays listed, and its `updateTS` grows old
/penstock/v1/cluster_id              decimal text, drawn at random by the first that asks, or PD's
/penstock/v1/pd_cluster_id           the same once more, if it is PD's (oracle/client.py)
/penstock/v1/gaps/<drainer>/<pump>   JSON: what a Drainer can never get, the Pump left without it
/penstock/v1/lost/<pump>             a Pump whose disk is gone for good (records.py)
/penstock/v1/silent/<drainer>        decimal: a Drainer's last heartbeat (`Heartbeats`)
/penstock/v1/entered/<pump>          decimal: before this a Pump held nothing that Drainers lacked
/penstock/v1/runs/<pump>             an id of its last start on its folder (pump's identity.py)
/penstock/v1/last_words/<pump>       the data of a cleanly shut down Pump (records.py)
/penstock/v1/sources/<id>            the state of a MySQL source (pumpclient/mysql/source/state)

Whether a node runs is decided by observing whether its entry changes. A heartbeat carries the
cluster's time, which may jump; then the last heartbeat of a running node looks old. So no decision
is based on the apparent age of a heartbeat. A process that decides watches by its monotonic clock
for `SILENT_AFTER_S`, unless a Pump has already done so and recorded the `updateTS` of the heartbeat
after which none came. As long as that is the Drainer's last heartbeat, it has been silent since.
Time counts as watched only between two looks in quick succession, because nodes are not silent when
etcd was away, or when the watching process was stopped.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.cluster.etcd import (
    EtcdClient,
    Watch,
    delete,
    etcd_errors,
    put,
    read,
    read_prefix,
    transact,
)
from penstock.cluster.records import (
    LAST_WORDS,
    LOST,
    Gap,
    LastWord,
    LostPump,
    decimal_in,
    record_text,
    records_below,
    standbys,
)
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.ts import seconds_between

log = logging.getLogger(__name__)

ROOT = "/tidb-binlog/v1"
CLUSTER_ID_KEY = "/penstock/v1/cluster_id"
PD_CLUSTER_ID_KEY = "/penstock/v1/pd_cluster_id"

GAPS = "/penstock/v1/gaps"
ENTERED = "/penstock/v1/entered/"
SILENT = "/penstock/v1/silent/"
RUNS = "/penstock/v1/runs/"
READER = "reader@"
"""Precedes the machine's name in the host of a program that reads the stream."""
SOURCES = "/penstock/v1/sources/"

T = TypeVar("T")
R = TypeVar("R", LostPump, LastWord)


class NodeState(StrEnum):
    """The state of a node, or the state that was requested of it."""

    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"
    STANDBY = "standby"
    """A Drainer that waits for an active Drainer; never in the list that Pumps read."""
    READING = "reading"
    """A program that reads the stream by a name, among the Drainers: Pumps keep binlogs for
    it, and need not notify it, because it lists them itself before each step
    (`drainer.stream`)."""


class NodeKind(StrEnum):
    """The two kinds of node; the value is the folder they are in."""

    PUMP = "pumps"
    DRAINER = "drainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node as etcd knows it.

    `max_commit_ts` is the end of a Pump's sorted stream, or a Drainer's checkpoint. `update_ts` is
    the time of the last heartbeat. Writers choose Pumps by `score` (0 to 1000) and `label`
    (`labels_in`). A reader derives `is_alive` from `update_ts` (`seems_live`). It is stored as
    false, which TiDB-Binlog also does, because a killed node could not take back a true value.
    """

    node_id: str
    host: str
    state: NodeState
    is_alive: bool = False
    score: int = 0
    label: Mapping[str, Any] | None = None
    max_commit_ts: int = 0
    update_ts: int = 0

    @property
    def is_reader(self) -> bool:
        """True for a program that reads the stream by a name; it does not listen anywhere."""
        return self.host.startswith(READER)

    def to_json(self) -> str:
        """Return the eight fields as TiDB-Binlog names and orders them."""
        fields = {
            "nodeId": self.node_id,
            "host": self.host,
            "state": str(self.state),
            "isAlive": self.is_alive,
            "score": self.score,
            "label": self.label,
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> NodeStatus:
        """Parse the output of `to_json` or TiDB-Binlog; absent fields default to zero."""
        try:
            fields = json.loads(text)
            return cls(
                node_id=_field(fields, "nodeId", str, ""),
                host=_field(fields, "host", str, ""),
                state=NodeState(fields.get("state")),
                is_alive=_field(fields, "isAlive", bool, False),
                score=_field(fields, "score", int, 0),
                label=fields.get("label"),
                max_commit_ts=_field(fields, "maxCommitTS", int, 0),
                update_ts=_field(fields, "updateTS", int, 0),
            )
        except (ValueError, AttributeError) as error:
            raise Malformed(
                f"a node's status is {text!r}: {error}",
                "correct or delete its key in etcd",
                Code.ETCD_VALUE,
            ) from error


Statuses = list[NodeStatus]


def _field(fields: Mapping[str, Any], name: str, kind: type[T], absent: T) -> T:
    value = fields.get(name, absent)
    if not isinstance(value, kind) or type(value) is not kind:  # JSON's true is a Python int.
        raise ValueError(f"{name} is not a {kind.__name__}")
    return value


def seems_live(status: NodeStatus, now_ts: int, stale_after_s: float = 10) -> bool:
    """Return whether a node's last heartbeat looks fresh, for display only: clocks may jump.

    Code that decides about a node watches its heartbeats (`Heartbeats`).
    """
    if status.state in (NodeState.PAUSED, NodeState.OFFLINE):
        return False
    return seconds_between(status.update_ts, now_ts) <= stale_after_s


class Cancellable(Protocol):
    """An activity that can be ended."""

    def cancel(self) -> None:
        """Cancel; no callback runs after this returns."""


def refuse_pd(etcd: EtcdClient) -> None:
    """Raise `NeedsOperator` when this etcd's cluster id and timestamps belong to a PD."""
    if (pd_id := read(etcd, PD_CLUSTER_ID_KEY)) is not None:
        raise NeedsOperator(
            f"this etcd is that of the TiDB cluster {pd_id.decode('utf-8', 'replace')}, whose"
            " PD gives the timestamps",
            "give the addresses of its PD: pd-address",
            Code.CLUSTER_MISMATCH,
        )


class EntryGuard(NamedTuple):
    """A key of etcd, and the revision at which the publisher last saw it."""

    key: str
    revision: int


class Registry:
    """The registry in etcd. Blocking, safe to share between threads; failures are Retryable."""

    def __init__(
        self, etcd: EtcdClient, guard: Callable[[], EntryGuard | None] = lambda: None
    ) -> None:
        """With `guard`, publish a Pump's status only while the guard key is unchanged."""
        self._etcd = etcd
        self._guard = guard

    def cluster_id(self) -> int:
        """Return the cluster's id, drawing it if this is the first time anyone asks.

        Raises `NeedsOperator` when it is a PD's: then that PD must be asked (oracle/client.py).
        """
        refuse_pd(self._etcd)
        while True:
            found = read(self._etcd, CLUSTER_ID_KEY)
            if found is not None and found.isdigit():
                return int(found)
            if found is not None:
                hint = f"correct {CLUSTER_ID_KEY} in etcd"
                raise Malformed(f"the cluster id is {found!r}", hint, Code.ETCD_VALUE)
            drawn = secrets.randbits(63) | 1
            with etcd_errors(self._etcd):
                self._etcd.put_if_not_exists(CLUSTER_ID_KEY, str(drawn))

    def put(self, kind: NodeKind, status: NodeStatus) -> None:
        key, text = _prefix(kind) + status.node_id, status.to_json()
        if kind is NodeKind.PUMP:
            operation = self._etcd.transactions.put(key, text)
            self._do_guarded(operation, f"the status of {status.node_id} is not published")
            return
        put(self._etcd, key, text)

    def _do_guarded(self, operation: Any, problem: str) -> None:
        """Run an etcd operation; raise `Retryable` if another Pump owns the log."""
        while True:
            guard = self._guard()
            compare = (
                [] if guard is None else [self._etcd.transactions.mod(guard.key) == guard.revision]
            )
            done, _ = transact(self._etcd, compare=compare, success=[operation])
            if done:
                return
            assert guard is not None
            if self._guard() == guard:  # Otherwise the replica set has changed.
                raise Retryable(f"{problem}, for {guard.key} has changed", Code.LOG_DEPOSED)

    def get(self, kind: NodeKind, node_id: str) -> NodeStatus | None:
        """Return a node's status, None for an unknown node; `Malformed` if it cannot be read."""
        found = read(self._etcd, _prefix(kind) + node_id)
        return None if found is None else NodeStatus.from_json(found)

    def list(self, kind: NodeKind) -> Statuses:
        """Return all nodes of a kind by node id, including nodes long gone."""
        items, _ = read_prefix(self._etcd, _prefix(kind))
        return _statuses(items)

    def standbys(self) -> Statuses:
        """Return the Drainers on standby, which `list` does not include."""
        return [
            NodeStatus(
                node_id=each.node_id,
                host=each.host,
                state=NodeState.STANDBY,
                max_commit_ts=each.checkpoint_ts,
                update_ts=each.update_ts,
            )
            for each in standbys(self._etcd)
        ]

    def put_gap(self, gap: Gap) -> None:
        put(self._etcd, f"{GAPS}/{gap.drainer}/{gap.pump}", record_text(gap))

    def gaps(self, drainer: str) -> Sequence[Gap]:
        found = records_below(self._etcd, f"{GAPS}/{drainer}/", Gap).values()
        return [gap for gap in found if gap.drainer == drainer]

    def put_lost(self, lost: LostPump) -> None:
        put(self._etcd, LOST + lost.pump, record_text(lost))

    def lost(self) -> Mapping[str, LostPump]:
        """Return all Pumps that were declared lost, by node id; Malformed if that is unreadable."""
        return _by_pump(records_below(self._etcd, LOST, LostPump))

    def forget(self, kind: NodeKind, node_id: str) -> None:
        """Remove a node from the registry; do nothing if it is not registered."""
        delete(self._etcd, _prefix(kind) + node_id)

    def put_entered(self, pump: str, ts: int) -> None:
        """Record when a Pump entered the cluster: new, or back after it was offline."""
        put(self._etcd, ENTERED + pump, str(ts))

    def forget_entered(self, pump: str) -> None:
        """Forget the entry time, because all data of the Pump is downstream and it leaves."""
        delete(self._etcd, ENTERED + pump)

    def entered(self) -> Mapping[str, int]:
        """Return when each Pump entered, by node id; Malformed if that is unreadable."""
        return self._decimals(ENTERED)

    def put_silent(self, drainer: NodeStatus) -> None:
        """Record that no heartbeat of a Drainer followed this one for long enough to be sure."""
        put(self._etcd, SILENT + drainer.node_id, str(drainer.update_ts))

    def silent(self) -> Mapping[str, int]:
        """Return the last heartbeat (`update_ts`) of each Drainer found silent, by node id."""
        return self._decimals(SILENT)

    def _decimals(self, prefix: str) -> Mapping[str, int]:
        items, _ = read_prefix(self._etcd, prefix)
        return {key.removeprefix(prefix): decimal_in(key, text) for key, text in items.items()}

    def put_run(self, pump: str, run: str) -> None:
        put(self._etcd, RUNS + pump, run)

    def last_run(self, pump: str) -> str:
        found = read(self._etcd, RUNS + pump)
        return "" if found is None else found.decode("utf-8", "replace")

    def put_last_word(self, word: LastWord) -> None:
        put(self._etcd, LAST_WORDS + word.pump, record_text(word))

    def forget_last_word(self, pump: str) -> None:
        """Withdraw a Pump's last word, because it is about to accept more data."""
        operation = self._etcd.transactions.delete(LAST_WORDS + pump)
        self._do_guarded(operation, f"the last word of {pump} is not withdrawn")

    def last_words(self) -> Mapping[str, LastWord]:
        """Return the last words of Pumps that shut down cleanly; `Malformed` if unreadable."""
        hint = "delete the key, and start that Pump again if a Drainer waits for it"
        return _by_pump(records_below(self._etcd, LAST_WORDS, LastWord, hint=hint))

    def retire(self, status: NodeStatus, word: LastWord) -> bool:
        """Set a Pump offline unless it reported after `status` and `word`; True when done."""
        key, do = _prefix(NodeKind.PUMP) + status.node_id, self._etcd.transactions
        offline = replace(status, state=NodeState.OFFLINE)
        done, _ = transact(
            self._etcd,
            compare=[
                do.value(key) == status.to_json(),
                do.value(LAST_WORDS + word.pump) == record_text(word),
            ],
            success=[do.put(key, offline.to_json()), do.delete(ENTERED + word.pump)],
        )
        return bool(done)

    def watch(self, kind: NodeKind, on_change: Callable[[Statuses], None]) -> Cancellable:
        """Call back with the full list: once before this returns, then after each change.

        Later calls come from a thread of the watch. An outage of etcd delays them and loses none;
        during the first call it is Retryable. A status that cannot be read is Malformed in the
        first list. In a later list it is logged, and the previous list stays in force.
        """
        first = True

        def on_items(items: dict[str, bytes]) -> None:
            nonlocal first
            try:
                statuses = _statuses(items)
            except Malformed:
                if first:
                    raise
                log.exception("ignoring a change of %s", kind)
                return
            first = False
            on_change(statuses)

        return Watch(self._etcd, _prefix(kind), on_items)


def _statuses(items: Mapping[str, bytes]) -> Statuses:
    return [NodeStatus.from_json(items[key]) for key in sorted(items)]


def _by_pump(found: Mapping[str, R]) -> dict[str, R]:
    return {record.pump: record for record in found.values()}


def _prefix(kind: NodeKind) -> str:
    return f"{ROOT}/{kind}/"


SILENT_AFTER_S = 10.0
_LOOK_S_MAX = 3.0
_STOPPED = (NodeState.PAUSED, NodeState.OFFLINE)


@dataclass(slots=True)
class _Watched:
    """A node's last heartbeat, how long it has been the last, and the time of the last look."""

    update_ts: int
    looked_s: float
    silent_s: float = 0.0


class Heartbeats:
    """One process's observations of the nodes of a kind."""

    def __init__(
        self, *, silent_after_s: float = SILENT_AFTER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def note(self, statuses: Iterable[NodeStatus], silent: Mapping[str, int] | None = None) -> None:
        """Record the statuses now in etcd; `silent` holds the findings of Pumps recorded there."""
        now_s = self._clock()
        for status in statuses:
            known = self._watched.get(status.node_id)
            if known is None or known.update_ts != status.update_ts:
                known = self._watched[status.node_id] = _Watched(status.update_ts, now_s)
            known.silent_s += min(now_s - known.looked_s, _LOOK_S_MAX)
            known.looked_s = now_s
            if silent and silent.get(status.node_id) == status.update_ts:
                known.silent_s = self._silent_after_s

    def is_silent(self, status: NodeStatus) -> bool:
        """Return whether no heartbeat has followed this one for long enough to be sure."""
        known = self._watched.get(status.node_id)
        if known is None or known.update_ts != status.update_ts:
            return False
        return known.silent_s >= self._silent_after_s

    def is_live(self, status: NodeStatus) -> bool:
        """Return whether a node may be running: not stopped on purpose and not silent."""
        return status.state not in _STOPPED and not self.is_silent(status)


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse labels such as "zone=a", "disk=fast"; `NeedsOperator` for anything else."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not value or "=" in value:
            raise NeedsOperator(
                f"{text!r} is not a label", "write name=value: zone=a", Code.SETTING_VALUE
            )
        if labels.setdefault(name, value) != value:
            raise NeedsOperator(
                f"the label {name} has two values", "give it once", Code.SETTING_VALUE
            )
    return labels


def published_labels(labels: Mapping[str, str]) -> dict[str, Any] | None:
    return {"labels": dict(labels)} if labels else None


def labels_in(field: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the labels in the field `label` of a status, ignoring invalid labels."""
    found = field.get("labels") if isinstance(field, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
