"""Which downstream the settings name, and how its URL is read."""

from pathlib import Path
from unittest.mock import patch

import pytest

from drainer.settings import targets
from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.settings.syncer_section import (
    SyncerConfig,
    ToCheckpoint,
    ToConfig,
    ToSecurity,
    downstream_of,
)
from drainer.settings.targets import FilesTarget, MysqlTarget, Target, target_of
from drainer.sinks.mysql.session import connect_options, ddl_sql_mode, rows_sql_mode
from drainer.task.events import event_unit
from drainer.task.events.topics import debezium, destination
from penstock.errors import NeedsOperator
from penstock.security.databases import SqlTls


def named(sink: str = "sqlite:///downstream.db", **settings: object) -> Target:
    return downstream_of(sink, SyncerConfig(**settings), env={})  # type: ignore[arg-type]


def server(target: Target) -> MysqlTarget:
    assert isinstance(target, MysqlTarget)
    return target


def test_without_the_keys_of_tidb_binlog_the_sink_is_the_downstream() -> None:
    assert named() == target_of("sqlite:///downstream.db")
    assert named("mysql://u:p@h:1/") == target_of("mysql://u:p@h:1/")


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
        target = server(named(db_type="tidb", sql_mode="STRICT_TRANS_TABLES", to=to))
        assert target.is_tidb
        with patch.object(SqlTls, "context", lambda tls: tls):
            options = connect_options(target)
        wanted = {"host": "h", "port": 4000, "user": "u@x", "read_timeout": 60.0}
        assert (wanted | {"password": secret}).items() <= options.items()
        assert options["ssl"] == SqlTls(Path("/a b"), Path("/c"), Path("/k"), "ca")
        assert (target.checkpoint_schema, target.checkpoint_table) == ("s`", "t")
        assert target.output == "tidb h:4000/ checkpoint-schema=s` checkpoint-table=t"
        assert target.variables == (("tidb_txn_mode", "optimistic"), ("lock_wait_timeout", "7"))
        assert ddl_sql_mode(target) == "STRICT_TRANS_TABLES"
        assert rows_sql_mode(target) == "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO"
        assert target.loopback_channel is None


def test_what_to_does_not_say_comes_from_the_environment_and_then_from_tidb_binlog() -> None:
    syncer = SyncerConfig(db_type="mysql")
    sink = "sqlite:///downstream.db"
    default = server(downstream_of(sink, syncer, env={}))
    assert default == target_of("mysql://root@127.0.0.1:3306/")
    env = {"MYSQL_HOST": "::1", "MYSQL_PORT": "4", "MYSQL_USER": "x", "MYSQL_PSWD": "p/w"}
    assert downstream_of(sink, syncer, env=env) == target_of("mysql://x:p%2Fw@[::1]:4/")


def test_loop_back_control_adds_its_channel_to_whichever_url_there_is() -> None:
    for url in ("mysql://h/", "mysql://h/?checkpoint-schema=x"):
        target = server(named(url, loopback_control=True, channel_id=-3))
        assert target.loopback_channel == -3


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
        server(target_of(f"mysql://h/?password-file={tmp_path / 'none'}")).current_password()
    for variable in ("time_zone=UTC", "sql_mode=ANSI", "foreign_key_checks=1"):
        with pytest.raises(NeedsOperator, match="part of how rows are written"):
            target_of(f"mysql://h/?params={variable.replace('=', '%3D')}")
    with pytest.raises(NeedsOperator, match="sets no session variable"):
        target_of("mysql://h/?params=a`b%3D1")


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
        target = named(db_type=db_type, to=to)
        assert target == target_of("file:/a%20b?compress=gzip&retention=7d")
        assert isinstance(target, FilesTarget)
        assert target.folder == Path("/a b")
    refused("syncer.to.dir is empty", syncer=SyncerConfig(db_type="file"))
    refused("db-type is 'file'", sink="mysql://h/", syncer=SyncerConfig(db_type="file"))


def test_a_sink_that_is_no_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(NeedsOperator, match="unreadable downstream URL") as caught:
        DrainerConfig(sink="mysql://u:hush@[::1")
    assert "hush" not in str(caught.value)


