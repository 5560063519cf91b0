"""Pumps whose disk is gone for ever, as an operator has declared them.

/penstock/v1/lost/<pump>   JSON: the fields of `LostPump`; never deleted

The word is kept for good: a Drainer that starts later must know what it cannot get, and a Pump that
comes back under this name would be read from a place where everybody has passed already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import Malformed, NeedsOperator

LOST = "/penstock/v1/lost/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPump:
    """What a Pump held after `after_ts` is given up; no commit there has a timestamp above
    `up_to_ts`, the cluster's time at the decision, unless its writer ended it only later.
    """

    pump: str
    after_ts: int
    up_to_ts: int
    made: str
    """When, for people: ISO 8601."""

    def to_json(self) -> str:
        """Return what is stored."""
        return json.dumps(asdict(self))

    def check_drainer(self, received_ts: int) -> None:
        """Raise `NeedsOperator` when a Drainer would lose more than was accepted.

        It has the Pump's binlogs up to `received_ts`.
        """
        if received_ts < self.after_ts:
            raise NeedsOperator(
                f"Pump {self.pump} was declared lost after {self.after_ts}, but this Drainer has"
                f" its binlogs only up to {received_ts}: those in"
                f" ({received_ts}, {self.up_to_ts}] are gone for ever",
                hint="restore the downstream from a backup of a later commit_ts; or give them up"
                f" too: binlogctl lost-pump {self.pump} --accept-loss-after {received_ts}",
            )

    def refuse_return(self) -> NeedsOperator:
        """Return the error for a Pump that comes back under this name."""
        return NeedsOperator(
            f"the Pump {self.pump} was declared lost at {self.made}: Drainers have gone on without"
            f" what it holds after {self.after_ts}, and nobody would read what it takes now",
            hint="start a new Pump: an empty --data-dir and another --node-id; the log of this one"
            " can be read with `binlogctl dump`",
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
            raise Malformed(f"{key} is {text!r}: {error}", hint="correct it in etcd") from error
        found[lost.pump] = lost
    return found
