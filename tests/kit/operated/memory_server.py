"""A MariaDB in memory: tables of whole numbers, and the binlog that it writes into a relay log.

Every table has `id INT PRIMARY KEY` and columns of INT or BIGINT. What is refused by a source can
be made on demand: rows of a session with MINIMAL images, DDL that was not logged, changes that were
logged as statements. What was logged is kept as `log`, for the one that judges.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.events.transactions import GtidFlag, Query
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.relay.layout import INDEX_NAME, FileName, Location
from pumpclient.mysql.relay.reader import Growth
from pumpclient.mysql.rows.rows_event import RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from tests.kit.mysql.binlogs import BinlogScript
from tests.kit.mysql.encoding import xid
from tests.kit.mysql.row_encoding import encode_map, encode_rows, make_image
from tests.kit.wait import present

UUID = "0-1"
SCHEMA = "shop"
_TYPES = {"INT": WireType.LONG, "BIGINT": WireType.LONGLONG}
_EVENTS = {
    (False, True): EventType.WRITE_ROWS_V1,
    (True, True): EventType.UPDATE_ROWS_V1,
    (True, False): EventType.DELETE_ROWS_V1,
}
Row = dict[str, int | None]


@dataclass
class MemoryTable:
    """One table: its columns' types by name, and its rows by id."""

    columns: dict[str, str] = field(default_factory=lambda: {"id": "INT", "v": "INT"})
    rows: dict[int, Row] = field(default_factory=dict)

    def definition(self, name: str, more: str = "") -> str:
        columns = ", ".join(f"{column} {tp}" for column, tp in self.columns.items())
        return f"CREATE TABLE {more}{SCHEMA}.{name} ({columns}, PRIMARY KEY (id))"


@dataclass(frozen=True)
class Change:
    """A row of one table before and after; None where there is none."""

    table: str
    before: Row | None
    after: Row | None
    is_minimal: bool = False

    @property
    def key(self) -> int:
        """The row's id, which no change changes."""
        return present(present(self.before or self.after)["id"])


@dataclass(frozen=True)
class Logged:
    """A transaction, or a statement, and where it ends."""

    end: Location
    changes: Sequence[Change] = ()
    sql: str = ""
    renames: Sequence[tuple[str, str]] = ()
    """Pairs of names, in their order."""
    lost: Change | None = None
    """What a statement changed, whose rows were not logged."""


class MemoryServer:
    """Tables and a relay log below `root`; for the test's thread, but for what `snapshot` reads."""

    def __init__(self, root: Path) -> None:
        """Begin with an empty database."""
        self.tables: dict[str, MemoryTable] = {}
        self.log: list[Logged] = []
        self.growth = Growth()
        self.lock = threading.RLock()
        self._folder = root / f"{UUID}.000001"
        self._folder.mkdir(parents=True)
        (root / INDEX_NAME).write_text(f"{self._folder.name}\n")
        self._number = 0
        self._sequence = 0
        self._next_file()
        self.statement(f"CREATE DATABASE {SCHEMA}")

    @property
    def end(self) -> Location:
        return Location(1, FileName("mysql-bin", self._number), len(self._script.data))

    # --- what sessions do ----------------------------------------------------------------------

    def commit(self, *changes: Change) -> None:
        with self.lock:
            for each in changes:
                rows = self.tables[each.table].rows
                rows.pop(each.key, None)
                if each.after is not None:
                    rows[each.key] = each.after
            self._begin(GtidFlag.TRANSACTIONAL)
            for number, each in enumerate(changes, 1):
                self._rows(number, each)
            self._script.add(EventType.XID, xid(self._sequence))
            self._logged(Logged(self.end, changes))

    def statement(self, sql: str, *renames: tuple[str, str], lost: Change | None = None) -> None:
        """Log a statement, after `tables` were made what they are then; one of rows has `lost`."""
        with self.lock:
            self._begin(GtidFlag.TRANSACTIONAL if lost else GtidFlag.STANDALONE)
            body = Query(SCHEMA.encode(), sql.encode()).encode()
            self._script.add(EventType.QUERY, body)
            if lost:
                self._script.add(EventType.XID, xid(self._sequence))
            self._logged(Logged(self.end, sql=sql, renames=renames, lost=lost))

    def rotate(self) -> None:
        with self.lock:
            self._script.rotate(f"mysql-bin.{self._number + 1:06d}")
            self._write()
            self._next_file()

    # --- its binlog ----------------------------------------------------------------------------

    def _next_file(self) -> None:
        self._number += 1
        self._script = BinlogScript(f"mysql-bin.{self._number:06d}", flavor=Flavor.MARIADB)
        self._written = 0
        self._write()

    def _begin(self, flags: GtidFlag) -> None:
        self._sequence += 1
        self._script.begin(self._sequence, flags)

    def _logged(self, logged: Logged) -> None:
        self.log.append(logged)
        self._write()

    def _write(self) -> None:
        data = self._script.data
        with (self._folder / self._script.name).open("ab") as file:
            file.write(data[self._written :])
        self._written = len(data)
        self.growth.report(self.end)

    def _rows(self, number: int, change: Change) -> None:
        table = self.tables[change.table]
        columns = tuple(
            Column(_TYPES[tp], is_unsigned=False, name=name) for name, tp in table.columns.items()
        )
        width, names = len(columns), list(table.columns)
        table_map = TableMap(SCHEMA, change.table, columns)
        self._script.add(
            EventType.TABLE_MAP, encode_map(table_map, Flavor.MARIADB, table_id=number)
        )
        full = (1 << width) - 1
        before, after = (1, 2) if change.is_minimal else (full, full)
        images = b""
        for row, shown in ((change.before, before), (change.after, after)):
            if row is not None:
                images += make_image(columns, [row.get(name) for name in names], shown)
        event = RowsEvent(
            _EVENTS[change.before is not None, change.after is not None],
            width,
            None if change.before is None else before,
            None if change.after is None else after,
            images,
        )
        self._script.add(event.type, encode_rows(event, table_id=number))
