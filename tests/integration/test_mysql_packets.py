"""Rows near a server's `max_allowed_packet`: what it holds comes out, though events are larger."""

import pytest

from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, module_server, on_servers
from tests.kit.servers.fix_source import SourceRig, cleared

pytestmark = pytest.mark.thorough

PACKET_BYTES_MAX = 1 << 20
ROW_BYTES = PACKET_BYTES_MAX - 1024


server = module_server(
    on_servers(MARIADB), ("--binlog-row-metadata=FULL", f"--max-allowed-packet={PACKET_BYTES_MAX}")
)


def test_events_larger_than_the_packets_of_a_server_come_out(
    rig: SourceRig, server: AnyBinlogServer
) -> None:
    source = rig.begin(cleared(server))
    assert server.query("SELECT @@global.max_allowed_packet") == [(PACKET_BYTES_MAX,)]
    server.run(
        f"INSERT INTO shop.t VALUES (1, REPEAT('x', {ROW_BYTES})), (2, REPEAT('y', {ROW_BYTES}))",
        f"INSERT INTO shop.t VALUES (3, REPEAT('é', {ROW_BYTES // 2}))",
        "UPDATE shop.t SET v = CONCAT(SUBSTR(v, 2), 'z')",
        "DELETE FROM shop.t WHERE id = 2",
    )
    # What says how much is left needs packets as large as the events.
    server.run(f"SET GLOBAL max_allowed_packet = {64 << 20}")
    source.catch_up(server)
    rig.check(server)
