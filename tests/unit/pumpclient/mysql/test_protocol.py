import struct
import uuid
from contextlib import closing
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator, PenstockError, Retryable
from pumpclient.mysql.events.frame import EventFlag, EventType, Header, make_event
from pumpclient.mysql.gtid import Flavor, MariadbGtidSet, MysqlGtidSet, decode_sids
from pumpclient.mysql.protocol.server import (
    PositionLost,
    Purged,
    ServerIdentity,
    ServerIdTaken,
    identify,
    master_status,
    refusal,
    replica_ids,
)
from pumpclient.mysql.protocol.stream import (
    FIRST_DRAWN,
    FULL_PACKET,
    BinlogStream,
    PacketReader,
    StreamOptions,
    draw_server_id,
    session_statements,
)
from pumpclient.mysql.relay.resume import file_after
from pumpclient.mysql.source.checks import judge
from tests.kit.fakes.scripted_mysql import UUID, ScriptedMysql, answers, error, event_packet
from tests.kit.mysql import encoding

QUICK = StreamOptions(idle_s=0.02, heartbeat_s=30)
FAKE = Header(0, EventType.ROTATE, 7, 0, 0, EventFlag.ARTIFICIAL)
HEARTBEAT = make_event(EventType.HEARTBEAT, b"binlog.000004")


def framed(payloads: list[bytes]) -> bytes:
    out, sequence = b"", 1
    for payload in payloads:
        while True:
            piece, payload = payload[:FULL_PACKET], payload[FULL_PACKET:]
            out += struct.pack("<I", len(piece) | sequence << 24) + piece
            sequence = (sequence + 1) & 0xFF
            if len(piece) < FULL_PACKET:
                break
    return out


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=600), st.randoms())
def test_events_come_whole_however_the_network_cuts_them(
    events: list[bytes], random: Random
) -> None:
    data = framed([event_packet(event) for event in events])
    reader, found, at = PacketReader(semi_sync=False), [], 0
    while at < len(data):
        size = random.randint(1, 200)
        found += reader.feed(data[at : at + size])
        at += size
    assert found == events


@pytest.mark.parametrize("size", [FULL_PACKET - 2, FULL_PACKET - 1, FULL_PACKET, 40 << 20])
def test_a_large_event_goes_over_many_packets(size: int) -> None:
    event = bytes(size)
    data = framed([event_packet(event), event_packet(b"next")])
    assert PacketReader(semi_sync=False).feed(data) == [event, b"next"]


def test_a_lost_packet_is_noticed() -> None:
    data = framed([event_packet(b"a"), event_packet(b"b"), event_packet(b"c")])
    with pytest.raises(Retryable, match="lost"):
        PacketReader(semi_sync=False).feed(data[:6] + data[12:])


def test_what_came_before_an_error_or_the_end_is_delivered_first() -> None:
    reader = PacketReader(semi_sync=False)
    data = framed([event_packet(b"a"), error(1236, "Could not find first log file name")])
    assert reader.feed(data) == [b"a"]
    with pytest.raises(Purged):
        reader.feed(b"")
    reader = PacketReader(semi_sync=False)
    assert reader.feed(framed([event_packet(b"a"), b"\xfe\0\0\2\0"])) == [b"a"]
    assert reader.feed(b"") == []
    assert reader.is_ended


def test_semi_sync_asks_for_an_acknowledgement_and_numbers_packets_again() -> None:
    reader = PacketReader(semi_sync=True)
    assert reader.feed(framed([b"\0\xef\0a"])) == [b"a"]
    assert not reader.ack_wanted
    asked = struct.pack("<I", 4 | 2 << 24) + b"\0\xef\1b"
    assert reader.feed(asked) == [b"b"]
    assert reader.ack_wanted
    assert reader.feed(framed([b"\0\xef\0c"])) == [b"c"]


