"""What the pipeline asks of whatever it is fed from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from drainer.intake.merger import Merged


class Feed(Protocol):
    """Where the merger's binlogs come from."""

    arrived: asyncio.Event
    """Set when the merger got something; the pipeline also sets it to wake itself."""

    def taken(self) -> None:
        """Note that the merger was taken from: there may be room again."""

    def standing(self) -> Mapping[str, int]:
        """Return who takes part in the merge, for the checkpoint."""


class Merge(Protocol):
    """The merged stream: `drainer.intake.merger`, or one that was stored."""

    def take(self) -> Merged | None:
        """Return the next run of it, None when there is none yet."""


class Schemas(Protocol):
    """What the pipeline asks of the schema tracker."""

    @property
    def version(self) -> int:
        """The schema version after everything followed so far."""
