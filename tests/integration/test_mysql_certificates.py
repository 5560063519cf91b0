"""The certificates that a MySQL makes for itself: they hold no host name, and are of some use."""

from contextlib import closing

import pytest

from drainer.sinks.opening import open_sink
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from penstock.security.databases import CA, SqlTls
from pumpclient.mysql.protocol.server import ServerAddress
from tests.kit.servers.authority import Authority

pytestmark = pytest.mark.thorough


def test_a_source_checks_the_authority_where_the_name_cannot_be_checked(
    mysql_server: SqlServer,
) -> None:
    ca = mysql_server.home / "data" / "ca.pem"

    def connected(tls: SqlTls) -> bool:
        server = mysql_server
        address = ServerAddress(server.host, server.port, server.user, server.password, tls)
        with address.session() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            return bool(cursor.fetchall()[0][1])

    with pytest.raises(NeedsOperator) as refused:
        connected(SqlTls(ca))
    assert 'ssl-verify = "ca"' in refused.value.hint
    assert connected(SqlTls(ca, verify=CA))
    other = Authority(mysql_server.home, "stranger").file
    with pytest.raises(NeedsOperator, match="certificate"):
        connected(SqlTls(other, verify=CA))


def test_a_drainer_refuses_a_wrong_certificate_at_once_and_takes_one_without_a_name_when_asked(
    mysql: SqlServer,
) -> None:
    ca = mysql.home / "data" / "ca.pem"

    def load(options: str) -> None:
        url = f"{mysql.url}?{options}"
        with closing(open_sink(url, cluster_id=1, retry_s_max=60)) as sink:
            assert sink.load_checkpoint() is None

    with pytest.raises(NeedsOperator) as refused:
        load(f"ssl-ca={ca}")
    assert "ssl-verify" in refused.value.hint
    load(f"ssl-ca={ca}&ssl-verify=ca")
    with pytest.raises(NeedsOperator, match="certificate"):
        load(f"ssl-ca={Authority(mysql.home, 'other').file}&ssl-verify=ca")
    with pytest.raises(NeedsOperator, match="ssl-verify"):
        load(f"ssl-ca={ca}&ssl-verify=none")
