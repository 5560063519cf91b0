"""DDL: text into history jobs (`plan_ddl`), and jobs into the schema they leave (`Catalog`).

sql ── lexer ── parse ──> syntax ── plan ──> DdlJob ── Catalog.apply ──> SchemaChange
                          (no catalog)       (tables, types, alter)
"""

from penstock.ddl.catalog import Catalog, SchemaChange
from penstock.ddl.plan import plan_ddl

__all__ = ["Catalog", "SchemaChange", "plan_ddl"]
