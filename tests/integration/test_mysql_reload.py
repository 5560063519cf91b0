"""A table is loaded again while its source continues with all others, each change exactly once."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.source import command
from tests.kit.servers.binlog_server import (
    MYSQL,
    AnyBinlogServer,
    module_server,
    numbers,
    on_servers,
    run_until_done,
)
from tests.kit.servers.fix_source import (
    LONG_S,
    SHARDS_AS_ONE,
    SourceProcess,
    SourceRig,
    bulk,
    cleared,
    rows_of,
)
from tests.kit.wait import eventually

MINIMAL = "SET SESSION binlog_row_image = MINIMAL"


server = module_server(on_servers(MYSQL))


@pytest.fixture
def fresh(server: AnyBinlogServer) -> AnyBinlogServer:
    """The server, with `shop.t` and `shop.bad (id, v)` and nothing else."""
    cleared(server).run("CREATE TABLE shop.bad (id INT PRIMARY KEY, v LONGTEXT)")
    return server


def ask(source: SourceProcess, *words: str) -> str:
    return command.ask([*words, "--status-addr", source.address])


def is_whole(source: SourceProcess) -> bool:
    status = source.status()
    assert status.get("state") != "failed", status
    return "left_out" in status and not status["left_out"]


@contextmanager
def writing(server: AnyBinlogServer) -> Iterator[None]:
    stopped = threading.Event()

    def write() -> None:
        draw = random.Random(7)
        while not stopped.wait(0.005):
            key = draw.randrange(3000)
            run_until_done(
                server,
                "BEGIN",
                f"REPLACE INTO shop.t VALUES ({key}, 'of both {key}')",
                f"REPLACE INTO shop.bad (id, v) VALUES ({key}, 'of both {key}')",
                f"DELETE FROM shop.bad WHERE id = {draw.randrange(3000)}",
                "COMMIT",
            )

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_what_could_not_be_followed_is_whole_again_after_a_reload_under_load(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run(f"INSERT INTO shop.bad SELECT seq, CONCAT('row ', seq) FROM {numbers(2000)}")
    with writing(fresh):
        run_until_done(fresh, MINIMAL, "UPDATE shop.bad SET v = 'by one session' WHERE id % 3 = 0")
        status = source.fails()
        assert status["overrides"][0].startswith("penstock source reload shop.bad --")
        assert "loaded again" in ask(source, "reload", "shop.bad")
        fresh.run("ALTER TABLE shop.bad ADD COLUMN n INT DEFAULT 4")
        eventually(lambda: is_whole(source), LONG_S)
        run_until_done(fresh, "UPDATE shop.bad SET n = 5 WHERE id % 7 = 0")
    source.catch_up(fresh)
    found = rig.check(fresh, "shop.t", "shop.bad")
    assert found.reloaded
    assert not list(rig.folder.glob("*.reload-*"))


@pytest.mark.slow
def test_a_reload_that_is_killed_at_any_moment_brings_every_row_once(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh, load_rate_bytes_per_s=200_000)
    bulk(fresh, 3000, 0, 100)
    fresh.run("INSERT INTO shop.bad SELECT * FROM shop.t")
    source.catch_up(fresh)
    ask(source, "reload", "shop.bad")
    draw = random.Random(11)
    with writing(fresh):
        for _ in range(4):
            threading.Event().wait(draw.uniform(0.5, 3.0))
            source.kill()
            source.start()
            eventually(lambda: source.status().get("state") == "syncing", LONG_S)
        eventually(lambda: is_whole(source), LONG_S)
    source.catch_up(fresh)
    rig.check(fresh, "shop.t", "shop.bad")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("statements", "reloaded"),
    [
        (["RENAME TABLE shop.bad TO shop.tmp, shop.t TO shop.bad, shop.tmp TO shop.t"], "shop.t"),
        pytest.param(
            ["DROP TABLE shop.bad", "CREATE TABLE shop.bad (id INT PRIMARY KEY, w INT)",
             "INSERT INTO shop.bad VALUES (1, 1)"], "shop.bad", marks=pytest.mark.slow),
        pytest.param(
            ["TRUNCATE TABLE shop.bad", "INSERT INTO shop.bad VALUES (5, 'new')"], "shop.bad",
            marks=pytest.mark.slow),
    ],
    ids=["renamed", "dropped", "emptied"],
)  # fmt: skip
def test_a_table_that_is_moved_or_emptied_while_it_is_loaded_is_loaded_as_it_is_then(
    rig: SourceRig, fresh: AnyBinlogServer, statements: list[str], reloaded: str
) -> None:
    source = rig.begin(fresh, load_rate_bytes_per_s=50_000)
    fresh.run("INSERT INTO shop.t VALUES (1, 'followed')")
    bulk(fresh, 2000, 10, 100)
    fresh.run("INSERT INTO shop.bad SELECT * FROM shop.t")
    source.catch_up(fresh)
    ask(source, "reload", "shop.bad")

    def loads() -> bool:
        reload = source.status()["left_out"]["shop.bad"]["reload"]
        return bool(reload) and reload["state"] == "loads"

    eventually(loads, LONG_S)
    fresh.run(*statements)
    source.catch_up(fresh)
    eventually(lambda: is_whole(source), LONG_S)
    fresh.run(f"DELETE FROM {reloaded} WHERE id = 1")
    source.catch_up(fresh)
    rig.check(fresh, "shop.t", "shop.bad")


@pytest.mark.thorough
def test_a_reload_that_cannot_be_says_why_and_drops_nothing(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a')")
    source.catch_up(fresh)
    silent, row = "SET SESSION sql_log_bin = 0", "INSERT INTO shop.bad VALUES (1, 'a')"
    fresh.run(silent, "DELETE FROM shop.bad", "ALTER TABLE shop.bad ENGINE = MERGE")
    ask(source, "reload", "shop.bad")

    def reload() -> dict[str, Any]:
        return source.status()["left_out"]["shop.bad"]["reload"] or {}

    eventually(lambda: reload().get("state") == "failed", LONG_S)
    assert "engines that cannot be replicated" in reload()["problem"]
    fresh.insert(2)
    source.catch_up(fresh)
    assert rig.check(fresh).rows("shop.bad") == [(1, "a")]
    fresh.run(silent, "ALTER TABLE shop.bad ENGINE = InnoDB", row)
    ask(source, "reload", "shop.bad")
    eventually(lambda: is_whole(source), LONG_S)
    rig.check(fresh, "shop.t", "shop.bad")


@pytest.mark.fault(
    "the server lost a table without logging a DROP, and the table is reloaded",
    "the reload fails, the table stays downstream; a DROP TABLE IF EXISTS is followed",
    cases="1 / 2",
)
@pytest.mark.thorough
def test_a_table_that_the_server_lost_without_a_drop_stays_and_its_reload_fails(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'kept')")
    source.catch_up(fresh)
    with pytest.raises(NeedsOperator, match=r"does not have shop\.tpyo"):
        ask(source, "reload", "shop.tpyo")
    ask(source, "skip-table", "shop.bad")
    fresh.run("SET SESSION sql_log_bin = 0", "DROP TABLE shop.bad")
    with pytest.raises(NeedsOperator, match=r"does not have shop\.bad, and its binlog has no DROP"):
        ask(source, "reload", "shop.bad", "--wait")
    fresh.insert(1)
    source.catch_up(fresh)
    assert rig.check(fresh).rows("shop.bad") == [(1, "kept")]
    fresh.run("DROP TABLE IF EXISTS shop.bad")
    eventually(lambda: is_whole(source), LONG_S)
    assert source.status()["reloaded"]["shop.bad"]["dropped"]
    assert ("shop", "bad") not in rig.check(fresh).tables


@pytest.mark.thorough
def test_a_reload_says_how_many_rows_it_loaded_also_of_an_empty_table_and_after_a_restart(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a'), (2, 'b')")
    source.catch_up(fresh)
    assert "shop.bad: 2 rows loaded, " in ask(source, "reload", "shop.bad", "--wait")
    assert "shop.t: 0 rows loaded, " in ask(source, "reload", "shop.t", "--wait")
    source.kill()
    source.start()
    eventually(lambda: source.status().get("state") == "syncing", LONG_S)
    reports = source.status()["reloaded"]
    assert {label: report["rows"] for label, report in reports.items()} == {
        "shop.bad": 2,
        "shop.t": 0,
    }
    assert all(report["started"] <= report["ended"] for report in reports.values())
    fresh.run("DELETE FROM shop.bad")
    assert "shop.bad: 0 rows loaded, " in ask(source, "reload", "shop.bad", "--wait")
    source.catch_up(fresh)
    rig.check(fresh, "shop.t", "shop.bad")


@pytest.mark.slow
def test_a_table_that_is_dropped_while_it_is_loaded_and_stays_away_ends_its_reload(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh, load_rate_bytes_per_s=50_000)
    bulk(fresh, 2000, 10, 100)
    fresh.run("INSERT INTO shop.bad SELECT * FROM shop.t")
    source.catch_up(fresh)
    ask(source, "reload", "shop.bad")

    def loads() -> bool:
        reload = source.status()["left_out"]["shop.bad"]["reload"]
        return bool(reload) and reload["state"] == "loads"

    eventually(loads, LONG_S)
    fresh.run("DROP TABLE shop.bad")
    eventually(lambda: is_whole(source), LONG_S)
    assert source.status()["reloaded"]["shop.bad"]["dropped"]
    source.catch_up(fresh)
    assert ("shop", "bad") not in rig.check(fresh).tables


@pytest.mark.thorough
def test_tables_that_are_merged_into_one_are_loaded_again_together_with_one_that_comes_meanwhile(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    names = [f"shop_1.orders_{number}" for number in (1, 2, 3)]
    create = "CREATE TABLE {} (id INT PRIMARY KEY, v LONGTEXT)"
    fresh.run("CREATE DATABASE shop_1", *map(create.format, names[:2]))
    slow: dict[str, Any] = {"load_rate_bytes_per_s": 60_000}
    config = f'shard-mode = "optimistic"\n{SHARDS_AS_ONE}'
    source = rig.begin(fresh, config=config, **slow)
    fresh.run(
        *(f"INSERT INTO {names[n]} SELECT 2 * seq + {n}, REPEAT('x', 50) FROM {numbers(1500)}"
          for n in (0, 1)),
        "INSERT INTO shop.t VALUES (1, 'followed')",
    )  # fmt: skip
    source.catch_up(fresh)
    fresh.run(MINIMAL, f"UPDATE {names[0]} SET v = 'unseen' WHERE id % 3 = 0")
    source.fails()
    answer = ask(source, "reload", names[0])
    assert answer.startswith("shop_1.orders_1, shop_1.orders_2 loaded again, reload ")
    fresh.run(f"DELETE FROM {names[1]} WHERE id % 5 = 0", "INSERT INTO shop.t VALUES (2, 'too')")

    def loads() -> bool:
        found = source.status()["left_out"].get(names[1])
        return bool(found) and (found["reload"] or {}).get("state") == "loads"

    eventually(loads, LONG_S)
    fresh.run(create.format(names[2]), f"INSERT INTO {names[2]} VALUES (-1, 'new')")
    eventually(lambda: names[2] in source.status().get("left_out", {}), LONG_S)
    fresh.run(f"UPDATE {names[0]} SET v = 'later' WHERE id % 7 = 0")
    source.kill()
    source.start()
    eventually(lambda: source.status().get("state") == "syncing", LONG_S)
    eventually(lambda: is_whole(source), LONG_S)
    fresh.run(*(f"DELETE FROM {name} WHERE id % 4 = 0" for name in names))
    source.catch_up(fresh)
    found = rig.check(fresh)
    assert found.rows("shop.orders") == sorted(
        (row for name in names for row in rows_of(fresh, name)), key=repr
    )
    assert "begins again: a statement moves it" in source.text()


@pytest.mark.slow
def test_merged_tables_that_differ_are_not_loaded_again_and_nothing_is_dropped(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    fresh.run(
        "CREATE DATABASE shop_1", "CREATE TABLE shop_1.orders_1 (id INT PRIMARY KEY)",
        "CREATE TABLE shop_1.orders_2 (id INT PRIMARY KEY)",
    )  # fmt: skip
    source = rig.begin(fresh, config=f'shard-mode = "optimistic"\n{SHARDS_AS_ONE}')
    fresh.run("INSERT INTO shop_1.orders_2 VALUES (1)")
    fresh.run("ALTER TABLE shop_1.orders_1 ADD COLUMN n INT")
    source.catch_up(fresh)
    ask(source, "reload", "shop_1.orders_1")

    def failed() -> str:
        reload = source.status()["left_out"]["shop_1.orders_2"]["reload"] or {}
        return str(reload["problem"]) if reload.get("state") == "failed" else ""

    eventually(lambda: bool(failed()), LONG_S)
    assert "go into one table, and their columns differ" in failed()
    fresh.run("ALTER TABLE shop_1.orders_2 ADD COLUMN n INT", "UPDATE shop_1.orders_2 SET n = 2")
    source.catch_up(fresh)
    assert rig.downstream().rows("shop.orders") == [(1, None)]
    ask(source, "reload", "shop_1.orders_2")
    eventually(lambda: is_whole(source), LONG_S)
    assert rig.downstream().rows("shop.orders") == [(1, 2)]


@pytest.mark.thorough
def test_half_of_a_surrogate_pair_is_refused_and_followed_as_bytes_after_a_reload(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    fresh.run("CREATE TABLE shop.half (id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET ucs2)")
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.half VALUES (1, _ucs2 x'0041')")
    source.catch_up(fresh)
    fresh.run("INSERT INTO shop.half VALUES (2, _ucs2 x'0042D83D')")
    status = source.fails()
    assert "'v' (VARCHAR in ucs2) cannot be read: 0x0042d83d is not valid" in status["problem"]
    assert "make the column VARBINARY there" in str(status)
    fresh.run("ALTER TABLE shop.half MODIFY v VARBINARY(20)")
    assert "loaded again" in ask(source, "reload", "shop.half")
    eventually(lambda: is_whole(source), LONG_S)
    fresh.run("INSERT INTO shop.half VALUES (3, x'DE00')")
    fresh.run("UPDATE shop.half SET v = x'D83E' WHERE id = 1")
    source.catch_up(fresh)
    found = rig.check(fresh, "shop.half")
    assert found.rows("shop.half") == [(1, b"\xd8\x3e"), (2, b"\0B\xd8\x3d"), (3, b"\xde\0")]
