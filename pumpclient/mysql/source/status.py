"""What a source's status page says, as one dictionary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pumpclient.mysql.source.service import SourceUnit


def described(unit: SourceUnit) -> dict[str, Any]:
    """Return what a unit's status page says."""
    progress, relay = unit.progress, unit.relay.status() if unit.relay else None
    checkpoint = progress.checkpoint
    reloads = {} if unit.reloads is None else unit.reloads.told
    behind_s = progress.behind_s(relay.behind_s if relay else 0.0)
    return {
        "state": progress.state,
        "problem": progress.problem,
        "hint": progress.hint,
        "overrides": progress.overrides,
        "statement": progress.statement_place,
        "seconds_behind": round(behind_s, 3),
        "server": relay.server.uuid if relay and relay.server else "",
        "relay": {
            "connected": relay.connected if relay else False,
            "end": str(relay.end) if relay and relay.end else "",
            "gtids": relay.gtids if relay else "",
            "bytes": relay.relayed_bytes if relay else 0,
            "bytes_per_s": round(relay.bytes_per_s) if relay else 0,
            "reconnects": relay.reconnects if relay else 0,
            "problem": relay.problem if relay else "",
        },
        "read": str(progress.read_location or ""),
        "committed": checkpoint.done if checkpoint else "",
        "gtids": checkpoint.gtids if checkpoint else "",
        "epoch": checkpoint.epoch if checkpoint else 0,
        "transactions": progress.transactions,
        "transactions_per_s": round(progress.rate, 1),
        "groups": progress.groups,
        "ddl": progress.ddl,
        "lives": progress.lives,
        "history_rows": progress.history_rows,
        "rulings": progress.rulings,
        "left_out": {
            each.label: {
                "since": each.since,
                "is_whole": each.is_whole,
                "rows": each.rows,
                "events": each.events,
                "statements": each.statements,
                "reload": None if each.name not in reloads else asdict(reloads[each.name]),
            }
            for each in progress.left_out
        },
    }
