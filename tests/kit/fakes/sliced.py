"""A transaction cut into slices and turned into SQL, as a Drainer does it, without one."""

from collections.abc import Sequence

from drainer.intake.payload import Limits, slices
from drainer.task.compaction import plan_units
from drainer.task.row_changes import Collector, read_changes
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import SQLITE
from drainer.task.work_unit import Batch, WorkUnit, in_order
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_prewrite_value

Changes = Sequence[tuple[MutationType, bytes]]
VERSION = 3


def value_of(changes: Changes, table_id: int = 7) -> bytes:
    """Return the changes of one table as a `PrewriteValue`."""
    lists: dict[MutationType, list[bytes]] = {kind: [] for kind in MutationType}
    for kind, data in changes:
        lists[kind].append(data)
    mutation = TableMutation(
        table_id=table_id,
        inserted_rows=tuple(lists[MutationType.INSERT]),
        updated_rows=tuple(lists[MutationType.UPDATE]),
        deleted_rows=tuple(lists[MutationType.DELETE]),
        sequence=tuple(kind for kind, _ in changes),
    )
    return encode_prewrite_value(PrewriteValue(schema_version=VERSION, mutations=(mutation,)))


def sql_of(batch: Batch, dialect: str = SQLITE) -> list[bytes]:
    """Return a batch's SQL, as the tasks make it."""
    units = plan_units(batch, dialect)
    return list(in_order(generate(WorkUnit.decode(unit.encode())) for unit in units))


def sliced(
    table: TableInfo, changes: Changes, bytes_max: int, dialect: str = SQLITE
) -> list[bytes]:
    """Return the SQL of a transaction in slices of `bytes_max`, for the table `s.t`."""
    value = value_of(changes)
    statements: list[bytes] = []
    limits = Limits(bytes_max, 10**9)

    def source(offset: int, count: int) -> bytes:
        return value[offset : offset + count]

    for part in slices(source, 0, len(value), version=VERSION, limits=limits):
        found = read_changes(part, lambda table_id, version: ("s", table))
        collector = Collector()
        collector.add(found, len(part))
        statements += sql_of(Batch(1, collector.tables(), displaces=True), dialect)
    return statements