REFUSED = {
    "sqlite://host/x.db": "names no file",
    "sqlite:///x.db?a=b": "unknown downstream option 'a'.*known are none",
    "oracle://h/": "no sink for downstream scheme 'oracle'.*use sqlite:///path",
    "mysq://h/": "no sink for downstream scheme 'mysq'.*did you mean mysql://",
    "kafa://h/": "did you mean kafka://",
    "sqlite:/a b.db": r"write sqlite:////a%20b.db for this path, sqlite:///a%20b.db for one in",
    "sqlite:x.db": r"write sqlite:///x.db",
    "mysql://h/?colour=red": "unknown downstream option 'colour'.*checkpoint-schema",
    "mysql://h/?loopback-channel=x": "loopback-channel is 'x'",
    "mysql://h/?read-timeout=soon": "read-timeout is 'soon'",
    "mysql://h/?collations=some": "use map or stop",
    "mysql://h/?ssl-verify=no": "ssl-verify is 'no'",
    "mysql://u:x@h:99999/": "unreadable downstream URL",
    "mysql://u:x@h/?password-file=f": "a password and a password-file",
    "file://": "names no folder",
    "file://elsewhere/x": "names no folder",
    "file:///x?compres=gzip": "unknown downstream option 'compres'",
    "file:///x?compress=lz4": "compress is 'lz4'",
    "file:///x?retention=soon": "is not a duration",
    "file:///x?max-file-size=0": "max-file-size is 0",
    "file:///x?time-zone=Europe/Berlin": "no time zone of a fixed offset",
    "delta://host/srv": "names no folder",
    "delta:///": "names no folder",
    "delta:///srv/[x]": "do not find their way",
    "delta:///srv?interval=soon": "write 30s",
    "delta:///srv?batch-bytes=1": "64 KiB to 1 GiB",
    "delta:///srv?batch-bytes=much": "write 64MiB",
    "delta:///srv?drop-column=no": "use drop or keep",
    "delta:///srv?accept=a.b": "schema.table@version",
    "delta:///srv?colour=red": "unknown downstream option",
    "delta:///srv?mode=changes&drop-column=keep": "'drop-column' is not one of this mode",
    "delta:///srv?mode=all": "use mirror or changes",
    "kafka:///": "names no brokers",
    "kafka://h/topic": "names no brokers, or a path",
    "kafka://h/?format=avro": "format is 'avro'",
    "kafka://h/?colour=red": "unknown downstream option 'colour'",
    "kafka://h/?format=debezium&old=changed": "'old' is not one of this format",
    "kafka://h/?topic={database}": "topic is",
    "kafka://h/?max-message-bytes=10": "max-message-bytes is 10",
    "kafka://h/?partitions=x": "partitions is 'x'",
    "kafka://h/?create-topics=maybe": "use true or false",
    "kafka://h/?watermark=soon": "watermark is 'soon'",
    "kafka://alice@h/": "a user and no password",
    "kafka://alice:x@h/?password-file=f": "a password and a password-file",
    "kafka://h/?ssl-ca=x&tls=false": "tls is 'false'",
    "kafka://h/?oversize=claim-check": "claim-check-dir is ''",
    "kafka://h/?claim-check-dir=/claims": "claim-check-dir is '/claims'",
    "kafka://h/?oversize=claim-check&claim-check-dir=claims": "claim-check-dir is 'claims'",
    "kafka://h/?format=tidb-binlog&claim-check-dir=/claims": "is not one of this format",
    "kafka://h/?format=tidb-binlog&partition=key": "'partition' is not one of this format",
    "kafka://h/?format=tidb-binlog&partitions=3": "'partitions' is not one of this format",
    "kafka://h/?format=tidb-binlog&oversize=key-only": "'oversize' is not one of this format",
    "kafka://h/?format=tidb-binlog&watermark=1s": "'watermark' is not one of this format",
    "kafka://h/?format=tidb-binlog&topic={table}": "topic is",
    "kafka://h/?format=tidb-binlog&time-zone=Berlin": "is no time zone",
}


@pytest.mark.parametrize("url", REFUSED)
def test_an_invalid_address_or_option_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(NeedsOperator, match=REFUSED[url]) as refused:
        target_of(url)
    assert ":x@" not in str(refused.value)


def test_encoders_know_each_choice_of_an_option() -> None:
    assert targets.PARTITIONS == (
        destination.BY_TABLE, destination.BY_KEY, destination.BY_TS, destination.ONE,
    )  # fmt: skip
    assert targets.DECIMALS == (
        debezium.PRECISE, debezium.STRING, debezium.DOUBLE,
    )  # fmt: skip
    names = ("CANAL_JSON", "DEBEZIUM", "MAXWELL", "TIDB_BINLOG")
    assert tuple(getattr(event_unit, name) for name in names) == targets.FORMATS
