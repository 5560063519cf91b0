"""`penstock drainer ddl` without a Drainer, on a real etcd: for programs, for which downstream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drainer.__main__ import main
from drainer.ddl.starting_schema import OVERRIDES
from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient


def settings_of(node: str, sink: Path, etcd: EtcdServer, folder: Path) -> tuple[str, ...]:
    return (
        *("--etcd-urls", etcd.url, "--data-dir", str(folder / node)),
        *("--sink", f"sqlite:///{sink}", "--node-id", node),
    )


def asked(capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], *words: object) -> Any:
    capsys.readouterr()
    assert main(["ddl", *map(str, words), "-o", "json", *settings]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.thorough
def test_overrides_are_those_of_the_downstream_whichever_drainer_is_asked(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pump_factory(etcd_server.url)
    with PumpClient.connect(etcd_server.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        (ts,) = client.execute_ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    shared, other = tmp_path / "down.db", tmp_path / "other.db"
    one, two = (settings_of(node, shared, etcd_server, tmp_path) for node in ("one", "two"))
    elsewhere = settings_of("one", other, etcd_server, tmp_path)
    # Of before, when they were kept for each Drainer.
    etcd.put(f"{OVERRIDES}one/{ts:020d}", '{"replace": null, "made": "then"}')
    assert [o["verb"] for o in asked(capsys, one, "list")["overrides"]] == ["skip"]
    assert asked(capsys, two, "list")["overrides"] == []
    asked(capsys, one, "track", ts)
    assert asked(capsys, two, "list") == asked(capsys, one, "list")
    assert [o["verb"] for o in asked(capsys, two, "list")["overrides"]] == ["track"]
    asked(capsys, two, "undo", ts)
    assert asked(capsys, one, "list")["overrides"] == [], "what is undone does not come back"
    assert [o["verb"] for o in asked(capsys, elsewhere, "list")["overrides"]] == ["skip"]


def test_overrides_are_made_listed_and_taken_back_in_json(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pump_factory(etcd_server.url)
    settings = settings_of("one", tmp_path / "down.db", etcd_server, tmp_path)

    def ask(*words: object) -> Any:
        return asked(capsys, settings, *words)

    with PumpClient.connect(etcd_server.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        (ts,) = client.execute_ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    did = ask("skip", ts)
    assert (did["commit_ts"], did["verb"]) == (ts, "skip")
    assert any("will be skipped" in message for message in did["messages"])
    found = ask("list")
    assert (found["drainer"], found["checkpoint_ts"], found["left_out"]) == (None, 0, [])
    assert [each["query"] for each in found["coming"]][1].startswith("CREATE TABLE")
    (override,) = found["overrides"]
    assert (override["commit_ts"], override["verb"], override["is_passed"]) == (ts, "skip", False)
    assert ask("undo", ts)["verb"] == "undo"
    assert ask("list")["overrides"] == []
    assert main(["ddl", "list", "-o", "xml", *settings]) == 2
    assert "unknown output 'xml'" in capsys.readouterr().err
