"""Polls a source's status until the reloads of given tables have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.source.state.overrides import table_name

_POLL_S = 0.5


def report_text(label: str, report: Mapping[str, Any]) -> str:
    if report["dropped"]:
        return f"{label}: the server dropped it at {report['dropped']}, nothing was loaded\n"
    return f"{label}: {report['rows']} rows loaded, {report['started']} to {report['ended']}\n"


def waited_for(
    tables: Sequence[str],
    status: Callable[[], Mapping[str, Any]],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Return the report of the tables' reloads, once they have ended; `status` asks the source.

    Raises `NeedsOperator` for a reload that fails, or ends without the table being replicated.
    """
    return "".join(_waited(".".join(table_name(each)), status, sleep) for each in tables)


def _waited(
    label: str, status: Callable[[], Mapping[str, Any]], sleep: Callable[[float], None]
) -> str:
    while True:
        found = status()
        left_out = found.get("left_out", {}).get(label)
        if left_out is None or not left_out["is_whole"]:
            break
        reload = left_out["reload"] or {}
        if reload.get("state") == "failed":
            raise NeedsOperator(
                f"{label} was not loaded again: {reload['problem']}",
                hint=reload["hint"],
                code=Code.NODE_STATE,
            )
        if not left_out["reload_number"]:
            raise NeedsOperator(
                f"the reload of {label} was ended before it was done",
                hint=f"penstock source reload {label}",
                code=Code.NODE_STATE,
            )
        sleep(_POLL_S)
    report = found.get("reloaded", {}).get(label)
    if report is None:
        raise NeedsOperator(
            f"{label} is not loaded again under this name: the server renamed it",
            hint="see penstock source status",
            code=Code.NODE_STATE,
        )
    return report_text(label, report)
