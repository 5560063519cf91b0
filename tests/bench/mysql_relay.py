"""Writing a relay log, checksums verified, against `mariadb-binlog --raw` from the same server.

`small` are transactions of one row, about 160 bytes of binlog each event; `large` are inserts of a
thousand rows. Both sides fetch the same files over loopback, the server's page cache warm.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from pumpclient.mysql.relay.receiver import RelayOptions, RelayReceiver, start_thread
from pumpclient.mysql.relay.resume import Start
from tests.bench.rig import Figure, sized
from tests.kit.servers.binlog_server import BinlogServer, binlog_server

_WAIT_S = 300.0
_COLUMNS = ", ".join(f"c{i} VARCHAR(32)" for i in range(9))
_ROW = ", ".join(f"CONCAT('value ', {i}, ' of ', n)" for i in range(9))
_SMALL = sized(80_000, 1_000)
_LARGE_STATEMENTS, _LARGE_ROWS = sized(400, 10), 1000
_ROUNDS = 3

SCRIPTS = {
    "small": f"""BEGIN NOT ATOMIC DECLARE n INT DEFAULT 0; WHILE n < {_SMALL} DO
        INSERT INTO shop.b SELECT n, {_ROW}; SET n = n + 1; END WHILE; END""",
    "large": f"""BEGIN NOT ATOMIC DECLARE i INT DEFAULT 0; WHILE i < {_LARGE_STATEMENTS} DO
        INSERT INTO shop.b SELECT i * {_LARGE_ROWS} + seq AS n, {_ROW.replace("n)", "seq)")}
        FROM shop.seq_1_to_{_LARGE_ROWS}; SET i = i + 1; END WHILE; END""",
}


def measure(home: Path) -> Iterator[Figure]:
    """Yield `relay.write.small` and `relay.write.large` in MB/s."""
    with binlog_server(home / "source", 1, "--sync-binlog=0") as server:
        for kind, script in SCRIPTS.items():
            server.run(f"CREATE OR REPLACE TABLE shop.b (id INT PRIMARY KEY, {_COLUMNS})")
            server.run("RESET MASTER", script)
            file, size = server.end()
            taken = [
                _both(home / f"{kind}-{round_}", server, file, size) for round_ in range(_ROUNDS)
            ]
            ours_s, cpu_s, theirs_s = (min(column) for column in zip(*taken, strict=True))
            detail = {
                "bytes": size,
                "cpu_s": round(cpu_s, 2),
                "mb_per_cpu_s": round(size / cpu_s / 1e6, 1),
                "rounds": _ROUNDS,
            }
            yield Figure(
                f"relay.write.{kind}", size / ours_s / 1e6, "MB/s", size / theirs_s / 1e6, detail
            )


def _both(home: Path, server: BinlogServer, file: str, size: int) -> tuple[float, float, float]:
    """Return the seconds and CPU seconds of the relay, and the seconds of the server's tool."""
    raw = home / "raw"
    raw.mkdir(parents=True)
    begun_s = time.perf_counter()
    server.raw(raw, file)
    theirs_s = time.perf_counter() - begun_s
    options = RelayOptions(start=Start(file=file))
    unit = RelayReceiver(home / "relay", server.address, options)
    failed: list[Exception] = []
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    thread = start_thread(unit, failed.append)
    seen = None
    while not failed and (seen is None or seen.position < size):
        seen = unit.growth.wait_beyond(seen, _WAIT_S)
    ours_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    unit.stop()
    thread.join()
    assert not failed, failed
    relayed = (home / "relay" / "0-1.000001" / file).read_bytes()
    assert relayed[:size] == (raw / file).read_bytes()[:size], "not what the server's tool fetched"
    return ours_s, cpu_s, theirs_s
