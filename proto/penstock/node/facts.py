"""Facts: a node's status, described once by dataclasses; JSON and text are views of them.

    dataclass field            JSON                              text, a line each
    uptime_s = 12              "uptime_s": 12                    uptime_s        12
    storage = {"segments": 2}  "storage_segments": 2             storage_segments 2
    pumps = (AtMerge(          "pumps": [{"node_id": "h:8250",   pump h:8250     online
      node_id="h:8250",                   "summary": "online",   pump h:8250 received_ts 463…
      summary="online", …),)              "received_ts": 463…}]

A nested dataclass stands for its fields. None is left out. The first field of a dataclass in a
tuple names the object. `field(metadata=NO_TEXT)` is a field that another one describes as text.

`StatusReply` carries both views, because older programs read only the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from penstock.pb import penstock_pb2

NO_TEXT: Final = {"text": False}


def facts_of(tree: Any) -> dict[str, Any]:
    """Return the JSON view of a dataclass."""
    facts: dict[str, Any] = {}
    for name, value, _ in _fields(tree):
        if isinstance(value, tuple):
            facts[name] = [facts_of(each) for each in value]
        else:
            facts[name] = value
    return facts


def lines_of(tree: Any) -> dict[str, str]:
    """Return the text view of a dataclass."""
    lines: dict[str, str] = {}
    for name, value, has_text in _fields(tree):
        if not has_text:
            continue
        if isinstance(value, tuple):
            for each in value:
                (_, subject, _), *about = _fields(each)
                for key, fact, is_shown in about:
                    end = "" if key == "summary" else f" {key}"
                    if is_shown:
                        lines[f"{name.removesuffix('s')} {subject}{end}"] = str(fact)
        else:
            lines[name] = str(value)
    return lines


def reply_of(
    tree: Any, *, node_id: str, state: str, max_commit_ts: int, **rest: Any
) -> penstock_pb2.StatusReply:
    return penstock_pb2.StatusReply(
        node_id=node_id,
        state=state,
        max_commit_ts=max_commit_ts,
        details=lines_of(tree),
        facts=json.dumps(facts_of(tree)),
        **rest,
    )


def facts_in(reply: penstock_pb2.StatusReply) -> dict[str, Any]:
    """Return a node's facts; those of an older node are all text."""
    facts = json.loads(reply.facts) if reply.facts else dict(reply.details)
    own = {"node_id": reply.node_id, "state": reply.state, "max_commit_ts": reply.max_commit_ts}
    return own | facts


def _fields(tree: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name, the value and whether it has a text, of each field that is not None."""
    for each in fields(tree):
        value = getattr(tree, each.name)
        if is_dataclass(value):
            yield from _fields(value)
        elif isinstance(value, Mapping):
            yield from ((f"{each.name}_{name}", found, True) for name, found in value.items())
        elif value is not None:
            yield each.name, value, each.metadata.get("text", True)
