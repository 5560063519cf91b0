"""A downstream that is removed, emptied, or put back to an older state under a Drainer stops it."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from drainer.build import check_not_behind
from drainer.components import Home
from drainer.settings.targets import target_of
from drainer.sinks.checkpoint import Checkpoint, Overridden, TakenOver
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.codes import Code
from penstock.errors import NeedsOperator
from tests.contract.test_lake_sink import Lake
from tests.contract.test_sink import Downstream, insert
from tests.kit.workloads.sink_stream import inserts


def stops(work: Callable[[], Any], *codes: Code) -> None:
    """The work is refused, and not as if another Drainer were there; the next try is, too."""
    for _ in range(2):
        with pytest.raises(NeedsOperator) as refused:
            work()
        assert not isinstance(refused.value, TakenOver | Overridden)
        assert refused.value.code in codes, refused.value


# --- SQLite ------------------------------------------------------------------------------------


def sqlite_at(path: Path) -> Downstream:
    return Downstream(f"sqlite:///{path}", "sqlite", path, None)


def backed_up(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def sqlite_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


def deleted(path: Path, _: Path) -> None:
    for each in sqlite_files(path):
        each.unlink()


def put_back(path: Path, copy: Path) -> None:
    deleted(path, copy)
    shutil.copy(copy, path)


def emptied(path: Path, _: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('DELETE FROM "tidb_binlog.checkpoint"')


SQLITE: dict[str, Callable[[Path, Path], object]] = {
    "all is deleted": deleted,
    "the file is deleted": lambda path, _: path.unlink(),
    "the file is renamed": lambda path, _: path.rename(path.with_name("away")),
    "an older copy is put back": put_back,
    "an older copy is renamed over it": lambda path, copy: copy.replace(path),
    "the checkpoint is deleted": emptied,
}


@pytest.mark.fault(
    "a SQLite file, the checkpoint of a server, a lake or a table of it is removed, emptied,"
    " renamed, or put back to an older state while the Drainer writes",
    "it stops before its checkpoint moves, and names both; a whole copy in the same place is"
    " continued",
    cases="26",
)
@pytest.mark.parametrize("change", SQLITE)
def test_a_changed_sqlite_file_stops_the_drainer(change: str, tmp_path: Path) -> None:
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        backed_up(path, copy)
        downstream.add(sink, 1)
        SQLITE[change](path, copy)
        point = downstream.point()
        stops(
            lambda: sink.apply(insert(downstream, 2), point),
            *(Code.SINK_FILE, Code.CHECKPOINT_GONE, Code.SINK_REFUSES),
        )


def rows_of(downstream: Downstream, first: int, count: int) -> list[str]:
    return [f'INSERT INTO "shop.t" VALUES ({each}, 0)' for each in range(first, first + count)]


def copied(path: Path) -> None:
    """Have SQLite copy the log into the file, as it does by itself behind some commits."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def written_over(path: Path, copy: Path) -> None:
    """As `cp` restores a backup: the file stays the same one."""
    path.write_bytes(copy.read_bytes())


IN_PLACE: dict[str, Callable[[Path, Path], object]] = {
    "an older copy is written over it": written_over,
    "it is emptied": lambda path, _: os.truncate(path, 0),
    "it is cut in a page": lambda path, _: os.truncate(path, path.stat().st_size - 1000),
    "it is cut by a page": lambda path, _: os.truncate(path, path.stat().st_size - 4096),
}


@pytest.mark.fault(
    "a SQLite file is emptied, cut, or written over by an older copy in place (`cp`) while"
    " the Drainer writes; an older file is put beside a newer log; a file was cut before a"
    " start",
    "it stops before its checkpoint moves, or the log still has all of it; what other"
    " programs do (VACUUM, checkpoints, DDL) stops nothing",
    cases="11",
)
@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("change", IN_PLACE)
def test_a_sqlite_file_that_is_changed_in_place_loses_nothing_silently(
    change: str, is_copied: bool, tmp_path: Path
) -> None:
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        sink.apply(rows_of(downstream, 0, 2000), downstream.point())
        copied(path)
        shutil.copy(path, copy)
        sink.apply(rows_of(downstream, 2000, 1000), downstream.point())
        if is_copied:
            copied(path)
        IN_PLACE[change](path, copy)
        point, refusals = downstream.point(), []
        for _ in range(2):
            try:
                sink.apply(rows_of(downstream, 3000, 10), point)
                break
            except NeedsOperator as error:
                refusals.append(error.code)
    assert bool(refusals) or not is_copied
    assert set(refusals) <= {Code.SINK_FILE, Code.CHECKPOINT_GONE}
    if len(refusals) < 2:  # The log had all that the file lost.
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        assert downstream.query('SELECT COUNT(*) FROM "shop.t"') == [(3010,)]


