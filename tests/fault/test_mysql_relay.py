"""Faults around the relay log, on a real MariaDB: afterwards its files are the server's again."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import Malformed
from penstock.local.process import python_module
from pumpclient.mysql.events.frame import HEADER, EventType
from pumpclient.mysql.relay.resume import Start
from tests.kit.crash.disks import small_volume
from tests.kit.crash.slow_proxy import SlowProxy
from tests.kit.mysql.relay import FIRST, LONG_S, assert_same, relaying, sub_dir, sub_dirs
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.wait import eventually

pytestmark = [pytest.mark.mariadb, pytest.mark.fault]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    with binlog_server(tmp_path_factory.mktemp("source")) as server:
        yield server


@pytest.fixture
def source(shared: BinlogServer) -> BinlogServer:
    shared.run("TRUNCATE TABLE shop.t", "RESET MASTER")
    return shared


def bulk(server: BinlogServer, rows: int, first: int, value_bytes: int) -> None:
    server.run(
        f"INSERT INTO shop.t SELECT seq + {first}, REPEAT('x', {value_bytes})"
        f" FROM shop.seq_1_to_{rows}"
    )


@pytest.mark.fault(
    "the connection is reset within transactions",
    "cut to the last complete one, neither gap nor duplicate",
    cases="8",
)
def test_a_connection_cut_within_a_transaction(source: BinlogServer, tmp_path: Path) -> None:
    rng = random.Random(73)
    with SlowProxy(f"127.0.0.1:{source.port}") as proxy:
        address = replace(source.address, port=int(proxy.url.rpartition(":")[2]))
        with relaying(tmp_path, source, address=address) as relay:
            for round_ in range(8):
                bulk(source, 2000, round_ * 10_000, 1000)
                source.insert(5, first=round_ * 10_000 + 5000)
                time.sleep(rng.random() * 0.05)
                proxy.reset()
            relay.catch_up(source)
            assert relay.unit.status().reconnects > 0
    assert_same(source, sub_dir(tmp_path))


@pytest.mark.fault("kill -9 of the relay at random moments", "same", cases="4")
@pytest.mark.thorough
def test_a_relay_that_is_killed_at_any_moment_continues(
    source: BinlogServer, tmp_path: Path
) -> None:
    rng = random.Random(9)
    root = tmp_path / "relay"
    arguments = [str(root), str(source.port), source.user, source.password, FIRST]
    killed_within = 0
    for round_ in range(4):
        process = subprocess.Popen(python_module("tests.kit.mysql.relay", *arguments))
        try:
            bulk(source, 3000, round_ * 10_000, 1000)
            source.insert(30, first=round_ * 10_000 + 5000)
            source.run("FLUSH BINARY LOGS")
            if round_ == 0:
                eventually(lambda: (root / "0-1.000001" / FIRST).exists(), LONG_S)
            else:
                time.sleep(0.3 + rng.random() * 0.7)
        finally:
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(LONG_S)
        relayed = sum(path.stat().st_size for path in (root / "0-1.000001").glob("mysql-bin.*"))
        killed_within += relayed < sum(source.file(name).stat().st_size for name in source.logs)
    assert killed_within > 0
    with relaying(root, source) as relay:
        relay.catch_up(source)
    assert_same(source, sub_dir(root))


@pytest.mark.fault(
    "the server stops in order, and is killed", "followed into its next file", cases="2"
)
@pytest.mark.thorough
def test_a_server_that_restarts_or_dies_is_followed_into_its_next_file(
    source: BinlogServer, tmp_path: Path
) -> None:
    with relaying(tmp_path, source) as relay:
        source.insert(10)
        relay.catch_up(source)
        eventually(lambda: relay.unit.status().behind_s == 0, LONG_S)
        source.stop()
        eventually(lambda: relay.unit.status().behind_s > 0.5, LONG_S)
        source.start()
        source.insert(10, first=100)
        relay.catch_up(source)
        eventually(lambda: relay.unit.status().behind_s == 0, LONG_S)
        source.restart()
        source.insert(10, first=200)
        relay.catch_up(source)
    (folder,) = sub_dirs(tmp_path)
    first, second, third = source.logs
    assert_same(source, folder, [first, third])
    # The mark of a file that no one closed stays in the server's, and is not sent.
    assert_same(source, folder, [second])


@pytest.mark.fault("`.999999` is followed by `.1000000`", "ordered by number", cases="1")
@pytest.mark.thorough
def test_files_continue_after_999999(source: BinlogServer, tmp_path: Path) -> None:
    last = "mysql-bin.999999"
    source.stop()
    source.file(FIRST).rename(source.file(last))
    source.file("mysql-bin.index").write_text(f"./{last}\n")
    source.start()
    try:
        source.insert(3)
        assert source.logs == [last, "mysql-bin.1000000"]
        with relaying(tmp_path, source, Start(file=last)) as relay:
            relay.catch_up(source)
            source.run("FLUSH BINARY LOGS")
            source.insert(3, first=10)
            relay.catch_up(source)
        with relaying(tmp_path, source) as relay:
            source.insert(3, first=20)
            relay.catch_up(source)
        assert_same(source, sub_dir(tmp_path))
    finally:
        source.run("RESET MASTER")


@pytest.mark.fault(
    "a flipped bit in the server's file",
    "asked for once more, then stops with file and position; nothing of it is written",
    cases="1",
)
@pytest.mark.thorough
def test_a_damaged_event_is_named_with_file_and_position(
    source: BinlogServer, tmp_path: Path
) -> None:
    source.insert(20)
    source.run("FLUSH BINARY LOGS")
    path = source.file(FIRST)
    data, at = path.read_bytes(), 4
    while HEADER.unpack_from(data, at)[1] != EventType.WRITE_ROWS_V1:
        at += HEADER.unpack_from(data, at)[3]
    with path.open("r+b") as file:
        file.seek(at + 30)
        file.write(bytes([data[at + 30] ^ 16]))
    with relaying(tmp_path, source) as relay:
        error = relay.fails()
        assert isinstance(error, Malformed)
        assert f"the event at {at} of the server's {FIRST}" in str(error)
        assert "verify-binlog-checksum" in error.hint
    (folder,) = sub_dirs(tmp_path)
    relayed = (folder / FIRST).read_bytes()
    assert 0 < len(relayed) <= at


@pytest.mark.fault("the disk is full", "waited for; continues when there is room", cases="1")
@pytest.mark.thorough
def test_a_full_disk_is_waited_for(source: BinlogServer, tmp_path: Path) -> None:
    with small_volume(tmp_path / "small", 2 << 20) as volume:
        with relaying(volume.path / "relay", source) as relay:
            relay.catch_up(source)
            bulk(source, 4000, 0, 1000)
            source.insert(10, first=10_000)
            eventually(lambda: "No space left" in relay.unit.status().problem, LONG_S)
            assert relay.failed is None
            volume.resize(64 << 20)
            relay.catch_up(source)
        assert_same(source, sub_dir(volume.path / "relay"))


def test_a_unit_stops_at_once_however_quiet_its_server_is(
    source: BinlogServer, tmp_path: Path
) -> None:
    with relaying(tmp_path, source, idle_s=600.0, heartbeat_s=600.0) as relay:
        eventually(lambda: relay.unit.status().connected, LONG_S)
    eventually(lambda: source.dump_threads() == [], LONG_S)
