"""Which downstream the settings name, and how its URL is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.settings.syncer_section import (
    SyncerConfig,
    ToCheckpoint,
    ToConfig,
    ToSecurity,
    downstream_url,
)
from drainer.sinks.files.target import FilesTarget, parse_files_url
from drainer.sinks.mysql.session import ddl_sql_mode, rows_sql_mode
from drainer.sinks.mysql.url import parse_url
from penstock.errors import NeedsOperator
from penstock.security.databases import SqlTls


def url_of(sink: str = "sqlite:///downstream.db", **settings: object) -> str:
    return downstream_url(sink, SyncerConfig(**settings), env={})  # type: ignore[arg-type]


def test_without_the_keys_of_tidb_binlog_the_sink_is_the_downstream() -> None:
    assert url_of() == "sqlite:///downstream.db"
    assert url_of("mysql://u:p@h:1/") == "mysql://u:p@h:1/"


def test_every_key_of_to_arrives_at_the_connection(tmp_path: Path) -> None:
    secret = "p@:/#&%ü"
    (tmp_path / "password").write_text(secret + "\n")
    fields = {
        "host": "h", "port": 4000, "user": "u@x",
        "read_timeout": 60.0,
        "params": ("tidb_txn_mode=optimistic", "lock_wait_timeout=7"),
        "checkpoint": ToCheckpoint(schema="s`", table="t"),
        "security": ToSecurity(ssl_ca="/a b", ssl_cert="/c", ssl_key="/k", ssl_verify="ca"),
    }  # fmt: skip
    for password in ({"password": secret}, {"password_file": str(tmp_path / "password")}):
        to = ToConfig(**fields, **password)  # type: ignore[arg-type]
        url = url_of(db_type="tidb", sql_mode="STRICT_TRANS_TABLES", to=to)
        assert url.startswith("tidb://")
        target = parse_url(url)
        assert target.options["password"] == secret
        wanted = {"host": "h", "port": 4000, "user": "u@x", "read_timeout": 60.0}
        assert wanted.items() <= target.options.items()
        assert target.tls == SqlTls(Path("/a b"), Path("/c"), Path("/k"), "ca")
        assert (target.checkpoint_schema, target.checkpoint_table) == ("s``", "t")
        assert target.params == (("tidb_txn_mode", "optimistic"), ("lock_wait_timeout", "7"))
        assert ddl_sql_mode(target) == "STRICT_TRANS_TABLES"
        assert rows_sql_mode(target) == "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO"
        assert target.channel_id is None


def test_what_to_does_not_say_comes_from_the_environment_and_then_from_tidb_binlog() -> None:
    syncer = SyncerConfig(db_type="mysql")
    sink = "sqlite:///downstream.db"
    assert downstream_url(sink, syncer, env={}) == "mysql://root@127.0.0.1:3306/"
    env = {"MYSQL_HOST": "::1", "MYSQL_PORT": "4", "MYSQL_USER": "x", "MYSQL_PSWD": "p/w"}
    assert downstream_url(sink, syncer, env=env) == "mysql://x:p%2Fw@[::1]:4/"


def test_loop_back_control_adds_its_channel_to_whichever_url_there_is() -> None:
    for url in ("mysql://h/", "mysql://h/?checkpoint-schema=x"):
        target = parse_url(url_of(url, loopback_control=True, channel_id=-3))
        assert target.channel_id == -3


def refused(message: str, **settings: object) -> None:
    with pytest.raises(NeedsOperator, match=message):
        DrainerConfig(**settings)  # type: ignore[arg-type]


def test_settings_that_disagree_are_reported_at_once(tmp_path: Path) -> None:
    to = ToConfig(host="h")
    refused("both sink and", sink="mysql://h/", syncer=SyncerConfig(to=to))
    refused("'sqlite'", syncer=SyncerConfig(db_type="sqlite", to=to))
    refused("db-type is 'mysql'", sink="sqlite:///x.db", syncer=SyncerConfig(db_type="mysql"))
    refused("SQLite is no one's", syncer=SyncerConfig(loopback_control=True))
    both = ToConfig(password="x", password_file="y")
    refused("both password and", syncer=SyncerConfig(to=both))
    refused("db-type is kafka, and no brokers", syncer=SyncerConfig(db_type="kafka"))
    for absent in ("oracle", "flash"):
        with pytest.raises(NeedsOperator, match=f"'{absent}', and Penstock has no such"):
            SyncerConfig(db_type=absent)
    for mode in ("ANSI", "STRICT_ALL_TABLES, ansi_quotes"):
        with pytest.raises(NeedsOperator, match="changes how DDL reads"):
            SyncerConfig(sql_mode=mode)
    with pytest.raises(NeedsOperator, match="cannot read the password-file"):
        parse_url(f"mysql://h/?password-file={tmp_path / 'none'}")
    for variable in ("time_zone=UTC", "sql_mode=ANSI", "foreign_key_checks=1"):
        with pytest.raises(NeedsOperator, match="part of how rows are written"):
            parse_url(f"mysql://h/?params={variable.replace('=', '%3D')}")
    with pytest.raises(NeedsOperator, match="sets no session variable"):
        parse_url("mysql://h/?params=a`b%3D1")


def test_files_take_events_and_tables_do_not(tmp_path: Path) -> None:
    files = f"file://{tmp_path}/files"
    assert DrainerConfig().strategy == "merge"
    assert DrainerConfig(sink=files).strategy == "events"
    statements = ApplyConfig(strategy="statements")
    assert DrainerConfig(apply=statements).strategy == "statements"
    refused("apply.strategy is 'events'", apply=ApplyConfig(strategy="events"))
    for strategy in ("merge", "statements"):
        message = f"apply.strategy is '{strategy}'.*leave it out"
        refused(message, sink=files, apply=ApplyConfig(strategy=strategy))
    refused("apply.mode is 'parallel'", sink=files, apply=ApplyConfig(mode="parallel"))
    refused("a file has no upstream", sink=files, syncer=SyncerConfig(loopback_control=True))
    refused("name another folder", sink=files, data_dir=tmp_path / "files")


def test_files_are_named_as_in_tidb_binlog_too() -> None:
    to = ToConfig(dir="/a b", compression="gzip", retention_time=7)
    for db_type in ("file", "pb"):
        url = url_of(db_type=db_type, to=to)
        assert parse_files_url(url) == FilesTarget(
            folder=Path("/a b"), compresses=True, retention_s=7 * 86400
        )
    refused("syncer.to.dir is empty", syncer=SyncerConfig(db_type="file"))
    refused("db-type is 'file'", sink="mysql://h/", syncer=SyncerConfig(db_type="file"))


def test_a_sink_that_is_no_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(NeedsOperator, match="unreadable downstream URL") as caught:
        DrainerConfig(sink="mysql://u:hush@[::1")
    assert "hush" not in str(caught.value)