def test_an_older_sqlite_file_beside_a_newer_log_is_refused_until_the_log_is_gone(
    tmp_path: Path,
) -> None:
    path, kept = tmp_path / "shop.db", tmp_path / "kept"
    kept.mkdir()
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        sink.apply(rows_of(downstream, 0, 100), downstream.point())
        copied(path)
        older = shutil.copy(path, tmp_path / "older.db")
        for number in range(3):
            sink.apply(rows_of(downstream, 100 * (number + 1), 100), downstream.point())
            copied(path)
        last = downstream.point()
        sink.apply(rows_of(downstream, 1000, 1), last)
        for each in sqlite_files(path):  # As a process that is killed leaves them.
            shutil.copy(each, kept)
    deleted(path, path)
    for each in kept.iterdir():
        shutil.copy(each, tmp_path)
    shutil.copy(older, path)
    for _ in range(2):
        with closing(downstream.open(retry_s_max=0)) as sink:
            with pytest.raises(NeedsOperator, match="not the file that the log") as refused:
                sink.load_checkpoint()
            assert refused.value.code is Code.SINK_FILE
    shutil.copy(kept / "shop.db", path)
    with closing(downstream.open(retry_s_max=0)) as sink:
        assert sink.load_checkpoint() == last
    deleted(path, path)
    shutil.copy(older, path)
    with closing(downstream.open(retry_s_max=0)) as sink:
        found = sink.load_checkpoint()
        assert found is not None
        assert found.commit_ts < last.commit_ts
    assert downstream.query('SELECT COUNT(*) FROM "shop.t"') == [(100,)]


def test_a_sqlite_file_that_was_cut_while_no_one_wrote_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        sink.apply(rows_of(downstream, 0, 2000), downstream.point())
    os.truncate(path, path.stat().st_size - 1000)
    with closing(downstream.open(retry_s_max=0)) as sink:
        stops(sink.load_checkpoint, Code.SINK_FILE)


def test_what_others_do_with_a_sqlite_file_meanwhile_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        others = (
            "VACUUM",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "PRAGMA wal_checkpoint(PASSIVE)",
            'DELETE FROM "shop.t" WHERE id % 2',
            'CREATE INDEX i ON "shop.t" (v)',
        )
        for number, sql in enumerate(others * 2):
            sink.apply(rows_of(downstream, 1000 * number, 1000), downstream.point())
            with closing(sqlite3.connect(path)) as connection, connection:
                if "INDEX" in sql and number > len(others):
                    sql = "DROP INDEX i"
                connection.execute(sql)
    with closing(downstream.open(retry_s_max=0)) as sink:
        sink.load_checkpoint()
        sink.apply(rows_of(downstream, 10**6, 1), downstream.point())


def test_the_log_of_a_sqlite_file_that_is_deleted_loses_nothing_silently(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        (tmp_path / "shop.db-wal").unlink()
        # The connection's close writes the log into the file: either that, or it stops.
        try:
            downstream.add(sink, 1)
        except NeedsOperator:
            return
        assert downstream.ids() == [1]


def test_a_sqlite_file_that_is_replaced_by_its_own_copy_is_continued(tmp_path: Path) -> None:
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    downstream = sqlite_at(path)
    with closing(downstream.begun(retry_s_max=0)) as sink:
        backed_up(path, copy)
        put_back(path, copy)
        downstream.add(sink, 1)
    assert downstream.ids() == [1]


# --- a server ----------------------------------------------------------------------------------


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Downstream]:
    found = request.getfixturevalue(request.param)
    made = Downstream(found.url, "mysql", None, found)
    yield made
    for sink in made.sinks:
        sink.close()


_ROW = "tidb_binlog.checkpoint"
SERVER: dict[str, tuple[str, ...]] = {
    "the row is deleted": (f"DELETE FROM {_ROW}",),
    "the table is truncated": (f"TRUNCATE TABLE {_ROW}",),
    "the table is dropped": (f"DROP TABLE {_ROW}",),
    "the database is dropped": ("DROP DATABASE tidb_binlog",),
    "the table is dropped and made again": (
        f"CREATE TABLE tidb_binlog.other LIKE {_ROW}",
        f"DROP TABLE {_ROW}",
        f"RENAME TABLE tidb_binlog.other TO {_ROW}",
    ),
    "an older dump is put back": (
        f"REPLACE INTO {_ROW} SELECT * FROM before_that.checkpoint",
        "DROP DATABASE before_that",
    ),
}


