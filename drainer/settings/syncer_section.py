"""Section `[syncer]` of TiDB-Binlog's drainer.toml: its filters, and the downstream that it names.

    [syncer]                                        [[syncer.replicate-do-table]]
    replicate-do-db = ["shop", "~^log_"]            db-name = "shop"
    ignore-schemas = "mysql,test"                   tbl-name = "item"

    [syncer.binlog-filter-rule.no-truncate]         [[syncer.table-migrate-rule]]
    ignore-event = ["truncate table"]               binlog-filter-rule = ["no-truncate"]
    ignore-sql = ["^create index"]                  source = { schema = "shop*", table = "*" }

Filters are added to those of `[filter]`: a change must pass both. A rule's `target` is a route,
which in TiDB-Binlog only reached Oracle. Plain names in the first group are regular expressions of
the whole name, like in TiDB-Binlog. Names in a migrate rule are wildcards. The other keys of the
file are in `drainer.settings.compat`.

It can name the downstream:

    [syncer]                     [syncer.to]                  [syncer.to.checkpoint]
    db-type = "mysql"            host = "10.0.0.9"            schema = "tidb_binlog"
                                 user = "repl"

is mysql://repl:…@10.0.0.9:3306/?checkpoint-schema=tidb_binlog. Missing values come from MYSQL_HOST,
MYSQL_PORT, MYSQL_USER and MYSQL_PSWD, then from TiDB-Binlog's defaults; loop-back control adds its
channel to any server. MYSQL_PSWD is also the password of a sink's URL without one. A Kafka that is
named here, by kafka-addrs or KAFKA_ADDRS, gets TiDB-Binlog's own messages:
kafka://…/?format=tidb-binlog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from drainer.settings.targets import (
    COLLATIONS,
    DELTA,
    FILE_TYPES,
    KAFKA,
    MYSQL_PASSWORD,
    MYSQL_TYPES,
    SQLITE,
    TIDB_BINLOG,
    FilesTarget,
    KafkaTarget,
    MysqlTarget,
    Target,
    target_of,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import EventRule, FilterConfig, RouteRule, TablePattern
from penstock.filters.table_lists import TableFilter, drainer_list
from penstock.security.databases import FULL
from penstock.settings.load import duration_s
from penstock.settings.setting import out_of_range, setting

_OLD_FILE_TYPE = "pb"
_TYPES = (*MYSQL_TYPES, SQLITE, *FILE_TYPES, KAFKA, DELTA, _OLD_FILE_TYPE)
_KAFKA_MESSAGE_BYTES_MAX = 1_000_000_000
"""The limit of Kafka's client; TiDB-Binlog's own default is slightly larger."""
_ABSENT_TYPES = ("oracle", "flash")

_UNREADABLE_MODES = {"ANSI", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "PIPES_AS_CONCAT",
                     "DB2", "MSSQL", "ORACLE", "POSTGRESQL", "MAXDB", "REAL_AS_FLOAT",
                     "IGNORE_SPACE"}  # fmt: skip
"""Modes that change the meaning of a DDL's text from the one that the Drainer parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogFilterRule:
    """The events that a migrate rule with this name skips."""

    ignore_event: tuple[str, ...] = setting((), "names of events")
    ignore_sql: tuple[str, ...] = setting((), "regular expressions for the text of a DDL")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A schema and a table, as wildcards or as names."""

    schema: str = setting("", "the schema")
    table: str = setting("", "the table")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMigrateRule:
    """The rules for tables that `source` matches."""

    binlog_filter_rule: tuple[str, ...] = setting((), "names of binlog-filter-rules")
    source: TableName = field(default=TableName(), metadata={"help": "whom it is about"})
    target: TableName = field(default=TableName(), metadata={"help": "the name downstream"})


@dataclass(frozen=True, kw_only=True)
class ToSecurity:
    """TLS to the downstream."""

    ssl_ca: str = setting("", "PEM file of the CA that signed the downstream's certificate")
    ssl_cert: str = setting("", "PEM file of the certificate to show there")
    ssl_key: str = setting("", "PEM file of its private key")
    ssl_verify: str = setting(FULL, '"full": CA and host name are checked; "ca": the CA only')


@dataclass(frozen=True, kw_only=True)
class ToCheckpoint:
    """The checkpoint's location in the downstream."""

    schema: str = setting("", "schema of the checkpoint; default: tidb_binlog")
    table: str = setting("", "table of the checkpoint; default: checkpoint")


