"""Lake reader: Polars, which finds its way by what the guide says of a lake and nothing else."""

import json
from pathlib import Path
from typing import Any

import polars as pl

Versions = dict[tuple[str, str], int]
"""The version of each table, by schema and name."""


class LakeReader:
    """What a program sees of a lake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint; empty before there is one."""
        path = self.folder / "_penstock/checkpoint"
        if not (path / "_delta_log").exists():
            return {}
        rows = pl.read_delta(str(path)).rows(named=True)
        assert len(rows) <= 1
        return dict(json.loads(rows[0]["checkpoint"])) if rows else {}

    def states(self) -> dict[int, Versions]:
        path = self.folder / "_penstock/versions"
        if not (path / "_delta_log").exists():
            return {}
        rows = pl.read_delta(str(path)).sort("commit_ts").rows(named=True)
        assert len({row["commit_ts"] for row in rows}) == len(rows)
        return {
            row["commit_ts"]: {(t["schema"], t["table"]): t["version"] for t in row["tables"]}
            for row in rows
        }

    def table(self, schema: str, name: str, version: int | None = None) -> pl.DataFrame:
        return pl.read_delta(str(self.folder / schema / name), version=version)

    def log(self, schema: str, name: str, version: int | None = None) -> list[dict[str, Any]]:
        return self.table(schema, name, version).sort("_commit_ts", "_seq").to_dicts()

    def statements(self) -> list[tuple[int, str, str]]:
        """Return the DDL of a change log: commit_ts, schema and text."""
        path = self.folder / "_penstock/ddl"
        if not (path / "_delta_log").exists():
            return []
        rows = pl.read_delta(str(path)).sort("commit_ts")
        return rows.select("commit_ts", "schema", "statement").rows()
