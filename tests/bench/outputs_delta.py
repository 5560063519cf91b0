"""A batch into a lake, against a bare merge of the same Arrow by deltalake.

    outputs.delta.commit  the sink: changes merged, versions and checkpoint stored, files synced
    outputs.delta.blocks  a task: compacted rows to blocks of Arrow, on one core; without a baseline

A batch has 20,000 changes: a half updates, a quarter inserts, a quarter deletes. The bare side
opens its table once, as the sink does, syncs nothing and stores no checkpoint. The sides take
turns, and the best round of each counts.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from drainer.sinks.delta.merging import by_table
from drainer.task.events.event_unit import answer
from drainer.task.sql.lake_rows import COMES, GOES, OP, Block
from tests.bench.figure import Figure
from tests.kit.opened_sinks import open_lake_sink
from tests.kit.workloads.lake_stream import Change, LakeStream

CHANGES = 20_000
ROUNDS = 7
_TEXT = "x" * 100


def measure(home: Path) -> Iterator[Figure]:
    """Yield the seconds of a commit, and the CPU time of a changed row's way to Arrow."""
    stream, ours_s, bare_s, blocks_s = LakeStream(), [], [], []
    url = f"delta://{home}/lake?interval=0&optimize=0"
    with closing(open_lake_sink(url, cluster_id=1)) as sink:
        sink.load_checkpoint()
        columns = "id INT PRIMARY KEY, k INT, c VARCHAR(120)"
        stream.ddl(sink, "CREATE DATABASE shop", f"CREATE TABLE t ({columns})")
        stream.put(sink, t=[(None, (n, 0, _TEXT)) for n in range(CHANGES)])
        bare = DeltaTable.create(home / "bare", DeltaTable(home / "lake/shop/t").schema())
        for number in range(ROUNDS):
            units = stream.units({"t": _changes(number)}, 1)
            begun_s = time.process_time()
            answers = [answer(unit) for unit in units]
            blocks_s.append(time.process_time() - begun_s)
            blocks = stream.in_order(answers)
            bare_s.append(_bare(bare, blocks))
            begun_s = time.monotonic()
            sink.apply(blocks, stream.point())
            ours_s.append(time.monotonic() - begun_s)
    load = round(os.getloadavg()[0], 1)
    yield Figure(
        name="outputs.delta.commit",
        value=min(ours_s),
        unit="s",
        baseline=min(bare_s),
        detail={
            "changes": CHANGES,
            "rounds": ROUNDS,
            "machine_load": load,
            "baseline": "deltalake's merge alone: no sync, no versions, no checkpoint",
        },
    )
    yield Figure(
        name="outputs.delta.blocks",
        value=min(blocks_s) / CHANGES * 1e6,
        unit="us/row",
        detail={"machine_load": load},
    )


def _changes(number: int) -> list[Change]:
    """Return a round's changes: what one inserts, the next one deletes."""
    half, quarter = CHANGES // 2, CHANGES // 4
    base = (number + 1) * CHANGES
    changes: list[Change] = [((n, number, _TEXT), (n, number + 1, _TEXT)) for n in range(half)]
    changes += [(None, (base + n, 0, _TEXT)) for n in range(quarter)]
    former = [base - CHANGES + n for n in range(quarter)] if number else range(half, half + quarter)
    changes += [((key, 0, _TEXT), None) for key in former]
    return changes


def _bare(table: DeltaTable, blocks: list[bytes]) -> float:
    (changes,) = by_table(map(Block.decode, blocks))
    rows: pa.Table = changes.rows()
    values = {name: f"s.{name}" for name in rows.column_names if name != OP}
    begun_s = time.monotonic()
    (
        table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete(f"s.{OP} = {GOES}")
        .when_matched_update(values)
        .when_not_matched_insert(values, f"s.{OP} = {COMES}")
        .execute()
    )
    return time.monotonic() - begun_s
