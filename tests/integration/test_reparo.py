"""Reparo: what a Drainer wrote into files comes back, at any moment, in any sink, once."""

import asyncio
import gzip
import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from drainer.reparo.reparo_config import ReparoConfig, load_reparo_settings
from drainer.reparo.restore import run
from drainer.settings.targets import FilesTarget, MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.files.sink import FileSink
from drainer.sinks.opening import open_table_sink
from penstock.codes import Code
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Corrupt, NeedsOperator
from penstock.filters import TablePattern
from penstock.local.sql_server import SqlServer
from penstock.pb import pb_binlog_pb2 as pb
from penstock.schema.ddl_context import DdlContext
from penstock.ts import compose
from tests.kit.fakes.local_drainer import CLUSTER, Way, run_drainer
from tests.kit.files import plain_reader
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.sink_target import sink_target
from tests.kit.workloads.bank import Bank, State
from tests.kit.workloads.bank_reader import of_mariadb, of_sqlite
from tests.kit.workloads.forty_types import COLUMNS, NAMES, ROWS, FortyTypes

LEDGER = {"seed": 8, "transactions": 60, "large_each": 20}


def written(bank: Any, folder: Path, options: str = "max-file-size=10KiB") -> Path:
    """Let a Drainer write a stream into files; return their folder."""
    files = folder / "files"
    url = f"file://{files}?{options}"
    way = Way(url=url, folder=folder / "drainer", strategy="events", bytes_max=20_000)
    asyncio.run(run_drainer(bank, way))
    return files


@pytest.fixture(scope="module")
def bank() -> Bank:
    return Bank(**LEDGER)


