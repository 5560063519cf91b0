"""What a Pump says as it stops in order: up to where it holds transactions, and that none is open.

/penstock/v1/last_words/<pump>   JSON: the fields of `LastWord`; gone while the Pump runs

A state in etcd can be written by anybody; what a Pump holds, only the Pump knows. So a Drainer lets
an offline Pump go by its last word, and never by its state alone. It is written when nothing can be
taken any more, and removed before a Pump that starts takes anything: while it is there, it holds.
A Pump that was killed has left none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from penstock.errors import Malformed

LAST_WORDS = "/penstock/v1/last_words/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """A stopped Pump holds no transaction with a commit_ts above `up_to_ts`, unless some are open.

    `open_count` is how many Prewrites still lack their Commit or Rollback. Zero in `up_to_ts`:
    it holds nothing.
    """

    pump: str
    up_to_ts: int
    open_count: int
    made: str
    """When, for people: ISO 8601."""

    @property
    def is_final(self) -> bool:
        """True when nothing can be added to what the Pump holds unless it starts again."""
        return self.open_count == 0

    def to_json(self) -> str:
        """Return what is stored."""
        return json.dumps(asdict(self))


def last_words(items: Mapping[str, bytes]) -> dict[str, LastWord]:
    """Read them from their keys in etcd; `Malformed` names a key that cannot be read."""
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
            ) from error
        found[word.pump] = word
    return found