def test_a_changed_checkpoint_on_a_server_stops_the_drainer(server: Downstream) -> None:
    for change, statements in SERVER.items():
        with closing(server.open(retry_s_max=0)) as sink:
            sink.load_checkpoint()
            sink.save_checkpoint(server.point())
            for sql in (
                "CREATE DATABASE IF NOT EXISTS before_that",
                f"CREATE OR REPLACE VIEW before_that.v AS SELECT * FROM {_ROW}",
                "DROP TABLE IF EXISTS before_that.checkpoint",
                f"CREATE TABLE before_that.checkpoint AS SELECT * FROM {_ROW}",
            ):
                server.query(sql)
            sink.save_checkpoint(server.point())
            for sql in statements:
                server.query(sql)
            point = server.point()
            stops(lambda s=sink, p=point: s.save_checkpoint(p), Code.CHECKPOINT_GONE)  # type: ignore[misc]
            server.query("DROP DATABASE IF EXISTS tidb_binlog")
        assert change


# --- a lake ------------------------------------------------------------------------------------


def log_of(lake: Lake, table: str) -> Path:
    return lake.folder / table / "_delta_log"


def last_entry(lake: Lake, table: str) -> Path:
    return max(log_of(lake, table).glob("*.json"))


def older_lake(lake: Lake, copy: Path) -> None:
    shutil.rmtree(lake.folder)
    shutil.copytree(copy, lake.folder)


def older_table(lake: Lake, copy: Path) -> None:
    shutil.rmtree(lake.folder / "shop/t")
    shutil.copytree(copy / "shop/t", lake.folder / "shop/t")


def other_table(lake: Lake, _: Path) -> None:
    entry = last_entry(lake, "shop/t")
    entry.write_bytes(entry.read_bytes().replace(b'"timestamp":1', b'"timestamp":2'))


def rows_deleted(lake: Lake, _: Path) -> None:
    for each in (lake.folder / "shop/t").glob("*.parquet"):
        each.unlink()


LAKE: dict[str, Callable[[Lake, Path], object]] = {
    "all is deleted": lambda lake, _: shutil.rmtree(lake.folder),
    "all is renamed": lambda lake, _: lake.folder.rename(lake.folder.with_name("away")),
    "all is an older state": older_lake,
    "a table is deleted": lambda lake, _: shutil.rmtree(lake.folder / "shop/t"),
    "a table's log is deleted": lambda lake, _: shutil.rmtree(log_of(lake, "shop/t")),
    "a table is an older state": older_table,
    "a table lost its last commit": lambda lake, _: last_entry(lake, "shop/t").unlink(),
    "a table is another one": other_table,
    "the checkpoint is deleted": lambda lake, _: shutil.rmtree(
        lake.folder / "_penstock/checkpoint"
    ),
    "the checkpoint's log is deleted": lambda lake, _: shutil.rmtree(
        log_of(lake, "_penstock/checkpoint")
    ),
    "the checkpoint lost its last commit": lambda lake, _: last_entry(
        lake, "_penstock/checkpoint"
    ).unlink(),
    "the states are deleted": lambda lake, _: shutil.rmtree(lake.folder / "_penstock/versions"),
}


