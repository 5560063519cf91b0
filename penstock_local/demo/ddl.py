"""The schema changes in the middle of the demo, with their effects on the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_local.demo.store import Tables

STATUS_DEFAULT = "as planned"
PRESSURE = 13
"""The index of `weather`'s column `pressure`, which the DDL below drops."""


def _add_status(tables: Tables) -> None:
    rows = tables["flights"]
    for key, row in rows.items():
        rows[key] = (*row, STATUS_DEFAULT)


def _create_index(tables: Tables) -> None:
    """An index changes no row."""


def _rename_planes(tables: Tables) -> None:
    tables["aircraft"] = tables.pop("planes")


def _drop_pressure(tables: Tables) -> None:
    rows = tables["weather"]
    for key, row in rows.items():
        rows[key] = row[:PRESSURE] + row[PRESSURE + 1 :]


def _drop_airlines(tables: Tables) -> None:
    del tables["airlines"]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One DDL and its effect."""

    sql: str
    effect: Callable[[Tables], None]


CHANGES = (
    SchemaChange(
        f"ALTER TABLE flights ADD COLUMN status VARCHAR(16) NOT NULL DEFAULT '{STATUS_DEFAULT}'",
        _add_status,
    ),
    SchemaChange("CREATE INDEX flights_dest ON flights (dest)", _create_index),
    SchemaChange("RENAME TABLE planes TO aircraft", _rename_planes),
    SchemaChange("ALTER TABLE weather DROP COLUMN pressure", _drop_pressure),
    SchemaChange("DROP TABLE airlines", _drop_airlines),
)
