"""The settings that `penstock run` writes for its parts."""

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
from penstock_local.run.parts import (
    APP,
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
from pumpclient.mysql.source.command import load as load_source

UPSTREAM = "mysql://up:s%40cret@db.example:3307/"
DOWNSTREAM = "mariadb://down:p%3Ass@127.0.0.1:3308/?params=a=1"


def choice(folder: Path, **changes: Any) -> Choice:
    made = {"upstream": UPSTREAM, "downstream": DOWNSTREAM, "folder": folder, **changes}
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


def test_programs_need_no_source_and_an_etcd_that_runs_is_not_started(tmp_path: Path) -> None:
    asked = choice(
        tmp_path, upstream=APP, downstream="sqlite:///x.db", etcd_urls="e:1", with_console=False
    )
    parts = parts_of(asked)
    assert [(part.name, part.after) for part in parts] == [(PUMP, ()), (DRAINER, (PUMP,))]
    assert tomllib.loads((tmp_path / "conf/pump.toml").read_text())["etcd-urls"] == "e:1"


def test_settings_of_an_unknown_part_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    with pytest.raises(NeedsOperator, match="no part 'source' in this pipeline"):
        settings_of(choice(tmp_path, upstream=APP, more={SOURCE: {}}), "e:1")


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
