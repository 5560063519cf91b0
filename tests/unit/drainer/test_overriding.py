"""Whatever is overridden, the downstream differs from upstream in what the counts name only."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.operated.downstreams import OperatedDownstream, Server
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.ddl_overrides import History, Operator


def check(
    seed: int,
    folder: Path,
    commits: int = 40,
    often: float = 0.4,
    place: OperatedDownstream | None = None,
) -> None:
    history = History(seed, commits)
    operator = Operator(history, folder, seed, often, place)
    checkpoint = operator.run()
    counted = {
        (each.kind, each.table, each.column): count
        for each, count in checkpoint.skipped.items()
        if each.kind in ("rows", "values", "converted")
    }
    assert counted == operator.model.counts
    for schema, table in history.catalog.tables():
        copy = operator.model.copies[table.id]
        if copy.is_absent:
            continue
        wanted = history.rows[table.id]
        compared = [c.name for c in table.columns if c.name not in copy.lacking | copy.lacked]
        found = operator.rows(schema, table.name, compared)
        if copy.has_more:
            found = {key: row for key, row in found.items() if key in wanted}
        assert found == {key: [row[c] for c in compared] for key, row in wanted.items()}, (
            seed, schema, table.name,
        )  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_random_overrides_leave_out_what_the_counts_say_and_nothing_else(seed: int) -> None:
    with TemporaryDirectory() as folder:
        check(seed, Path(folder), commits=30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_more_random_overrides_leave_out_what_the_counts_say(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, commits=80, often=(seed % 10) / 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_overrides_leave_out_the_same_in_a_mariadb(
    seed: int, tmp_path: Path, mariadb: MariadbServer
) -> None:
    check(seed, tmp_path, often=(seed % 10) / 10, place=Server(mariadb))
