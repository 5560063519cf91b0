"""Departed Pumps: the last word of a Pump that shut down cleanly, and the loss of a Pump's disk.

/penstock/v1/last_words/<pump>   JSON: the fields of `LastWord`; gone while the Pump runs
/penstock/v1/lost/<pump>         JSON: the fields of `LostPump`; never deleted

Anybody can write a state in etcd, but only the Pump knows its data. A Drainer therefore releases an
offline Pump by its last word, and never by its state alone. The last word is written when the Pump
accepts nothing more, and removed before a starting Pump accepts anything. While it exists, it
holds. A Pump that was killed leaves none.

An operator declares a loss, and the declaration is kept for good. A Drainer that starts later must
know which binlogs it cannot get. A Pump that comes back under this name would be read from a place
that all Drainers have already passed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator

LAST_WORDS = "/penstock/v1/last_words/"


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

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def last_words(items: Mapping[str, bytes]) -> dict[str, LastWord]:
    """Read last words from their etcd keys; `Malformed` names a key that cannot be read."""
    found = {}
    for key, text in items.items():
        try:
            word = LastWord(**json.loads(text))
            if type(word.up_to_ts) is not int or type(word.open_count) is not int:
                raise ValueError("timestamps and counts are numbers")
        except (ValueError, TypeError) as error:
            raise Malformed(
                f"{key} is {text!r}: {error}",
                hint="delete the key, and start that Pump again if a Drainer waits for it",
                code=Code.ETCD_VALUE,
            ) from error
        found[word.pump] = word
    return found


LOST = "/penstock/v1/lost/"


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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def check_drainer(self, received_ts: int) -> None:
        """Raise `NeedsOperator` when a Drainer would lose more than was accepted.

        It has the Pump's binlogs up to `received_ts`.
        """
        if received_ts < self.after_ts:
            raise NeedsOperator(
                f"Pump {self.pump} was declared lost after {self.after_ts}, but this Drainer has"
                f" its binlogs only up to {received_ts}: those in"
                f" ({received_ts}, {self.up_to_ts}] are gone",
                hint="restore the downstream from a backup of a later commit_ts; or give them up"
                f" too: penstock ctl lost-pump {self.pump} --accept-loss-after {received_ts}",
                code=Code.LOST_BINLOGS_NEEDED,
            )

    def refuse_return(self) -> NeedsOperator:
        """Return the error for a Pump that comes back under this name."""
        return NeedsOperator(
            f"the Pump {self.pump} was declared lost at {self.made}: Drainers have gone on without"
            f" what it holds after {self.after_ts}, and no one would read what it takes now",
            hint="start a new Pump: an empty --data-dir and another --node-id; the log of this one"
            " can be read with `penstock ctl dump`",
            code=Code.DATA_DIR_OTHER,
        )


def lost_pumps(items: Mapping[str, bytes]) -> dict[str, LostPump]:
    """Read the decisions from their keys in etcd; `Malformed` names a key that cannot be read."""
    found = {}
    for key, text in items.items():
        try:
            fields: dict[str, Any] = json.loads(text)
            lost = LostPump(**fields)
            if type(lost.after_ts) is not int or type(lost.up_to_ts) is not int:
                raise ValueError("timestamps are numbers")
        except (ValueError, TypeError) as error:
            raise Malformed(
                f"{key} is {text!r}: {error}", hint="correct it in etcd", code=Code.ETCD_VALUE
            ) from error
        found[lost.pump] = lost
    return found
