"""Events become rows and ends of transactions, in both servers' framing, and nothing is lost."""

from uuid import UUID

import pytest

from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import NeedsOperator
from pumpclient.mysql.events.frame import Checksum, EventType, Header, make_event
from pumpclient.mysql.events.transactions import GtidFlag, Query
from pumpclient.mysql.gtid import MariadbGtid, MysqlGtid
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.rows.rows_event import RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.outputs import Finished, Output, Statement, TableChanges
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.mysql.encoding import gtid, mariadb_gtid, payload_of, xa_prepare, xid
from tests.kit.mysql.row_encoding import encode_map, encode_rows, make_image
from tests.unit.pumpclient.mysql.test_transcode import made

INT = Column(WireType.LONG, is_unsigned=False)
TABLE = made(["a INT PRIMARY KEY"])
CODEC = RowCodec(TABLE)
NAME = (1, b"trx", b"b")
FILE = FileName("mysql-bin", 3)


def event(type_: int, body: bytes, checksum: Checksum = Checksum.NONE) -> bytes:
    return make_event(type_, body, header=Header(9, 0, 5, 0, 0, 0), checksum=checksum)


def begin(number: int = 1) -> bytes:
    return event(EventType.GTID, gtid(MysqlGtid(UUID(int=7), number)))


def maria(flags: int = 0, sequence: int = 1) -> bytes:
    name = NAME if flags & (GtidFlag.PREPARED_XA | GtidFlag.COMPLETED_XA) else None
    return event(EventType.MARIADB_GTID, mariadb_gtid(MariadbGtid(0, 5, sequence), flags, name))


def query(text: str) -> bytes:
    return event(EventType.QUERY, Query(b"db", text.encode()).encode())


def table(name: str = "t") -> bytes:
    return event(EventType.TABLE_MAP, encode_map(TableMap("db", name, (INT,))))


def rows(*values: int) -> bytes:
    images = b"".join(make_image([INT], (value,)) for value in values)
    body = encode_rows(RowsEvent(EventType.WRITE_ROWS_V1, 1, None, 1, images))
    return event(EventType.WRITE_ROWS_V1, body)


XID = event(EventType.XID, xid(1))


def prepare(one_phase: bool = False) -> bytes:
    return event(EventType.XA_PREPARE, xa_prepare(one_phase, NAME))


def choose(table_map: TableMap) -> Transcoder | None:
    if table_map.table == "left_out":
        return None
    return Transcoder(table_map, TABLE)


def at(number: int) -> Location:
    return Location(1, FILE, 100 * number)


def fed(assembler: Assembler, *events: bytes, start: int = 1) -> list[Output]:
    out: list[Output] = []
    for number, each in enumerate(events, start):
        out += assembler.take(at(number), at(number + 1), each)
    return out


def contents(out: list[Output]) -> list[object]:
    """Return the rows of each transaction, and the text of each statement."""
    found: list[object] = []
    gathered: list[object] = []
    for each in out:
        if isinstance(each, TableChanges):
            gathered += [CODEC.decode_insert(row)[0] for row in each.changes[1]]
        elif isinstance(each, Finished):
            found.append(gathered)
            gathered = []
        else:
            assert isinstance(each, Statement)
            found.append(each.query.statement.decode())
    assert not gathered, "rows without an end"
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([begin(), query("BEGIN"), table(), rows(1, 2), table(), rows(3), XID], [[1, 2, 3]]),
        ([maria(), table(), rows(1), XID, maria(), table(), rows(2), query("COMMIT")], [[1], [2]]),
        ([query("BEGIN"), table(), rows(1), query("COMMIT")], [[1]]),
        ([begin(), query("DROP TABLE x"), begin(), query("BEGIN"), XID], ["DROP TABLE x", []]),
        ([maria(GtidFlag.STANDALONE), query("DROP TABLE x"), query("DROP TABLE y")],
         ["DROP TABLE x", "DROP TABLE y"]),
        ([begin(), query("BEGIN"), table("left_out"), rows(1), table(), rows(2), XID], [[2]]),
        ([begin(), query("BEGIN"), query("SAVEPOINT `a`"), query("ROLLBACK TO `a`"), table(),
          rows(2), XID], [[2]]),
        ([begin(), query("BEGIN"), query("ROLLBACK")], [[]]),
        ([begin(), query("CREATE TABLE t (a INT) START TRANSACTION"), table(), rows(1), XID],
         ["CREATE TABLE t (a INT) START TRANSACTION", [1]]),
        ([maria(), query("CREATE TABLE t (a INT)"), table(), rows(1), XID],
         ["CREATE TABLE t (a INT)", [1]]),
    ],
)  # fmt: skip
def test_transactions_end_where_their_server_says(
    events: list[bytes], expected: list[object]
) -> None:
    assert contents(fed(Assembler(choose), *events)) == expected


