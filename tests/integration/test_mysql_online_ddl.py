"""gh-ost and pt-osc alter tables of a server while rows change: downstream follows the result."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.local.sql_server import SqlServer
from tests.kit.fakes.replica import Replica
from tests.kit.servers.binlog_server import numbers
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, SourceProcess
from tests.kit.wait import eventually

pytestmark = pytest.mark.thorough

Act = Callable[[], None]
BEGIN = (
    # A MySQL's own default is no collation of the MariaDB downstream.
    "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "CREATE TABLE shop.item (id BIGINT PRIMARY KEY, name VARCHAR(20), price INT)",
    "INSERT INTO shop.item SELECT seq, CONCAT('n', seq), seq FROM " + numbers(40),
)
ALTERED = "ADD COLUMN stars INT NOT NULL DEFAULT 3, MODIFY name VARCHAR(40), DROP COLUMN price"


def changed(server: SqlServer, first: int) -> None:
    """Change rows of the table, in all ways, in the midst of what a tool does."""
    server.run(
        f"INSERT INTO shop.item (id, name) VALUES ({first}, 'new'), ({first + 1}, 'newer')",
        f"UPDATE shop.item SET name = 'other' WHERE id IN ({first % 7}, {first % 11})",
        f"DELETE FROM shop.item WHERE id = {first % 13 + 20}",
    )


def gh_ost(server: SqlServer, between: Act) -> None:
    """Do what gh-ost does: it applies the binlog's rows to the copy, and renames under a lock."""
    server.run(
        "drop /* gh-ost */ table if exists `shop`.`_item_gho`",
        "drop /* gh-ost */ table if exists `shop`.`_item_del`",
        "drop /* gh-ost */ table if exists `shop`.`_item_ghc`",
        "create /* gh-ost */ table `shop`.`_item_ghc` (id bigint auto_increment, last_update"
        " timestamp not null DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
        " hint varchar(64) charset ascii not null, value varchar(4096) charset ascii not null,"
        " primary key(id), unique key hint_uidx(hint)) auto_increment=256",
        "create /* gh-ost */ table `shop`.`_item_gho` like `shop`.`item`",
        f"alter /* gh-ost */ table `shop`.`_item_gho` {ALTERED}",
        "insert /* gh-ost */ into `shop`.`_item_ghc` (id, hint, value) values (2, 'state', 'GhostTa"
        "bleMigrated') on duplicate key update last_update=NOW(), value=VALUES(value)",
        "insert /* gh-ost */ ignore into `shop`.`_item_gho` (`id`, `name`) (select `id`, `name`"
        " from `shop`.`item` force index (`PRIMARY`) where id <= 20 lock in share mode)",
    )
    between()
    changed(server, 100)
    server.run(
        "insert /* gh-ost */ ignore into `shop`.`_item_gho` (`id`, `name`) (select `id`, `name`"
        " from `shop`.`item` force index (`PRIMARY`) lock in share mode)",
        "delete /* gh-ost */ from `shop`.`_item_gho` where id not in (select id from shop.item)",
        "replace /* gh-ost */ into `shop`.`_item_gho` (`id`, `name`) select id, name"
        " from shop.item",
        "create /* gh-ost */ table `shop`.`_item_del` (id int auto_increment primary key)"
        " engine=InnoDB comment='ghost-cut-over-sentry'",
        "drop /* gh-ost */ table if exists `shop`.`_item_del`",
        "rename /* gh-ost */ table `shop`.`item` to `shop`.`_item_del`,"
        " `shop`.`_item_gho` to `shop`.`item`",
    )
    changed(server, 102)
    server.run(
        "drop /* gh-ost */ table if exists `shop`.`_item_ghc`",
        "drop /* gh-ost */ table if exists `shop`.`_item_del`",
    )