@pytest.fixture(scope="module")
def files(bank: Bank, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(bank, tmp_path_factory.mktemp("files"))


def restored(files: Path, target: Path, **settings: Any) -> str:
    sink = f"sqlite:///{target}"
    return str(run(ReparoConfig(data_dir=str(files), sink=sink, batch_bytes_max=5000, **settings)))


def state(target: Path) -> tuple[int, State]:
    found = of_sqlite(target)()
    assert found is not None
    return found


def stamps(bank: Bank, count: int) -> list[int]:
    """Return moments of the ledger, from the one on at which its tables are there."""
    every = [ts for ts, _ in bank.binlogs if ts >= bank.first_ts]
    return [*every[:: len(every) // count], bank.last_ts]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_a_restore_to_any_commit_ts_is_the_state_of_then(
    count: int, bank: Bank, files: Path, tmp_path: Path
) -> None:
    for stop_ts in stamps(bank, count):
        target = tmp_path / f"{stop_ts}.db"
        restored(files, target, stop_tso=stop_ts)
        assert state(target) == (stop_ts, bank.state_at(stop_ts))


def test_a_restore_continues_where_the_last_one_ended(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.db"
    for stop_ts in stamps(bank, 4):
        restored(files, target, stop_tso=stop_ts)
        assert state(target) == (stop_ts, bank.state_at(stop_ts))
    # Once more from the end on, and without an end, changes nothing.
    restored(files, target)
    assert state(target) == (bank.last_ts, bank.state_at(bank.last_ts))


KILLS = ("drainer.rows_changed=kill@3", "drainer.transaction_committed=kill@7")
MORE_KILLS = ("drainer.transaction_begun=kill@2", "drainer.checkpoint_stored=kill@5",
              "drainer.ddl_run=kill@1", "drainer.rows_changed=kill@9")  # fmt: skip


@pytest.mark.fault(
    "`penstock reparo` is killed", "started again, it ends at the same state", cases="2 / 6"
)
@pytest.mark.thorough
@pytest.mark.parametrize("steps", [KILLS, pytest.param(MORE_KILLS, marks=pytest.mark.slow)])
def test_a_restore_that_is_killed_is_repeated_and_nothing_is_there_twice(
    steps: tuple[str, ...], bank: Bank, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.db"
    command = [sys.executable, "-m", "penstock", "reparo", f"--data-dir={files}",
               f"--sink=sqlite:///{target}", "--batch-bytes-max=5000"]  # fmt: skip
    for fault in steps:
        done = subprocess.run(
            command, env=os.environ | {"PENSTOCK_FAILPOINTS": fault}, check=False,
            capture_output=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == -9, done.stderr
        if (found := of_sqlite(target)()) is not None:
            assert found[1] == bank.state_at(found[0])
    output = subprocess.check_output(command, text=True, timeout=60)
    assert output.startswith(f"restored everything up to {bank.last_ts} ")
    assert state(target) == (bank.last_ts, bank.state_at(bank.last_ts))


def test_packed_files_are_restored_too(bank: Bank, tmp_path: Path) -> None:
    files = written(bank, tmp_path, "max-file-size=10KiB&compress=gzip")
    packed = sorted(files.glob("binlog-*.gz"))
    if not packed:  # The Drainer ended before.
        for path in sorted(files.glob("binlog-*"))[:-1]:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    restored(files, tmp_path / "target.db")
    assert state(tmp_path / "target.db") == (bank.last_ts, bank.state_at(bank.last_ts))


@pytest.mark.mariadb
def test_point_in_time_recovery_as_it_is_documented(
    bank: Bank, tmp_path: Path, mariadb: MariadbServer
) -> None:
    """A copy of the downstream at one moment, and the files of what came later."""
    at = [ts for ts, _ in bank.binlogs]
    copied_ts, wanted_ts = at[len(at) // 3], at[-5]
    whole = Bank(**LEDGER)
    whole.binlogs = [entry for entry in whole.binlogs if entry[0] <= copied_ts]
    asyncio.run(run_drainer(whole, Way(url=mariadb.url, folder=tmp_path / "copy")))
    # The copy bears the checkpoint; the files begin before it and have no older ones any more.
    files = written(bank, tmp_path)
    for path in sorted(files.glob("binlog-*"))[:1]:
        path.unlink()
    config = ReparoConfig(data_dir=str(files), sink=mariadb.url, stop_tso=wanted_ts)
    assert "restored everything up to" in str(run(config))
    read = of_mariadb(mariadb)()
    assert read == (wanted_ts, bank.state_at(wanted_ts))


def test_a_copy_without_a_checkpoint_begins_where_the_settings_say(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    copied_ts = stamps(bank, 3)[1]
    target = tmp_path / "copy.db"
    restored(files, target, stop_tso=copied_ts)
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute('DELETE FROM "tidb_binlog.checkpoint"')
    restored(files, target, initial_commit_ts=copied_ts)
    assert state(target) == (bank.last_ts, bank.state_at(bank.last_ts))


def test_what_the_copys_checkpoint_knows_besides_stays(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    first_ts = stamps(bank, 3)[0]
    restored(files, target, stop_tso=first_ts)
    known = Checkpoint(first_ts, 3, origins={"db-1": (1, 2, 3)}, pumps={"pump-1": 0})
    with closing(open_table_sink(f"sqlite:///{target}", cluster_id=CLUSTER)) as sink:
        sink.load_checkpoint()
        sink.save_checkpoint(known)
    restored(files, target)
    with closing(open_table_sink(f"sqlite:///{target}", cluster_id=CLUSTER)) as sink:
        found = sink.load_checkpoint()
    assert found is not None
    assert (found.origins, found.pumps) == (known.origins, known.pumps)
    assert (found.commit_ts, found.consistent) == (bank.last_ts, True)


def test_a_dry_run_reads_everything_and_changes_nothing(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.db"
    said = restored(files, target, dry_run=True)
    assert said.startswith(f"checked, and nothing changed: everything up to {bank.last_ts} ")
    assert "bank.account" in said
    assert not target.exists()


def test_filters_leave_out_and_say_so(bank: Bank, files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    only = TablePattern(db_name="bank", tbl_name="account")
    said = restored(files, target, replicate_do_table=(only,))
    with closing(sqlite3.connect(target)) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        rows = frozenset(connection.execute('SELECT id, owner, balance FROM "bank.account"'))
    assert "bank.entry" not in names
    assert rows == bank.state_at(bank.last_ts).accounts
    entries = sum(
        change.table == "bank.entry"
        for entry in plain_reader.entries(files)
        for change in entry.changes
    )
    with closing(open_table_sink(f"sqlite:///{target}", cluster_id=CLUSTER)) as sink:
        found = sink.load_checkpoint()
    assert found is not None
    assert {each.name: n for each, n in found.skipped.items() if each.kind == "rows"} == {
        "bank.entry": entries
    }
    assert "left out by filters" in said


def test_what_is_printed_is_every_change(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(ReparoConfig(data_dir=str(files)))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = plain_reader.entries(files)
    assert Counter(line.get("table", "") for line in lines) == Counter(
        change for entry in found for change in ([c.table for c in entry.changes] or [""])
    )


# --- what is refused ---------------------------------------------------------------------------


def copied(files: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in files.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_gap_is_refused_wherever_it_is(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    middle = copied(files, tmp_path / "middle")
    sorted(middle.glob("binlog-*"))[2].unlink()
    with pytest.raises(NeedsOperator, match="is a gap"):
        restored(middle, target)
    expired = copied(files, tmp_path / "expired")
    sorted(expired.glob("binlog-*"))[0].unlink()
    with pytest.raises(NeedsOperator, match=r"begin after \d+, and the target is at 0"):
        restored(expired, target)
    cut = copied(files, tmp_path / "cut")
    last = sorted(cut.glob("binlog-*"))[-1]
    os.truncate(last, last.stat().st_size - 1)
    with pytest.raises(Corrupt, match="it was written up to"):
        restored(cut, tmp_path / "other.db")


def test_an_end_that_the_files_do_not_reach_is_refused(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(NeedsOperator, match="hold everything up to"):
        restored(files, tmp_path / "target.db", stop_tso=bank.last_ts + 1)
    assert not (tmp_path / "target.db").exists()


def test_an_end_before_the_target_is_refused(bank: Bank, files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    restored(files, target)
    with pytest.raises(NeedsOperator, match="already, after the end"):
        restored(files, target, stop_tso=bank.first_ts)


def test_a_start_after_the_targets_checkpoint_is_refused(
    bank: Bank, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.db"
    restored(files, target, stop_tso=bank.first_ts)
    with pytest.raises(NeedsOperator, match="what is between would be missing"):
        restored(files, target, initial_commit_ts=bank.first_ts + 20)


def test_a_target_of_another_cluster_is_refused(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    with closing(open_table_sink(f"sqlite:///{target}", cluster_id=99)) as sink:
        sink.load_checkpoint()
        sink.save_checkpoint(Checkpoint(5, 1))
    with pytest.raises(NeedsOperator, match="that of cluster 99"):
        restored(files, target)


@pytest.mark.thorough
def test_every_flipped_byte_of_a_file_is_found(bank: Bank, files: Path, tmp_path: Path) -> None:
    folder = copied(files, tmp_path / "flipped")
    path = sorted(folder.glob("binlog-*"))[1]
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(Corrupt, match=path.name):
            run(ReparoConfig(data_dir=str(folder), dry_run=True))


def test_a_folder_of_tidb_binlog_needs_its_schema(bank: Bank, files: Path, tmp_path: Path) -> None:
    theirs = copied(files, tmp_path / "theirs")
    for path in theirs.glob("schema-*"):
        path.unlink()
    (theirs / "savepoint").write_text(f"consistent = true\ncommitTS = {bank.last_ts}\n")
    restored(theirs, tmp_path / "whole.db")
    assert state(tmp_path / "whole.db")[1] == bank.state_at(bank.last_ts)


def test_a_folder_of_tidb_binlog_from_the_middle_on_needs_a_file_of_create_statements(
    bank: Bank, tmp_path: Path
) -> None:
    files = written(bank, tmp_path, "max-file-size=2KiB")
    ddl = [entry for entry in plain_reader.entries(files) if entry.ddl]
    copied_ts = ddl[3].commit_ts - 1
    target = tmp_path / "copy.db"
    restored(files, target, stop_tso=copied_ts)
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute('DELETE FROM "tidb_binlog.checkpoint"')
    for path in files.glob("schema-*"):
        path.unlink()
    (files / "savepoint").write_text(f"consistent = true\ncommitTS = {bank.last_ts}\n")
    first = [next(plain_reader.read(p.read_bytes())).commit_ts for p in sorted(files.glob("bin*"))]
    for path, following_ts in zip(sorted(files.glob("bin*")), first[1:], strict=False):
        if following_ts <= copied_ts:
            path.unlink()
    with pytest.raises(NeedsOperator, match="give a schema-file"):
        restored(files, target, initial_commit_ts=copied_ts)
    dump = [
        "-- a dump without data",
        "/*!40101 SET NAMES binary*/;",
        f"{ddl[0].ddl}",
        "USE `bank`;",
    ]
    dump += [each.ddl.partition("; ")[2] for each in ddl[1:3]]
    (tmp_path / "schema.sql").write_text("\n".join(dump))
    schema_file = str(tmp_path / "schema.sql")
    restored(files, target, initial_commit_ts=copied_ts, schema_file=schema_file)
    assert state(target)[1] == bank.state_at(bank.last_ts)


# --- values ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds() -> FortyTypes:
    return FortyTypes()


@pytest.mark.parametrize("zone", ["+00:00", "+05:30"])
def test_forty_types_are_in_the_files_with_their_extreme_values(
    kinds: FortyTypes, zone: str, tmp_path: Path
) -> None:
    files = written(kinds, tmp_path, f"time-zone={zone.replace('+', '%2B')}")
    inserts = [c for e in plain_reader.entries(files) for c in e.changes if c.kind == "insert"]
    for change, row in zip(inserts, ROWS, strict=False):
        assert change.after is not None
        for (name, sql, _, _), value in zip(COLUMNS, row[1:], strict=True):
            found = change.after[name]
            if sql.startswith("ENUM"):
                value = None if value is None else ["x", "it's"].index(str(value)) + 1
            elif sql.startswith("SET"):
                value = None if value is None else {"": 0, "p,q'q,r": 7}[str(value)]
            elif sql.startswith("TIMESTAMP") and zone != "+00:00" and value is not None:
                value = _in_zone(str(value))
            elif sql == "JSON" and value is not None:
                assert json.loads(found) == json.loads(str(value))
                continue
            assert found == value, (name, sql)


def _in_zone(text: str) -> str:
    if text.startswith("0000"):
        return text
    moved = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() + 5.5 * 3600
    whole = datetime.fromtimestamp(int(moved), UTC)
    return f"{whole:%Y-%m-%d %H:%M:%S}" + text[19:]


@pytest.mark.mariadb
def test_forty_types_come_back_as_a_drainer_applies_them(
    kinds: FortyTypes, tmp_path: Path, mariadb: MariadbServer
) -> None:
    asyncio.run(run_drainer(cast(Bank, kinds), Way(url=mariadb.url, folder=tmp_path / "direct")))
    wanted = rows_of(mariadb)
    assert len(wanted) == 3
    files = written(kinds, tmp_path, "time-zone=%2B05:30")
    mariadb.drop_user_databases()
    run(ReparoConfig(data_dir=str(files), sink=mariadb.url))
    assert rows_of(mariadb) == wanted


def rows_of(server: SqlServer) -> list[Any]:
    numbers = {"c11", "c36", "c37"}  # FLOAT and BIT.
    asked = ", ".join(f"{name}+0" if name in numbers else name for name in NAMES)
    with closing(server.connect(conv={})) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT id, {asked} FROM kinds.t ORDER BY id")
        return list(cursor.fetchall())


# --- settings ----------------------------------------------------------------------------------


def test_a_configuration_of_tidb_binlogs_reparo_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "reparo.toml"
    path.write_text(
        'data-dir = "/files"\nlog-level = "debug"\nstart-tso = 11\nstop-tso = 20\n'
        'dest-type = "mysql"\ntxn-batch = 7\nworker-count = 3\nsafe-mode = true\n'
        'replicate-do-db = ["~^b.*"]\nreplicate-ignore-db = ["x"]\n'
        '[[replicate-do-table]]\ndb-name = "test"\ntbl-name = "log"\n'
        '[[replicate-ignore-table]]\ndb-name = "test"\ntbl-name = "~^a.*"\n'
        '[dest-db]\nhost = "::1"\nport = 3309\nuser = "ro@ot"\npassword = "p/w"\n'
    )
    config, notes = load_reparo_settings(["-config", str(path), "-c", "9"], {})
    target = config.target
    assert isinstance(target, MysqlTarget)
    assert (target.name, target.user, target.password) == ("::1:3309", "ro@ot", "p/w")
    assert (config.after_ts, config.stop_ts) == (10, 20)
    assert len(notes) >= 3
    lists = config.lists()
    assert lists("bank", "t")
    assert not lists("other", "t")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "data-dir is empty"),
        ({"data_dir": "x", "dest_type": "kafka"}, "dest-type is 'kafka'"),
        ({"data_dir": "x", "start_tso": 5, "initial_commit_ts": 5}, "more than one"),
        ({"data_dir": "x", "stop_tso": 5, "stop_datetime": "2026-01-01"}, "more than one"),
        ({"data_dir": "x", "stop_tso": 5, "start_tso": 9}, "is not after the start"),
        ({"data_dir": "x", "stop_datetime": "soon"}, "stop-datetime is 'soon'"),
        ({"data_dir": "x", "stop_tso": -1}, "stop-tso is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        ReparoConfig(**settings)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(NeedsOperator, match="name the folder"):
            run(ReparoConfig(data_dir=str(folder)))


def test_a_time_is_the_first_timestamp_of_its_second() -> None:
    one = ReparoConfig(data_dir="x", stop_datetime="2026-11-22T10:00:00Z").stop_ts
    two = ReparoConfig(data_dir="x", stop_datetime="2026-11-22T11:00:00+01:00").stop_ts
    assert one == two == int(datetime(2026, 11, 22, 10, tzinfo=UTC).timestamp() * 1000) << 18


# --- the sessions of DDL ----------------------------------------------------------------------

_NOW = "DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP"
_AT_SHANGHAI = DdlContext(
    moment_us=1_500_000_000_000_000,
    time_zone="+08:00",
    offset_s=8 * 3600,
    sql_mode=frozenset({"NO_AUTO_VALUE_ON_ZERO"}),
)
_SEVERAL = DdlContext(variables=(("timestamp", "different moments"),))


class DdlFiles:
    """Files that hold DDL only, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sink = FileSink(
            sink_target(FilesTarget, f"file://{folder}?max-file-size=1KiB"),
            cluster_id=7,
            retry_s_max=0,
        )
        self._sink.load_checkpoint()
        self._catalog = Catalog()
        self._ids = itertools.count(1)

    def run(self, sql: str, context: DdlContext | None = None, **of_job: Any) -> int:
        """Write a DDL; return its commit_ts."""
        for job in plan_ddl(sql, None, self._catalog, lambda: next(self._ids), context):
            ts = compose(1_700_000_000_000 + job.id, 1)
            change = self._catalog.apply(replace(job, finished_ts=ts, **of_job))
            self._sink.run_ddl(change, Checkpoint(ts, job.schema_version), maybe_done=False)
        return ts

    def close(self) -> None:
        self._sink.close()


def test_a_ddl_comes_back_in_the_session_that_it_ran_in(
    mariadb: MariadbServer, tmp_path: Path
) -> None:
    with closing(DdlFiles(tmp_path / "files")) as files:
        files.run("CREATE DATABASE shop")
        begin = files.run("CREATE TABLE shop.t (id INT NOT NULL PRIMARY KEY, k INT)")
        files.run(f"ALTER TABLE shop.t ADD ours {_NOW}")
        files.run(f"ALTER TABLE shop.t ADD a {_NOW}", _AT_SHANGHAI)
        files.run("ALTER TABLE shop.t MODIFY k INT NOT NULL AUTO_INCREMENT, ADD KEY (k)",
                  _AT_SHANGHAI)  # fmt: skip
        end = files.run("ALTER TABLE shop.t ADD b TIMESTAMP NOT NULL DEFAULT '2020-01-01 08:00:00'",
                        _AT_SHANGHAI)  # fmt: skip
        files.run(f"ALTER TABLE shop.t ADD c {_NOW}", _SEVERAL)
    settings: dict[str, Any] = {"data_dir": str(files.folder), "sink": mariadb.url}
    run(ReparoConfig(**settings, stop_tso=begin))
    mariadb.run("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", "INSERT INTO shop.t VALUES (1, 0)")
    run(ReparoConfig(**settings, stop_tso=end))
    in_utc = {"init_command": "SET time_zone = '+00:00'", "conv": {}}
    found = mariadb.query("SELECT k, ours, a, b FROM shop.t", **in_utc)
    assert found == [("0", "2023-11-14 22:13:20", "2017-07-14 10:40:00", "2020-01-01 00:00:00")]
    assert "'2020-01-01 00:00:00'" in mariadb.query("SHOW CREATE TABLE shop.t", **in_utc)[0][1]
    with pytest.raises(NeedsOperator, match="different moments") as caught:
        run(ReparoConfig(**settings))
    assert caught.value.code is Code.SINK_DDL_MOMENT
    assert "`c`" not in mariadb.query("SHOW CREATE TABLE shop.t")[0][1]


def test_a_ddl_of_ours_is_in_the_files_as_it_always_was(tmp_path: Path) -> None:
    with closing(DdlFiles(tmp_path / "files")) as files:
        files.run("CREATE DATABASE shop")
        begin = (tmp_path / "files").glob("binlog-*")
        data = b"".join(path.read_bytes() for path in sorted(begin))
    binlog = pb.Binlog.FromString(data[12:-4])
    assert not binlog.HasField("ddl_context")
    assert binlog.ddl_query.startswith(b"CREATE DATABASE ")
