"""What only a MariaDB has, from it to the Pumps: sequences, UUID and INET columns, phases."""

from collections.abc import Iterator

import pytest

from penstock.cluster.history import History
from penstock.ddl import Catalog
from pumpclient.mysql.source import command
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_source import LONG_S, SourceRig, cleared
from tests.kit.wait import eventually, present

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    home = tmp_path_factory.mktemp("mariadb-source-server")
    options = ("--binlog-row-metadata=FULL", "--binlog-alter-two-phase=1")
    with binlog_server(home, 1, *options) as running:
        yield running


def history(rig: SourceRig) -> tuple[Catalog, list[str]]:
    found = History(rig.etcd).jobs()
    catalog = Catalog()
    for job in found:
        catalog.apply(job)
    return catalog, [job.query for job in found]


def test_uuids_and_addresses_arrive_as_the_texts_that_the_server_shows(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run(
        "CREATE TABLE shop.u (id UUID PRIMARY KEY, f INET4, s INET6, n INT) ",
        "INSERT INTO shop.u VALUES ('123e4567-e89b-12d3-a456-426655440000', '1.2.3.4', '::1', 1)",
        "INSERT INTO shop.u VALUES ('f47ac10b-58cc-4372-a567-0e02b2c3d479', '0.0.0.0',"
        " '2001:db8::ff00:42:8329', 2), ('00112233-4455-0077-8899-AABBCCDDEE00', NULL,"
        " '::ffff:1.2.3.4', 3), ('00000000-0000-0000-0000-000000000000', '255.0.0.0', '::', 4)",
    )
    rig.begin(server)
    rig.source.catch_up(server)
    server.run(
        "UPDATE shop.u SET s = NULL, f = '10.0.0.1' WHERE n = 1",
        "DELETE FROM shop.u WHERE n = 2",
        "ALTER TABLE shop.u ADD COLUMN later UUID DEFAULT '123e4567-e89b-12d3-a456-426655440000'",
        "INSERT INTO shop.u (id, n) VALUES (uuid(), 5)",
    )
    rig.source.finish(server)
    wanted = server.query(
        "SELECT CAST(id AS CHAR), CAST(f AS CHAR), CAST(s AS CHAR), n, CAST(later AS CHAR)"
        " FROM shop.u"
    )
    assert rig.downstream().rows("shop.u") == sorted(wanted)


@pytest.mark.thorough
def test_rows_with_numbers_of_a_sequence_arrive_and_the_downstream_reserves_them(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run("CREATE SEQUENCE shop.before", "DO NEXTVAL(shop.before)")
    rig.begin(server)
    server.run(
        "CREATE SEQUENCE shop.s CACHE 10",
        "CREATE TABLE shop.q (id INT PRIMARY KEY DEFAULT NEXTVAL(shop.s), v INT)",
        "INSERT INTO shop.q (v) VALUES (1), (2)",
        "INSERT INTO shop.q (v) SELECT seq FROM shop.seq_1_to_300",
        "DO NEXTVAL(shop.before)",
    )
    rig.source.catch_up(server)
    server.run("INSERT INTO shop.q (v) VALUES (3)")
    rig.source.finish(server)
    rig.check(server, "shop.q")
    catalog, queries = history(rig)
    found = present(catalog.table("shop", "s"))
    assert found.is_sequence
    reserved = [q for q in queries if "RESTART" in q and "`s`" in q]
    (text,) = reserved  # One for hundreds of rows of the sequence.
    ((given,),) = server.query("SELECT next_not_cached_value FROM shop.s")
    assert int(text.rpartition(" ")[2]) >= given


@pytest.mark.thorough
def test_an_alter_in_two_phases_is_run_once_and_one_that_failed_is_not(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run("INSERT INTO shop.t VALUES (1, 'a'), (2, 'a')")
    rig.begin(server)
    server.run("ALTER TABLE shop.t ADD COLUMN w INT")
    with pytest.raises(Exception, match="Duplicate entry"):
        server.run("ALTER TABLE shop.t ADD UNIQUE twice (v(10))")
    server.run(
        "SET STATEMENT lock_wait_timeout = 5 FOR ALTER TABLE shop.t RENAME COLUMN w TO x",
        "INSERT INTO shop.t VALUES (3, 'b', 7)",
    )
    rig.source.finish(server)
    rig.check(server)
    catalog, _ = history(rig)
    table = present(catalog.table("shop", "t"))
    assert [c.name for c in table.columns] == ["id", "v", "x"]
    assert not table.indexes


@pytest.mark.thorough
def test_a_table_is_never_taken_for_one_whose_name_differs_by_letter_case_only(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run("INSERT INTO shop.t VALUES (1, 'a')")
    source = rig.begin(server)
    server.run("DROP TABLE IF EXISTS shop.T", "DROP DATABASE IF EXISTS SHOP")
    source.catch_up(server)
    assert "shop.T is not here, and so not dropped; shop.t is another one" in source.text()
    server.run(
        "CREATE TABLE IF NOT EXISTS shop.T (id INT PRIMARY KEY, v LONGTEXT)",
        "INSERT INTO shop.T VALUES (7, 'other')",
    )
    status = source.fails()
    assert "shop.T and shop.t are two" in status["problem"]
    command.ask(["skip", "--status-addr", source.address])
    eventually(lambda: source.status()["statement"] != status["statement"], LONG_S)
    assert "shop.T and shop.t are two" in source.fails()["problem"]
    command.ask(["skip-table", "shop.T", "--status-addr", source.address])
    server.run("DROP TABLE shop.T", "INSERT INTO shop.t VALUES (2, 'b')")
    source.finish(server)
    rig.check(server)


NAMED = (
    "(id INT, u INT UNIQUE, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START,"
    " e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, w INT, PRIMARY KEY (id, e),"
    " PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING"
)
CHANGES = (
    "UPDATE {} SET v = v + 10 WHERE id = 1",
    "DELETE FROM {} WHERE id = 2",
    "UPDATE {} SET id = id + 100 WHERE id = 3",
    "UPDATE {} SET v = v",
    "REPLACE INTO {} VALUES (1, 4), (9, 5), (9, 6)",
    "DELETE HISTORY FROM {}",
    "DELETE FROM {} WHERE id = 9",
)
NAMED_CHANGES = (
    "UPDATE {} SET w = w + 1 WHERE id < 3",
    "REPLACE INTO {} (id, u, w) VALUES (1, 2, 9), (6, 5, 9), (4, 3, 9)",
    "DELETE FROM {} WHERE id = 6",
)


@pytest.mark.thorough
def test_the_current_rows_of_versioned_tables_arrive_and_their_history_does_not(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    rows = "SELECT seq, seq, seq FROM shop.seq_1_to_5"
    server.run(
        "CREATE TABLE shop.before (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        f"CREATE TABLE shop.named {NAMED}",
        "INSERT INTO shop.before SELECT seq, seq FROM shop.seq_1_to_5",
        f"INSERT INTO shop.named (id, u, w) {rows}",
        "UPDATE shop.before SET v = 7 WHERE id < 3",
    )
    rig.begin(server, mode="all")
    rig.source.catch_up(server)  # These two are loaded, the others are in the binlog.
    server.run(
        "CREATE TABLE shop.made (id INT PRIMARY KEY, v INT WITHOUT SYSTEM VERSIONING) WITH SYSTEM"
        " VERSIONING PARTITION BY SYSTEM_TIME (PARTITION h HISTORY, PARTITION c CURRENT)",
        f"CREATE TABLE shop.late {NAMED}",
        "CREATE TABLE shop.bare (v INT) WITH SYSTEM VERSIONING",
        "ALTER TABLE shop.t ADD SYSTEM VERSIONING",
        "INSERT INTO shop.made VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO shop.t VALUES (1, '1'), (2, '2'), (3, '3')",
        f"INSERT INTO shop.late (id, u, w) {rows}",
        "INSERT INTO shop.bare VALUES (1), (2), (2)",
        "DELETE FROM shop.bare WHERE v = 1",
        *(sql.format(f"shop.{name}") for name in ("before", "made", "t") for sql in CHANGES),
        *(sql.format(f"shop.{name}") for name in ("named", "late") for sql in NAMED_CHANGES),
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION system_versioning_alter_history = KEEP")
        cursor.execute("ALTER TABLE shop.before ADD COLUMN x INT")
        cursor.execute("ALTER TABLE shop.named RENAME COLUMN e TO f, ADD COLUMN z INT FIRST")
        cursor.execute("ALTER TABLE shop.t DROP SYSTEM VERSIONING")
    server.run(
        "UPDATE shop.before SET x = 4 WHERE id = 4",
        "UPDATE shop.named SET z = 4 WHERE w < 9",
        "DELETE FROM shop.t WHERE id = 103",
        "INSERT INTO shop.t VALUES (7, 'd')",
    )
    rig.source.catch_up(server)
    assert rig.source.status()["history_rows"] > 0
    assert rig.source.stop() == 0
    found = rig.check(server, "shop.before", "shop.made", "shop.bare", "shop.t")
    for table, columns in (("shop.named", "z, id, u, w"), ("shop.late", "id, u, w")):
        assert found.rows(table) == sorted(server.query(f"SELECT {columns} FROM {table}"), key=repr)
    catalog, queries = history(rig)
    assert not [query for query in queries if "VERSIONING" in query or "SYSTEM_TIME" in query]
    named = present(catalog.table("shop", "named"))
    assert [c.name for c in named.columns] == ["z", "id", "u", "w"]
