"""Tells which tables of the upstream are replicated, and their names downstream.

Both follow from a source's settings: filters, routes, copies of online DDL, which are skipped. A
table is merged when several are routed into it: then the downstream table also has rows of others,
and a row that exists only there does not count for this table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.filters.settings import RouteRule
from penstock.settings.load import read_settings
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.translate.statements.online import OnlineDdl


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The rules; without any, all tables are compared under their own names."""

    rules: Rules = field(default_factory=Rules)
    online: OnlineDdl | None = None
    merges: bool = False
    source: str = ""
    """The source's id, when its settings were given."""
    leaves_rows_out: bool = False
    """Whether the settings skip rows by their values or by kinds of change."""

    def is_compared(self, name: Name) -> bool:
        is_copy = self.online is not None and self.online.is_copy(name[1])
        return self.rules.is_replicated(*name) and not is_copy

    def targets(self, tables: Iterable[Name]) -> dict[Name, Name]:
        return {name: self.rules.target(*name) for name in tables if self.is_compared(name)}

    def merged(self, targets: dict[Name, Name]) -> set[Name]:
        count = Counter(targets.values())
        return {
            name
            for name, target in targets.items()
            if count[target] > 1 or (self.merges and self.rules.router.is_routed(*name))
        }


def names_of(source_config: str, routes: Sequence[str]) -> Names:
    """Return the names by a source's settings file, or by routes like `shop_*.order_*=shop.orders`.

    Raises `NeedsOperator` for an unreadable file and for an invalid route.
    """
    if not source_config:
        rules = Rules(FilterConfig(routes=tuple(map(_route, routes))))
        return Names(rules=rules)
    if routes:
        raise NeedsOperator(
            "routes are given twice, by --source-config and by --route",
            hint="write them into the file",
            code=Code.COMMAND_INVALID,
        )
    if not Path(source_config).is_file():
        raise NeedsOperator(
            f"there is no file {source_config}",
            hint="name the source's settings",
            code=Code.COMMAND_INVALID,
        )
    source = read_settings(
        SourceConfig, ["--config", source_config], prog="penstock verify", env_prefix="MYSQL_SOURCE"
    )
    return Names(
        rules=Rules(source.filter, source_id=source.source_id),
        online=source.online_ddl.rules(),
        merges=source.shard_mode == OPTIMISTIC,
        source=source.source_id,
        leaves_rows_out=bool(source.filter.events or source.filter.expressions),
    )


def _route(text: str) -> RouteRule:
    pattern, _, target = text.partition("=")
    schema, _, table = pattern.partition(".")
    target_schema, _, target_table = target.partition(".")
    if not schema or not target_schema:
        raise NeedsOperator(
            f"{text!r} is no route",
            hint="write schema.table=schema.table, or schema=schema",
            code=Code.COMMAND_INVALID,
        )
    return RouteRule(
        schema_pattern=schema, table_pattern=table,
        target_schema=target_schema, target_table=target_table,
    )  # fmt: skip