@pytest.mark.parametrize(
    ("code", "message", "kind", "hint"),
    [
        (1236, "A slave with the same server_uuid/server_id as this slave has connected",
         ServerIdTaken, ""),
        (1236, "Could not find first log file name in binary log index file", Purged, "--all"),
        (1236, "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the"
         " master has purged binary logs containing GTIDs that the slave requires.", Purged,
         "--all"),
        (1236, "Cannot replicate because the source purged required binary logs.", Purged,
         "--all"),
        (1236, "Could not find GTID state requested by slave in any binlog files. Probably the"
         " slave state is too old and required binlog files have been purged.", Purged, "--all"),
        (1236, "Slave has more GTIDs than the master has, using the master's SERVER_UUID.",
         NeedsOperator, "failover"),
        (1236, "Error: connecting slave requested to start from GTID 0-1-100, which is not in the"
         " master's binlog", NeedsOperator, "failover"),
        (1236, "Client requested master to start replication from impossible position",
         PositionLost, "--all"),
        (1236, "Client requested source to start replication from position > file size",
         PositionLost, "--all"),
        (1236, "Slave can not handle replication events with the checksum that master is"
         " configured to log", NeedsOperator, "binlog_checksum"),
        (1236, "event read from binlog did not pass crc check", NeedsOperator, "damaged"),
        (1236, "bogus data in log event; the first event 'mysql-bin.000001' at 4",
         NeedsOperator, "max_allowed_packet"),
        (1236, "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on"
         " master", NeedsOperator, "1G"),
        (1236, "Binary log is not open", NeedsOperator, "log_bin"),
        (1236, "Misconfigured master - server id was not set", NeedsOperator, "server_id"),
        (1236, "The replication sender thread cannot start in AUTO_POSITION mode: this server has"
         " GTID_MODE = OFF instead of ON.", NeedsOperator, "gtid_mode"),
        (1236, "could not open log file", NeedsOperator, "disk"),
        (1236, "memory allocation failed reading log event", Retryable, ""),
        (1236, "could not find next log; the first event '.' at 4, the last event read from"
         " 'mysql-bin.000002' at 1883", Retryable, ""),
        (1236, "Failed to decrypt the binlog", NeedsOperator, "key"),
        (1236, "a text that no one has seen", NeedsOperator, "documentation"),
        (1044, "Access denied for user to database", NeedsOperator, "GRANT"),
        (1045, "Access denied for user 'u'@'h'", NeedsOperator, "password"),
        (1130, "Host 'h' is not allowed to connect", NeedsOperator, "host"),
        (1142, "SELECT command denied", NeedsOperator, "GRANT"),
        (1227, "Access denied; you need the REPLICATION SLAVE privilege", NeedsOperator, "GRANT"),
        (1698, "Access denied for user", NeedsOperator, "socket"),
        (1820, "You must reset your password", NeedsOperator, "expired"),
        (1862, "Your password has expired", NeedsOperator, "expired"),
        (1373, "Target log not found in binlog index", Purged, "--all"),
        (1381, "You are not using binary logging", NeedsOperator, "log_bin"),
        (1193, "Unknown system variable 'gtid_domain_id'", NeedsOperator, "versions"),
        (2003, "Can't connect: certificate verify failed", NeedsOperator, "TLS"),
        (2026, "SSL connection error", NeedsOperator, "TLS"),
        (2054, "The server requested authentication method unknown", NeedsOperator, "rsa"),
        (2059, "Authentication plugin 'x' not configured", NeedsOperator, "rsa"),
        (1040, "Too many connections", Retryable, ""),
        (1053, "Server shutdown in progress", Retryable, ""),
        (2003, "Can't connect to MySQL server (refused)", Retryable, ""),
        (2013, "Lost connection to MySQL server during query", Retryable, ""),
        (1927, "Connection was killed", Retryable, ""),
        (9999, "something new", NeedsOperator, "documentation"),
    ],
)  # fmt: skip
def test_a_refusal_says_whether_to_wait_or_what_to_do(
    code: int, message: str, kind: type[PenstockError], hint: str
) -> None:
    found = refusal(code, message)
    assert type(found) is kind
    assert message[:40] in str(found)
    assert hint in getattr(found, "hint", "")


def test_a_server_id_is_drawn_until_it_is_free() -> None:
    drawn = iter([1, 2, 3])
    taken = {FIRST_DRAWN + 1, FIRST_DRAWN + 2}
    assert draw_server_id(taken, lambda _: next(drawn)) == FIRST_DRAWN + 3


def test_a_mysql_is_set_up_under_both_names_of_its_variables() -> None:
    made = session_statements(
        Flavor.MYSQL, heartbeat_s=1.5, replica_uuid=uuid.UUID(UUID), semi_sync=True
    )
    text = "\n".join(statement for statement, _ in made)
    for name in ("binlog_checksum", "heartbeat_period"):
        assert f"@master_{name}" in text
        assert f"@source_{name}" in text
    assert ("SET @slave_uuid = %s, @replica_uuid = %s", (UUID, UUID)) in made
    assert ("SET @master_heartbeat_period = %s", (1_500_000_000,)) in made
    assert "@rpl_semi_sync_slave" in text
    assert "@rpl_semi_sync_replica" in text
    assert "mariadb" not in text


def test_a_mariadb_gets_what_this_replica_can_and_where_to_begin() -> None:
    behind = MariadbGtidSet.parse("0-1-100,0-2-90,3-1-7")
    made = session_statements(
        Flavor.MARIADB, heartbeat_s=1, replica_uuid=uuid.UUID(UUID), start_after=behind
    )
    assert ("SET @mariadb_slave_capability = %s", (4,)) in made
    assert ("SET @slave_connect_state = %s", ("0-1-100,3-1-7",)) in made
    assert ("SET @slave_gtid_strict_mode = 1", ()) in made


def rotate(file: str) -> bytes:
    return make_event(EventType.ROTATE, encoding.rotate(4, file), header=FAKE)


def test_a_mysql_8_4_is_asked_by_its_new_names() -> None:
    with ScriptedMysql() as server, server.address.session() as connection:
        assert identify(connection) == ServerIdentity(UUID, 7, Flavor.MYSQL, "8.4.2")
        status = master_status(connection, Flavor.MYSQL)
        assert (status.file, status.position) == ("binlog.000004", 1234)
        assert str(status.gtids) == f"{UUID}:1-9"
        assert replica_ids(connection) == {7, 11, 12}


