"""Checkpoint: how far a downstream is, stored in the downstream itself.

It is one row, the cluster's id and JSON, in TiDB-Binlog's shape:

    {"consistent": false, "commitTS": 414529105591271429, "ts-map": {}, "schema-version": 7,
     "ddl-intent": 0, "applying": 0, "writer": "5f1c9a0e22d94b11"}

The first three fields are TiDB-Binlog's, which ignores the others, which are ours. Of a row that
TiDB-Binlog wrote only `commitTS` and `consistent` are read.

* `consistent` is false while a Drainer runs and true after a clean shutdown.
* `ts-map` is for downstreams that have their own timestamps.
* `ddl-intent` is the commit_ts of a DDL that was about to run, 0 if none was. `ddl-before` is a
  digest of its tables' definitions before it, if the downstream has one.
* `applying`, if it is above `commitTS`, is the commit_ts up to which changes may already be
  downstream: a batch of several transactions is, or was, in progress. It stays until `commitTS` has
  passed it.
* `origins` is {source: [epoch, file, position]} if transactions come from sources that name their
  origin: the last transactions that are downstream, so that none is applied twice. Names with a /
  are the ends and the histories of a source's epochs (`drainer.planner`).
* `pumps` are the Pumps for which the merge waited: {node id: 0}, and the Pumps without which it
  continued, with the commit_ts up to which they were received (`drainer.intake.pump_set`).
* `left-out` counts the changes up to `commitTS` that are not downstream
  (`drainer.differences`).
* `overrides` are the operator's overrides of DDL, by commit_ts (`drainer.differences`).
  `all-overrides` says that they include the overrides of future DDL, which an older version stored
  elsewhere.
* `ahead` is {job id: schema version} of the DDL that has run before its binlog came
  (`drainer.ddl.catch_up`).
* `writer` names the run of the Drainer that wrote the row.

`writer` detects two Drainers on one downstream. Every transaction first locks the row and compares
its text with the text that this run last knew. If they are equal, the transaction continues. If the
row equals the text that this run is writing, an earlier attempt did commit, and its answer was
lost. The same writer with any other text means that an operator has changed the overrides, or that
the previous run had not ended when the row was read; the row must be read again. Any other writer
is another Drainer, and this Drainer must stop.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainer.differences import Override, Totals, from_lists, in_force, to_lists
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.wire.binlog import Place


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything up to `commit_ts` is downstream, and nothing after both it and `applying_ts`."""

    commit_ts: int
    schema_version: int
    consistent: bool = False
    ddl_intent_ts: int = 0
    ddl_before: str = ""
    """The sink's description of the tables before that DDL; empty if unknown."""
    applying_ts: int = 0
    origins: Mapping[str, Place] = field(default_factory=dict, hash=False)
    pumps: Mapping[str, int] = field(default_factory=dict, hash=False)
    skipped: Totals = field(default_factory=dict, hash=False)
    overrides: Mapping[int, Override] | None = field(default=None, hash=False)
    """None in a checkpoint of an older version, which stored them elsewhere."""
    has_all_overrides: bool = False
    """False if an older version stored the overrides of future DDL elsewhere."""
    ahead: Mapping[int, int] = field(default_factory=dict, hash=False)
    """DDL jobs that are downstream before their binlog, with their schema versions."""
    writer: str = field(default="", compare=False)
    """The run that stored it; empty if it is not yet stored, or is TiDB-Binlog's."""
    is_torn: bool = field(default=False, compare=False)
    """True of TiDB-Binlog's after an unclean shutdown: parts of later changes may be downstream."""

    @property
    def is_between(self) -> bool:
        """True if a batch may be partly in the downstream."""
        return self.applying_ts > self.commit_ts

    def overrides_with(self, recorded: Mapping[int, Override]) -> dict[int, Override]:
        """Return all overrides; `recorded` were kept elsewhere by an older version."""
        if self.has_all_overrides:
            return dict(self.overrides or {})
        return in_force(recorded, self.overrides, self.commit_ts)

    def to_json(self, writer: str) -> str:
        fields: dict[str, Any] = {
            "consistent": self.consistent,
            "commitTS": self.commit_ts,
            "ts-map": {},
            "schema-version": self.schema_version,
            "ddl-intent": self.ddl_intent_ts,
            "applying": self.applying_ts,
        }
        if self.ddl_intent_ts and self.ddl_before:
            fields["ddl-before"] = self.ddl_before
        if self.origins:
            fields["origins"] = self.origins
        if self.pumps:
            fields["pumps"] = self.pumps
        if self.ahead:
            fields["ahead"] = self.ahead
        if self.skipped:
            fields["left-out"] = to_lists(self.skipped)
        if self.overrides is not None:
            fields["overrides"] = {ts: each.to_json() for ts, each in self.overrides.items()}
            fields["all-overrides"] = self.has_all_overrides
        return json.dumps(fields | {"writer": writer})

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Return the checkpoint in `text`, TiDB-Binlog's included; raise `Malformed`."""
        try:
            return cls.from_fields(json.loads(text))
        except ValueError as error:
            raise _unreadable(text, "it is not JSON") from error

    @classmethod
    def from_fields(cls, stored: Any) -> Checkpoint:
        """Return the checkpoint in decoded fields; raise `Malformed`, and never guess."""
        if not isinstance(stored, dict) or "commitTS" not in stored:
            raise _unreadable(stored, "it has no commitTS")
        consistent = stored.get("consistent", False)
        if not isinstance(consistent, bool):
            raise _unreadable(stored, "consistent is neither true nor false")
        ahead = _numbers(stored, "ahead")
        if not all(map(str.isdecimal, ahead)):
            raise _unreadable(stored, f"ahead is {ahead!r}")
        return cls(
            commit_ts=_number(stored, "commitTS"),
            schema_version=_number(stored, "schema-version"),
            consistent=consistent,
            ddl_intent_ts=_number(stored, "ddl-intent"),
            ddl_before=str(stored.get("ddl-before", "")),
            applying_ts=_number(stored, "applying"),
            origins=_origins(stored),
            pumps=_numbers(stored, "pumps"),
            skipped=_skipped(stored),
            overrides=_overrides(stored),
            has_all_overrides=stored.get("all-overrides") is True,
            ahead={int(job_id): version for job_id, version in ahead.items()},
            writer=str(stored.get("writer", "")),
            is_torn=stored.get("consistent") is False and "writer" not in stored,
        )


