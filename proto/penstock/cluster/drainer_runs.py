"""Drainer runs: records the run that writes a downstream, the standby Drainers, and stop reasons.

/penstock/v1/drainer-runs/<writer>   JSON: the fields of `DrainerRun`, under a lease of the run
/penstock/v1/drainer-runs-of-a-day/<writer>   the same, for a day after the run was listed
/penstock/v1/standbys/<node id>     JSON: the fields of `Standby`, under a lease as well
/penstock/v1/drainer-stops/<node id>   JSON: the fields of `DrainerStop`, until it runs again

`<writer>` is the random name that the run puts into the downstream's checkpoint with each commit.
The downstream itself therefore identifies its writer, whatever its URL looks like, and etcd shows
whether that run still holds its lease. The second key proves to a fenced Drainer whose successor
ended as well that both are of this cluster: a run of another cluster is never listed here. Standbys
are listed apart from the Drainers, because Pumps keep binlogs for Drainers. A Drainer that needs an
operator ends its process, and its log may be on another machine, so its stop reason and the
possible choices are kept where everybody can read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from penstock.cluster.etcd import EtcdClient, etcd_errors, read, read_prefix
from penstock.cluster.lease import Lease
from penstock.codes import Code
from penstock.errors import Malformed

RUNS = "/penstock/v1/drainer-runs/"
_RUNS_OF_A_DAY = "/penstock/v1/drainer-runs-of-a-day/"
_DAY_S = 24 * 60 * 60
STANDBYS = "/penstock/v1/standbys/"
STOPS = "/penstock/v1/drainer-stops/"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerRun:
    """A run that writes a downstream: its Drainer and its address."""

    node_id: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A Drainer that waits for `active` to end; `checkpoint_ts` is the downstream's, as it sees."""

    node_id: str
    host: str
    active: str
    writer: str
    checkpoint_ts: int
    update_ts: int
    tasks: int = 0
    """The number of Spark tasks that it has ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerStop:
    """The reason why a Drainer ended and waits for an operator; `made` is the time in RFC 3339.

    `choices` are the possible decisions, each with its consequences, the safest first.
    """

    node_id: str
    made: str
    problem: str
    hint: str
    choices: tuple[str, ...] = ()


class Entry(Protocol):
    """Keys in etcd that exist for as long as their owner runs."""

    def put(self, key: str, value: str) -> None:
        """Write a key; `Retryable` when that fails."""

    def is_lost(self) -> bool: ...

    def close(self) -> None: ...


class LeasedEntry:
    """Keys that vanish `ttl_s` after this process stops."""

    def __init__(self, etcd: EtcdClient, ttl_s: int) -> None:
        """Ask etcd for a lease; `Retryable` when it does not answer."""
        self._etcd = etcd
        self._lease = Lease(etcd, ttl_s)

    def put(self, key: str, value: str) -> None:
        with etcd_errors(self._etcd):
            self._etcd.put(key, value, lease=self._lease.id)

    def is_lost(self) -> bool:
        return self._lease.is_lost()

    def close(self) -> None:
        self._lease.close()


def key_of(entry: DrainerRun | Standby, writer: str) -> str:
    return STANDBYS + entry.node_id if isinstance(entry, Standby) else RUNS + writer


def text_of(entry: DrainerRun | Standby) -> str:
    return json.dumps(asdict(entry))


def run_named(etcd: EtcdClient, writer: str) -> DrainerRun | None:
    found = read(etcd, RUNS + writer)
    return None if found is None else _parsed(lambda fields: DrainerRun(**fields), RUNS, found)


def remember_run(etcd: EtcdClient, writer: str, run: DrainerRun) -> None:
    """Record for a day that this cluster has the run, whether it still writes or not."""
    with etcd_errors(etcd):
        etcd.put(_RUNS_OF_A_DAY + writer, text_of(run), lease=etcd.lease(_DAY_S).id)


def is_remembered(etcd: EtcdClient, writer: str) -> bool:
    return read(etcd, _RUNS_OF_A_DAY + writer) is not None


def standbys(etcd: EtcdClient) -> Sequence[Standby]:
    items, _ = read_prefix(etcd, STANDBYS)
    return [_parsed(lambda fields: Standby(**fields), key, items[key]) for key in sorted(items)]


def put_stop(etcd: EtcdClient, stop: DrainerStop) -> None:
    """Record why a Drainer stopped, replacing an earlier reason."""
    with etcd_errors(etcd):
        etcd.put(STOPS + stop.node_id, json.dumps(asdict(stop), ensure_ascii=False))


def forget_stop(etcd: EtcdClient, node_id: str) -> None:
    """Withdraw the stop reason, because the Drainer runs again."""
    with etcd_errors(etcd):
        etcd.delete(STOPS + node_id)


def stops(etcd: EtcdClient) -> Sequence[DrainerStop]:
    """Return the stop reason of each Drainer that waits for an operator, by node id."""
    items, _ = read_prefix(etcd, STOPS)
    return [_parsed(lambda fields: DrainerStop(**fields), key, items[key]) for key in sorted(items)]


def _parsed(make: Callable[[Any], T], key: str, text: bytes) -> T:
    try:
        return make(json.loads(text))
    except (ValueError, TypeError) as error:
        raise Malformed(
            f"{key} is {text!r}: {error}", hint="delete it in etcd", code=Code.ETCD_VALUE
        ) from error
