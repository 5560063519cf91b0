"""`drainer ddl` for programs: against a real etcd, without a Drainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from drainer.__main__ import main
from pumpclient import PumpClient


def test_overrides_are_made_listed_and_taken_back_in_json(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pump_factory(etcd_server.url)
    (tmp_path / "drainer").mkdir()
    settings = (
        *("--etcd-urls", etcd_server.url, "--data-dir", str(tmp_path / "drainer")),
        *("--sink", f"sqlite:///{tmp_path / 'down.db'}", "--node-id", "d"),
    )

    def ask(*words: object) -> Any:
        capsys.readouterr()
        assert main(["ddl", *map(str, words), "-o", "json", *settings]) == 0
        return json.loads(capsys.readouterr().out)

    with PumpClient.connect(etcd_server.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        (ts,) = client.execute_ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    did = ask("skip", ts)
    assert (did["drainer"], did["commit_ts"], did["verb"]) == ("d", ts, "skip")
    assert any("will be skipped" in message for message in did["messages"])
    found = ask("list")
    assert (found["drainer"], found["checkpoint_ts"], found["left_out"]) == ("d", 0, [])
    assert [each["query"] for each in found["coming"]][1].startswith("CREATE TABLE")
    (override,) = found["overrides"]
    assert (override["commit_ts"], override["verb"], override["is_passed"]) == (ts, "skip", False)
    assert ask("undo", ts)["verb"] == "undo"
    assert ask("list")["overrides"] == []
    assert main(["ddl", "list", "-o", "xml", *settings]) == 2
    assert "unknown output 'xml'" in capsys.readouterr().err
