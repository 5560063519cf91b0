"""Detects lost DDL: a DDL that is in a Pump's stream, but not in the DDL history in etcd.

A DDL enters the history before it is committed on a Pump. If the history does not contain a DDL of
the stream, etcd was restored from an older backup. A writer would then continue with the tables as
they were before that DDL, and its next DDL would start a second history. Each Pump reports the
newest DDL of its log. A writer asks all online Pumps before its first transaction and, under the
DDL lock, before each DDL. It writes nothing while the newest of these DDLs is lost, unless an
operator has given that DDL up (`penstock ctl lost-ddl`).

Not checked are Pumps that do not answer (a stopped Pump must not block DDL on all others), Pumps of
older versions, and DDL of a TiDB, whose history is not in etcd. In every case a Drainer compares
each DDL of the stream with the history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from textwrap import shorten

from penstock.cluster.history import History, has_drawn
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.pb import penstock_pb2
from penstock.schema.model import DdlJob
from penstock.ts import physical_ms

log = logging.getLogger(__name__)

_QUERY_MAX = 200

Statuses = Callable[[], dict[str, penstock_pb2.StatusReply | str]]
"""Returns each online Pump's status, or the reason why it does not answer."""


class LostDdl:
    """Compares the DDL history with the Pumps' streams, for one client."""

    def __init__(self, statuses: Statuses, history: History) -> None:
        self._statuses = statuses
        self._history = history
        self._unchecked: dict[str, str] = {}
        self._is_checked = False

    def refuse_at_first(self) -> None:
        """Check, unless this was done before; raise as `refuse` does."""
        if not self._is_checked:
            self.refuse()

    def refuse(self) -> None:
        """Raise `NeedsOperator` if the history lacks the newest DDL; `Retryable` without etcd."""
        newest = [
            (ddl.commit_ts, pump, ddl)
            for pump, ddl in self._newest().items()
            if ddl.job_id and has_drawn(ddl.job_id, ddl.commit_ts)
        ]
        if newest:
            _, pump, ddl = max(newest, key=lambda each: each[:2])
            job = self._history.get(ddl.job_id)
            if job is None and not self._history.is_rolled_back(ddl.job_id):
                raise _lost(pump, ddl, self._history.jobs())
        self._is_checked = True

    def _newest(self) -> dict[str, penstock_pb2.NewestDdl]:
        found, unchecked = {}, {}
        for pump, answer in self._statuses().items():
            if isinstance(answer, str):
                unchecked[pump] = answer
            elif answer.HasField("newest_ddl"):
                found[pump] = answer.newest_ddl
            else:
                unchecked[pump] = "its version does not name its newest DDL"
        for pump in sorted(unchecked.keys() - self._unchecked.keys()):
            log.warning(
                "cannot compare the DDL history in etcd with the stream of pump %s: %s (after a"
                " restore of etcd, start all Pumps before the writers)",
                *(pump, unchecked[pump]),
            )
        self._unchecked = unchecked
        return found


def _lost(pump: str, ddl: penstock_pb2.NewestDdl, history: list[DdlJob]) -> NeedsOperator:
    known = "is empty"
    if history:
        last = history[-1]
        known = f"ends with job {last.id}, {_about(last.query, last.finished_ts)}"
    return NeedsOperator(
        f"pump {pump} has DDL job {ddl.job_id}, {_about(ddl.query, ddl.commit_ts)}, in its stream,"
        f" but the DDL history in etcd {known}",
        "etcd was restored from an older backup: stop the writers and restore it from one that"
        f" has this DDL; or give the DDL up by `penstock ctl lost-ddl {ddl.job_id}`, run it again,"
        " and load a fresh copy of the data into each downstream",
        Code.DDL_HISTORY,
    )


def _about(query: str, commit_ts: int) -> str:
    at = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, UTC)
    text = repr(shorten(query, _QUERY_MAX)) if query else "whose text is purged"
    return f"{text} of {commit_ts} ({at:%Y-%m-%d %H:%M:%S} UTC)"
