"""The relay log of a real server: its files, byte for byte, whatever happens in between."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.events.frame import read_header
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import Purged, binlog_files, identify, replica_ids
from pumpclient.mysql.protocol.stream import BinlogStream, StreamOptions
from pumpclient.mysql.relay.layout import RelayFolder
from pumpclient.mysql.relay.resume import Start, file_at, history_of
from pumpclient.mysql.source.checks import check_server
from tests.kit.mysql.relay import FIRST, LONG_S, STREAM, assert_same, relaying, sub_dir, sub_dirs
from tests.kit.servers.binlog_server import (
    MARIADB,
    AnyBinlogServer,
    BinlogServer,
    binlog_server,
    make_table,
    module_server,
    on_servers,
)
from tests.kit.wait import eventually


def only(kind: str) -> pytest.MarkDecorator:
    params = [each for each in on_servers(kind) if each.values[0] == kind]
    return pytest.mark.parametrize("shared", params, indirect=True)


shared = module_server(on_servers(MARIADB), ())


@pytest.fixture
def source(shared: AnyBinlogServer) -> AnyBinlogServer:
    shared.run("SET GLOBAL binlog_checksum = CRC32", "DROP DATABASE IF EXISTS shop")
    shared.reset_binlog()
    make_table(shared)
    return shared


def flavor(server: AnyBinlogServer) -> Flavor:
    return Flavor.MYSQL if server.is_mysql else Flavor.MARIADB


def uuid(server: AnyBinlogServer) -> str:
    return str(server.query("SELECT @@server_uuid")[0][0]) if server.is_mysql else "0-1"


def write_everything(server: AnyBinlogServer) -> None:
    server.insert(30)
    server.run("ALTER TABLE shop.t ADD w INT", "FLUSH BINARY LOGS")
    server.run(
        "CREATE TABLE shop.m (a INT) ENGINE = MyISAM",
        "INSERT INTO shop.m VALUES (1), (2)",
        "XA START 'a'", "INSERT INTO shop.t VALUES (1000, 'xa', 1)", "XA END 'a'",
        "XA PREPARE 'a'", "XA COMMIT 'a'",
        "CREATE TABLE shop.c SELECT * FROM shop.t",
        "BEGIN", "UPDATE shop.t SET v = 'y'", "DELETE FROM shop.t WHERE id > 20", "COMMIT",
        "FLUSH BINARY LOGS",
        "TRUNCATE TABLE shop.t",
    )  # fmt: skip


@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
@pytest.mark.parametrize("compress", ["OFF", "ON"])
def test_files_are_those_of_the_server_and_of_its_own_tool(
    source: AnyBinlogServer, tmp_path: Path, checksum: str, compress: str
) -> None:
    compressing = "binlog_transaction_compression" if source.is_mysql else "log_bin_compress"
    source.run(
        f"SET GLOBAL binlog_checksum = {checksum}", f"SET GLOBAL {compressing} = {compress}",
        "FLUSH BINARY LOGS",
    )  # fmt: skip
    with relaying(tmp_path / "relay", source) as relay:
        write_everything(source)
        source.run("INSERT INTO shop.t VALUES (1, REPEAT('compress me ', 500), 1)")
        relay.catch_up(source)
        gtids = source.gtids
    source.run(f"SET GLOBAL {compressing} = OFF")
    (folder,) = sub_dirs(tmp_path / "relay")
    assert_same(source, folder)
    if str(source.query("SELECT VERSION()")[0][0]).startswith("10."):
        # The machine's own tool, which reads what the machine's own server writes.
        raw = tmp_path / "raw"
        raw.mkdir()
        source.raw(raw, FIRST)
        for name in source.logs:
            relayed = (folder / name).read_bytes()
            assert (raw / name).read_bytes()[: len(relayed)] == relayed
    meta = RelayFolder(tmp_path / "relay", flavor(source))
    assert meta.current is not None
    saved = meta.load(meta.current)
    assert ((saved.file, saved.position), str(saved.gtids)) == (source.end(), gtids)


@pytest.mark.fault("the dump thread is killed", "same", cases="4")
@pytest.mark.thorough
def test_a_killed_dump_and_many_reconnects_leave_neither_gap_nor_duplicate(
    source: AnyBinlogServer, tmp_path: Path
) -> None:
    with relaying(tmp_path, source) as relay:
        for round_ in range(4):
            source.insert(20, first=100 * round_)
            relay.catch_up(source)
            for number in source.dump_threads():
                source.run(f"KILL {number}")
        source.insert(1, first=1000)
        relay.catch_up(source)
        assert relay.unit.status().reconnects >= 3
    assert_same(source, sub_dir(tmp_path))
    assert source.dump_threads() == []


@pytest.mark.thorough
def test_an_event_of_forty_megabytes_arrives(source: AnyBinlogServer, tmp_path: Path) -> None:
    with relaying(tmp_path, source) as relay:
        source.run(f"INSERT INTO shop.t VALUES (1, REPEAT('x', {40 << 20}))")
        source.insert(1, first=2)
        relay.catch_up(source)
    assert_same(source, sub_dir(tmp_path))


@pytest.mark.fault(
    "RESET MASTER, also when the new file has the old one's name and is longer",
    "refused, naming both histories; once accepted, a new sub-directory at the first file,"
    " GTIDs from nothing",
    cases="2",
)
@pytest.mark.thorough
def test_a_reset_server_begins_a_sub_directory_once_that_is_accepted(
    source: AnyBinlogServer, tmp_path: Path
) -> None:
    with relaying(tmp_path, source) as relay:
        source.insert(5)
        source.run("FLUSH BINARY LOGS")
        source.insert(5, first=50)
        relay.catch_up(source)
    source.reset_binlog()
    source.insert(3, first=100)
    with relaying(tmp_path, source) as relay:
        assert "another history" in str(relay.fails())
    assert len(sub_dirs(tmp_path)) == 1
    accepted = Start(accepts=history_of(source.address, StreamOptions()).name)
    with relaying(tmp_path, source, accepted) as relay:
        relay.catch_up(source)
        assert relay.unit.status().end is not None
    first, second = sub_dirs(tmp_path)
    assert (first.name, second.name) == (f"{uuid(source)}.000001", f"{uuid(source)}.000002")
    assert_same(source, second)
    folder = RelayFolder(tmp_path, flavor(source))
    assert folder.current is not None
    assert str(folder.load(folder.current).gtids) == source.gtids


@pytest.mark.thorough
def test_a_file_of_the_same_name_after_a_reset_is_not_taken_for_ours(
    source: AnyBinlogServer, tmp_path: Path
) -> None:
    with relaying(tmp_path, source) as relay:
        relay.catch_up(source)
    begun_s = read_header(source.file(FIRST).read_bytes(), 4).timestamp_s
    eventually(lambda: _now(source) > begun_s, LONG_S)
    source.reset_binlog()
    source.insert(30)  # Longer than what was relayed: only the first event shows it.
    with relaying(tmp_path, source) as relay:
        assert "another history" in str(relay.fails())
    (first,) = sub_dirs(tmp_path)
    assert (first / FIRST).stat().st_size < source.file(FIRST).stat().st_size


def _now(server: AnyBinlogServer) -> int:
    return int(server.query("SELECT UNIX_TIMESTAMP()")[0][0])


@pytest.mark.fault(
    "files that are needed are purged; GTIDs the server never had",
    "stops, with the hint to load again",
    cases="3",
)
@only(MARIADB)
def test_purged_files_need_somebody(source: BinlogServer, tmp_path: Path) -> None:
    with relaying(tmp_path, source) as relay:
        relay.catch_up(source)
    source.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    source.insert(1)
    source.purge()
    with relaying(tmp_path, source) as relay:
        error = relay.fails()
        assert isinstance(error, Purged)
        assert "reload --all" in error.hint
        assert relay.unit.status().problem == str(error)
    with relaying(tmp_path / "new", source, Start(gtids="0-1-1")) as relay:
        assert isinstance(relay.fails(), Purged)
    with relaying(tmp_path / "unknown", source, Start(gtids="0-1-999")) as relay:
        error = relay.fails()
        assert isinstance(error, NeedsOperator)
        assert "1236" in str(error)


@pytest.mark.fault("another server answers", "a new sub-directory behind the same GTIDs", cases="1")
@pytest.mark.thorough
@only(MARIADB)
def test_another_server_continues_after_the_same_gtids(
    source: BinlogServer, tmp_path: Path
) -> None:
    source.insert(5)
    with relaying(tmp_path / "relay", source) as relay:
        relay.catch_up(source)
    with binlog_server(tmp_path / "other", 2, "--skip-log-bin") as unused:
        unused.stop()
    other = BinlogServer(tmp_path / "other", 2)
    other.password = unused.password
    other.start()
    try:
        follow(other, source)
        source.run("FLUSH BINARY LOGS")
        source.insert(5, first=50)
        eventually(lambda: other.query("SELECT COUNT(*) FROM shop.t") == [(10,)], LONG_S)
        other.run("STOP SLAVE", "FLUSH BINARY LOGS")
        other.insert(4, first=70)
        with relaying(tmp_path / "relay", other) as relay:
            relay.catch_up(other)
            assert relay.unit.status().gtids in ("0-1-12,0-2-16", "")
        first, second = sub_dirs(tmp_path / "relay")
        assert (first.name, second.name) == ("0-1.000001", "0-2.000002")
        relayed = (first / FIRST).read_bytes()
        assert source.file(FIRST).read_bytes()[22:].startswith(relayed[22:])
        names = [child.name for child in second.iterdir() if child.name != "relay.meta"]
        assert_same(other, second, sorted(names))
        assert other.logs[-1] in names
    finally:
        other.stop()


def follow(replica: BinlogServer, source: BinlogServer) -> None:
    """Make one server a replica of another, by GTID."""
    replica.run(
        "DROP DATABASE IF EXISTS shop",
        "RESET MASTER",
        "SET GLOBAL gtid_slave_pos = ''",
        f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {source.port},"
        f" master_user = '{source.user}', master_password = '{source.password}',"
        " master_use_gtid = slave_pos",
        "START SLAVE",
    )


@only(MARIADB)
def test_the_server_knows_what_is_on_a_disk(source: BinlogServer, tmp_path: Path) -> None:
    source.run(
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
        "SET GLOBAL rpl_semi_sync_master_timeout = 60000",
    )
    try:
        with relaying(tmp_path, source, semi_sync=True) as relay:
            eventually(lambda: _status(source, "clients") == "1", LONG_S)
            source.insert(20)  # Each waits for our acknowledgement, a minute long.
            assert _status(source, "no_tx") == "0"
            assert int(_status(source, "yes_tx")) >= 20
            relay.catch_up(source)
    finally:
        source.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
    assert_same(source, sub_dir(tmp_path))


def _status(server: BinlogServer, name: str) -> str:
    ((_, value),) = server.query(f"SHOW STATUS LIKE 'Rpl_semi_sync_master_{name}'")
    return str(value)


def test_a_time_leads_to_the_file_that_was_written_then(source: AnyBinlogServer) -> None:
    begun_s = _now(source)
    eventually(lambda: _now(source) > begun_s + 1, LONG_S)
    before_s = _now(source)
    source.run("FLUSH BINARY LOGS")
    assert file_at(source.address, STREAM, _now(source)) == "mysql-bin.000002"
    assert file_at(source.address, STREAM, before_s - 1) == FIRST
    with pytest.raises(Purged):
        file_at(source.address, STREAM, begun_s - 1000)


@only(MARIADB)
def test_heartbeats_keep_a_quiet_stream_alive(source: BinlogServer) -> None:
    options = StreamOptions(idle_s=0.05, heartbeat_s=0.2, stalled_periods=100)
    with closing(BinlogStream(source.address, options)) as stream:
        stream.start_at(*source.end())
        types = [read_header(event).type for event, _ in zip(stream.events(), range(5))]  # noqa: B905
    assert types == [4, 15, 27, 27, 27]


def test_a_dump_leaves_no_thread(source: AnyBinlogServer) -> None:
    with closing(BinlogStream(source.address, STREAM)) as stream:
        stream.start_at(FIRST, 4)
        assert next(stream.events())
    eventually(lambda: source.dump_threads() == [], LONG_S)


@only(MARIADB)
def test_a_server_says_who_it_is_and_whether_it_will_do(source: BinlogServer) -> None:
    with source.address.session() as connection:
        identity = identify(connection)
        assert (identity.uuid, identity.flavor) == ("0-1", Flavor.MARIADB)
        assert list(binlog_files(connection)) == source.logs
        assert replica_ids(connection) == {1}
        assert all(check.passed for check in check_server(connection))
        source.run("SET GLOBAL binlog_row_image = MINIMAL", "SET GLOBAL binlog_format = MIXED")
        failed = [check.name for check in check_server(connection) if not check.passed]
        source.run("SET GLOBAL binlog_row_image = FULL", "SET GLOBAL binlog_format = ROW")
        assert failed == ["binlog_format", "binlog_row_image"]


@only(MARIADB)
def test_a_wrong_password_and_a_missing_privilege_are_reported(source: BinlogServer) -> None:
    with pytest.raises(NeedsOperator, match="password"):
        replace(source.address, password="no").connect()
    source.run("CREATE OR REPLACE USER poor@'%' IDENTIFIED BY 'x'")
    poor = replace(source.address, user="poor", password="x")
    with closing(BinlogStream(poor, STREAM)) as stream, pytest.raises(NeedsOperator, match="GRANT"):
        stream.start_at(FIRST, 4)


@only(MARIADB)
def test_the_parts_of_pymysql_that_are_private_are_there(source: BinlogServer) -> None:
    connection = source.connect()
    assert isinstance(connection, pymysql.connections.Connection)
    for name in ("_write_bytes", "_read_packet", "_next_seq_id", "_force_close", "_sock"):
        assert hasattr(connection, name)
    connection.close()
