import random
import struct
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Corrupt, Malformed, NeedsOperator
from pumpclient.mysql.events import decode_event
from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    Checksum,
    EventFlag,
    EventType,
    Header,
    body_of,
    checksum_holds,
    read_header,
)
from pumpclient.mysql.events.transactions import GtidFlag, Query
from pumpclient.mysql.gtid import Flavor, GtidSet, MariadbGtidSet, MysqlGtid, MysqlGtidSet
from pumpclient.mysql.protocol.server import PositionLost
from pumpclient.mysql.relay.boundaries import TransactionTracker, recover
from pumpclient.mysql.relay.layout import FileName, Location, Meta
from pumpclient.mysql.relay.reader import Growth
from pumpclient.mysql.relay.receiver import Transformer
from pumpclient.mysql.relay.writer import DUMMY_BYTES_MAX, RelayWriter, dummies
from tests.kit.mysql.binlogs import BinlogScript
from tests.kit.mysql.encoding import gtid, xa_prepare, xid

NEAR = Header(77, 2, 3, 0, 0, int(EventFlag.THREAD_SPECIFIC))
SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def relay(folder: Path, gtids: GtidSet | None = None) -> Transformer:
    folder.mkdir(exist_ok=True)
    return Transformer(RelayWriter(folder), TransactionTracker(gtids or MariadbGtidSet()))


def relayed(folder: Path, *streams: list[bytes]) -> Transformer:
    made = relay(folder)
    for stream in streams:
        made.take(stream)
    made.writer.sync()
    return made


@pytest.fixture
def script() -> BinlogScript:
    script = BinlogScript(gtids="0-1-3")
    script.transaction(4)
    script.transaction(5)
    return script


@pytest.mark.parametrize("checksum", list(Checksum))
def test_files_are_the_server_s(tmp_path: Path, checksum: Checksum) -> None:
    first = BinlogScript(checksum=checksum)
    first.transaction(1)
    first.rotate("mysql-bin.000002")
    second = BinlogScript("mysql-bin.000002", checksum=checksum, gtids="0-1-1")
    second.transaction(2)
    made = relayed(tmp_path, first.stream, second.stream)
    assert (tmp_path / first.name).read_bytes() == first.data
    assert (tmp_path / second.name).read_bytes() == second.data
    assert made.safe == len(second.data)
    assert str(made.tracker.gtids) == "0-1-2"


def test_what_the_server_made_for_the_stream_is_in_no_file(
    tmp_path: Path, script: BinlogScript
) -> None:
    beat = script.event(EventType.HEARTBEAT, script.name.encode(), 99)
    made_up = script.event(EventType.GTID_LIST, bytes(4), 50, flags=int(EventFlag.ARTIFICIAL))
    stream = [piece for event in script.stream for piece in (event, beat)]
    made = relayed(tmp_path, stream, [made_up, beat])
    assert (tmp_path / script.name).read_bytes() == script.data
    assert made.is_idle


def test_a_fake_rotate_in_the_middle_changes_nothing(tmp_path: Path, script: BinlogScript) -> None:
    half = len(script.stream) // 2
    position = 4 + sum(map(len, script.stream[1:half]))
    relayed(tmp_path, script.stream[:half], script.resumed(position), script.stream[half:])
    assert (tmp_path / script.name).read_bytes() == script.data