@pytest.mark.parametrize("change", LAKE)
def test_a_changed_lake_stops_the_drainer(change: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with closing(lake.begun()) as sink:
        lake.put(sink, t=inserts((1, "a")))
        shutil.copytree(lake.folder, tmp_path / "copy")
        lake.put(sink, t=inserts((2, "b")))
        LAKE[change](lake, tmp_path / "copy")
        stops(
            lambda: lake.put(sink, t=inserts((3, "c"))),
            *(Code.DELTA_TABLE, Code.SINK_FILE, Code.CHECKPOINT_GONE),
        )


AT_A_START: dict[str, Callable[[Lake, Path], object]] = {
    "a table is an older state": older_table,
    "a table is deleted": LAKE["a table is deleted"],
    "a table lost its last commit": LAKE["a table lost its last commit"],
    "a table's last commit is emptied": lambda lake, _: last_entry(lake, "shop/t").write_bytes(b""),
    "a table's last commit is cut": lambda lake, _: os.truncate(last_entry(lake, "shop/t"), 100),
    "a table's rows are deleted": rows_deleted,
}


@pytest.mark.fault(
    "a table of a lake is older, deleted, or lacks its last commit or its rows at a start;"
    " its last commit was emptied or cut",
    "refused with the first changes of the table",
    cases="6",
)
@pytest.mark.parametrize("change", AT_A_START)
def test_a_lake_that_changed_before_a_start_stops_the_drainer(change: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with closing(lake.begun()) as sink:
        lake.put(sink, t=inserts((1, "a")))
        shutil.copytree(lake.folder, tmp_path / "copy")
        lake.put(sink, t=inserts((2, "b")))
    AT_A_START[change](lake, tmp_path / "copy")
    with closing(lake.open()) as sink:
        sink.load_checkpoint()
        stops(lambda: lake.put(sink, t=inserts((3, "c"))), Code.DELTA_TABLE, Code.SINK_FILE)


def test_a_lake_that_was_moved_to_another_disk_with_all_of_it_is_continued(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with closing(lake.begun()) as sink:
        lake.put(sink, t=inserts((1, "a")))
        os.rename(shutil.copytree(lake.folder, tmp_path / "copy"), tmp_path / "moved")
        shutil.rmtree(lake.folder)
        os.rename(tmp_path / "moved", lake.folder)
        lake.put(sink, t=inserts((2, "b")))
    assert lake.rows() == [(1, "a"), (2, "b")]


# --- what is the same output -------------------------------------------------------------------


def test_outputs_have_the_same_name_only_if_they_are_one() -> None:
    urls = [
        "file:///a", "file:///b", "sqlite:///a.db", "sqlite:///b.db", "kafka://h:1/?prefix=a",
        "kafka://h:1/?prefix=b", "delta:///a", "mysql://u:p@h:1/", "mysql://u:p@g:1/",
        "mysql://u:p@h:1/?checkpoint-table=x",
    ]  # fmt: skip
    assert len({target_of(url).output for url in urls}) == len(urls)
    assert (
        target_of("mysql://u:secret@h:1/?sql-mode=x").output == target_of("mysql://v@h:1/").output
    )
    assert "secret" not in target_of("mysql://u:secret@h:1/").output


# --- a restart ---------------------------------------------------------------------------------

URL = "kafka://h:9092/?prefix=shop"


def start(home: Home, found_ts: int, known_ts: int, *, url: str = URL, accepted: int = -1) -> None:
    """Look at a downstream at `found_ts`, 0 for none, that etcd says was at `known_ts`."""
    entry = NodeStatus(
        node_id="drainer-1", host="h:1", state=NodeState.PAUSED, max_commit_ts=known_ts
    )
    components: Any = SimpleNamespace(home=home, etcd=None)
    strategy = "events" if url.startswith("kafka") else "merge"
    config: Any = SimpleNamespace(
        downstream=target_of(url), initial_commit_ts=accepted, strategy=strategy
    )
    found = Checkpoint(found_ts, 1) if found_ts else None
    with patch("drainer.build.Registry") as registry:
        registry.return_value.get.return_value = entry
        asyncio.run(check_not_behind(config, components, found, asyncio.Event()))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "drainer") as made:
        made.node_id("drainer-1", "h:1")
        made.note_downstream(target_of(URL).output)
        yield made


@pytest.mark.fault(
    "a table of a lake is older: before a restart",
    "no checkpoint, or older messages: refused, with the `initial-commit-ts` that accepts it;"
    " tables that are older with their checkpoint are continued",
    cases="10",
)
def test_a_restart_refuses_an_output_without_the_checkpoint_that_it_had(home: Home) -> None:
    with pytest.raises(NeedsOperator, match=r"no checkpoint.*brought it to 90") as refused:
        start(home, 0, 90)
    assert refused.value.code is Code.CHECKPOINT_GONE
    start(home, 0, 90, accepted=70)


def test_a_restart_refuses_older_messages_and_continues_older_tables(home: Home) -> None:
    with pytest.raises(NeedsOperator, match=r"checkpoint at 80.*brought it to 90"):
        start(home, 80, 90)
    with pytest.raises(NeedsOperator, match="checkpoint at 80"):
        start(home, 80, 90, accepted=70)
    start(home, 80, 90, accepted=80)
    home.note_downstream(target_of("sqlite:///a.db").output)
    start(home, 80, 90, url="sqlite:///a.db")
    with pytest.raises(NeedsOperator, match="no checkpoint"):
        start(home, 0, 90, url="sqlite:///a.db")


def test_a_new_output_begins_where_the_settings_say(home: Home) -> None:
    other = "kafka://h:9092/?prefix=other"
    start(home, 0, 90, url=other)
    start(home, 90, 90)
    assert home.downstream() == target_of(URL).output
    start(home, 20, 90, url=other)
    assert home.downstream() == target_of(other).output
