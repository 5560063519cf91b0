"""What a streaming query of Spark needs is lost: the query says why it cannot go on."""

from collections.abc import Callable

import pytest

from pumpclient import Options, PumpClient
from tests.integration.test_spark_source import put
from tests.integration.test_spark_stream import MakeQuery, make_query
from tests.integration.test_stream import PURGING, purge
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import eventually

__all__ = ["make_query"]

pytestmark = [pytest.mark.fault, pytest.mark.alone]

MakePump = Callable[..., PumpProcess]
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
WAIT_S = 120.0


@pytest.mark.fault(
    "a Pump purges binlogs after the offset of a streaming query",
    "the query ends with an error that says so; it writes nothing after the gap",
    cases="1",
)
def test_a_purge_past_the_offset_is_an_error_and_never_a_gap(
    make_query: MakeQuery, etcd_url: str, pump_factory: MakePump
) -> None:
    pump = pump_factory(etcd_url, **PURGING)
    query = make_query()
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name TEXT)")
        put(client, 0)
        assert query.run() == [[(0, "nut", "insert")]]
        for number in range(1, 8):
            put(client, number, name="x" * 30_000)
        eventually(lambda: "purged (0, " in purge(pump), WAIT_S)
        with pytest.raises(Exception, match="are purged"):
            query.run()
        assert query.batches == []
