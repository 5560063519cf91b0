"""Section `[syncer]` of TiDB-Binlog's drainer.toml: its filters, and the downstream that it names.

    [syncer]                                        [[syncer.replicate-do-table]]
    replicate-do-db = ["shop", "~^log_"]            db-name = "shop"
    ignore-schemas = "mysql,test"                   tbl-name = "item"

    [syncer.binlog-filter-rule.no-truncate]         [[syncer.table-migrate-rule]]
    ignore-event = ["truncate table"]               binlog-filter-rule = ["no-truncate"]
    ignore-sql = ["^create index"]                  source = { schema = "shop*", table = "*" }

Filters are added to those of `[filter]`: a change must pass both. A rule's `target` is a route,
which in TiDB-Binlog only reached Oracle. Plain names in the first group are regular expressions of
the whole name, as in TiDB-Binlog; names in a migrate rule are wildcards. The other keys of the file
are in `drainer.settings.compat`.

The downstream that it names becomes the URL that a sink is opened with:

    [syncer]                     [syncer.to]                  [syncer.to.checkpoint]
    db-type = "mysql"            host = "10.0.0.9"            schema = "tidb_binlog"
                                 user = "repl"

is mysql://repl:…@10.0.0.9:3306/?checkpoint-schema=tidb_binlog. Missing values come from MYSQL_HOST,
MYSQL_PORT, MYSQL_USER and MYSQL_PSWD, then from TiDB-Binlog's defaults; loop-back control adds its
channel to any URL. A Kafka that is named here, by kafka-addrs or KAFKA_ADDRS, gets TiDB-Binlog's
own messages: kafka://…/?format=tidb-binlog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import EventRule, FilterConfig, RouteRule, TablePattern
from penstock.filters.table_lists import DrainerList
from penstock.security.databases import FULL
from penstock.settings.load import duration_s
from penstock.settings.setting import out_of_range, setting

MYSQL_TYPES = ("mysql", "mariadb", "tidb")
FILE_TYPES = ("file",)
KAFKA = "kafka"
DELTA = "delta"
EVENT_TYPES = (*FILE_TYPES, KAFKA)
"""The schemes of sinks that take events."""
MIRROR, CHANGES = "mirror", "changes"
"""The modes of a lake: the rows as they are, or a log of every change."""
_OLD_FILE_TYPE = "pb"
_TYPES = (*MYSQL_TYPES, "sqlite", *EVENT_TYPES, DELTA, _OLD_FILE_TYPE)
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
    """Raise `NeedsOperator` for a downstream without a sink."""
    if not db_type or db_type in _TYPES:
        return
    known = f"use {', '.join(_TYPES)}"
    if db_type in _ABSENT_TYPES:
        raise NeedsOperator(
            f"syncer.db-type is {db_type!r}, and Penstock has no such downstream",
            hint=f"there is no output to Oracle; {known}",
            code=Code.SETTING_UNKNOWN,
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

    def lists(self) -> DrainerList:
        """Return the filter by name; raise `NeedsOperator` for an invalid pattern."""
        return DrainerList(
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
                    hint=f"there are {', '.join(self.binlog_filter_rule) or 'none'}",
                    code=Code.FILTER_RULE,
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
                hint="name it in one, or remove it",
                code=Code.FILTER_RULE,
            )
        return replace(config, events=(*config.events, *events), routes=(*config.routes, *routes))


DEFAULT_SINK = "sqlite:///downstream.db"


def takes_events(url: str) -> bool:
    """Return whether a downstream takes every change, not only the net effect of a batch."""
    parts = urlsplit(url)
    if parts.scheme == DELTA:
        return dict(parse_qsl(parts.query)).get("mode", MIRROR) == CHANGES
    return parts.scheme in EVENT_TYPES


def downstream_url(
    sink: str,
    syncer: SyncerConfig,
    env: Mapping[str, str] | None = None,
    *,
    more: Mapping[str, str] | None = None,
) -> str:
    """Return the URL of the downstream, with `more` options if it is a server.

    Raises `NeedsOperator` if two are named.
    """
    url = _named_downstream(sink, syncer, os.environ if env is None else env)
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:  # The URL may hold a password, and is not repeated.
        raise NeedsOperator(
            f"unreadable downstream URL: {error}",
            hint="write mysql://user:password@host:port/ and percent-encode special characters",
            code=Code.URL_INVALID,
        ) from error
    if syncer.db_type and scheme and _kind_of(syncer.db_type) != _kind_of(scheme):
        raise NeedsOperator(
            f"syncer.db-type is {syncer.db_type!r}, and the sink is of type {scheme!r}",
            hint="leave db-type out: the sink's URL says it",
            code=Code.SETTING_VALUE,
        )
    options = {"sql-mode": syncer.sql_mode} if syncer.sql_mode else {}
    if syncer.loopback_control:
        if scheme not in MYSQL_TYPES:
            what = (
                "SQLite is no one's upstream"
                if scheme == "sqlite"
                else f"a {scheme} has no upstream"
            )
            raise NeedsOperator(
                f"loopback-control is on, and {what}",
                hint="only a MySQL, MariaDB or TiDB downstream can send changes back",
                code=Code.SETTING_VALUE,
            )
        options["loopback-channel"] = str(syncer.channel_id)
    options |= more or {}
    if not options or scheme not in MYSQL_TYPES:
        return url
    return url + ("&" if urlsplit(url).query else "?") + urlencode(options)


def _named_downstream(sink: str, syncer: SyncerConfig, env: Mapping[str, str]) -> str:
    """Return the URL in `sink`, or a URL made from `[syncer.to]`."""
    db_type, to = syncer.db_type, syncer.to
    if db_type == DELTA and sink == DEFAULT_SINK:
        raise NeedsOperator(
            "syncer.db-type is delta, and no sink is named",
            hint="set sink = delta:///folder",
            code=Code.SETTING_VALUE,
        )
    to_files = db_type in (*FILE_TYPES, _OLD_FILE_TYPE)
    is_enough = to_files or db_type in (*MYSQL_TYPES, KAFKA)
    is_named = to != ToConfig() or (sink == DEFAULT_SINK and is_enough)
    if not is_named:
        return sink
    if sink != DEFAULT_SINK:
        raise NeedsOperator(
            "both sink and [syncer.to] name a downstream",
            hint="leave one of them out",
            code=Code.SETTING_VALUE,
        )
    if db_type == "sqlite":
        raise NeedsOperator(
            "[syncer.to] names a server, and syncer.db-type is 'sqlite'",
            hint="set sink = sqlite:///file.db, or another db-type",
            code=Code.SETTING_VALUE,
        )
    if db_type == KAFKA:
        return _of_kafka(to, env)
    if to.kafka_addrs or to.topic_name:
        raise NeedsOperator(
            f"[syncer.to] names a Kafka, and syncer.db-type is {db_type!r}",
            hint='set db-type = "kafka", or leave kafka-addrs and topic-name out',
            code=Code.SETTING_VALUE,
        )
    return _of_files(to) if to_files else _of_to(db_type, to, env)


def _kind_of(db_type: str) -> str:
    return {**dict.fromkeys(MYSQL_TYPES, "server"), _OLD_FILE_TYPE: "file"}.get(db_type, db_type)


def _of_files(to: ToConfig) -> str:
    if not to.dir:
        raise NeedsOperator(
            "syncer.db-type is file, and syncer.to.dir is empty",
            hint="name the folder of the files; to continue those of TiDB-Binlog, the one that has"
            " them and its savepoint",
            code=Code.SETTING_VALUE,
        )
    options = {
        "compress": to.compression,
        "retention": f"{to.retention_time}d" if to.retention_time else "",
    }
    query = urlencode({key: value for key, value in options.items() if value})
    return f"file:{quote(to.dir)}" + (f"?{query}" if query else "")


def _of_kafka(to: ToConfig, env: Mapping[str, str]) -> str:
    brokers = to.kafka_addrs or env.get("KAFKA_ADDRS", "")
    if not brokers:
        raise NeedsOperator(
            "syncer.db-type is kafka, and no brokers are named",
            hint="set syncer.to.kafka-addrs = host:9092 for TiDB-Binlog's own messages, or sink ="
            " kafka://host:9092/?format=canal-json",
            code=Code.SETTING_VALUE,
        )
    size = min(to.kafka_max_message_size, _KAFKA_MESSAGE_BYTES_MAX)
    options = {
        "format": "tidb-binlog",
        "topic": to.topic_name,
        "max-message-bytes": str(size) if size else "",
        "client-id": to.kafka_client_id or "tidb_binlog",
    }
    query = urlencode({key: value for key, value in options.items() if value})
    return f"kafka://{brokers.replace(' ', '')}/?{query}"


def _of_to(db_type: str, to: ToConfig, env: Mapping[str, str]) -> str:
    port = to.port or env.get("MYSQL_PORT", 3306)
    host = to.host or env.get("MYSQL_HOST", "127.0.0.1")
    user = to.user or env.get("MYSQL_USER", "root")
    password = to.password or ("" if to.password_file else env.get("MYSQL_PSWD", ""))
    if to.password and to.password_file:
        raise NeedsOperator(
            "[syncer.to] has both password and password-file",
            hint="leave one of them out",
            code=Code.SETTING_VALUE,
        )
    options = {
        "checkpoint-schema": to.checkpoint.schema,
        "checkpoint-table": to.checkpoint.table,
        "password-file": to.password_file,
        "params": ",".join(to.params),
        "read-timeout": f"{to.read_timeout:g}" if to.read_timeout else "",
        "ssl-ca": to.security.ssl_ca,
        "ssl-cert": to.security.ssl_cert,
        "ssl-key": to.security.ssl_key,
        "ssl-verify": to.security.ssl_verify.replace(FULL, ""),
    }
    account = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host = f"[{host}]" if ":" in host else host
    url = f"{db_type or 'mysql'}://{account}@{host}:{port}/"
    query = urlencode({key: value for key, value in options.items() if value})
    return f"{url}?{query}" if query else url