@dataclass(frozen=True, kw_only=True)
class ToConfig:
    """A downstream, under TiDB-Binlog's names: a MySQL, files, or a Kafka."""

    host: str = setting("", "the downstream's host; default: MYSQL_HOST, then 127.0.0.1")
    port: int = setting(0, "its port; 0: MYSQL_PORT, then 3306")
    user: str = setting("", "the account; default: MYSQL_USER, then root")
    password: str = setting("", "its password; default: MYSQL_PSWD. Better not in a file like this")
    password_file: str = setting("", "file that holds the password and nothing else")
    params: tuple[str, ...] = setting((), "session variables, name=value, comma-separated")
    read_timeout: float = field(
        default=0.0,
        metadata={
            "help": "how long a statement other than DDL may be without an answer before it is "
            "tried again on another connection; 0: for as long as the server runs",
            "parse": lambda value: duration_s(str(value)),
        },
    )
    dir: str = setting("", "folder of the files, with db-type file")
    compression: str = setting("", "gzip: files are compressed once they are full")
    retention_time: int = setting(0, "days that full files are kept; 0: for good")
    kafka_addrs: str = setting(
        "", "brokers, with db-type kafka: host:port, comma-separated; default: KAFKA_ADDRS"
    )
    topic_name: str = setting("", "the topic; default: the cluster's id and _obinlog")
    kafka_max_message_size: int = setting(
        0, "how large a message, a transaction, may be, in bytes; 0: 1,000,000"
    )
    kafka_client_id: str = setting("", "what brokers know this Drainer by; default: tidb_binlog")
    checkpoint: ToCheckpoint = field(default_factory=ToCheckpoint)
    security: ToSecurity = field(default_factory=ToSecurity)


def check_db_type(db_type: str) -> None:
    if not db_type or db_type in _TYPES:
        return
    known = f"use {', '.join(_TYPES)}"
    if db_type in _ABSENT_TYPES:
        raise NeedsOperator(
            f"syncer.db-type is {db_type!r}, and Penstock has no such downstream",
            f"there is no output to Oracle; {known}",
            Code.SETTING_UNKNOWN,
        )
    raise out_of_range("syncer.db-type", db_type, known)


