"""Filters and routes: which changes are replicated, and under which names.

Pure.

    names        table_lists.py  system schemas, block-allow list, the lists of drainer.toml
    kinds        events.py       insert, update, delete, the kinds of DDL, DDL text
    values       rules.py        expressions over a row (`expressions`)
    other names  routes.py       also several tables into one

`Rules` combines all of these for one replication. It decides by name, kind and row bytes, and knows
neither the origin nor the target of changes. A change must pass all filters; routes come after
them.
"""

from penstock.filters.events import Decision
from penstock.filters.rules import Rules
from penstock.filters.settings import (
    EventRule,
    ExpressionRule,
    FilterConfig,
    RouteRule,
    TablePattern,
)

__all__ = [
    "Decision",
    "EventRule",
    "ExpressionRule",
    "FilterConfig",
    "RouteRule",
    "Rules",
    "TablePattern",
]
