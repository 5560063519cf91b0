"""A source's small parts: journal, what is left out, merged tables, starts, groups."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.codes import Code
from penstock.ddl import Catalog, plan_ddl
from penstock.ddl.parse.parser import parse
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.filters.settings import EventRule, RouteRule
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.mysql.events.frame import Checksum, EventType, Header, make_event
from pumpclient.mysql.events.transactions import Query
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet
from pumpclient.mysql.journal import Journal, OpenGroup, settle
from pumpclient.mysql.protocol.server import ServerIdentity
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.source.config import LoadConfig, OnlineConfig
from pumpclient.mysql.source.ddl import merged, table_mapping
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.session import ServerDefaults
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.first_checkpoint import _elsewhere, moment_s
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.source.sync.transactions import KnownTransactions
from pumpclient.mysql.translate.ddl_pieces import Piece, Translator
from pumpclient.mysql.translate.outputs import Refused, Statement
from pumpclient.mysql.translate.statement_text import dialect_of
from tests.kit.fakes.pump import ROLLED_BACK, FakePump
from tests.kit.mysql.encoding import mariadb_gtid
from tests.unit.penstock.ddl_session import DdlSession


def test_a_journal_shows_the_next_run_what_is_open_and_how_far_it_got(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    first = Journal(path)
    for start in (10, 20, 30):
        first.begin("pump-1", range(start, start + 5))
    first.decide(range(10, 15), range(40, 45))
    first.decide(range(20, 25), range(50, 55))
    first.end(range(10, 15))
    second = Journal(path)
    expected = [
        OpenGroup("pump-1", range(20, 25), range(50, 55)),
        OpenGroup("pump-1", range(30, 35)),
    ]
    assert first.left == second.left == expected
    second.settled()
    assert Journal(path).left == []


def test_half_a_line_was_never_acted_on_and_a_strange_one_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    Journal(path).begin("pump-1", range(1, 3))
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert len(Journal(path).left) == 1
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(Corrupt, match="line 1"):
        Journal(path)


def having_rolled_back(refused: set[int]) -> FakePump:
    return FakePump(lambda binlog: ROLLED_BACK if binlog.start_ts in refused else None)


def settled(path: Path, pump: FakePump) -> Journal:
    """Return the journal after the start of a source that was stopped between its Commits."""
    journal = Journal(path)
    journal.begin("pump-1", range(1, 4))
    journal.decide(range(1, 4), range(11, 14))
    session: Any = SimpleNamespace(
        pumps=SimpleNamespace(all=[pump]), options=SimpleNamespace(attempt_timeout_s=1.0)
    )
    settle(session, journal)
    return journal


def test_a_group_of_which_the_pump_rolled_back_a_part_stops_the_source_at_each_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.journal"
    for refused in ({1}, {1, 2}, {3}):
        with pytest.raises(NeedsOperator, match="the others are committed") as caught:
            settled(path, having_rolled_back(refused))
        assert caught.value.code is Code.COMMIT_ORDER_BROKEN
        assert len(Journal(path).left) == 1


def test_a_group_that_is_whole_or_not_there_at_all_stops_no_source(tmp_path: Path) -> None:
    pump = having_rolled_back(set())
    assert settled(tmp_path / "a.journal", pump).left == []
    assert [start_ts for _, start_ts in pump.log] == [1, 2, 3]
    assert settled(tmp_path / "b.journal", having_rolled_back({1, 2, 3})).left == []


def test_a_journal_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path)
    journal._size = 2 << 20
    journal.begin("pump-1", range(1, 2))
    assert path.stat().st_size < 100
    assert len(Journal(path).left) == 1


def gtid(sequence: int, at_s: int = 0) -> bytes:
    body = mariadb_gtid(MariadbGtid(0, 1, sequence))
    return make_event(
        EventType.MARIADB_GTID, body, header=Header(at_s, EventType.MARIADB_GTID, 1, 0, 0, 0)
    )


ROWS = make_event(EventType.WRITE_ROWS_V1, b"rows")
ROTATE = make_event(EventType.ROTATE, b"12345678name")


def test_what_a_gtid_set_has_is_left_out_with_all_its_events() -> None:
    known = KnownTransactions(MariadbGtidSet.parse("0-1-5"), 0)
    events = [gtid(4), ROWS, gtid(5), ROTATE, ROWS, gtid(6), ROWS]
    left_out = [known.is_skipped(event, Checksum.CRC32) for event in events]
    assert left_out == [True, True, True, False, True, False, False]


def test_before_a_moment_all_is_left_out_and_nothing_behind_the_first_that_is_not() -> None:
    known = KnownTransactions(None, 1000)
    events = [gtid(1, 999), ROWS, gtid(2, 1000), ROWS, gtid(3, 998), ROWS]
    left_out = [known.is_skipped(event, Checksum.CRC32) for event in events]
    assert left_out == [True, True, False, False, False, False]
    assert not known.is_needed


def test_a_checkpoint_counts_epochs_by_sub_directories() -> None:
    checkpoint = Checkpoint(epoch=4, server="0-1", done="mysql-bin|000002.000007:100")
    end = Location.parse("other-bin|000003.000001:50")
    assert checkpoint.origin("s", end, "0-1-1").place == (5, 1, 50)
    assert checkpoint.origin("s", checkpoint.place, "").place == (4, 7, 100)


def test_another_server_is_followed_in_an_epoch_that_names_its_file_and_what_was_before() -> None:
    checkpoint = Checkpoint(epoch=4, server="0-1", done="bin|000002.000007:100", gtids="0-1-9")
    there = ServerIdentity("0-2", 2, Flavor.MARIADB, "11")
    moved = _elsewhere(checkpoint, "bin.000003", there, 77, is_known=True)
    assert (moved.epoch, moved.done, moved.described) == (5, "bin|000001.000003:4", 77)
    found = moved.origin("s", Location.parse("bin|000001.000003:90"), "0-2-10")
    assert (found.place, found.history, found.after) == ((5, 3, 90), 77, (4, 7, 100))
    # Nothing was committed in epoch 5, so no Drainer has seen it.
    again = _elsewhere(moved, "bin.000001", there, 78, is_known=True)
    assert (again.epoch, again.history, again.after) == (6, 78, "4:7:100")
    committed = replace(moved, done="bin|000001.000003:90", after="")
    assert _elsewhere(committed, "bin.000001", there, 78, is_known=True).after == "5:3:90"
    # An operator accepts that an accepted history repeats or lacks transactions.
    accepted = _elsewhere(checkpoint, "bin.000001", there, 79, is_known=False)
    assert (accepted.history, accepted.after, accepted.gtids) == (79, "", "")
    stored = json.dumps(asdict(moved)).encode()
    assert Checkpoint.parse(stored, "key") == moved
    with pytest.raises(Malformed, match="cannot be read"):
        Checkpoint.parse(json.dumps({**asdict(moved), "after": "4:7"}).encode(), "key")


def test_a_moment_without_a_zone_is_utc() -> None:
    assert moment_s("1970-01-02") == 86400
    assert moment_s("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(NeedsOperator, match="no moment"):
        moment_s("1970-13-01")


def table() -> TableInfo:
    catalog = Catalog()
    ids = iter(range(1, 100))
    for sql in (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, v INT, n INT, KEY by_v (v),"
        " s VARCHAR(9) NOT NULL, d INT NOT NULL DEFAULT 3, p DECIMAL(7,2),"
        " e ENUM('a','b'), f FLOAT, dt DATETIME)",
    ):
        for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
            catalog.apply(job)
    found = catalog.table("shop", "t")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE shop.t (id INT)", False),
        ("ALTER TABLE shop.t ADD COLUMN v INT", False),
        ("ALTER TABLE shop.t ADD COLUMN w INT", True),
        ("ALTER TABLE shop.t ADD COLUMN w INT, ADD INDEX (n)", True),
        ("ALTER TABLE shop.t ADD COLUMN s CHAR(9) NOT NULL", None),
        ("ALTER TABLE shop.t ADD COLUMN s VARCHAR(8) NOT NULL DEFAULT 'x'", False),
        ("ALTER TABLE shop.t ADD COLUMN s VARCHAR(10) NOT NULL", None),
        ("ALTER TABLE shop.t ADD COLUMN s VARCHAR(9)", None),
        ("ALTER TABLE shop.t ADD COLUMN v INT UNSIGNED", None),
        ("ALTER TABLE shop.t ADD COLUMN v INT NOT NULL", False),
        ("ALTER TABLE shop.t DROP COLUMN v", False),
        ("ALTER TABLE shop.t DROP COLUMN d", False),
        ("ALTER TABLE shop.t DROP COLUMN s", None),
        ("CREATE INDEX by_v ON shop.t (v)", False),
        ("ALTER TABLE shop.t ADD INDEX (v)", False),
        ("ALTER TABLE shop.t ADD INDEX by_n (n)", True),
        ("ALTER TABLE shop.t MODIFY v BIGINT", True),
        ("ALTER TABLE shop.t MODIFY v SMALLINT", None),
        ("ALTER TABLE shop.t MODIFY v BIGINT UNSIGNED", None),
        ("ALTER TABLE shop.t MODIFY v INT NOT NULL", None),
        ("ALTER TABLE shop.t MODIFY v VARCHAR(99)", None),
        ("ALTER TABLE shop.t MODIFY v INT DEFAULT 4", True),
        ("ALTER TABLE shop.t MODIFY s VARCHAR(10) NOT NULL", True),
        ("ALTER TABLE shop.t CHANGE s s TEXT", True),
        ("ALTER TABLE shop.t MODIFY s VARCHAR(8) NOT NULL", None),
        ("ALTER TABLE shop.t MODIFY s VARBINARY(20) NOT NULL", None),
        ("ALTER TABLE shop.t MODIFY p DECIMAL(8,2)", True),
        ("ALTER TABLE shop.t MODIFY p DECIMAL(8,4)", None),
        ("ALTER TABLE shop.t MODIFY e ENUM('a','b','c')", True),
        ("ALTER TABLE shop.t MODIFY e ENUM('b','a')", None),
        ("ALTER TABLE shop.t MODIFY f DOUBLE", True),
        ("ALTER TABLE shop.t MODIFY dt DATETIME(3)", True),
        ("ALTER TABLE shop.t MODIFY dt DATE", None),
        ("ALTER TABLE shop.t COMMENT 'x'", True),
        ("TRUNCATE TABLE shop.t", None),
        ("DROP TABLE shop.t", None),
        ("RENAME TABLE shop.t TO shop.u", None),
        ("ALTER TABLE shop.t RENAME COLUMN v TO w", None),
        ("ALTER TABLE shop.t ADD COLUMN v INT, ADD COLUMN w INT", None),
    ],
)
def test_of_merged_tables_the_first_ones_ddl_runs(sql: str, expected: bool | None) -> None:
    statement = parse(sql)[1][0]
    if expected is None:
        with pytest.raises(NeedsOperator, match=r"replicated into shop\.t"):
            merged.runs("shop.t", statement, table())
    else:
        assert merged.runs("shop.t", statement, table()) is expected
    assert merged.runs("shop.t", parse("CREATE TABLE shop.t (id INT)")[1][0], None)


def test_a_database_that_another_merged_source_creates_meanwhile_is_not_created_again() -> None:
    route = RouteRule(schema_pattern="shop_?", target_schema="shop")
    rules = Rules(FilterConfig(routes=(route,)))
    there = DdlSession("CREATE DATABASE shop").catalog
    catalogs = iter((Catalog(), there, there))  # It comes between two looks.
    schemas = SimpleNamespace(catalog=lambda: next(catalogs))
    client: Any = SimpleNamespace(
        session=SimpleNamespace(schemas=schemas), last_ddl_origin=lambda source: None
    )
    outside: Any = SimpleNamespace(server_defaults=ServerDefaults())
    statements = Statements(client, rules, None, outside, tables=outside, merges=True)
    sql = "CREATE DATABASE shop"
    piece = Piece(sql, (("shop_1", ""),), sql)
    place = Location.parse("a|000001.000001:4")
    dialect = dialect_of("10.11.6-MariaDB")
    statement = Statement(Query(b"", sql.encode()), dialect, place, place, "", 1_700_000_000)
    assert (
        statements.execute(statement, [piece], Origin(source="db-1", epoch=1, file=1, position=4))
        == 0
    )
    assert next(catalogs, None) is None


@pytest.mark.fault(
    "a DROP of several tables of which one is missing upstream or here",
    "nothing of it is executed, unless the server logged it with an error",
    cases="1",
)
def test_of_a_drop_that_cannot_be_executed_to_its_end_nothing_is() -> None:
    catalog = DdlSession("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT)").catalog
    done: list[str] = []

    def execute_ddl(sql: str, **options: Any) -> list[int]:
        done.append(sql)
        return [1]

    client: Any = SimpleNamespace(
        session=SimpleNamespace(schemas=SimpleNamespace(catalog=lambda: catalog)),
        last_ddl_origin=lambda source: None,
        execute_ddl=execute_ddl,
    )
    tables: Any = SimpleNamespace(namesake=lambda *name: "", server_defaults=ServerDefaults())
    outside: Any = None
    statements = Statements(client, Rules(FilterConfig()), None, outside, tables=tables)
    place = Location.parse("a|000001.000001:4")
    dialect = dialect_of("10.11.6-MariaDB")
    statement = Statement(Query(b"", b""), dialect, place, place, "", 1_700_000_000)
    origin = Origin(source="db-1", epoch=1, file=1, position=4)
    found = Translator().translate("DROP TABLE a, missing, b", "shop", {})
    with pytest.raises(Refused, match="'missing' does not exist"):
        statements.execute(statement, found.pieces, origin)
    assert done == []
    found = Translator().translate("DROP TABLE IF EXISTS a, missing", "shop", {})
    statements.execute(statement, found.pieces, origin)
    assert done == ["DROP TABLE IF EXISTS `shop`.`a`, `shop`.`missing`"]
    rule = EventRule(
        schema_pattern="shop", table_pattern="a", events=("drop table",), action="Ignore"
    )
    picky = Statements(client, Rules(FilterConfig(events=(rule,))), None, outside, tables=tables)
    picky.execute(statement, found.pieces, origin)
    assert done[1:] == ["DROP TABLE IF EXISTS `shop`.`missing`"]
    other: Any = SimpleNamespace(
        namesake=lambda schema, table: "A" * (table == "a"), server_defaults=ServerDefaults()
    )
    cased = Statements(client, Rules(FilterConfig()), None, outside, tables=other)
    cased.execute(statement, found.pieces, origin)
    assert done[2:] == ["DROP TABLE IF EXISTS `shop`.`missing`"]


def tables_of(
    server: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, **route: str
) -> Tables:
    made = SimpleNamespace(session=nullcontext)
    monkeypatch.setattr(table_mapping, "server_tables", lambda _: server)
    rules = Rules(FilterConfig(routes=(RouteRule(**route),)))  # type: ignore[arg-type]
    return Tables(Any, rules, made, None)  # type: ignore[arg-type]


def test_tables_that_a_route_makes_one_by_accident_or_in_other_letters_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemas = {"schema_pattern": "old*", "target_schema": "shop"}
    for server, text in (
        ([("old", "t"), ("shop", "T")], "become shop.T and shop.t, which differ in letter case"),
        ([("old", "t"), ("shop", "t")], "both become shop.t, and no route names"),
        ([("old", "t"), ("old", "T")], "differ in letter case"),
    ):
        with pytest.raises(NeedsOperator, match=text):
            tables_of(server, monkeypatch, **schemas).check_merged()
    for server in (
        [("old", "t"), ("shop", "other")],
        [("old_1", "t"), ("old_2", "t")],  # One route merges them.
        [("other", "t"), ("other", "T")],  # Without a route, with the first row of the second.
    ):
        tables_of(server, monkeypatch, **schemas).check_merged()


def test_a_low_rate_of_a_load_makes_its_transactions_smaller() -> None:
    sizes = [LoadConfig(rate_bytes_per_s=rate).transaction_bytes for rate in (0, 1, 10**5, 10**9)]
    assert sizes == [1 << 20, 4 << 10, 10**4, 1 << 20]


def test_without_patterns_tables_of_online_ddl_tools_are_replicated_like_others() -> None:
    assert OnlineConfig(shadow=(), trash=()).rules() is None
    assert OnlineConfig(shadow=()).rules() is not None