@dataclass(frozen=True, kw_only=True)
class SyncerConfig:
    """The section of this name in TiDB-Binlog's drainer.toml."""

    db_type: str = setting(
        "", "mysql, mariadb, tidb, sqlite, file, kafka or delta; default: as the sink's URL says"
    )
    sql_mode: str = setting("", "sql_mode downstream; empty: strict, with dates as they come")
    sync_ddl: bool = setting(True, "run DDL downstream; false: only track it")
    loopback_control: bool = setting(
        False, "mark downstream transactions, and leave out those that carry our mark"
    )
    channel_id: int = setting(0, "the mark; the same for both directions")
    replicate_do_db: tuple[str, ...] = setting((), "schemas to replicate")
    replicate_do_table: tuple[TablePattern, ...] = setting((), "tables to replicate")
    ignore_schemas: tuple[str, ...] = setting((), "schemas to leave out, comma-separated")
    ignore_table: tuple[TablePattern, ...] = setting((), "tables to leave out")
    table_migrate_rule: tuple[TableMigrateRule, ...] = setting((), "event filters and routes")
    binlog_filter_rule: dict[str, BinlogFilterRule] = field(
        default_factory=dict, metadata={"help": "event filters by name"}
    )
    to: ToConfig = field(default_factory=ToConfig)

    def __post_init__(self) -> None:
        check_db_type(self.db_type)
        if not -(1 << 63) <= self.channel_id < 1 << 63:
            raise out_of_range("syncer.channel-id", self.channel_id, "it is a bigint")
        for mode in self.sql_mode.upper().split(","):
            if mode.strip() in _UNREADABLE_MODES:
                raise out_of_range(
                    "syncer.sql-mode", self.sql_mode, f"{mode.strip()} changes how DDL reads"
                )

    def lists(self) -> TableFilter:
        return drainer_list(
            do_dbs=self.replicate_do_db,
            do_tables=self.replicate_do_table,
            ignore_dbs=self.ignore_schemas,
            ignore_tables=self.ignore_table,
        )

    def added_to(self, config: FilterConfig) -> FilterConfig:
        """Return `config` with the migrate rules; raise `NeedsOperator` for an unknown rule."""
        events, routes = [], []
        used = set()
        for rule in self.table_migrate_rule:
            unknown = [n for n in rule.binlog_filter_rule if n not in self.binlog_filter_rule]
            if unknown:
                raise NeedsOperator(
                    f"a table-migrate-rule names the binlog-filter-rule {unknown[0]!r}",
                    f"there are {', '.join(self.binlog_filter_rule) or 'none'}",
                    Code.FILTER_RULE,
                )
            used |= set(rule.binlog_filter_rule)
            named = [self.binlog_filter_rule[name] for name in rule.binlog_filter_rule]
            schema, table = rule.source.schema, rule.source.table
            if named:
                events.append(
                    EventRule(
                        events=tuple(event for each in named for event in each.ignore_event),
                        sql_pattern=tuple(sql for each in named for sql in each.ignore_sql),
                        action="Ignore",
                        schema_pattern=schema,
                        table_pattern=table,
                    )
                )
            if rule.target != TableName():
                routes.append(
                    RouteRule(
                        schema_pattern=schema,
                        table_pattern=table,
                        target_schema=rule.target.schema,
                        target_table=rule.target.table,
                    )
                )
        unused = sorted(self.binlog_filter_rule.keys() - used)
        if unused:
            raise NeedsOperator(
                f"no table-migrate-rule uses the binlog-filter-rule {unused[0]!r}",
                "name it in one, or remove it",
                Code.FILTER_RULE,
            )
        return replace(config, events=(*config.events, *events), routes=(*config.routes, *routes))


DEFAULT_SINK = "sqlite:///downstream.db"
VARIABLES = {
    "host": "MYSQL_HOST",
    "port": "MYSQL_PORT",
    "user": "MYSQL_USER",
    "kafka_addrs": "KAFKA_ADDRS",
}
"""Variables that fill in fields of `ToConfig`."""


def downstream_of(
    sink: str,
    syncer: SyncerConfig,
    env: Mapping[str, str] | None = None,
    *,
    collations: str = COLLATIONS[0],
) -> Target:
    """Return the downstream, with the options that other settings give to a server.

    Raises `NeedsOperator` if two downstreams are named, or an option is invalid.
    """
    target = _named_downstream(sink, syncer, os.environ if env is None else env)
    if syncer.db_type and _kind_of(syncer.db_type) != _kind_of(target.scheme):
        raise NeedsOperator(
            f"syncer.db-type is {syncer.db_type!r}, and the sink is of type {target.scheme!r}",
            "leave db-type out: the sink's URL says it",
            Code.SETTING_VALUE,
        )
    if not isinstance(target, MysqlTarget):
        if syncer.loopback_control:
            what = (
                "SQLite is no one's upstream"
                if target.scheme == SQLITE
                else f"a {target.scheme} has no upstream"
            )
            raise NeedsOperator(
                f"loopback-control is on, and {what}",
                "only a MySQL, MariaDB or TiDB downstream can send changes back",
                Code.SETTING_VALUE,
            )
        return target
    password = target.password
    if not target.password_file:
        password = password or (os.environ if env is None else env).get(MYSQL_PASSWORD, "")
    return replace(
        target,
        password=password,
        sql_mode=syncer.sql_mode or target.sql_mode,
        loopback_channel=syncer.channel_id if syncer.loopback_control else target.loopback_channel,
        collations=target.collations if collations == COLLATIONS[0] else collations,
    )


