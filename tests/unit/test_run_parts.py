"""The settings that `penstock run` writes for its parts."""

import re
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.settings.compat import load_settings
from drainer.settings.targets import MysqlTarget
from penstock.errors import NeedsOperator
from penstock.local.run.__main__ import main
from penstock.local.run.parts import (
    CONSOLE,
    DRAINER,
    ETCD,
    PUMP,
    SOURCE,
    Choice,
    parts_of,
    settings_of,
    toml_of,
)
from pump.config import load_settings as load_pump
from pumpclient.mysql.protocol.server import address_in
from pumpclient.mysql.source.command import load as load_source

UPSTREAM = "mysql://up:s%40cret@db.example:3307/"
DOWNSTREAM = "mariadb://down:p%3Ass@127.0.0.1:3308/?params=a=1"


def choice(folder: Path, **changes: Any) -> Choice:
    made = {
        "upstream": address_in(UPSTREAM, "upstream"),
        "downstream": DOWNSTREAM,
        "folder": folder,
        **changes,
    }
    return Choice(**made)


def test_each_program_reads_the_settings_of_its_part(tmp_path: Path) -> None:
    more = {
        SOURCE: {"cascades": "accept", "source": {"server_id": 77}, "filter": {
            "ignore-tables": [{"db-name": "shop", "tbl-name": "log"}], "do-dbs": ["shop"],
        }},
        PUMP: {"gc-days": 3.5},
        DRAINER: {"syncer": {"sync-ddl": True}},
    }  # fmt: skip
    parts = parts_of(choice(tmp_path, more=more))
    assert [part.name for part in parts] == [ETCD, PUMP, DRAINER, SOURCE, CONSOLE]
    at = {part.name: part.command[part.command.index("--config") + 1] for part in parts[1:4]}
    (pump, _), source = load_pump(["--config", at[PUMP]]), load_source([f"--config={at[SOURCE]}"])
    drainer, _ = load_settings(["--config", at[DRAINER]], prog="penstock drainer")
    assert {pump.etcd_urls, source.etcd_urls, drainer.etcd_urls} == {parts[0].address}
    assert (pump.gc_days, source.cascades, source.mode) == (3.5, "accept", "all")
    server = source.source
    assert (server.host, server.port, server.user, server.server_id) == (
        "db.example", 3307, "up", 77,
    )  # fmt: skip
    address = server.address()
    assert address.password_file is not None
    assert address.password_file.password() == "s@cret"
    target = drainer.downstream
    assert isinstance(target, MysqlTarget)
    assert (target.user, target.current_password(), target.params) == ("down", "p:ss", ("a=1",))
    assert {part.log.parent for part in parts} == {tmp_path / "log"}


def test_no_settings_and_no_command_have_a_password(tmp_path: Path) -> None:
    parts = parts_of(choice(tmp_path))
    shown = [" ".join(part.command) for part in parts]
    shown += [path.read_text() for path in (tmp_path / "conf").glob("*.toml")]
    for text in shown:
        for secret in ("s@cret", "s%40cret", "p:ss", "p%3Ass"):
            assert secret not in text


@pytest.mark.parametrize(
    ("url", "sink"),
    [
        ("mysql://me@db:3306/", "mysql://me@db:3306/?password-file=FILE"),
        ("tidb://db/?params=a=1", "tidb://root@db/?params=a=1&password-file=FILE"),
        ("mysql://me:own@db/", "mysql://me@db/?password-file=FILE"),
        ("kafka://me@broker:9092/?tls=true", "kafka://me@broker:9092/?tls=true&password-file=FILE"),
        ("kafka://broker:9092/", "kafka://broker:9092/"),
        ("file:///changes@home", "file:///changes@home"),
        ("sqlite:///down.db", "sqlite:///down.db"),
    ],
)
def test_a_downstream_s_password_may_come_from_the_environment(
    url: str, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DOWNSTREAM_PASSWORD", "s:cr@t")
    shown = ("--data-dir", str(tmp_path), "--print-config")
    assert main(["--from", "app", "--to", url, *shown]) == 0
    secret = tmp_path / "conf/downstream.password"
    settings = tomllib.loads((tmp_path / "conf/drainer.toml").read_text())
    assert settings["sink"] == sink.replace("FILE", str(secret))
    if "FILE" in sink:
        assert secret.read_text() == ("own\n" if "own" in url else "s:cr@t\n")


def test_the_settings_of_the_quick_start_are_those_of_parts(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/start/run.md").read_text()
    (text,) = re.findall(r'```toml title="run.toml"\n(.*?)```', page, re.DOTALL)
    file = tmp_path / "run.toml"
    file.write_text(text)
    shown = ("--data-dir", str(tmp_path), "--print-config")
    assert main(["--config", str(file), *shown]) == 0
    source = load_source([f"--config={tmp_path / 'conf/source.toml'}"])
    assert source.load.readers == 4
    assert [each.tbl_name for each in source.filter.ignore_tables] == ["log"]
    pump, _ = load_pump(["--config", str(tmp_path / "conf/pump.toml")])
    assert pump.gc_days == 3.0


def test_programs_need_no_source_and_an_etcd_that_runs_is_not_started(tmp_path: Path) -> None:
    asked = choice(
        tmp_path, upstream=None, downstream="sqlite:///x.db", etcd_urls="e:1", with_console=False
    )
    parts = parts_of(asked)
    assert [(part.name, part.after) for part in parts] == [(PUMP, ()), (DRAINER, (PUMP,))]
    assert tomllib.loads((tmp_path / "conf/pump.toml").read_text())["etcd-urls"] == "e:1"


IGNORING = """
from = "mysql://me@db/"
to = "sqlite:///x.db"
[source.filter]
ignore-tables = [{ db-name = "shop", tbl-name = "log" }]
"""


def test_a_table_is_left_out_by_a_flag_beside_those_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(IGNORING)
    more = ("--ignore-table", "shop.a", "--ignore-table", "`my shop`.b")
    asked = ("--data-dir", str(tmp_path), "--print-config", *more)
    assert main(["--config", str(file), *asked]) == 0
    source = load_source([f"--config={tmp_path / 'conf/source.toml'}", "--ignore-table=s.c"])
    assert [(each.db_name, each.tbl_name) for each in source.filter.ignore_tables] == [
        ("shop", "log"), ("shop", "a"), ("my shop", "b"), ("s", "c"),
    ]  # fmt: skip
    assert main(["--from", "app", "--to", "sqlite:///x.db", *asked]) == 2
    with pytest.raises(NeedsOperator, match="nothing"):
        load_source(["--ignore-table", "nothing"])


def test_settings_of_an_unknown_part_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    with pytest.raises(NeedsOperator, match="no part 'source' in this pipeline"):
        settings_of(choice(tmp_path, upstream=None, more={SOURCE: {}}), "e:1")


def test_a_part_whose_port_is_taken_gets_another_one(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(parts_of.__globals__["_PORTS"], CONSOLE, port)
            *_, console = parts_of(choice(tmp_path))
    assert console.name == CONSOLE
    assert not console.address.endswith(f":{port}")


KEYS = st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
)
TABLES = st.recursive(
    st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
    lambda tables: st.dictionaries(
        KEYS, SCALARS | tables | st.lists(tables, min_size=1, max_size=3), max_size=3
    ),
    max_leaves=8,
)


@given(TABLES)
def test_settings_written_as_toml_are_read_back(settings: dict[str, Any]) -> None:
    assert tomllib.loads(toml_of(settings)) == settings
