"""Node facts: what a node's status says, as JSON with numbers, truths and snake_case keys.

    uptime_s                    "12"             "uptime_s": 12
    leads_oracle                "True"           "leads_oracle": true
    pump h:8250                 "online, ok"     "pumps": [{"node_id": "h:8250",
    pump h:8250 received_ts     "463…"                      "summary": "online, ok",
                                                            "received_ts": 463…}]

The left side is `StatusReply.details`, text for people, a line for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.pb import penstock_pb2

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_TRUTHS: Final = {"True": True, "False": False}
_KINDS: Final = ("pump", "drainer")
_TEXTS: Final = frozenset({"node_id", "instance", "labels", "label"})
"""What is a name, even where it looks like a number."""
_NO_KEY = re.compile(r"[^a-z0-9]+")


def facts_of(reply: penstock_pb2.StatusReply) -> dict[str, Any]:
    """Return all that a node said of itself, typed."""
    return {
        "node_id": reply.node_id,
        "state": reply.state,
        "max_commit_ts": reply.max_commit_ts,
        **typed(reply.details),
    }


def typed(details: Mapping[str, str]) -> dict[str, Any]:
    """Return details as JSON wants them: values with their types, names of nodes in no key."""
    facts: dict[str, Any] = {}
    nodes: dict[tuple[str, str], dict[str, Any]] = {}
    for key, text in sorted(details.items()):
        kind, _, rest = key.partition(" ")
        if kind not in _KINDS or not rest:
            name = key_of(key)
            facts[name] = text if name in _TEXTS else value_of(text)
            continue
        node_id, _, name = rest.partition(" ")
        about = nodes.setdefault((kind, node_id), {"node_id": node_id})
        about[key_of(name) or "summary"] = value_of(text)
    for (kind, _), about in nodes.items():
        facts.setdefault(f"{kind}s", []).append(about)
    return facts


def key_of(name: str) -> str:
    """Return a name in snake_case."""
    return _NO_KEY.sub("_", name.lower()).strip("_")


def value_of(text: str) -> Any:
    """Return the number or truth that a text is, else the text."""
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
