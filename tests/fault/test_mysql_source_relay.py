"""What befalls the relay log below a source, and what is large in it: the Pumps get rows once."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Retryable
from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER, EventType
from pumpclient.mysql.journal import Journal, OpenGroup
from pumpclient.mysql.source import command
from tests.kit.crash.disks import small_volume
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_source import LONG_S, SourceRig, bulk, cleared
from tests.kit.wait import eventually

pytestmark = [pytest.mark.mariadb, pytest.mark.fault, pytest.mark.thorough]
FIRST = "mysql-bin.000001"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    home = tmp_path_factory.mktemp("relayed-source-server")
    options = ("--binlog-row-metadata=FULL", "--innodb-log-file-size=256M")
    with binlog_server(home, 1, *options) as running:
        yield running


@pytest.fixture
def server(shared: BinlogServer) -> BinlogServer:
    return cleared(shared)


def flip(path: Path, *, last: int) -> int:
    """Flip a bit of the value in the last event of a type; return where the event begins."""
    data, at, found = path.read_bytes(), 4, 0
    while at < len(data):
        _, type_, _, size, _, _ = HEADER.unpack_from(data, at)
        found = at if type_ == last else found
        at += size
    place = found + HEADER.unpack_from(data, found)[3] - CHECKSUM_SIZE - 1
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 1]))
    return found


@pytest.mark.fault(
    "the relay log is lost while the source is down, an XA transaction open; again; and the"
    " server has a RESET MASTER meanwhile",
    "fetched again from the checkpoint, the XA's rows too; refused with the hint to load again",
    cases="0 / 3",
)
@pytest.mark.slow
def test_a_relay_log_that_is_lost_while_the_source_is_down_is_fetched_again(
    server: BinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    server.insert(20)
    server.run("XA START 'w'", "INSERT INTO shop.t VALUES (500, 'w')", "XA END 'w'",
               "XA PREPARE 'w'")  # fmt: skip
    server.run("FLUSH BINARY LOGS")
    server.insert(20, first=100)
    source.catch_up(server)
    source.kill()
    shutil.rmtree(rig.folder / "relay")
    server.insert(5, first=200)
    source.start()
    server.run("XA COMMIT 'w'", "FLUSH BINARY LOGS", "DELETE FROM shop.t WHERE id % 3 = 0")
    source.finish(server)
    shutil.rmtree(rig.folder / "relay")
    source.start()
    server.insert(5, first=300)
    source.finish(server)
    rig.check(server)
    # Files of the old names come again after a RESET MASTER: they are not taken for the old ones.
    shutil.rmtree(rig.folder / "relay")
    server.run("RESET MASTER", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    server.insert(50, first=400)
    source.start()
    eventually(lambda: not source.is_running, LONG_S)
    assert source.wait() == 2
    assert "another history" in source.log_tail()


@pytest.mark.fault(
    "a flipped bit in the relay log's own file, behind what was checked when it was written",
    "file and offset are named, nothing of it is passed on; fetched again once the log is"
    " moved away",
    cases="1",
)
def test_a_damaged_event_of_the_relay_log_is_named_and_fetched_again_once_the_log_is_gone(
    server: BinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    server.insert(5)
    source.catch_up(server)
    command.ask(["pause", "--status-addr", source.address])
    eventually(lambda: source.status()["state"] == "paused", LONG_S)
    server.insert(5, first=10)
    server.run("FLUSH BINARY LOGS", "UPDATE shop.t SET v = 'u'")
    folder = rig.folder / "relay" / "0-1.000001"
    eventually(lambda: (folder / server.logs[-1]).exists(), LONG_S)
    assert source.stop() == 0  # Else it has them in memory, as they were received.
    at = flip(folder / FIRST, last=EventType.WRITE_ROWS_V1)
    source.start()
    status = source.fails()
    assert f"{folder / FIRST}, offset {at}: an event's checksum" in status["problem"]
    assert "fetched again" in status["hint"]
    assert source.stop() == 0
    (rig.folder / "relay").rename(rig.folder / "damaged")
    source.start()
    source.finish(server)
    rig.check(server)


@pytest.mark.fault(
    "the disk below relay log and journal is full, three times",
    "waited for, the state stays `syncing`, the problem is named",
    cases="0 / 3",
)
@pytest.mark.slow
def test_a_full_disk_below_relay_log_and_journal_is_waited_for(
    server: BinlogServer, rig: SourceRig
) -> None:
    rig.folder.mkdir()
    with small_volume(rig.folder / "small", 3 << 20) as volume:
        source = rig.begin(
            server,
            data_dir=volume.path / "data",
            relay_dir=volume.path / "relay",
            sync_group_count_max=4,
        )
        server.insert(20)
        source.catch_up(server)
        for round_ in range(2):
            begin = 1000 + round_ * 10_000
            bulk(server, 4000 + round_ * 4000, begin, 1000)
            server.insert(30, first=begin + 9000)
            eventually(lambda: "No space left" in str(source.status().get("relay", "")), LONG_S)
            assert source.is_running, source.log_tail()
            assert source.status()["state"] == "syncing", source.status()
            volume.resize((8 if round_ == 0 else 64) << 20)
            source.catch_up(server)
        volume.fill()
        server.insert(1, first=50_000)
        server.run("UPDATE shop.t SET v = 'full' WHERE id < 5")
        eventually(lambda: bool(source.status()["relay"]["problem"]), LONG_S)
        volume.free()
        source.finish(server)
    rig.check(server)


def begin_many(journal: Journal) -> None:
    for first in itertools.count(10, 2):
        journal.begin("pump-1", range(first, first + 2))


@pytest.mark.fault(
    "the disk below relay log and journal is full: within a line of the journal",
    "what was noted stays, the line goes, a later one follows",
    cases="1",
)
def test_a_journal_on_a_full_disk_keeps_what_it_said_and_continues_when_there_is_room(
    tmp_path: Path,
) -> None:
    with small_volume(tmp_path / "small", 64 << 10) as volume:
        path = volume.path / "journal"
        journal = Journal(path)
        journal.begin("pump-1", range(1, 4))
        volume.fill()
        with pytest.raises(Retryable, match="No space left"):
            begin_many(journal)
        with pytest.raises(Retryable, match="No space left"):
            journal.decide(range(1, 4), range(100, 103))
        kept = journal.left
        assert kept[0] == OpenGroup("pump-1", range(1, 4))
        volume.free()
        journal.decide(range(1, 4), range(100, 103))
        journal.close()
        again = Journal(path)
        assert again.left == [OpenGroup("pump-1", range(1, 4), range(100, 103)), *kept[1:]]
        again.close()


@pytest.mark.fault(
    "an event of 40 MB, its update of 80, a transaction of 40 MB",
    "arrive whole, also after a kill",
    cases="0 / 3",
)
@pytest.mark.slow
def test_an_event_and_a_transaction_of_forty_megabytes_arrive_whole(
    server: BinlogServer, rig: SourceRig
) -> None:
    mib = 40
    server.run("CREATE TABLE shop.big (id INT PRIMARY KEY, b LONGBLOB)")
    source = rig.begin(server)
    server.run(f"INSERT INTO shop.big VALUES (1, REPEAT('abcdefgh', {mib << 17}))")
    server.insert(3)
    source.catch_up(server)
    bulk(server, mib << 10, 1000, 1000)
    server.run("UPDATE shop.big SET b = CONCAT(b, '!')", "DELETE FROM shop.t WHERE id % 2 = 0")
    source.catch_up(server)
    source.kill()
    source.start()
    server.insert(3, first=100)
    source.finish(server)
    rig.check(server, "shop.t", "shop.big")