def test_the_end_of_a_transaction_has_its_places_and_its_gtid() -> None:
    out = fed(Assembler(choose), begin(42), query("BEGIN"), table(), rows(1), XID)
    assert out[-1] == Finished(at(1), at(6), f"{UUID(int=7)}:42", 9)


def test_a_payload_is_one_transaction_with_one_place() -> None:
    inner = [query("BEGIN"), table(), rows(1), table(), rows(2), XID]
    payload = payload_of(inner)
    out = fed(Assembler(choose), begin(), event(EventType.TRANSACTION_PAYLOAD, payload))
    assert contents(out) == [[1, 2]]
    assert isinstance(out[-1], Finished)
    assert (out[-1].begin, out[-1].end) == (at(1), at(3))


XA_MYSQL = [begin(), query("XA START X'747278',X'62',1"), table(), rows(1),
            query("XA END X'747278',X'62',1"), prepare()]  # fmt: skip
XA_MARIADB = [maria(GtidFlag.PREPARED_XA), table(), rows(1), query("XA END X'747278',X'62',1"),
              prepare()]  # fmt: skip
OTHER = [begin(), query("BEGIN"), table(), rows(5), XID]


@pytest.mark.parametrize("prepared", [XA_MYSQL, XA_MARIADB], ids=["mysql", "mariadb"])
@pytest.mark.parametrize(("verb", "found"), [("COMMIT", [1]), ("ROLLBACK", [])])
def test_prepared_rows_wait_for_their_commit(
    prepared: list[bytes], verb: str, found: list[int]
) -> None:
    assembler = Assembler(choose)
    assert contents(fed(assembler, *prepared, *OTHER)) == [[], [5]]
    assert assembler.restart == at(1)
    out = fed(
        assembler, maria(GtidFlag.COMPLETED_XA), query(f"XA {verb} X'747278',X'62',1"), start=50
    )
    assert contents(out) == [found]
    assert assembler.restart is None


def test_after_a_restart_prepared_rows_are_there_and_nothing_else_is_done_again() -> None:
    first = Assembler(choose)
    events = [*XA_MYSQL, *OTHER, begin(), query("DROP TABLE x")]
    assert contents(fed(first, *events)) == [[], [5], "DROP TABLE x"]
    again = Assembler(choose, done=at(len(events) + 1))
    assert fed(again, *events) == []
    out = fed(again, begin(), query("XA COMMIT X'747278',X'62',1"), *OTHER, start=len(events) + 1)
    assert contents(out) == [[1], [5]]


def test_an_xa_transaction_of_one_phase_is_whole_at_once() -> None:
    events = [begin(), query("XA START X'74',X'',1"), table(), rows(1), query("XA END X'74',X'',1")]
    assert contents(fed(Assembler(choose), *events, prepare(one_phase=True))) == [[1]]


def test_what_cannot_be_followed_stops() -> None:
    with pytest.raises(NeedsOperator, match="before the place"):
        fed(Assembler(choose), begin(), query("XA COMMIT X'00',X'',1"))
    with pytest.raises(NeedsOperator, match="without transactions"):
        fed(Assembler(choose), begin(), query("BEGIN"), table(), rows(1), query("ROLLBACK"))
    with pytest.raises(NeedsOperator, match="LOAD DATA"):
        fed(Assembler(choose), event(EventType.BEGIN_LOAD_QUERY, b"\0" * 8))
    with pytest.raises(NeedsOperator, match="lacks changes"):
        fed(Assembler(choose), event(EventType.INCIDENT, b"\x01\0\x04lost"))
    with pytest.raises(NeedsOperator, match="no TABLE_MAP"):
        fed(Assembler(choose), begin(), query("BEGIN"), rows(1))
    with pytest.raises(NeedsOperator, match="wait for an XA COMMIT"):
        fed(Assembler(choose, prepared_bytes_max=1), *XA_MYSQL)


def test_tables_are_asked_for_once_until_they_change() -> None:
    asked: list[str] = []

    def counted(table_map: TableMap) -> Transcoder | None:
        asked.append(table_map.table)
        return choose(table_map)

    assembler = Assembler(counted)
    fed(assembler, *OTHER, *OTHER)
    assert asked == ["t"]
    assembler.forget_tables()
    fed(assembler, *OTHER)
    assert asked == ["t", "t"]