def _number(stored: dict[str, Any], name: str) -> int:
    value = stored.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise _unreadable(stored, f"{name} is {value!r}")
    return value


def _origins(stored: dict[str, Any]) -> dict[str, Place]:
    found = stored.get("origins", {})
    places: dict[str, Place] = {}
    for source, place in found.items() if isinstance(found, dict) else [("", None)]:
        if not isinstance(place, list) or len(place) != 3:
            raise _unreadable(stored, f"origins are {found!r}")
        named = dict(zip(("epoch", "file", "position"), place, strict=True))
        epoch, file, position = (_number(named, name) for name in named)
        places[source] = (epoch, file, position)
    return places


def _numbers(stored: dict[str, Any], name: str) -> dict[str, int]:
    found = stored.get(name, {})
    if not isinstance(found, dict):
        raise _unreadable(stored, f"{name} are {found!r}")
    return {key: _number(found, key) for key in found}


def _skipped(stored: dict[str, Any]) -> Totals:
    try:
        return from_lists(stored.get("left-out", []))
    except (TypeError, ValueError) as error:
        raise _unreadable(stored, f"left-out: {error}") from error


def _overrides(stored: dict[str, Any]) -> dict[int, Override] | None:
    if "overrides" not in stored:
        return None
    try:
        items = stored["overrides"].items()
        return {int(ts): Override.from_json(int(ts), fields) for ts, fields in items}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(stored, f"overrides: {error!r}") from error


def _unreadable(stored: object, why: str) -> Malformed:
    return Malformed(
        f"the checkpoint {stored!r} is damaged: {why}",
        "put back the commitTS up to which the downstream has everything; or, for a "
        "downstream restored from a copy, remove the checkpoint and give its initial-commit-ts",
        Code.CHECKPOINT_DAMAGED,
    )


class TakenOver(NeedsOperator):
    """Another run wrote the checkpoint of this downstream, so this run must not."""


class Overridden(TakenOver):
    """An operator changed overrides: read the checkpoint again and continue."""


OverrideChange = Callable[[Checkpoint], Mapping[int, Override]]
"""Returns the new overrides for the current checkpoint; it may be called again."""


def overridden(stored: str | None, change: OverrideChange) -> str:
    """Return the row with other overrides; it keeps the name of its writer.

    The definitions recorded before a DDL in doubt do not apply to another statement.
    """
    last = Checkpoint(0, 0) if stored is None else Checkpoint.from_json(stored)
    made, had = change(last), last.overrides or {}
    is_other = any(made.get(ts) != had.get(ts) for ts in {*made, *had} if ts > last.commit_ts)
    changed = replace(
        last, overrides=made, has_all_overrides=True, ddl_before="" if is_other else last.ddl_before
    )
    return changed.to_json(last.writer)


def went_back(found: Checkpoint | None, known_ts: int) -> NeedsOperator:
    has = "has no checkpoint" if found is None else f"has its checkpoint at {found.commit_ts}"
    accepts = (
        "the commit_ts of that copy"
        if found is None
        else f"{found.commit_ts} if this older state is right as it is"
    )
    return NeedsOperator(
        f"the downstream {has}, and this Drainer had brought it to {known_ts}: it was emptied,"
        " replaced, or restored from a backup",
        "put it back as it was; or restore a copy, its checkpoint included, and start the"
        f" Drainer with initial-commit-ts = {accepts}",
        Code.CHECKPOINT_GONE,
    )


