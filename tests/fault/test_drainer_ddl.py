"""A DDL that stops the Drainer, and what an operator does about it; a schema history gone bad."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drainer.__main__ import main
from penstock.cluster.history import JOBS
from pumpclient import PumpClient
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_replication import Replication
from tests.kit.workloads.random_writer import in_sqlite

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

_END_S = 120.0
EMPTY_P0 = "ALTER TABLE shop.parts TRUNCATE PARTITION p0"


def stopped(drainer: DrainerProcess, words: str) -> None:
    """Wait until the Drainer has ended by itself with exit code 2 and these words."""
    assert drainer.wait(_END_S) == 2
    assert words in drainer.log_text()


def ddl_command(drainer: DrainerProcess, etcd_url: str, sink: str, *words: str) -> int:
    settings = ["--etcd-urls", etcd_url, "--data-dir", str(drainer.data_dir), "--sink", sink]
    return main(["ddl", *words, *settings])


@pytest.mark.fault(
    "a DDL that the downstream refuses",
    "same; `penstock drainer ddl track`, `skip` or `replace` and a start, and the stream continues",
    cases="2",
)
def test_a_ddl_that_the_downstream_cannot_run_is_skipped_or_replaced_and_the_stream_continues(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    drainer, sink, url = replication.start(), replication.sink, replication.url
    writer = replication.begin()
    writer.execute_ddl(
        "CREATE TABLE shop.parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2"
    )
    before_ts = writer.transact(20)
    skipped_ts = writer.execute_ddl(EMPTY_P0)
    writer.transact(20)
    replaced_ts = writer.execute_ddl(EMPTY_P0)
    last_ts = writer.transact(20)
    stopped(drainer, f"penstock drainer ddl skip {skipped_ts}")
    assert drainer.checkpoint_ts() < skipped_ts

    assert ddl_command(drainer, url, sink, "list") == 0
    assert f"{skipped_ts}  shop  {EMPTY_P0}".replace("shop.parts", "`parts`") in (
        capsys.readouterr().out
    )
    assert ddl_command(drainer, url, sink, "skip", str(skipped_ts)) == 0
    drainer.start()
    stopped(drainer, f"penstock drainer ddl skip {replaced_ts}")
    assert ddl_command(drainer, url, sink, "skip", str(before_ts)) == 2
    assert "is before the checkpoint" in capsys.readouterr().err
    replacement = "ALTER TABLE shop.item ADD COLUMN instead INT"
    assert ddl_command(drainer, url, sink, "replace", str(replaced_ts), replacement) == 0
    drainer.start()
    drainer.wait_until(last_ts)
    assert drainer.stop() == 0
    assert ddl_command(drainer, url, sink, "list") == 0
    listed = capsys.readouterr().out
    assert "DDLs after it: 0" in listed
    assert f"replaced by: {replacement}" in listed
    held, wanted = in_sqlite(replication.path), writer.expected()
    assert held.keys() == wanted.keys()
    assert {name: len(rows) for name, rows in held.items()} == {
        name: len(rows) for name, rows in wanted.items()
    }


class Site:
    """A writer of the database `shop`, its Drainer, and an operator at the SQLite file."""

    def __init__(self, client: PumpClient, url: str, drainer: DrainerProcess, path: Path) -> None:
        self.drainer = drainer
        self._client, self._url, self._path = client, url, path

    def ddl(self, sql: str) -> int:
        (commit_ts,) = self._client.execute_ddl(sql)
        return commit_ts

    def add(self, table: str, **row: Any) -> int:
        with self._client.begin("shop") as txn:
            txn.insert(table, row)
        assert txn.commit_ts is not None
        return txn.commit_ts

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(f'SELECT * FROM "shop.{table}" ORDER BY id').fetchall()

    def held(self, table: str) -> dict[int, dict[str, Any]]:
        """Return the same by their id, each with the names of its columns."""
        with closing(sqlite3.connect(self._path)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute(f'SELECT * FROM "shop.{table}"').fetchall()
        return {row["id"]: dict(row) for row in found}

    def by_hand(self, *statements: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            for sql in statements:
                connection.execute(sql)

    def ddl_command(self, *words: object) -> int:
        """Run `penstock drainer ddl` and return its exit code."""
        return ddl_command(self.drainer, self._url, f"sqlite:///{self._path}", *map(str, words))


@pytest.fixture
def site(replication: Replication) -> Site:
    drainer = replication.start()
    made = Site(replication.connect(), replication.url, drainer, replication.path)
    made.ddl("CREATE DATABASE shop")
    return made


@pytest.mark.slow
def test_a_column_that_the_downstream_has_already_is_tracked_and_gets_its_values(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.drainer.wait_until(site.ddl("CREATE TABLE shop.item (id INT PRIMARY KEY, n INT)"))
    site.by_hand('ALTER TABLE "shop.item" ADD COLUMN extra INTEGER')
    extra_ts = site.ddl("ALTER TABLE shop.item ADD COLUMN extra INT")
    last_ts = site.add("item", id=1, n=2, extra=3)
    stopped(
        site.drainer,
        f"Or override this DDL, and start it then. `penstock drainer ddl track {extra_ts}",
    )
    assert site.ddl_command("skip", extra_ts) == 0
    assert "the values of column extra of shop.item are skipped" in capsys.readouterr().out
    assert site.ddl_command("undo", extra_ts) == 0
    assert site.ddl_command("undo", extra_ts) == 2
    assert site.ddl_command("track", extra_ts) == 0
    site.drainer.start()
    site.drainer.wait_until(last_ts)
    assert site.rows("item") == [(1, 2, 3)]
    assert site.drainer.status().details["values_left_out"] == "0"


@pytest.mark.slow
def test_the_rows_of_a_skipped_table_are_counted_through_a_crash_and_it_can_be_taken_back(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.drainer.wait_until(site.ddl("CREATE TABLE shop.item (id INT PRIMARY KEY)"))
    site.by_hand('CREATE TABLE "shop.late" (id INTEGER)')
    late_ts = site.ddl("CREATE TABLE shop.late (id INT PRIMARY KEY, v INT)")
    site.add("late", id=1, v=1)
    last_ts = site.add("late", id=2, v=2)
    stopped(site.drainer, "the rows of shop.late are skipped and counted")
    assert site.ddl_command("skip", late_ts) == 0
    site.drainer.start()
    site.drainer.wait_until(last_ts)
    assert site.ddl_command("track", late_ts) == 2
    assert "stop it and its standbys first" in capsys.readouterr().err
    details = site.drainer.status().details
    assert (details["rows_left_out"], details["ddls_left_out"]) == ("2", "1")
    assert "override: 2 rows of shop.late" in details["left_out"]
    assert "rows of shop.late do not go downstream (override)" in site.drainer.log_text()
    site.drainer.kill()
    site.drainer.start()
    assert site.drainer.status().details["rows_left_out"] == "2"
    assert site.drainer.stop() == 0

    site.by_hand(
        'DROP TABLE "shop.late"', 'CREATE TABLE "shop.late" (id INTEGER PRIMARY KEY, v INTEGER)'
    )
    capsys.readouterr()
    assert site.ddl_command("list") == 0
    way_out = f"shop.late: its rows are skipped; `penstock drainer ddl track {late_ts}` ends that"
    assert way_out in capsys.readouterr().out
    assert site.ddl_command("track", late_ts) == 0
    assert "not made up for: override: 2 rows of shop.late" in capsys.readouterr().out
    site.drainer.start()
    site.drainer.wait_until(site.add("late", id=3, v=3))
    assert site.rows("late") == [(3, 3)]


@pytest.mark.fault("the history in etcd ends before the checkpoint, or leads beyond it")
@pytest.mark.slow
def test_a_drainer_whose_history_was_wiped_refuses_to_start(replication: Replication) -> None:
    drainer = replication.start()
    writer = replication.begin()
    drainer.wait_until(writer.transact(10))
    assert drainer.stop() == 0
    replication.etcd.delete_prefix(JOBS)
    drainer.spawn()
    stopped(drainer, "was the history wiped or put back")
