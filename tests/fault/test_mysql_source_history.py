"""A server, checkpoint or relay log that was put back: two histories are never taken for one."""

import json
import shutil
from pathlib import Path

import pytest

from penstock.cluster.node_registry import SOURCES
from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.events.frame import read_header
from pumpclient.mysql.source import command
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, module_server, on_servers
from tests.kit.servers.fix_source import LONG_S, SourceProcess, SourceRig, cleared
from tests.kit.wait import eventually

pytestmark = pytest.mark.fault

FIRST = "mysql-bin.000001"
shared = module_server(on_servers(MARIADB))


@pytest.fixture
def server(shared: AnyBinlogServer) -> AnyBinlogServer:
    return cleared(shared)


def begin_again(server: AnyBinlogServer) -> None:
    """Reset the server once a new file differs from the old one by the moment of its beginning."""
    begun_s = read_header(server.file(FIRST).read_bytes(), 4).timestamp_s
    eventually(lambda: int(server.query("SELECT UNIX_TIMESTAMP()")[0][0]) > begun_s, LONG_S)
    server.reset_binlog()


def refused(source: SourceProcess) -> str:
    """Wait until a source refuses the server's history, at its start or while it runs."""
    eventually(lambda: not source.is_running or source.status().get("state") == "failed", LONG_S)
    if source.is_running:
        status = source.status()
        assert status["code"] in (str(Code.SERVER_RESET), str(Code.SERVER_POSITION_LOST)), status
        return str(status["problem"])
    assert str(Code.SERVER_RESET) in source.log_tail(), source.log_tail()
    return source.log_tail()


def ask(source: SourceProcess, *words: str) -> str:
    path = source.log.parent / "command.toml"
    flags = dict(zip(source.command[:-1], source.command[1:], strict=True))
    names = {"source_id": "source-id", "etcd_urls": "etcd-urls", "data_dir": "data-dir"}
    lines = [f"{key} = {json.dumps(flags[f'--{key}'])}" for key in names.values()]
    lines.append(f'status-addr = "{source.address}"')
    lines.append(f'start = "{FIRST}:4"')
    lines.append('mode = "incremental"')
    lines.append("[relay]\ndir = " + json.dumps(flags["--relay-dir"]))
    lines.append(
        f'[source]\nhost = "{flags["--source-host"]}"\nport = {flags["--source-port"]}\n'
        f'user = "{flags["--source-user"]}"\n'
        f'password-file = "{flags["--source-password-file"]}"'
    )
    path.write_text("\n".join(lines) + "\n")
    return command.ask([*words, "--config", str(path)])


def accept(source: SourceProcess, epoch: int) -> None:
    """Follow the server's present history; return once the source is in it."""
    assert "is missing downstream" in ask(source, "continue", "--accept-gap")
    if not source.is_running:
        source.start()
    eventually(lambda: source.status().get("epoch") == epoch + 1, LONG_S)


@pytest.mark.fault(
    "RESET MASTER while the source is down, with transactions that it never read; afterwards"
    " file, position and GTIDs of the checkpoint exist again; with the relay log and without",
    "stops, naming both histories; `continue --accept-gap` follows the new one from its beginning",
    cases="2 / 4",
)
@pytest.mark.main_case("False")
@pytest.mark.parametrize("is_fetched_anew", [False, True])
def test_a_reset_server_is_a_gap_until_an_operator_accepts_it(
    is_fetched_anew: bool, server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    server.insert(5)
    source.catch_up(server)
    epoch = source.status()["epoch"]
    source.kill()
    server.insert(2, first=50)  # Committed before the reset, and never read.
    begin_again(server)
    # More than was read before: the old position, file and GTIDs are all there again.
    server.run("TRUNCATE TABLE shop.t")
    server.insert(40, first=100)
    if is_fetched_anew:
        shutil.rmtree(rig.folder / "relay")
    source.start()
    problem = refused(source)
    assert FIRST in problem
    assert "another history" in problem
    # Of the history before, where another statement ended.
    events = server.query(f"SHOW BINLOG EVENTS IN '{FIRST}'")
    (end,) = [row[4] for row in events if "TRUNCATE" in str(row[5])]
    assert "noted" in ask(source, "skip", "--at", f"{FIRST}:{end}")
    refused(source)
    with pytest.raises(NeedsOperator, match="stays missing"):
        ask(source, "continue")
    accept(source, epoch)
    source.finish(server)
    ids = [row[0] for row in rig.downstream().rows("shop.t")]
    assert sorted(ids) == list(range(100, 140))


@pytest.mark.fault(
    "all tables are loaded again under the same source id, also after etcd lost all that it"
    " knew of the source",
    "a new epoch: every row arrives, none is taken for a repeated one",
    cases="2 / 4",
)
@pytest.mark.thorough
def test_all_tables_are_loaded_again_under_the_same_id_and_no_row_is_taken_for_a_repeated_one(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    server.insert(30)
    source.catch_up(server)
    source.kill()
    server.run("DELETE FROM shop.t WHERE id < 10")
    begin_again(server)
    server.insert(3, first=900)
    source.start()
    refused(source)
    source.stop()
    assert "loads 1 tables when it starts" in ask(source, "reload", "--all")
    source.start()
    server.run("UPDATE shop.t SET v = 'new' WHERE id = 20")
    source.catch_up(server)
    rig.check(server)
    # A second time, after etcd lost what it knew of the source.
    source.stop()
    for key in (SOURCES + "db-1", SOURCES + "db-1/epoch"):
        rig.etcd.delete(key)
    server.run("DELETE FROM shop.t WHERE id = 21")
    ask(source, "reload", "--all")
    source.start()
    source.finish(server)
    rig.check(server)


@pytest.mark.fault(
    "the checkpoint is deleted beside a finished load's file",
    "refused; `reload --all` loads again",
    cases="1 / 2",
)
@pytest.mark.thorough
def test_a_checkpoint_that_is_gone_does_not_make_an_old_load_count(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    server.insert(5)
    source = rig.begin(server, mode="all")
    source.catch_up(server)
    source.kill()
    rig.etcd.delete(SOURCES + "db-1")
    source.start()
    eventually(lambda: not source.is_running, LONG_S)
    assert "reload --all" in source.log_tail()
    ask(source, "reload", "--all")
    server.run("DELETE FROM shop.t WHERE id = 3")
    source.start()
    source.finish(server)
    rig.check(server)


@pytest.mark.fault(
    "a source's data folder comes back from a backup, older than its checkpoint",
    "refused; fetched again once the relay log is moved away",
    cases="1 / 2",
)
@pytest.mark.thorough
def test_a_relay_log_from_a_backup_is_refused_where_it_is_not_the_checkpoints(
    server: AnyBinlogServer, rig: SourceRig, tmp_path: Path
) -> None:
    source = rig.begin(server)
    server.insert(5)
    source.catch_up(server)
    epoch = source.status()["epoch"]
    assert source.stop() == 0
    shutil.copytree(rig.folder / "relay", tmp_path / "old")
    begin_again(server)
    server.insert(5, first=100)
    source.start()
    refused(source)
    accept(source, epoch)
    source.finish(server)
    shutil.rmtree(rig.folder / "relay")
    shutil.copytree(tmp_path / "old", rig.folder / "relay")
    source.start()
    eventually(lambda: not source.is_running, LONG_S)
    assert "it is older, or of another source" in source.log_tail()
    shutil.rmtree(rig.folder / "relay")
    server.insert(1, first=300)
    source.start()
    source.finish(server)
    rig.check(server)