def _named_downstream(sink: str, syncer: SyncerConfig, env: Mapping[str, str]) -> Target:
    db_type, to = syncer.db_type, syncer.to
    if db_type == DELTA and sink == DEFAULT_SINK:
        raise NeedsOperator(
            "syncer.db-type is delta, and no sink is named",
            "set sink = delta:///folder",
            Code.SETTING_VALUE,
        )
    to_files = db_type in (*FILE_TYPES, _OLD_FILE_TYPE)
    is_enough = to_files or db_type in (*MYSQL_TYPES, KAFKA)
    is_named = to != ToConfig() or (sink == DEFAULT_SINK and is_enough)
    if not is_named:
        return target_of(sink)
    if sink != DEFAULT_SINK:
        raise NeedsOperator(
            "both sink and [syncer.to] name a downstream",
            "leave one of them out",
            Code.SETTING_VALUE,
        )
    if db_type == "sqlite":
        raise NeedsOperator(
            "[syncer.to] names a server, and syncer.db-type is 'sqlite'",
            "set sink = sqlite:///file.db, or another db-type",
            Code.SETTING_VALUE,
        )
    if db_type == KAFKA:
        return _of_kafka(to, env)
    if to.kafka_addrs or to.topic_name:
        raise NeedsOperator(
            f"[syncer.to] names a Kafka, and syncer.db-type is {db_type!r}",
            'set db-type = "kafka", or leave kafka-addrs and topic-name out',
            Code.SETTING_VALUE,
        )
    return _of_files(to) if to_files else _of_to(db_type, to, env)


def _kind_of(db_type: str) -> str:
    return {**dict.fromkeys(MYSQL_TYPES, "server"), _OLD_FILE_TYPE: "file"}.get(db_type, db_type)


def _of_files(to: ToConfig) -> Target:
    if not to.dir:
        raise NeedsOperator(
            "syncer.db-type is file, and syncer.to.dir is empty",
            "name the folder of the files; to continue those of TiDB-Binlog, the one that has"
            " them and its savepoint",
            Code.SETTING_VALUE,
        )
    return FilesTarget(
        scheme=FILE_TYPES[0],
        path=quote(to.dir),
        compress=to.compression,
        retention_s=to.retention_time * 86400.0,
    )


def _of_kafka(to: ToConfig, env: Mapping[str, str]) -> Target:
    brokers = to.kafka_addrs or env.get("KAFKA_ADDRS", "")
    if not brokers:
        raise NeedsOperator(
            "syncer.db-type is kafka, and no brokers are named",
            "set syncer.to.kafka-addrs = host:9092 for TiDB-Binlog's own messages, or sink ="
            " kafka://host:9092/?format=canal-json",
            Code.SETTING_VALUE,
        )
    brokers = brokers.replace(" ", "")
    size = min(to.kafka_max_message_size, _KAFKA_MESSAGE_BYTES_MAX)
    sizes: dict[str, Any] = {"message_bytes_max": size} if size else {}
    return KafkaTarget(
        scheme=KAFKA,
        place=brokers,
        path="/",
        brokers=brokers,
        format=TIDB_BINLOG,
        topic=to.topic_name,
        client_id=to.kafka_client_id or "tidb_binlog",
        **KafkaTarget.OF_TIDB_BINLOG,
        **sizes,
    )


def _of_to(db_type: str, to: ToConfig, env: Mapping[str, str]) -> Target:
    port = str(to.port or env.get("MYSQL_PORT", "") or 3306)
    host = to.host or env.get("MYSQL_HOST", "127.0.0.1")
    user = to.user or env.get("MYSQL_USER", "root")
    if to.password and to.password_file:
        raise NeedsOperator(
            "[syncer.to] has both password and password-file",
            "leave one of them out",
            Code.SETTING_VALUE,
        )
    if not port.isdecimal():
        raise out_of_range("MYSQL_PORT", port, "write the number of a port")
    place = {"checkpoint_schema": to.checkpoint.schema, "checkpoint_table": to.checkpoint.table}
    own: dict[str, Any] = {name: value for name, value in place.items() if value}
    return MysqlTarget(
        scheme=db_type or MYSQL_TYPES[0],
        place=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        path="/",
        named=tuple((name.replace("_", "-"), value) for name, value in own.items()),
        host=host,
        port=int(port),
        user=user,
        password=to.password,
        password_file=to.password_file,
        params=to.params,
        read_timeout_s=to.read_timeout,
        ssl_ca=to.security.ssl_ca,
        ssl_cert=to.security.ssl_cert,
        ssl_key=to.security.ssl_key,
        ssl_verify=to.security.ssl_verify,
        **own,
    )
