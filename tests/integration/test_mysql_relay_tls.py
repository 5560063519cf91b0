"""A relay over TLS: the server's certificate is checked, the client's is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from penstock.security.databases import SqlTls
from tests.kit.mysql.relay import FIRST, assert_same, relaying, sub_dir
from tests.kit.servers.authority import Authority
from tests.kit.servers.binlog_server import binlog_server

pytestmark = [pytest.mark.mariadb, pytest.mark.thorough]


def test_a_relay_log_comes_over_tls_from_the_server_that_the_authority_knows(
    tmp_path: Path,
) -> None:
    authority, foreign = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair = authority.issue("server")
    options = [f"--ssl-ca={pair.ca}", f"--ssl-cert={pair.cert}", f"--ssl-key={pair.key}"]
    with binlog_server(tmp_path / "source", 1, *options) as server:
        server.run("CREATE USER safe@'%' IDENTIFIED BY 'x' REQUIRE X509")
        server.run("GRANT ALL ON *.* TO safe@'%'")
        mine = authority.issue("relay")
        files = SqlTls(ca=mine.ca, cert=mine.cert, key=mine.key)
        address = replace(server.address, user="safe", password="x", tls=files)
        with pytest.raises(NeedsOperator, match="TLS"):
            replace(address, tls=SqlTls(ca=foreign.file)).connect()
        with pytest.raises(NeedsOperator, match="password"):
            replace(address, tls=SqlTls(ca=mine.ca)).connect()
        with pytest.raises(NeedsOperator, match="paths"):
            replace(address, tls=SqlTls(ca=tmp_path / "none")).connect()
        with relaying(tmp_path / "relay", server, address=address) as relay:
            server.insert(20)
            server.run(f"INSERT INTO shop.t VALUES (100, REPEAT('x', {20 << 20}))")
            relay.catch_up(server)
        assert_same(server, sub_dir(tmp_path / "relay"), [FIRST])