def test_a_server_that_does_not_show_its_replicas_shows_its_own_number() -> None:
    denied = error(1227, "Access denied; you need REPLICATION MASTER ADMIN", "42000")
    with (
        ScriptedMysql(rows={r"SHOW SLAVE HOSTS": denied, **answers()}) as server,
        server.address.session() as connection,
    ):
        assert replica_ids(connection) == {7}


def test_a_mysql_is_asked_for_what_a_gtid_set_lacks() -> None:
    gtids = MysqlGtidSet.parse(f"{UUID}:1-5")
    packets = [event_packet(rotate("binlog.000004")), event_packet(HEARTBEAT)]
    with ScriptedMysql(lambda _: packets) as server:
        assert file_after(server.address, QUICK, gtids)[1] == "binlog.000004"
        register, dump = server.commands
        assert register[0] == 0x15
        code, flags, server_id, name_size = struct.unpack_from("<BHII", dump)
        assert (code, flags & 4, name_size) == (0x1E, 4, 0)
        assert server_id == struct.unpack_from("<I", register, 1)[0] >= FIRST_DRAWN
        position, size = struct.unpack_from("<QI", dump, 11)
        assert (position, size) == (4, len(dump) - 23)
        assert decode_sids(dump[23:]) == gtids


def test_a_stream_without_event_or_heartbeat_has_failed() -> None:
    options = StreamOptions(idle_s=0.01, heartbeat_s=0.02, stalled_periods=3)
    with (
        ScriptedMysql(lambda _: [event_packet(HEARTBEAT)]) as server,
        closing(BinlogStream(server.address, options)) as stream,
    ):
        stream.start_at("binlog.000004", 4)
        with pytest.raises(Retryable, match="neither event nor heartbeat"):
            list(stream.events())


def test_a_cut_connection_can_be_made_again() -> None:
    with (
        ScriptedMysql(lambda _: [event_packet(HEARTBEAT)]) as server,
        closing(BinlogStream(server.address, QUICK)) as stream,
    ):
        stream.start_at("binlog.000004", 4)
        events = stream.events()
        assert next(events) == HEARTBEAT
        server.cut()
        with pytest.raises(Retryable):
            list(events)


def test_a_number_that_was_drawn_is_drawn_again_and_one_that_was_given_is_reported() -> None:
    message = "A slave with the same server_uuid/server_id as this slave has connected"
    with ScriptedMysql(lambda _: [error(1236, message)]) as server:
        with closing(BinlogStream(server.address, QUICK)) as stream:
            stream.start_at("binlog.000004", 4)
            with pytest.raises(ServerIdTaken):
                list(stream.events())
        given = StreamOptions(idle_s=0.02, server_id=4711)
        with closing(BinlogStream(server.address, given)) as stream:
            stream.start_at("binlog.000004", 4)
            with pytest.raises(NeedsOperator, match="4711"):
                list(stream.events())


def test_gtids_of_the_other_flavour_are_refused() -> None:
    with (
        ScriptedMysql() as server,
        closing(BinlogStream(server.address, QUICK)) as stream,
        pytest.raises(NeedsOperator, match=r"8\.4\.2"),
    ):
        stream.start_after(MariadbGtidSet.parse("0-1-1"))


MARIADB = ServerIdentity("0-1", 1, Flavor.MARIADB, "10.11.9-MariaDB")
GOOD = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "server_id": "1",
    "binlog_checksum": "CRC32",
}
GRANTED = ["GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`"]


def failed(variables: dict[str, str], grants: list[str]) -> list[str]:
    checks = judge(variables, grants)
    assert all(check.passed != bool(check.hint) for check in checks)
    return [check.name for check in checks if not check.passed]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"log_bin": "OFF"}, "log_bin"),
        ({"binlog_format": "MIXED"}, "binlog_format"),
        ({"binlog_row_image": "MINIMAL"}, "binlog_row_image"),
        ({"server_id": "0"}, "server_id"),
        ({"binlog_expire_logs_seconds": "60"}, "binlog kept"),
    ],
)
def test_a_precheck_names_what_is_wrong(changed: dict[str, str], name: str) -> None:
    assert failed(GOOD | changed, GRANTED) == [name]


def test_a_good_server_passes_every_precheck() -> None:
    assert failed(GOOD, GRANTED) == []
    assert failed(GOOD, ["GRANT ALL PRIVILEGES ON *.* TO `u`@`%`"]) == []
    tables = [
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `u`@`%`",
        "GRANT SELECT (`a`, `b`) ON `shop`.`items` TO `u`@`%`",
    ]
    assert failed(GOOD, tables) == []


@pytest.mark.parametrize(
    "grants",
    [
        ["GRANT USAGE ON *.* TO `u`@`%`"],
        ["GRANT SELECT, REPLICATION SLAVE ON *.* TO `u`@`%`"],
        ["GRANT ALL PRIVILEGES ON `shop`.* TO `u`@`%`"],
    ],
)
def test_missing_privileges_are_named(grants: list[str]) -> None:
    assert failed(GOOD, grants) == ["privileges"]
