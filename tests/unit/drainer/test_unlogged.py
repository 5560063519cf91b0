"""Changes of a TiDB cluster without a binlog are reported once, and shown as long as they last."""

import json
from dataclasses import replace

import pytest

from drainer.ddl.tidb_servers import Unlogged, servers_without_binlog
from penstock.node.output import lines_of
from penstock.schema.model import TableInfo
from penstock.schema.tidb_json import table_from_json, table_to_json


def server(status: str | None, port: int = 4000) -> bytes:
    fields = {"ip": "10.0.0.1", "listening_port": port, "status_port": 10080}
    return json.dumps(fields if status is None else {**fields, "binlog_status": status}).encode()


def test_servers_whose_binlog_is_off_or_skipped_are_found() -> None:
    items = [server("On", 1), server("Off", 2), server("Skipping", 3), server(None, 4), b"{", b"[]"]
    found = {"10.0.0.1:2": "Off", "10.0.0.1:3": "Skipping"}
    assert servers_without_binlog(items) == found


def test_each_server_and_each_table_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    plain = TableInfo(id=1, name="t")
    tables = [("shop", plain)]
    unlogged = Unlogged(None, lambda: tables)
    unlogged.note({})
    assert caplog.messages == []
    assert set(lines_of(unlogged.facts()).values()) == {"none"}
    tables.append(("shop", replace(plain, id=2, name="session", expires=True)))
    for _ in range(2):
        unlogged.note({"10.0.0.1:2": "Off"})
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("TiDB server 10.0.0.1:2 writes no binlog")
    assert caplog.messages[1].startswith("table shop.session has a TTL")
    assert lines_of(unlogged.facts()) == {
        "tidb_servers_without_binlog": "10.0.0.1:2 (Off)",
        "tidb_tables_with_ttl": "shop.session",
    }
    unlogged.note({})
    assert lines_of(unlogged.facts())["tidb_servers_without_binlog"] == "none"
    unlogged.note({"10.0.0.1:2": "Off"})
    assert len(caplog.messages) == 3


def test_a_table_with_a_ttl_is_one_in_the_history_and_in_a_snapshot() -> None:
    written = table_to_json(TableInfo(id=1, name="t")) | {
        "ttl_info": {"column": {"O": "at", "L": "at"}, "interval_expr": "1", "enable": True}
    }
    table = table_from_json(written)
    assert table.expires
    assert table_from_json(table_to_json(table)).expires
    assert not table_from_json(written | {"ttl_info": None}).expires
