"""Row changes in a file: the same as from memory, in mutations of bounded size."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.log.chunks import DATA_BYTES, head_of
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import decode_binlog, decode_prewrite_value, encode_binlog
from pumpclient.changes import Changes, ChangeSet, SpoolFile
from pumpclient.delivery.payload import Payload
from pumpclient.rows import Table
from tests.unit.penstock.ddl_session import DdlSession

PREWRITE = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_key=b"key")
Noted = tuple[int, MutationType, int]


def tables() -> tuple[list[Table], list[Table]]:
    """Return two tables before and after an ALTER."""
    session = DdlSession(*(f"CREATE TABLE t{n} (id INT PRIMARY KEY, x TEXT)" for n in range(2)))
    before = [Table("d", session.table(f"t{n}")) for n in range(2)]
    session.run(*(f"ALTER TABLE t{n} ADD COLUMN y INT DEFAULT 9" for n in range(2)))
    return before, [Table("d", session.table(f"t{n}")) for n in range(2)]


BEFORE, AFTER = tables()
NOTED = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(list(MutationType)), st.integers(1, 99)),
    max_size=60,
)


def encoded(table: Table, kind: MutationType, number: int) -> bytes:
    image = (number, "x" * number)
    if kind is MutationType.INSERT:
        return table.codec.encode_insert(image)
    if kind is MutationType.UPDATE:
        return table.codec.encode_update(image, (number, "changed"))
    return table.codec.encode_delete(image)


def noted(rows: Sequence[Noted], spill_bytes: int) -> ChangeSet:
    found = ChangeSet(spill_bytes, None, mutation_bytes_max=300)
    for n, kind, number in rows:
        table = BEFORE[n]
        changes = found.tables.setdefault(table.info.id, Changes(table))
        found.note(changes, kind, encoded(table, kind, number))
    return found


def flat(mutations: Sequence[TableMutation]) -> dict[int, list[tuple[MutationType, bytes]]]:
    """Return each table's changes in their order, whatever mutations they are in."""
    found: dict[int, list[tuple[MutationType, bytes]]] = {}
    for mutation in mutations:
        lists = {
            MutationType.INSERT: iter(mutation.inserted_rows),
            MutationType.UPDATE: iter(mutation.updated_rows),
            MutationType.DELETE: iter(mutation.deleted_rows),
        }
        into = found.setdefault(mutation.table_id, [])
        into += [(kind, next(lists[kind])) for kind in mutation.sequence]
    return found


def spilled(found: ChangeSet) -> PrewriteValue:
    spill = found.spool_all()
    return decode_prewrite_value(spill.read(0, spill.size_bytes))


@given(NOTED, st.integers(0, 2000), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_holds_the_same_changes_in_the_same_order_as_memory_also_after_a_ddl(
    rows: list[Noted], spill_bytes: int, altered: bool
) -> None:
    in_memory, in_file = noted(rows, 1 << 30), noted(rows, spill_bytes)
    assert in_memory.is_empty == in_file.is_empty == (not rows)
    if altered:
        for found in (in_memory, in_file):
            now = {table.info.id: table for table in AFTER if table.info.id in found.tables}
            found.carry_over(now)
    expected = decode_prewrite_value(in_memory.value(5))
    found_value = spilled(in_file)
    assert flat(found_value.mutations) == flat(expected.mutations)
    for mutation in found_value.mutations:
        rows_bytes = sum(
            map(len, mutation.inserted_rows + mutation.updated_rows + mutation.deleted_rows)
        )
        assert len(mutation.sequence) == 1 or altered or rows_bytes <= 300
    in_file.close()


@pytest.mark.parametrize("size", [1, DATA_BYTES - 30, DATA_BYTES, 2 * DATA_BYTES + 5])
def test_a_large_prewrite_in_pieces_is_the_binlog_that_a_message_would_be(size: int) -> None:
    rows = bytes(size)
    whole = replace(PREWRITE, prewrite_value=rows)
    large = Payload.of(whole, 0)
    assert large.is_large
    for _ in range(2):
        chunks = list(large.chunks())
        assert all(0 < len(chunk) <= DATA_BYTES for chunk in chunks)
        assert decode_binlog(b"".join(chunks)) == whole
    assert len(large) == sum(map(len, chunks))
    assert head_of(chunks[0], len(large)) == encode_binlog(PREWRITE)
    small = Payload.of(whole, size)
    assert not small.is_large
    assert small.data == encode_binlog(whole)


def test_what_stands_before_the_rows_may_be_given_with_the_prewrite() -> None:
    large = Payload(replace(PREWRITE, prewrite_value=b"\x08\x05"), b"")
    found = decode_binlog(b"".join(large.chunks()))
    assert decode_prewrite_value(found.prewrite_value) == PrewriteValue(schema_version=5)


def test_a_full_disk_under_the_file_is_named_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = SpoolFile(None)

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NeedsOperator, match=r"No space left.*spill_dir"):
        spill.add(Changes(BEFORE[0]).mutation())
    spill.close()
    with pytest.raises(NeedsOperator, match=r"cannot be opened"):
        SpoolFile("/does/not/exist")
