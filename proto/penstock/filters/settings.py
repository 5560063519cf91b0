"""The settings of filters and routes, the same for every source of changes.

They are part of a node's TOML file; `table_lists`, `events`, `routes` and `rules` define their
meaning.

    [filter]                          [[filter.events]]              [[filter.routes]]
    do-dbs = ["shop*"]                schema-pattern = "shop"        schema-pattern = "shop_?"
    ignore-dbs = ["~^tmp_"]           table-pattern = "log*"         table-pattern = "order*"
    [[filter.ignore-tables]]          events = ["all dml"]           target-schema = "shop"
    db-name = "shop"                  action = "Ignore"              target-table = "orders"
    tbl-name = "draft"

    [[filter.expressions]]
    schema = "shop"
    table = "item"
    insert-value-expr = "price > 100"
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePattern:
    """A pattern for a schema and a pattern for a table in it."""

    db_name: str = setting("", "pattern of the schema")
    tbl_name: str = setting("", "pattern of the table")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """The kinds of change to tables of a pattern that are replicated, or skipped."""

    schema_pattern: str = setting("", "wildcard of the schema")
    table_pattern: str = setting("", "wildcard of the table; empty: the schema and all in it")
    events: tuple[str, ...] = setting((), "names of events, such as insert, all ddl")
    sql_pattern: tuple[str, ...] = setting((), "regular expressions for the text of a DDL")
    action: str = setting("Do", "Do, Ignore or Error")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractTable:
    """A column that every row gets from its source table's name."""

    table_regexp: str = setting("", "regular expression; its groups are the value")
    target_column: str = setting("", "the column downstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractSchema:
    """A column that every row gets from its source schema's name."""

    schema_regexp: str = setting("", "regular expression; its groups are the value")
    target_column: str = setting("", "the column downstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractSource:
    """A column that every row gets from its upstream's name."""

    source_regexp: str = setting("", "regular expression; its groups are the value")
    target_column: str = setting("", "the column downstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRule:
    """The names under which tables of a pattern are replicated."""

    schema_pattern: str = setting("", "wildcard of the schema, or ~ and a regular expression")
    table_pattern: str = setting("", "the same for the table; empty: every table of the schema")
    target_schema: str = setting("", "schema downstream")
    target_table: str = setting("", "table downstream; empty: the same name")
    extract_table: ExtractTable = field(
        default=ExtractTable(), metadata={"help": "a column for the source table's name"}
    )
    extract_schema: ExtractSchema = field(
        default=ExtractSchema(), metadata={"help": "a column for the source schema's name"}
    )
    extract_source: ExtractSource = field(
        default=ExtractSource(), metadata={"help": "a column for the source-id"}
    )

    @property
    def extracts(self) -> bool:
        plain = (ExtractTable(), ExtractSchema(), ExtractSource())
        return (self.extract_table, self.extract_schema, self.extract_source) != plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionRule:
    """Rows of one table that are skipped: those for which an expression is true."""

    schema: str = setting("", "the schema's name")
    table: str = setting("", "the table's name")
    insert_value_expr: str = setting("", "drops an insert, seen with the new row")
    update_old_value_expr: str = setting("", "drops an update, seen with the row before")
    update_new_value_expr: str = setting("", "drops an update, seen with the row after")
    delete_value_expr: str = setting("", "drops a delete, seen with the row that goes")


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """The tables that are replicated, and their names downstream."""

    case_sensitive: bool = setting(False, "letter case matters in patterns of names")
    do_dbs: tuple[str, ...] = setting((), "schemas to replicate; empty: all")
    ignore_dbs: tuple[str, ...] = setting((), "schemas to leave out; do-dbs goes before")
    do_tables: tuple[TablePattern, ...] = setting((), "tables to replicate; empty: all")
    ignore_tables: tuple[TablePattern, ...] = setting((), "tables to leave out")
    events: tuple[EventRule, ...] = setting((), "rules by kind of change")
    routes: tuple[RouteRule, ...] = setting((), "other names downstream")
    expressions: tuple[ExpressionRule, ...] = setting((), "rows to leave out, by their values")
