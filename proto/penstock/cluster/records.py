"""Records: dataclasses that etcd keeps as JSON objects with the same fields.

/penstock/v1/last_words/<pump>       `LastWord`; gone while the Pump runs
/penstock/v1/lost/<pump>             `LostPump`; never deleted
/penstock/v1/gaps/<drainer>/<pump>   `Gap`
/penstock/v1/drainer-runs/<writer>   `DrainerRun`, under a lease of the run
/penstock/v1/drainer-runs-of-a-day/<writer>   the same, for a day after the run was listed
/penstock/v1/standbys/<node id>      `Standby`, under a lease as well
/penstock/v1/drainer-stops/<node id>   `DrainerStop`, until it runs again

*Departed Pumps.* Anybody can write a state in etcd, but only the Pump knows its data. A Drainer
therefore releases an offline Pump by its last word, and never by its state alone. The last word is
written when the Pump accepts nothing more, and removed before a starting Pump accepts anything.
While it exists, it holds. A Pump that was killed leaves none. An operator declares a loss, and the
declaration is kept for good. A Drainer that starts later must know which binlogs it cannot get. A
Pump that comes back under this name would be read from a place that all Drainers have passed.

*Runs of Drainers.* `<writer>` is the random name that the run puts into the downstream's checkpoint
with each commit. The downstream itself therefore identifies its writer, whatever its URL looks
like, and etcd shows whether that run still holds its lease. The second key proves to a fenced
Drainer whose successor ended as well that both are of this cluster: a run of another cluster is
never listed here. Standbys are listed apart from the Drainers, because Pumps keep binlogs for
Drainers. A Drainer that needs an operator ends its process, and its log may be on another machine,
so its stop reason and the possible choices are kept where everybody can read them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from penstock.cluster.etcd import EtcdClient, delete, put, read, read_prefix
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator

LAST_WORDS = "/penstock/v1/last_words/"
LOST = "/penstock/v1/lost/"
RUNS = "/penstock/v1/drainer-runs/"
_RUNS_OF_A_DAY = "/penstock/v1/drainer-runs-of-a-day/"
_DAY_S = 24 * 60 * 60
STANDBYS = "/penstock/v1/standbys/"
STOPS = "/penstock/v1/drainer-stops/"

_IN_ETCD = "correct it in etcd"
_KINDS = {"int": int, "str": str, "bool": bool}

T = TypeVar("T")


def record_text(record: Any) -> str:
    return json.dumps(asdict(record))


def record_of(kind: type[T], key: str, text: bytes, *, hint: str = _IN_ETCD) -> T:
    """Return the record in the value of a key; `Malformed` names the key."""
    try:
        found = json.loads(text)
        for each in fields(kind):  # type: ignore[arg-type]
            # The type is its name where annotations are not evaluated.
            name = str(getattr(each.type, "__name__", each.type))
            wanted = _KINDS.get(name)
            if wanted and each.name in found and type(found[each.name]) is not wanted:
                raise ValueError(f"{each.name} is not of type {name}")
        return kind(**found)
    except (ValueError, TypeError) as error:
        raise Malformed(f"{key} is {text!r}: {error}", hint, Code.ETCD_VALUE) from error


def decimal_in(key: str, text: bytes) -> int:
    if not text.isdigit():
        raise Malformed(
            f"{key} in etcd is {text!r}", "it must be a decimal number", Code.ETCD_VALUE
        )
    return int(text)


def records_below(
    etcd: EtcdClient, prefix: str, kind: type[T], *, hint: str = _IN_ETCD
) -> dict[str, T]:
    """Return all records below a prefix, in the order of their keys and by the rest of the key."""
    items, _ = read_prefix(etcd, prefix)
    found = {key: record_of(kind, key, items[key], hint=hint) for key in sorted(items)}
    return {key.removeprefix(prefix): record for key, record in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """A stopped Pump holds no transaction with a commit_ts above `up_to_ts`, unless some are open.

    `open_count` is the number of Prewrites that still lack their Commit or Rollback. `up_to_ts` is
    zero if the Pump holds nothing.
    """

    pump: str
    up_to_ts: int
    open_count: int
    made: str
    """When, for people: ISO 8601."""

    @property
    def is_final(self) -> bool:
        """True when the data that the Pump holds cannot grow unless it restarts."""
        return self.open_count == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPump:
    """A Pump whose binlogs after `after_ts` are declared lost.

    No commit there has a timestamp above `up_to_ts`, the cluster's time at the decision, unless its
    writer ended it only later.
    """

    pump: str
    after_ts: int
    up_to_ts: int
    made: str
    """When, for people: ISO 8601."""

    def check_drainer(self, received_ts: int) -> None:
        """Raise `NeedsOperator` when a Drainer would lose more than was accepted.

        It has the Pump's binlogs up to `received_ts`.
        """
        if received_ts < self.after_ts:
            raise NeedsOperator(
                f"Pump {self.pump} was declared lost after {self.after_ts}, but this Drainer has"
                f" its binlogs only up to {received_ts}: those in"
                f" ({received_ts}, {self.up_to_ts}] are gone",
                "restore the downstream from a backup of a later commit_ts; or give them up"
                f" too: penstock ctl lost-pump {self.pump} --accept-loss-after {received_ts}",
                Code.LOST_BINLOGS_NEEDED,
            )

    def refuse_return(self) -> NeedsOperator:
        return NeedsOperator(
            f"the Pump {self.pump} was declared lost at {self.made}: Drainers have gone on without"
            f" what it holds after {self.after_ts}, and no one would read what it takes now",
            "start a new Pump: an empty --data-dir and another --node-id; the log of this one"
            " can be read with `penstock ctl dump`",
            Code.DATA_DIR_OTHER,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Binlogs in (after_ts, up_to_ts] of a Pump that left without waiting for a Drainer."""

    drainer: str
    pump: str
    after_ts: int
    up_to_ts: int


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


_DELETE = "delete it in etcd"


def key_of(entry: DrainerRun | Standby, writer: str) -> str:
    return STANDBYS + entry.node_id if isinstance(entry, Standby) else RUNS + writer


def run_named(etcd: EtcdClient, writer: str) -> DrainerRun | None:
    found = read(etcd, RUNS + writer)
    return None if found is None else record_of(DrainerRun, RUNS + writer, found, hint=_DELETE)


def remember_run(etcd: EtcdClient, writer: str, run: DrainerRun) -> None:
    """Record for a day that this cluster has the run, whether it still writes or not."""
    put(etcd, _RUNS_OF_A_DAY + writer, record_text(run), ttl_s=_DAY_S)


def is_remembered(etcd: EtcdClient, writer: str) -> bool:
    return read(etcd, _RUNS_OF_A_DAY + writer) is not None


def standbys(etcd: EtcdClient) -> Sequence[Standby]:
    return list(records_below(etcd, STANDBYS, Standby, hint=_DELETE).values())


def put_stop(etcd: EtcdClient, stop: DrainerStop) -> None:
    put(etcd, STOPS + stop.node_id, json.dumps(asdict(stop), ensure_ascii=False))


def forget_stop(etcd: EtcdClient, node_id: str) -> None:
    delete(etcd, STOPS + node_id)


def stops(etcd: EtcdClient) -> Sequence[DrainerStop]:
    """Return the stop reason of each Drainer that waits for an operator, by node id."""
    return list(records_below(etcd, STOPS, DrainerStop, hint=_DELETE).values())
