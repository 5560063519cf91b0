"""Compares two MariaDB servers table by table: row counts and results of CHECKSUM TABLE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock_local.demo.comparison import Verdict
from penstock_local.mariadb import MariadbServer

Sums = Mapping[str, tuple[int, str]]
"""Rows and checksum by table."""


def sums(server: MariadbServer, schema: str) -> Sums:
    found = server.query(f"SHOW FULL TABLES IN `{schema}`") if _has(server, schema) else []
    names = [str(name) for name, kind in found if kind == "BASE TABLE"]
    sums = {}
    for name in names:
        table = f"`{schema}`.`{name.replace('`', '``')}`"
        ((rows,),) = server.query(f"SELECT COUNT(*) FROM {table}")  # noqa: S608
        ((_, checksum),) = server.query(f"CHECKSUM TABLE {table} EXTENDED")
        sums[name] = int(rows), str(checksum)
    return sums


def _has(server: MariadbServer, schema: str) -> bool:
    return schema in {str(name) for (name,) in server.query("SHOW DATABASES")}


def judged(upstream: Sums, downstream: Sums) -> list[Verdict]:
    names = sorted(upstream.keys() | downstream.keys())
    return [Verdict(name, upstream.get(name), downstream.get(name)) for name in names]


def lines(verdicts: Sequence[Verdict], checksum: str = "CHECKSUM TABLE") -> list[str]:
    heads = ("table", "rows upstream", "rows downstream", checksum, "downstream")
    rows = [heads, *map(_cells, verdicts)]
    widths = [max(len(cells[n]) for cells in rows) for n in range(len(heads))]
    marks = ["", *("equal" if v.identical else "DIFFERENT" for v in verdicts)]
    return [
        "  ".join(
            [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:]), mark]
        ).rstrip()
        for cells, mark in zip(rows, marks, strict=True)
    ]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    sides = verdict.expected, verdict.found
    counts = [f"{side[0]:,}" if side else "no table" for side in sides]
    return verdict.table, *counts, *(side[1] if side else "-" for side in sides)
