"""Character sets and collations are what the server meant, whatever its defaults are.

Three upstreams with the defaults of their releases, or of long ago, and a source each: what the
cluster's catalog says of every column is what the server's information_schema says.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cluster.history import History
from penstock.ddl import Catalog
from penstock.local.sql_server import SqlServer
from penstock.schema.model import MysqlType, TableInfo
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_mariadb import drop_user_databases
from tests.kit.servers.fix_source import SourceRig

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]

SCHEMAS = ("shop", "named", "later", "old")


@pytest.fixture(scope="module")
def latin1_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    """A MariaDB as it was built: latin1, and no names or collations in row events."""
    home = tmp_path_factory.mktemp("latin1-server")
    with binlog_server(home, 1, "--character-set-server=latin1") as running:
        yield running


SLOWER = pytest.param("mariadb_new", marks=pytest.mark.slow)


@pytest.fixture(params=["mysql", SLOWER, "latin1"])
def upstream(request: pytest.FixtureRequest) -> SqlServer:
    """A server without any user database."""
    name = "latin1_server" if request.param == "latin1" else request.param
    server: SqlServer = request.getfixturevalue(name)
    drop_user_databases(server)
    return server


def catalog_of(rig: SourceRig) -> Catalog:
    catalog = Catalog()
    for job in History(rig.etcd).jobs():
        catalog.apply(job)
    return catalog


def tracked(catalog: Catalog) -> dict[tuple[str, str, str], str]:
    return {
        (schema, table.name, column.name): column.collate.replace("utf8_", "utf8mb3_")
        for schema, table in catalog.tables()
        for column in table.columns
        if column.collate != "binary" and column.tp is not MysqlType.JSON
    }


def meant(server: SqlServer) -> dict[tuple[str, str, str], str]:
    """Return the same from the server."""
    schemas = ", ".join(f"'{name}'" for name in SCHEMAS)
    found = server.query(
        "SELECT table_schema, table_name, column_name, collation_name"
        " FROM information_schema.columns WHERE collation_name IS NOT NULL"
        f" AND data_type <> 'json' AND table_schema IN ({schemas})"
    )
    return {(str(s), str(t), str(c)): str(name) for s, t, c, name in found}


STATEMENTS = [
    "CREATE DATABASE shop",
    "CREATE DATABASE named CHARACTER SET utf8mb4",
    "CREATE TABLE shop.a (id INT PRIMARY KEY, s VARCHAR(10), e ENUM('a', 'b'), t TEXT)",
    "CREATE TABLE named.b (s VARCHAR(10), l VARCHAR(10) CHARACTER SET latin1, n NCHAR(3),"
    " x VARCHAR(10) COLLATE utf8mb4_bin, y VARCHAR(5) BINARY, z TEXT CHARACTER SET ucs2)",
    "CREATE TABLE named.c (s VARCHAR(10)) CHARACTER SET latin1",
    "ALTER TABLE named.c ADD COLUMN t TEXT, ADD COLUMN u VARCHAR(9) CHARACTER SET utf8mb4",
    "ALTER TABLE named.c CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE named.c ADD COLUMN later VARCHAR(7)",
    "ALTER DATABASE named CHARACTER SET latin1",
    "CREATE TABLE named.d (s VARCHAR(10), k VARCHAR(20) CHARACTER SET latin2)",
    "ALTER TABLE named.d CHARACTER SET utf8mb4, MODIFY s VARCHAR(20)",
    "CREATE TABLE named.e LIKE named.b",
    "SET SESSION collation_server = latin1_german1_ci, collation_connection = latin1_bin",
    "CREATE DATABASE later",
    "CREATE TABLE later.f (s VARCHAR(10))",
]
OF_MYSQL = [
    "SET SESSION default_collation_for_utf8mb4 = utf8mb4_general_ci",
    "CREATE TABLE later.g (s VARCHAR(10) CHARACTER SET utf8mb4, t TEXT) CHARACTER SET utf8mb4",
]
OF_MARIADB = [
    "SET SESSION character_set_collations = 'utf8mb4=utf8mb4_unicode_nopad_ci,latin1=latin1_bin'",
    "CREATE TABLE later.g (s VARCHAR(10) CHARACTER SET utf8mb4, t TEXT) CHARACTER SET latin1",
    "CREATE TABLE later.h (s VARCHAR(10) CHARACTER SET utf8mb4 COLLATE uca1400_as_cs)",
    "SET SESSION character_set_collations = ''",
    "CREATE TABLE later.i (s VARCHAR(10) CHARACTER SET utf8mb4, t TEXT) CHARACTER SET ucs2",
]


def more_of(upstream: SqlServer) -> list[str]:
    ((version,),) = upstream.query("SELECT VERSION()")
    if "MariaDB" not in version:
        return OF_MYSQL
    return [] if str(version).startswith("10.") else OF_MARIADB


@pytest.mark.main_case("latin1")
def test_every_column_has_the_collation_that_the_server_gave_it(
    upstream: SqlServer, rig: SourceRig
) -> None:
    upstream.run("CREATE DATABASE old", "CREATE TABLE old.t (s VARCHAR(10), id INT PRIMARY KEY)")
    rig.begin(upstream, start="current", mode="incremental")
    rig.source.catch_up(upstream)
    upstream.run(*STATEMENTS, *more_of(upstream), "CREATE TABLE old.u (s VARCHAR(10))")
    rig.source.catch_up(upstream)
    found = catalog_of(rig)
    assert tracked(found) == meant(upstream)
    names = {schema.name: schema.collate for schema in found.schemas()}
    assert names == dict(
        upstream.query(
            "SELECT schema_name, default_collation_name FROM information_schema.schemata"
            f" WHERE schema_name IN {SCHEMAS!r}"
        )
    )


def test_texts_in_the_servers_default_charset_come_out_as_they_are(
    upstream: SqlServer, rig: SourceRig
) -> None:
    rig.begin(upstream, start="current", mode="incremental")
    rig.source.catch_up(upstream)
    upstream.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, s VARCHAR(20), e ENUM('Maß', 'Öl'), t TEXT,"
        " d VARCHAR(20) NOT NULL DEFAULT 'Käse', l VARCHAR(20) CHARACTER SET latin1)",
        "INSERT INTO shop.t (id, s, e, t, l) VALUES (1, 'Grüße', 'Öl', 'Straße €', 'déjà €')",
        "ALTER TABLE shop.t ADD COLUMN more VARCHAR(9) NOT NULL DEFAULT 'für'",
        "UPDATE shop.t SET s = 'Süß' WHERE s = 'grüße'",
        "SET NAMES latin1",
    )
    with upstream.connect(charset="latin1") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop.t (id, s, l) VALUES (2, 'Ärger', 'Übel')")
        cursor.execute("CREATE TABLE shop.`größe` (id INT PRIMARY KEY, `maß` VARCHAR(9))")
        cursor.execute("INSERT INTO shop.`größe` VALUES (1, 'weiß')")
    rig.source.catch_up(upstream)
    rig.check(upstream, "shop.t", "shop.größe")


def only(catalog: Catalog, schema: str, name: str) -> TableInfo:
    table = catalog.table(schema, name)
    assert table is not None
    return table


@pytest.mark.thorough
def test_wide_columns_and_keys_of_narrow_charsets_are_taken(
    latin1_server: BinlogServer, rig: SourceRig
) -> None:
    drop_user_databases(latin1_server)
    rig.begin(latin1_server, start="current", mode="incremental")
    rig.source.catch_up(latin1_server)
    latin1_server.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.wide (id INT PRIMARY KEY, a VARCHAR(20000), b VARCHAR(20000))",
        "CREATE TABLE shop.keyed (k VARCHAR(3000) PRIMARY KEY, u VARCHAR(767), UNIQUE (u))",
        "CREATE TABLE shop.one (a VARCHAR(65530))",
        "INSERT INTO shop.keyed VALUES ('é', 'ü')",
    )
    rig.source.catch_up(latin1_server)
    rig.check(latin1_server, "shop.keyed")
    assert only(catalog_of(rig), "shop", "one").columns[0].charset == "latin1"


@pytest.mark.thorough
def test_routed_tables_keep_the_collation_of_their_own_database(
    upstream: SqlServer, rig: SourceRig
) -> None:
    config: dict[str, Any] = {
        "config": """
        [[filter.routes]]
        schema-pattern = "old"
        target-schema = "shop"
        [[filter.routes]]
        schema-pattern = "named"
        target-schema = "shop"
        """
    }
    rig.begin(upstream, start="current", mode="incremental", **config)
    rig.source.catch_up(upstream)
    upstream.run(
        "CREATE DATABASE old CHARACTER SET latin1 COLLATE latin1_danish_ci",
        "CREATE TABLE old.a (id INT PRIMARY KEY, s VARCHAR(10))",
        "CREATE DATABASE IF NOT EXISTS named CHARACTER SET utf8mb4 COLLATE utf8mb4_czech_ci",
        "CREATE TABLE named.b (id INT PRIMARY KEY, s VARCHAR(10))",
    )
    rig.source.catch_up(upstream)
    found = tracked(catalog_of(rig))
    assert found == {("shop", "a", "s"): "latin1_danish_ci", ("shop", "b", "s"): "utf8mb4_czech_ci"}