TRIGGERS = {
    "del": "DELETE ON `shop`.`item` FOR EACH ROW DELETE IGNORE FROM `shop`.`_item_new`"
    " WHERE `shop`.`_item_new`.`id` <=> OLD.`id`",
    "upd": "UPDATE ON `shop`.`item` FOR EACH ROW BEGIN DELETE IGNORE FROM `shop`.`_item_new` WHERE"
    " !(OLD.`id` <=> NEW.`id`) AND `shop`.`_item_new`.`id` <=> OLD.`id`; REPLACE INTO"
    " `shop`.`_item_new` (`id`, `name`) VALUES (NEW.`id`, NEW.`name`); END",
    "ins": "INSERT ON `shop`.`item` FOR EACH ROW REPLACE INTO `shop`.`_item_new` (`id`, `name`)"
    " VALUES (NEW.`id`, NEW.`name`)",
}


def pt_osc(server: SqlServer, between: Act) -> None:
    """Do what pt-online-schema-change does: triggers bring rows to the copy as they change."""
    server.run(
        "USE `shop`",
        "CREATE TABLE `shop`.`_item_new` (\n  `id` bigint(20) NOT NULL,\n  `name` varchar(20)"
        " DEFAULT NULL,\n  `price` int(11) DEFAULT NULL,\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB",
        f"ALTER TABLE `shop`.`_item_new` {ALTERED}",
        *(f"CREATE TRIGGER `pt_osc_shop_item_{n}` AFTER {sql}" for n, sql in TRIGGERS.items()),
        "INSERT LOW_PRIORITY IGNORE INTO `shop`.`_item_new` (`id`, `name`) SELECT `id`, `name` FROM"
        " `shop`.`item` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) AND ((`id` <= '20')) LOCK IN"
        " SHARE MODE /*pt-online-schema-change 4711 copy nibble*/",
    )
    between()
    changed(server, 100)
    server.run(
        "INSERT LOW_PRIORITY IGNORE INTO `shop`.`_item_new` (`id`, `name`) SELECT `id`, `name` FROM"
        " `shop`.`item` FORCE INDEX(`PRIMARY`) LOCK IN SHARE MODE /*pt-online-schema-change 4711*/",
        "ANALYZE TABLE `shop`.`_item_new` /* pt-online-schema-change */",
        "RENAME TABLE `shop`.`item` TO `shop`.`_item_old`, `shop`.`_item_new` TO `shop`.`item`",
        "DROP TABLE IF EXISTS `shop`.`_item_old`",
        *(f"DROP TRIGGER IF EXISTS `shop`.`pt_osc_shop_item_{n}`" for n in TRIGGERS),
    )
    changed(server, 102)


@pytest.mark.fault(
    "the source is killed in the middle of an online DDL, and after its rename",
    "downstream is the final table; no shadow table",
    cases="2 / 4",
)
@pytest.mark.parametrize("tool", [gh_ost, pytest.param(pt_osc, marks=pytest.mark.slow)])
def test_an_online_ddl_is_followed_without_its_copy_also_by_a_source_that_dies_in_it(
    tool: Callable[[SqlServer, Act], None],
    nodes: Nodes,
    followed: SqlServer,
    mariadb: MariadbServer,
    tmp_path: Path,
) -> None:
    server = followed
    server.run(*BEGIN)
    pumps = [nodes.add_pump()]
    source = SourceProcess(tmp_path / "source", nodes.url, server)
    replica = Replica(nodes.etcd, nodes.url, pumps, mariadb, tmp_path / "drainer")

    def between() -> None:
        """Let the source die when it has noted the copy's ALTERs; then it dies at the rename."""
        source.catch_up(server)
        source.kill()
        replica.follow()
        assert replica.columns("shop.item") == ["id", "name", "price"]
        assert replica.tables("shop") == {"item"}
        source.start(failpoints="source.after_ddl=kill@1")

    try:
        source.start()
        tool(server, between)
        eventually(lambda: not source.is_running, LONG_S)
        assert source.wait() == -9
        source.start()
        source.finish(server)
    finally:
        source.kill()
    replica.follow()
    assert replica.columns("shop.item") == ["id", "name", "stars"]
    assert replica.rows("shop.item") == sorted(server.query("SELECT * FROM shop.item"), key=repr)
    assert replica.tables("shop") == {"item"}