def of_another_cluster(cluster: object, others: Sequence[object], place: str) -> NeedsOperator:
    return NeedsOperator(
        f"the downstream is that of cluster {', '.join(map(str, others))} and has no checkpoint of"
        f" cluster {cluster}, which --etcd-urls leads to",
        "check --etcd-urls and the downstream's address; if etcd was set up again for the same"
        " cluster, restore it, its cluster id included; two clusters that shall share one"
        f" downstream need a {place} each",
        Code.CHECKPOINT_CLUSTER,
    )


def own_row(
    stored: Callable[[], str | None], others: Callable[[], list[Any]], cluster: object, place: str
) -> str | None:
    """Return this cluster's row; raise `NeedsOperator` if only other clusters have one."""
    found = stored()
    if found is None and (clusters := others()):
        found = stored()  # Our row may exist by now: another Drainer also starts here.
        if found is None:
            raise of_another_cluster(cluster, clusters, place)
    return found


class Ledger:
    """This run's knowledge of the stored row; does no I/O itself."""

    def __init__(self) -> None:
        self.writer = secrets.token_hex(8)
        self._known: str | None = None
        self._attempted: str | None = None
        self.is_loaded = False

    def loaded(self, stored: str | None) -> Checkpoint | None:
        """Adopt the stored row as the point to continue from."""
        checkpoint = None if stored is None else Checkpoint.from_json(stored)
        self._known = stored
        self.is_loaded = True
        return checkpoint

    @property
    def has_no_row(self) -> bool:
        return self._known is None

    @property
    def is_new(self) -> bool:
        """True if no Drainer has stored a checkpoint yet; at most overrides exist."""
        last = self.last
        return last is None or (not last.writer and not last.commit_ts)

    @property
    def last(self) -> Checkpoint | None:
        """The last checkpoint that this run knew to be stored."""
        return None if self._known is None else Checkpoint.from_json(self._known)

    def attempt(self, checkpoint: Checkpoint) -> tuple[str, bool]:
        """Return the text to store, and whether an earlier attempt may have stored it.

        An earlier attempt may have if the caller abandoned this very checkpoint before, with
        `Retryable`.
        """
        text = self._kept(checkpoint).to_json(self.writer)
        doubtful = self._attempted == text
        self._attempted = text
        return text, doubtful

    def is_written(self, stored: str | None, new_text: str, *, retried: bool) -> bool:
        """Return whether an earlier attempt has stored the text, by the row that is now locked.

        Raises `NeedsOperator` if another Drainer wrote the row.
        """
        assert self.is_loaded, "a sink loads the checkpoint before it writes one"
        if stored == self._known:
            return False
        if retried and stored == new_text:
            return True
        raise self._taken_over(stored)

    def wrote(self, text: str) -> None:
        self._known = text
        self._attempted = None

    def applying(self, checkpoint: Checkpoint, start: Checkpoint) -> Checkpoint:
        """Return the row to store before the parts of the batch that ends at `checkpoint`.

        `start` is the position of a downstream without a row.
        """
        last = self.last or start
        return replace(last, consistent=False, applying_ts=checkpoint.commit_ts)

    def check(self, stored: str | None) -> None:
        """Raise `NeedsOperator` unless the row is the last that this run wrote."""
        if not self.is_loaded or stored != self._known:
            raise self._taken_over(stored)

    def _kept(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint to store; `applying_ts` stays until it is passed.

        An intent that stays keeps its tables' definitions.
        """
        last = self.last
        if last is not None and last.ddl_intent_ts == checkpoint.ddl_intent_ts:
            checkpoint = replace(checkpoint, ddl_before=checkpoint.ddl_before or last.ddl_before)
        if last is None or last.applying_ts <= max(checkpoint.commit_ts, checkpoint.applying_ts):
            return checkpoint
        return replace(checkpoint, applying_ts=last.applying_ts, consistent=False)

    def _taken_over(self, stored: str | None) -> NeedsOperator:
        last = self.last
        found = None if stored is None else Checkpoint.from_json(stored)
        if last is not None and (found is None or found.commit_ts < last.commit_ts):
            # No Drainer stores less than it has read, so the downstream itself was replaced.
            return went_back(found, last.commit_ts)
        # Only a run itself writes under its name, and an operator keeps that name.
        known = {self.writer, "" if last is None else last.writer}
        if found is not None and found.writer in known:
            return Overridden(
                "the checkpoint is not as this Drainer read it: an operator changed the"
                " overrides of DDL, or the Drainer before it was still writing",
                hint="start the Drainer again: it reads them again",
                code=Code.OVERRIDES_CHANGED,
            )
        return TakenOver(
            f"the downstream's checkpoint is {stored!r}, this Drainer last knew {self._known!r}",
            hint="another Drainer writes to the same downstream; stop one of them",
            code=Code.CHECKPOINT_TAKEN,
        )

    def intent(self, checkpoint: Checkpoint, before: str = "") -> Checkpoint:
        """Return the row to store before the DDL that ends at `checkpoint` runs.

        `before` is as `ddl_before`.
        """
        last = self.last or Checkpoint(commit_ts=0, schema_version=0)
        ts = checkpoint.commit_ts
        return replace(last, consistent=False, ddl_intent_ts=ts, ddl_before=before)
