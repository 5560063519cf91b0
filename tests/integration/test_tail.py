"""`penstock tail` prints the stream of a real Pump."""

import json
import subprocess
import sys

import pytest

from pumpclient import PumpClient
from tests.kit.servers.fix_pump import PumpProcess

KEPT_UNTIL_S = 60


@pytest.fixture
def etcd_with_changes(etcd_url: str, pump: PumpProcess) -> str:
    with PumpClient.connect(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARBINARY(20))")
        client.execute_ddl("CREATE TABLE shop.other (id INT PRIMARY KEY)")
        with client.begin("shop") as txn:
            txn.insert("goods", {"id": 1, "name": b"\xff"})
            txn.insert("other", {"id": 9})
        with client.begin("shop") as txn:
            txn.update("goods", {"id": 1, "name": b"\xff"}, {"name": b"a"})
        with client.begin("shop") as txn:
            txn.delete("goods", {"id": 1, "name": b"a"})
    return etcd_url


def tail(etcd_urls: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drainer.tail", "--etcd-urls", etcd_urls, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=KEPT_UNTIL_S, check=False
    )


def test_changes_of_chosen_tables_are_lines_in_commit_order(etcd_with_changes: str) -> None:
    chosen = ("--after", "beginning", "--table", "shop.goods", "-n", "5")
    shown = tail(etcd_with_changes, *chosen)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split(" ", 1)[1] for line in shown.stdout.splitlines()]
    assert lines[0].startswith("ddl shop: CREATE DATABASE")
    assert lines[1].startswith("ddl shop: CREATE TABLE")
    assert lines[2:] == [
        "insert shop.goods id=1 name='ff'",
        "update shop.goods id=1 -> name='61'",
        "delete shop.goods id=1 name='61'",
    ]
    found = [
        json.loads(line)
        for line in tail(etcd_with_changes, *chosen, "-o", "json").stdout.split("\n")
        if line
    ]
    assert [each["kind"] for each in found] == ["ddl", "ddl", "insert", "update", "delete"]
    assert found[3]["before"] == {"id": 1, "name": "ff"}
    assert found[3]["after"] == {"id": 1, "name": "61"}
    later = tail(etcd_with_changes, "--after", str(found[2]["commit_ts"]), "-n", "1")
    assert "update shop.goods" in later.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--after", "yesterday"), "--after yesterday: no place (give now, beginning or"),
        (("--table", "goods"), "--table goods: no table (write schema.table or 'shop.*')"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    refused = tail("127.0.0.1:1", *arguments)
    assert refused.returncode == 2
    assert problem.replace("shop.*", "schema.*") in refused.stderr


def test_a_past_stretch_ends_by_itself_and_shows_long_values_by_their_beginning(
    etcd_with_changes: str,
) -> None:
    with PumpClient.connect(etcd_with_changes) as client:
        client.execute_ddl("CREATE TABLE shop.notes (id INT PRIMARY KEY, text TEXT, data BLOB)")
        with client.begin("shop") as txn:
            txn.insert("notes", {"id": 1, "text": "é" * 50, "data": b"\xff" * 50})
            txn.insert("notes", {"id": 2, "text": "short", "data": b"\x00"})
    chosen = ("--after", "beginning", "--until", "now", "--table", "shop.notes", "--cut", "8")
    shown = tail(etcd_with_changes, *chosen, "-o", "json")
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = [json.loads(line) for line in shown.stdout.splitlines() if '"insert"' in line]
    assert [each["after"] for each in rows] == [
        {"id": 1, "text": "éééééééé… (50 characters)", "data": "0xffffffff… (50 bytes)"},
        {"id": 2, "text": "short", "data": "0x00"},
    ]
    before = tail(etcd_with_changes, *chosen[:3], str(rows[0]["commit_ts"] - 1), *chosen[4:])
    assert "notes id=" not in before.stdout
    assert tail(etcd_with_changes, "--until", "soon").returncode == 2
