"""Tables as sysbench makes them, and valid histories of changes to them, each continuing where
the one before it ended.

    insert   new rows behind the old ones
    update   rows drawn evenly; one half of the updates changes the indexed `k`, the other `c`
    mixed    oltp_read_write's writes: of an even choice one row's `k`, one's `c`, and one deleted
             and inserted again
    zipf     updates as above, row number r of a shuffled table drawn as often as 1/r

A transaction has four changes, each in a table of its own choice.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from drainer.settings.config import DrainerConfig
from drainer.task.work_unit import Batch, TableRows
from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import table_of

KINDS = ("update", "mixed", "zipf", "insert")
CHANGES_PER_TRANSACTION = 4
_TEXTS = 997
_K_MAX = 100_000
_ROWS_PER_INSERT = 1000

Row = tuple[int, int, str, str]
Transaction = Sequence["Change"]


@dataclass(frozen=True, slots=True)
class Change:
    """One row change: which table, how, the row bytes, and the row's id."""

    table: int
    kind: MutationType
    data: bytes
    row_id: int


def definition(name: str) -> str:
    """Return the CREATE TABLE; `name` may be quoted and have a schema."""
    return (
        f"CREATE TABLE {name} (id INT NOT NULL, k INT NOT NULL DEFAULT 0,"
        " c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '',"
        " PRIMARY KEY (id), KEY k_1 (k))"
    )


class Tables:
    """`count` tables of `rows` rows each, as the upstream has them."""

    def __init__(self, count: int, rows: int) -> None:
        self._random = random.Random(count)
        draw = self._random.randrange
        self._texts = [
            "-".join(f"{draw(10**11):011d}" for _ in range(9)) for _ in range(_TEXTS)
        ]  # A row's own eleven digits come before them.
        self.infos: list[TableInfo] = [table_of(definition(f"sbtest{n}")) for n in range(count)]
        self._codecs = [RowCodec(info) for info in self.infos]
        self.first_rows = rows
        self._rows: list[list[Row]] = [
            [self._new_row(row_id) for row_id in range(rows)] for _ in range(count)
        ]
        self._shuffled = list(range(rows))
        self._random.shuffle(self._shuffled)

    def rows_of(self, table: int) -> list[Row]:
        """Return a table's rows as they are now, in key order."""
        return self._rows[table]

    def history(self, kind: str, changes: int) -> list[Transaction]:
        """Return about so many changes of a kind, in transactions; they have happened here."""
        count = changes // CHANGES_PER_TRANSACTION
        return [self._transaction(kind) for _ in range(count)]

    def _transaction(self, kind: str) -> Transaction:
        if kind == "insert":
            return [self._insert() for _ in range(CHANGES_PER_TRANSACTION)]
        if kind != "mixed":
            return [self._update(kind, i % 2 == 0) for i in range(CHANGES_PER_TRANSACTION)]
        table, row_id = self._drawn(kind)
        before = self._rows[table][row_id]
        after = self._rows[table][row_id] = self._new_row(row_id)
        codec = self._codecs[table]
        return [
            self._update(kind, True, but=(table, row_id)),
            self._update(kind, False, but=(table, row_id)),
            Change(table, MutationType.DELETE, codec.encode_delete(before), row_id),
            Change(table, MutationType.INSERT, codec.encode_insert(after), row_id),
        ]

    def _insert(self) -> Change:
        table = self._random.randrange(len(self._rows))
        rows = self._rows[table]
        row = self._new_row(len(rows))
        rows.append(row)
        return Change(table, MutationType.INSERT, self._codecs[table].encode_insert(row), row[0])

    def _update(self, kind: str, of_index: bool, but: tuple[int, int] = (-1, -1)) -> Change:
        while (place := self._drawn(kind)) == but:
            pass
        table, row_id = place
        before = self._rows[table][row_id]
        _, k, c, pad = before
        after = (row_id, k + 1, c, pad) if of_index else (row_id, k, self._text(10), pad)
        self._rows[table][row_id] = after
        data = self._codecs[table].encode_update(before, after)
        return Change(table, MutationType.UPDATE, data, row_id)

    def _drawn(self, kind: str) -> tuple[int, int]:
        table = self._random.randrange(len(self._rows))
        if kind == "zipf":
            rank = int((self.first_rows + 1) ** self._random.random()) - 1
            return table, self._shuffled[min(rank, self.first_rows - 1)]
        return table, self._random.randrange(len(self._rows[table]))

    def _new_row(self, row_id: int) -> Row:
        k = self._random.randrange(1, _K_MAX)
        return row_id, k, self._text(10), self._text(5)

    def _text(self, groups: int) -> str:
        own = f"{self._random.randrange(10**11):011d}-"
        return own + self._texts[self._random.randrange(_TEXTS)][: 12 * groups - 13]


@contextmanager
def running(home: Path, *options: str) -> Iterator[MariadbServer]:
    """Run a server whose memory and redo log hold all that is measured."""
    sizes = ("--innodb-log-file-size=1G", "--local-infile=ON")
    server = MariadbServer(home, buffer_pool_mib=2048, options=(*sizes, *options))
    server.install()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def fill(server: MariadbServer, tables: Tables, schemas: Sequence[str]) -> None:
    """Create the tables in all schemas, with the rows they have now."""
    with server.connect() as connection, connection.cursor() as cursor:
        first, *others = schemas
        for schema in schemas:
            cursor.execute(f"CREATE DATABASE {schema}")
        for number in range(len(tables.infos)):
            cursor.execute(definition(f"{first}.sbtest{number}"))
            rows = tables.rows_of(number)
            for start in range(0, len(rows), _ROWS_PER_INSERT):
                texts = ",".join(map(str, rows[start : start + _ROWS_PER_INSERT]))
                cursor.execute(f"INSERT INTO {first}.sbtest{number} VALUES {texts}")
            for schema in others:
                cursor.execute(definition(f"{schema}.sbtest{number}"))
                cursor.execute(
                    f"INSERT INTO {schema}.sbtest{number} SELECT * FROM {first}.sbtest{number}"
                )


def batches(
    tables: Tables, history: Sequence[Transaction], schema: str, first: int
) -> Iterator[Batch]:
    """Yield the history as a Drainer cuts it by default, numbered from `first`."""
    limits = DrainerConfig()
    changes: list[Change] = []
    size_bytes = 0
    for transaction in history:
        changes += transaction
        size_bytes += sum(len(change.data) for change in transaction)
        if len(changes) >= limits.batch_rows_max or size_bytes >= limits.batch_bytes_max:
            yield _batch(tables, changes, schema, first)
            changes, size_bytes, first = [], 0, first + 1
    if changes:
        yield _batch(tables, changes, schema, first)


def _batch(tables: Tables, changes: Sequence[Change], schema: str, number: int) -> Batch:
    by_table: dict[int, tuple[bytearray, list[bytes]]] = {}
    for change in changes:
        kinds, rows = by_table.setdefault(change.table, (bytearray(), []))
        kinds.append(change.kind)
        rows.append(change.data)
    return Batch(
        number,
        [
            TableRows(schema, tables.infos[which], bytes(kinds), pa.array(rows, pa.binary()))
            for which, (kinds, rows) in by_table.items()
        ],
    )