@pytest.mark.fault(
    "fake rotates, heartbeats, artificial events, streams that begin again anywhere, holes",
    "filtered, compared and dropped, filled to the byte",
    cases="100 random streams, 10 holes",
)
@given(st.data())
def test_a_stream_that_begins_again_anywhere_leaves_no_duplicate(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    script = BinlogScript()
    for number in range(1, 4):
        script.transaction(number)
    folder = tmp_path_factory.mktemp("relay")
    made, known = relay(folder), 1
    made.take(script.stream[:2])
    while known < len(script.stream):
        first = data.draw(st.integers(1, known))
        known = min(len(script.stream), known + data.draw(st.integers(1, 8)))
        position = 4 + sum(map(len, script.stream[1:first]))
        again = script.resumed(position) if first > 1 else script.stream[:1]
        made.take([*again, *script.stream[first:known]])
    made.writer.close()
    assert (folder / script.name).read_bytes() == script.data


def test_a_duplicate_that_differs_is_an_error(tmp_path: Path, script: BinlogScript) -> None:
    made = relayed(tmp_path, script.stream)
    other = BinlogScript(gtids="0-1-3")
    other.transaction(4, lambda: None)
    other.begin(6)
    same = len(other.data) - len(other.stream[-1])
    with pytest.raises(Corrupt, match="other bytes") as caught:
        made.take([*other.resumed(same), other.stream[-1]])
    assert caught.value.offset == same
    assert (tmp_path / script.name).read_bytes() == script.data


@pytest.mark.parametrize("length", [0, 1, 9, 10, 200])
@pytest.mark.parametrize("checksum", list(Checksum))
def test_a_hole_is_filled_to_the_byte(tmp_path: Path, length: int, checksum: Checksum) -> None:
    script = BinlogScript(checksum=checksum)
    left_out = b"x" * (length + 6)

    def inside() -> None:
        script.add(EventType.ANNOTATE_ROWS, left_out, sent=False)

    script.transaction(1, inside)
    made = relayed(tmp_path, script.stream)
    data = (tmp_path / script.name).read_bytes()
    assert len(data) == len(script.data) == made.writer.offset
    assert data.endswith(script.stream[-1])
    recovered = recover(tmp_path, Meta("", 4, MariadbGtidSet()))
    assert (recovered.position, recovered.cut_bytes) == (len(data), 0)


@pytest.mark.parametrize("checksum", list(Checksum))
def test_dummies_are_events_of_every_size_from_the_smallest_on(checksum: Checksum) -> None:
    smallest = 29 if checksum else 25
    for size in range(smallest, smallest + 60):
        (event,) = dummies(size, 100, NEAR, checksum)
        header = read_header(event)
        assert len(event) == header.size == size
        assert header.end_position == 100 + size
        assert (header.timestamp_s, header.server_id) == (77, 3)
        assert header.flags == EventFlag.SUPPRESS_USE | EventFlag.RELAY_LOG
        assert not checksum or checksum_holds(event)
        found = decode_event(event, checksum, header)
        if size < smallest + 9:
            assert header.type == EventType.USER_VAR
            body = body_of(event, checksum)
            assert int.from_bytes(body[:4], "little") == len(body) - 5
            assert body.endswith(b"\1")  # NULL.
        else:
            assert isinstance(found, Query)
            assert found.statement.startswith(b"#")
    with pytest.raises(Malformed, match="no event fits"):
        list(dummies(smallest - 1, 100, NEAR, checksum))


def test_a_huge_hole_takes_several_dummies() -> None:
    sizes = [len(event) for event in dummies(3 * DUMMY_BYTES_MAX + 5, 4, NEAR, Checksum.CRC32)]
    assert sum(sizes) == 3 * DUMMY_BYTES_MAX + 5
    assert max(sizes) <= 2 * DUMMY_BYTES_MAX


@pytest.mark.parametrize("at", [14, -30])
def test_a_damaged_event_is_not_written(tmp_path: Path, script: BinlogScript, at: int) -> None:
    made = relayed(tmp_path, script.stream[:-1])
    whole = len(script.data) - len(script.stream[-1])
    bad = bytearray(script.stream[-1])
    bad[at] ^= 1
    with pytest.raises(Malformed, match=f"at {whole} .*{script.name}.* damaged"):
        made.take([bytes(bad)])
    made.writer.sync()
    assert (tmp_path / script.name).stat().st_size == whole


def test_positions_continue_after_four_gibibytes(tmp_path: Path) -> None:
    script = BinlogScript()
    made = relayed(tmp_path, script.stream)
    made.writer.close()
    start = (1 << 32) - 100
    path = tmp_path / script.name
    with path.open("r+b") as file:
        file.truncate(start)
    events, at = [], start
    for number in range(20):
        size = len(script.event(EventType.XID, xid(number), 0))
        at += size
        events.append(script.event(EventType.XID, xid(number), at))
    again = relay(tmp_path)
    again.take([*script.resumed(start), *events])
    again.take([*script.resumed(start), *events])
    again.writer.close()
    assert again.safe == at > 1 << 32
    with path.open("rb") as file:
        file.seek(start)
        assert file.read() == b"".join(events)


def test_events_without_a_position_follow_the_one_before(tmp_path: Path) -> None:
    script = BinlogScript()
    first = len(script.data)
    bodies = [b"map" * 5, b"rows" * 9]
    events = [script.event(EventType.TABLE_MAP, body, 0) for body in bodies]
    end = first + sum(map(len, events))
    size = len(script.event(EventType.XID, xid(1), 0))
    events.append(script.event(EventType.XID, xid(1), end + size))
    made = relayed(tmp_path, script.stream, events)
    assert (tmp_path / script.name).read_bytes() == script.data + b"".join(events)
    assert made.safe == end + size


def test_files_follow_each_other_beyond_six_digits(tmp_path: Path) -> None:
    first, second = BinlogScript("mysql-bin.999999"), BinlogScript("mysql-bin.1000000")
    first.rotate(second.name)
    made = relayed(tmp_path, first.stream, second.stream)
    assert made.writer.file == FileName("mysql-bin", 1000000)
    with pytest.raises(PositionLost, match="went back"):
        made.take(first.stream)


def test_another_file_of_the_same_name_is_noticed(tmp_path: Path, script: BinlogScript) -> None:
    made = relayed(tmp_path, script.stream)
    with pytest.raises(PositionLost, match="reset"):
        made.take(BinlogScript(created_s=2000).stream)


def test_a_real_rotate_needs_a_file(tmp_path: Path, script: BinlogScript) -> None:
    with pytest.raises(PositionLost):
        relay(tmp_path).take([script.rotate("mysql-bin.000002")])
    with pytest.raises(PositionLost):
        relay(tmp_path).take(script.stream[1:])


@pytest.mark.fault(
    "a file torn at random bytes",
    "cut to the last complete transaction, the rest comes again",
    cases="126",
)
def test_every_torn_tail_is_cut_to_the_last_complete_transaction(tmp_path: Path) -> None:
    script = BinlogScript(gtids="0-1-3")
    ends = [0, 4, len(script.data) - len(script.stream[-1]), len(script.data)]
    sets = ["", "", "", "0-1-3"]
    for number in (4, 5):
        script.transaction(number)
        ends.append(len(script.data))
        sets.append(f"0-1-{number}")
    rng = random.Random(7)
    for size in [*ends, *rng.sample(range(len(script.data)), 120)]:
        path = tmp_path / script.name
        path.write_bytes(script.data[:size])
        found = recover(tmp_path, Meta("", 4, MariadbGtidSet()))
        at = max(index for index, end in enumerate(ends) if end <= size)
        assert path.stat().st_size == (ends[at] if at != 1 else 0)
        assert (found.position, str(found.gtids)) == (max(4, ends[at]), sets[at])
        again = relay(tmp_path, found.gtids)
        before = script.stream[:1] if found.position == 4 else script.resumed(found.position)
        left = [e for e in script.stream[1:] if read_header(e).end_position > found.position]
        again.take([*before, *left])
        again.writer.close()
        assert path.read_bytes() == script.data
        path.unlink()


def test_damage_behind_the_meta_is_cut_and_damage_before_it_is_reported(
    tmp_path: Path, script: BinlogScript
) -> None:
    path = tmp_path / script.name
    data = bytearray(script.data)
    data[-60] ^= 4
    path.write_bytes(data)
    whole = Meta(script.name, len(data), MariadbGtidSet.parse("0-1-5"))
    with pytest.raises(Corrupt, match="checksum"):
        recover(tmp_path, whole)
    assert path.read_bytes() == data
    found = recover(tmp_path, Meta(script.name, 200, MariadbGtidSet.parse("0-1-3")))
    assert str(found.gtids) == "0-1-4"
    assert found.cut_bytes > 0


def test_less_than_the_meta_says_is_an_error(tmp_path: Path, script: BinlogScript) -> None:
    path = tmp_path / script.name
    path.write_bytes(script.data[:-1])
    with pytest.raises(NeedsOperator, match="were relayed"):
        recover(tmp_path, Meta(script.name, len(script.data), MariadbGtidSet()))
    with pytest.raises(NeedsOperator, match=r"has no mysql-bin\.000002"):
        recover(tmp_path, Meta("mysql-bin.000002", 4, MariadbGtidSet()))
    path.write_bytes(b"\x7fELF" + script.data[4:])
    with pytest.raises(Corrupt, match="no binlog file"):
        recover(tmp_path, Meta("", 4, MariadbGtidSet()))


def test_only_the_newest_file_is_recovered(tmp_path: Path, script: BinlogScript) -> None:
    script.rotate("mysql-bin.000002")
    (tmp_path / script.name).write_bytes(script.data)
    (tmp_path / "mysql-bin.000002").write_bytes(FILE_MAGIC[:2])
    found = recover(tmp_path, Meta(script.name, 200, MariadbGtidSet.parse("0-1-3")))
    assert (str(found.file), found.position) == ("mysql-bin.000002", 4)
    assert (tmp_path / "mysql-bin.000002").stat().st_size == 0


def ends_of(script: BinlogScript, gtids: GtidSet) -> list[str]:
    """The statements or types behind which no transaction is open."""
    tracker = TransactionTracker(gtids)
    tracker.begin_file(script.checksum)
    ends = []
    for event in script.stream[3:]:
        header = read_header(event)
        tracker.take(header.type, event)
        if not tracker.inside:
            is_query = header.type == EventType.QUERY
            found = decode_event(event, script.checksum, header) if is_query else None
            statement = found.statement.decode() if isinstance(found, Query) else ""
            ends.append(statement or EventType(header.type).name)
    return ends


def test_transactions_of_mariadb_end_where_they_end() -> None:
    script, gtids = BinlogScript(), MariadbGtidSet()
    script.transaction(1)
    script.begin(2, GtidFlag.STANDALONE | GtidFlag.DDL)
    script.query("CREATE TABLE t (a INT)")
    script.begin(3)
    for statement in ("SAVEPOINT a", "INSERT INTO m VALUES (1)", "ROLLBACK TO a", "COMMIT"):
        script.query(statement)
    script.begin(4)
    script.query("XA END X'61',X'',1")
    xa = (1, b"a", b"")
    script.add(EventType.XA_PREPARE, xa_prepare(False, xa))
    script.begin(5, GtidFlag.STANDALONE)
    script.query("XA COMMIT X'61',X'',1")
    script.begin(6)
    script.query("ROLLBACK")
    script.begin(7)
    ends = ["XID", "CREATE TABLE t (a INT)", "COMMIT", "XA_PREPARE", "XA COMMIT X'61',X'',1"]
    assert ends_of(script, gtids) == [*ends, "ROLLBACK"]
    assert str(gtids) == "0-1-6"


def test_transactions_of_mysql_end_where_they_end() -> None:
    script, gtids = BinlogScript(flavor=Flavor.MYSQL), MysqlGtidSet()
    source = UUID(SOURCE)

    def begin(number: int) -> None:
        script.add(EventType.GTID, gtid(MysqlGtid(source, number)))

    def rows() -> None:
        script.add(EventType.TABLE_MAP, b"map" * 5)
        script.add(EventType.WRITE_ROWS, b"rows" * 9)

    begin(1)
    script.query("BEGIN")
    rows()
    script.add(EventType.XID, xid(1))
    begin(2)
    script.query("DROP TABLE t")
    begin(3)
    script.query("BEGIN")
    rows()
    script.query("COMMIT")
    begin(4)
    script.query("CREATE TABLE t (a INT) START TRANSACTION")
    rows()
    script.add(EventType.XID, xid(2))
    begin(5)
    script.query("XA START X'61',X'',1")
    rows()
    script.query("XA END X'61',X'',1")
    script.add(EventType.XA_PREPARE, xa_prepare(False, (1, b"a", b"")))
    begin(6)
    script.query("XA ROLLBACK X'61',X'',1")
    begin(7)
    script.add(EventType.TRANSACTION_PAYLOAD, bytes([0]) + b"payload")
    script.add(EventType.ANONYMOUS_GTID, struct.pack("<x16xQ", 0))
    script.query("ALTER TABLE t ADD b INT")
    begin(9)
    script.query("BEGIN")
    found = ends_of(script, gtids)
    assert found == [
        "XID", "DROP TABLE t", "COMMIT", "XID", "XA_PREPARE", "XA ROLLBACK X'61',X'',1",
        "TRANSACTION_PAYLOAD", "ALTER TABLE t ADD b INT",
    ]  # fmt: skip
    assert str(gtids) == f"{SOURCE}:1-7"


def test_readers_wait_for_growth_and_not_for_a_clock() -> None:
    growth, file = Growth(), FileName("mysql-bin", 1)
    assert growth.wait_beyond(None, 0.001) is None
    growth.report(Location(1, file, 50))
    assert growth.wait_beyond(None, 60) == Location(1, file, 50)
