"""A private TiDB with a store of its own: a downstream, and a side of a comparison.

`tidb_server` is one for the whole session; `tidb` is the same with every user database dropped. A
test that uses one of them is marked `tidb`, and runs with `make test-tidb`.
"""

from collections.abc import Iterator

import pytest

from penstock.local.sql_server import TidbServer
from tests.kit.servers.fix_mariadb import drop_user_databases

TXN_BYTES_MAX = 30 << 20
"""The bound of its transactions. Without one that is set, a TiDB of today has its memory only."""


@pytest.fixture(scope="session")
def tidb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbServer]:
    server = TidbServer(
        tmp_path_factory.mktemp("tidb-alone"),
        settings=f"performance.txn-total-size-limit = {TXN_BYTES_MAX}\n",
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def tidb(tidb_server: TidbServer) -> TidbServer:
    """The session's TiDB, without any user database."""
    if not tidb_server.is_running:
        tidb_server.start()
    drop_user_databases(tidb_server)
    return tidb_server
