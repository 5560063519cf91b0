"""Heartbeats: decides which nodes run, by observing whether their entries in etcd change.

A heartbeat carries the cluster's time, which may jump; then the last heartbeat of a running node
looks old. So no decision is based on the apparent age of a heartbeat. A process that decides
watches by its monotonic clock for `SILENT_AFTER_S`, unless a Pump has already done so:

    /penstock/v1/silent/<drainer>   decimal: `updateTS` of the heartbeat after which a Pump has
                                    watched for so long, and none came

As long as that is the Drainer's last heartbeat, it has been silent since. Time counts as watched
only between two looks in quick succession, because nodes are not silent when etcd was away, or when
the watching process was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.cluster.node_registry import NodeState, NodeStatus

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
        self,
        *,
        silent_after_s: float = SILENT_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
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
