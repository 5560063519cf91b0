"""Targets: a downstream's address and options, from a sink's URL or from `[syncer.to]`.

    sqlite:///file.db                   sqlite:////absolute/file.db
    mysql://user:password@host:port/    also mariadb; with tidb it is a TiDB even if the server does
                                        not report it
    file:///absolute/folder             file:relative/folder
    file+s3://bucket/folder             the account and the endpoint are in variables, AWS_…
    delta:///absolute/folder            delta:relative/folder
    delta+s3://bucket/folder            the same
    kafka://user@host:9092,host2:9092/
    scheme://user@place/path            of a third party (`drainer.settings.plugins`)

Special characters in user and password are percent-encoded. The options are the URL's query,
`?name=value&name=value`, and the fields of a target that have a help text: `retention_s` is the
option `retention`. A target is valid once it is constructed.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from drainer.settings import plugins
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import zone_offset
from penstock.security.databases import CA, FULL, PasswordFile
from penstock.settings.load import duration_s, size_bytes
from penstock.settings.setting import did_you_mean, out_of_range

SQLITE, KAFKA, DELTA, DELTA_S3, FILE_S3 = "sqlite", "kafka", "delta", "delta+s3", "file+s3"
MYSQL_PASSWORD = "MYSQL_PSWD"
"""The environment variable with the password of the downstream."""
MYSQL_TYPES, FILE_TYPES = ("mysql", "mariadb", "tidb"), ("file",)
MIRROR, CHANGES = "mirror", "changes"
"""The modes of a lake: the rows as they are, or a log of every change."""
CANAL_JSON, DEBEZIUM, MAXWELL, TIDB_BINLOG = FORMATS = (
    "canal-json", "debezium", "maxwell", "tidb-binlog",
)  # fmt: skip
_ROWS = FORMATS[:3]
STOP, KEY_ONLY, CLAIM_CHECK = OVERSIZE = "stop", "key-only", "claim-check"
EXACTLY_ONCE, AT_LEAST_ONCE = DELIVERY = "exactly-once", "at-least-once"
COLLATIONS = ("map", "stop")
PARTITIONS = ("table", "key", "ts", "one")
DECIMALS = ("precise", "string", "double")
_TABLES = "sqlite:///path/file.db or mysql://user:password@host:port/"
_KNOWN = (
    f"use {_TABLES}, file:///folder, kafka://host:9092/ or delta:///folder; in an object store,"
    " file+s3://bucket/folder or delta+s3://bucket/folder"
)
_NAMES = ("checkpoint-schema", "checkpoint-table", "checkpoint-topic", "prefix")
"""Options that distinguish outputs at one address."""
_FIXED = {"sql_mode", "time_zone", "foreign_key_checks", "autocommit", "tx_isolation", "timestamp",
          "transaction_isolation", "names", "character_set_client"}  # fmt: skip
"""Session variables that decide how rows are written."""
_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*", re.DOTALL)
_FOLDER = re.compile(r"[A-Za-z0-9_./~+=@, -]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ACCEPTED = re.compile(r"(.+)@(\d+)")
_BROKER = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:,\[\]]+)(:\d+)?")
_FIELD = re.compile(r"\{(\w*)\}")


def _option(
    default: Any,
    text: str,
    *,
    name: str = "",
    choices: tuple[str, ...] = (),
    bounds: tuple[float, float, str] | None = None,
    only: tuple[str, ...] = (),
) -> Any:
    """Return an option's field.

    `bounds` are the least and the largest value, and a hint. `only` are the formats, or the modes,
    that have the option.
    """
    metadata = {"help": text, "name": name, "choices": choices, "bounds": bounds, "only": only}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A downstream; raises `NeedsOperator` for an option with an invalid value."""

    HINT: ClassVar[str] = _KNOWN
    KIND: ClassVar[str] = ""
    """The option that decides which other options there are."""
    SINK: ClassVar[str] = ""
    """The class of its sink, in the notation of an entry point."""

    scheme: str
    place: str = ""
    """Host and port as they are written, without the account."""
    path: str = ""
    named: tuple[tuple[str, str], ...] = ()
    """The options in `_NAMES` that were given."""

    def __post_init__(self) -> None:
        for option in options_of(type(self)):
            value, text = getattr(self, option.name), option_name(option)
            choices, bounds = option.metadata["choices"], option.metadata["bounds"]
            if choices and value not in choices:
                raise out_of_range(text, value, f"use {' or '.join(filter(None, choices))}")
            if bounds is not None and not bounds[0] <= value <= bounds[1]:
                raise out_of_range(text, value, bounds[2])

    @property
    def label(self) -> str:
        """The downstream without user, password and options."""
        return f"{self.scheme} {self.place}"

    @property
    def output(self) -> str:
        """The identity of the output; unlike `label`, it is unique for each output."""
        names = " ".join(f"{name}={value}" for name, value in self.named)
        return f"{self.scheme} {self.place}{self.path} {names}".strip()

    @property
    def local(self) -> Path | None:
        """The file or folder as it is named, maybe relative to the current folder."""
        return None

    @property
    def sink(self) -> str:
        return self.SINK

    @property
    def takes_events(self) -> bool:
        """Whether the downstream takes every change, not only the net effect of a batch."""
        return False

    @classmethod
    def _address(cls, parts: SplitResult) -> dict[str, Any]:
        """Return the fields that the URL has beside its options; raise `ValueError`."""
        return {}

    def _check_bucket(self) -> None:
        if not _BUCKET.fullmatch(self.place) or not self.path.strip("/"):
            raise NeedsOperator(
                f"the downstream {self.scheme}://{self.place}{self.path} names no bucket or folder",
                f"write {self.scheme}://bucket/folder; the account and the endpoint are in"
                " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL",
                Code.URL_INVALID,
            )

    @property
    def bucket(self) -> str:
        """The bucket of an object store; empty for a disk."""
        return self.place if self.scheme in (DELTA_S3, FILE_S3) else ""

    def _check_folder(self) -> None:
        if self.scheme in (DELTA_S3, FILE_S3):
            self._check_bucket()
            return
        if self.place not in ("", "localhost") or not self.path.strip("/"):
            raise NeedsOperator(
                f"the downstream {self.scheme}://{self.place}{self.path} names no folder",
                self.HINT,
                Code.URL_INVALID,
            )


@dataclass(frozen=True, kw_only=True)
class SqliteTarget(Target):
    """A file of SQLite."""

    SINK: ClassVar[str] = "drainer.sinks.sqlite.sink:SqliteSink"
    HINT: ClassVar[str] = "write sqlite:///relative.db or sqlite:////absolute.db"

    def __post_init__(self) -> None:
        if self.place or len(unquote(self.path)) < 2:
            raise NeedsOperator(
                f"the downstream sqlite://{self.place}{self.path} names no file",
                self.HINT,
                Code.URL_INVALID,
            )

    @property
    def file(self) -> Path:
        return Path(unquote(self.path)[1:])

    @property
    def local(self) -> Path:
        return self.file

    @property
    def label(self) -> str:
        return f"{self.scheme} {unquote(self.path)[1:]}"


@dataclass(frozen=True, kw_only=True)
class _AccountTarget(Target):
    """A downstream with an account."""

    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = _option("", "file that holds the password and nothing else")

    def __post_init__(self) -> None:
        Target.__post_init__(self)
        if self.password and self.password_file:
            raise NeedsOperator(
                "the downstream's URL has a password and a password-file",
                "leave one of them out",
                Code.URL_INVALID,
            )

    def current_password(self) -> str:
        """Return the password, read again from its file; the first call may raise."""
        return self._password()

    @cached_property
    def _password(self) -> Callable[[], str]:
        if self.password_file:
            return PasswordFile(self.password_file).password
        return lambda: self.password


@dataclass(frozen=True, kw_only=True)
class MysqlTarget(_AccountTarget):
    """A MySQL, MariaDB or TiDB."""

    SINK: ClassVar[str] = "drainer.sinks.mysql.sink:MysqlSink"
    HINT: ClassVar[str] = (
        "write mysql://user:password@host:port/ and percent-encode special characters"
    )

    host: str = "127.0.0.1"
    port: int = 3306
    checkpoint_schema: str = _option("tidb_binlog", "schema of the checkpoint")
    checkpoint_table: str = _option("checkpoint", "table of the checkpoint")
    collations: str = _option(
        "map", "treatment of a collation that the server lacks", choices=COLLATIONS
    )
    loopback_channel: int | None = _option(None, "the mark that transactions leave")
    params: tuple[str, ...] = _option((), "session variables, name=value, comma-separated")
    read_timeout_s: float = _option(0.0, "how long a statement may take to answer; 0: no limit")
    sql_mode: str = _option("", "sql_mode of the sessions; empty: strict, with dates as they come")
    ssl_ca: str = _option("", "PEM file of the CA that signed the server's certificate")
    ssl_cert: str = _option("", "PEM file of the certificate to show to the server")
    ssl_key: str = _option("", "PEM file of its private key")
    ssl_verify: str = _option(
        FULL, "full: CA and host name are checked; ca: the CA only", choices=(FULL, CA)
    )
    unix_socket: str = _option("", "path of the server's socket, instead of host and port")

    def __post_init__(self) -> None:
        _AccountTarget.__post_init__(self)
        if not 0 < self.port < 1 << 16:
            raise out_of_range("port", self.port, "1 to 65535 is the range")
        list(self._variables())

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_tidb(self) -> bool:
        return self.scheme == "tidb"

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._variables())

    def _variables(self) -> Iterator[tuple[str, str]]:
        for each in self.params:
            found = _VARIABLE.fullmatch(each)
            if found is None:
                raise NeedsOperator(
                    f"{each!r} sets no session variable", "write name=value", Code.URL_INVALID
                )
            if found[1].lower() in _FIXED:
                raise NeedsOperator(
                    f"the session variable {found[1]} is part of how rows are written",
                    "times travel as UTC whatever the downstream's time zone is; sql-mode has"
                    " a setting of its own",
                    Code.URL_INVALID,
                )
            yield found[1], found[2]

    @classmethod
    def _address(cls, parts: SplitResult) -> dict[str, Any]:
        return {
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or 3306,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
        }


@dataclass(frozen=True, kw_only=True)
class FilesTarget(Target):
    """A folder of files in TiDB-Binlog's format, on a disk or in a bucket of an object store."""

    SINK: ClassVar[str] = "drainer.sinks.files.sink:FileSink"
    HINT: ClassVar[str] = (
        "write file:///absolute/folder, file:relative/folder or file+s3://bucket/folder"
    )

    compress: str = _option(
        "",
        "gzip: full files are compressed; TiDB-Binlog's tools cannot read them before they are"
        " unpacked",
        choices=("", "gzip"),
    )
    retention_s: float = _option(0.0, "how long full files are kept; 0: forever")
    file_bytes_max: int = _option(
        512 << 20,
        "size at which a file is full",
        name="max-file-size",
        bounds=(1, math.inf, "it must be above zero"),
    )
    time_zone: str = _option(
        "+00:00", "of TIMESTAMPs; it cannot change after the folder's first savepoint"
    )

    interval_s: float = _option(
        30.0, "how long changes gather before an object is written, in an object store"
    )

    def __post_init__(self) -> None:
        self._check_folder()
        Target.__post_init__(self)
        zone_offset(self.time_zone)
        if self.bucket and self.compress:
            raise out_of_range("compress", self.compress, "leave it out: files of a disk have it")
        if self.bucket and self.retention_s:
            raise out_of_range(
                "retention", f"{self.retention_s:g}s", "leave it out: set a rule of the bucket"
            )

    @property
    def sink(self) -> str:
        return "drainer.sinks.files.object_sink:ObjectFileSink" if self.bucket else self.SINK

    @property
    def folder(self) -> Path:
        return Path(unquote(self.path))

    @property
    def shown(self) -> str:
        path = unquote(self.path)
        return f"s3://{self.bucket}{path}" if self.bucket else path

    @property
    def local(self) -> Path | None:
        return None if self.bucket else self.folder

    @property
    def takes_events(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class LakeTarget(Target):
    """A folder of Delta tables, on a disk or in a bucket of an object store."""

    SINK: ClassVar[str] = "drainer.sinks.delta.sink:DeltaSink"
    HINT: ClassVar[str] = (
        "write delta:///absolute/folder?interval=30s, delta:relative/folder or"
        " delta+s3://bucket/folder"
    )
    KIND: ClassVar[str] = "mode"

    mode: str = _option(
        MIRROR,
        "content of the tables: the rows as they are, or a log of every change",
        choices=(MIRROR, CHANGES),
    )
    interval_s: float = _option(
        30.0,
        "how long changes gather before they are committed; 0: a commit starts as soon as the last"
        " one has finished",
    )
    batch_bytes: int = _option(
        64 << 20,
        "size at which gathered changes are committed",
        bounds=(1 << 16, 1 << 30, "64 KiB to 1 GiB is the range"),
    )
    retention_s: float = _option(7 * 86400.0, "for how long any state of the lake can be read")
    optimize_s: float = _option(
        3600.0, "how often small files are combined and old files removed; 0: never"
    )
    drop_column: str = _option(
        "drop",
        "treatment of a dropped column; keep: it stays, and is NULL in new rows",
        choices=("drop", "keep"),
        only=(MIRROR,),
    )
    accept: tuple[str, ...] = _option(
        (), "schema.table@version, comma-separated: versions that are accepted from any writer"
    )

    def __post_init__(self) -> None:
        self._check_folder()
        if not _FOLDER.fullmatch(unquote(self.path)):
            raise NeedsOperator(
                f"readers of Delta tables do not find their way to {unquote(self.path)!r}",
                "name a folder of letters, digits and _ . ~ + = @ , - alone",
                Code.URL_INVALID,
            )
        Target.__post_init__(self)
        if not all(map(_ACCEPTED.fullmatch, self.accept)):
            hint = "write schema.table@version, comma-separated"
            raise out_of_range("accept", ",".join(self.accept), hint)

    @property
    def local(self) -> Path | None:
        return None if self.bucket else Path(unquote(self.path))

    @property
    def folder(self) -> Path:
        return Path(unquote(self.path)).absolute()

    @property
    def label(self) -> str:
        return f"{self.scheme} {self.bucket}{unquote(self.path)}"

    @property
    def takes_events(self) -> bool:
        return self.mode == CHANGES

    @property
    def sink(self) -> str:
        return "drainer.sinks.delta.changes_sink:ChangesSink" if self.takes_events else self.SINK

    @property
    def accepted(self) -> frozenset[tuple[str, int]]:
        found = map(_ACCEPTED.fullmatch, self.accept)
        return frozenset((each[1], int(each[2])) for each in found if each)


@dataclass(frozen=True, kw_only=True)
class KafkaTarget(_AccountTarget):
    """The topics of a Kafka.

    With tidb-binlog everything is in one partition of one topic, and a message is a transaction.
    """

    SINK: ClassVar[str] = "drainer.sinks.kafka.sink:KafkaSink"
    HINT: ClassVar[str] = "write kafka://host:9092,host2:9092/?format=canal-json&prefix=shop"
    KIND: ClassVar[str] = "format"
    OF_TIDB_BINLOG: ClassVar[dict[str, Any]] = {"partitions": 1, "watermark_s": 0.0}

    brokers: str
    format: str = _option(CANAL_JSON, "of the messages", choices=FORMATS)
    prefix: str = _option("penstock", "prefix of topic names; two outputs differ in it")
    topic: str = _option(
        "",
        "a table's topic; default: {prefix}.{schema}.{table}, with tidb-binlog {cluster}_obinlog",
    )
    partition: str = _option(
        "table", "what decides a message's partition", choices=PARTITIONS, only=_ROWS
    )
    create_topics: bool = _option(True, "creation of topics; false: a missing topic is an error")
    partitions: int = _option(
        0,
        "of topics that are created; 0: the broker's default",
        bounds=(0, 99_999, "0 to 99999 is the range"),
        only=_ROWS,
    )
    replication_factor: int = _option(
        0,
        "of topics that are created; 0: the broker's default",
        bounds=(0, 99, "0 to 99 is the range"),
    )
    message_bytes_max: int = _option(
        1_000_000,
        "size of the largest message; topics must accept it",
        name="max-message-bytes",
        bounds=(1000, 1_000_000_000, "1000 bytes to 1 GB is the range"),
    )
    oversize: str = _option(
        STOP,
        "treatment of a larger row: an error; its key alone; its key, and the row in a file",
        choices=OVERSIZE,
        only=_ROWS,
    )
    claim_check_dir: str = _option("", "folder of such files", only=_ROWS)
    delivery: str = _option(
        EXACTLY_ONCE, "at-least-once is for brokers without transactions", choices=DELIVERY
    )
    transaction_timeout_s: float = _option(
        900.0, "time after which a broker aborts a transaction of a Drainer that has died"
    )
    compression: str = _option(
        "none", "of batches of messages", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    watermark_s: float = _option(
        1.0, "shortest interval between watermarks; 0: no watermarks", only=_ROWS
    )
    checkpoint_topic: str = _option("_penstock_checkpoint", "topic of the checkpoint")
    client_id: str = _option("penstock", "this Drainer's id in the brokers' quotas and logs")
    old: str = _option(
        "full",
        "rows before an update: all columns, or changed columns only",
        choices=("full", "changed"),
        only=(CANAL_JSON,),
    )
    schemas: bool = _option(False, "each message contains its schema", only=(DEBEZIUM,))
    tombstones: bool = _option(True, "a message without value follows a delete", only=(DEBEZIUM,))
    decimals: str = _option("precise", "form of DECIMAL values", choices=DECIMALS, only=(DEBEZIUM,))
    time_zone: str = _option("+00:00", "of TIMESTAMPs", only=(TIDB_BINLOG,))
    tls: bool | None = _option(None, "encryption; default: if a certificate is named")
    ssl_ca: str = _option("", "PEM file of the CA that signed the brokers' certificates")
    ssl_cert: str = _option("", "PEM file of the certificate to show to the brokers")
    ssl_key: str = _option("", "PEM file of its private key")
    sasl_mechanism: str = _option(
        "PLAIN", "of the user", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    )

    def __post_init__(self) -> None:
        _AccountTarget.__post_init__(self)
        found = [_BROKER.fullmatch(each) for each in self.brokers.split(",")]
        if not all(found) or self.path.strip("/"):
            raise NeedsOperator(
                "the downstream URL names no brokers, or a path", self.HINT, Code.URL_INVALID
            )
        if self.user and not (self.password or self.password_file):
            raise NeedsOperator(
                "the downstream's URL has a user and no password",
                "name a password-file",
                Code.URL_INVALID,
            )
        if self.tls is False and (self.ssl_ca or self.ssl_cert or self.ssl_key):
            raise out_of_range("tls", "false", "leave it out: certificates are named")
        self._check_topic()
        folder = self.claim_check_dir
        if (self.oversize == CLAIM_CHECK) != bool(folder):
            hint = "name a folder together with oversize=claim-check"
            raise out_of_range("claim-check-dir", folder, hint)
        if folder and not Path(folder).is_absolute():
            raise out_of_range("claim-check-dir", folder, "write an absolute path: readers get it")
        zone_offset(self.time_zone)

    def _check_topic(self) -> None:
        known = ("prefix", "cluster") if self.sends_transactions else (
            "prefix", "cluster", "schema", "table",
        )  # fmt: skip
        unknown = set(_FIELD.findall(self.topic)) - set(known)
        if unknown or re.search(r"[{}]", _FIELD.sub("", self.topic)):
            hint = f"it may have {', '.join(f'{{{each}}}' for each in known)}"
            raise out_of_range("topic", self.topic, hint)

    @property
    def bootstrap_servers(self) -> str:
        found = map(_BROKER.fullmatch, self.brokers.split(","))
        return ",".join(each[1] + (each[2] or ":9092") for each in found if each)

    @property
    def topic_template(self) -> str:
        default = "{cluster}_obinlog" if self.sends_transactions else "{prefix}.{schema}.{table}"
        return self.topic or default

    @property
    def is_transactional(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    @property
    def sends_transactions(self) -> bool:
        """True if a message is a whole transaction, not a row."""
        return self.format == TIDB_BINLOG

    @property
    def takes_events(self) -> bool:
        return True

    @classmethod
    def _address(cls, parts: SplitResult) -> dict[str, Any]:
        account, _, brokers = parts.netloc.rpartition("@")
        user, _, password = account.partition(":")
        is_tidb = dict(parse_qsl(parts.query)).get("format") == TIDB_BINLOG
        return {
            "brokers": brokers,
            "user": unquote(user),
            "password": unquote(password),
            **(cls.OF_TIDB_BINLOG if is_tidb else {}),
        }


@dataclass(frozen=True, kw_only=True)
class PluginTarget(_AccountTarget):
    """A downstream of a third party; its sink knows the options."""

    options: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.scheme} {self.place}{unquote(self.path)}"

    @property
    def takes_events(self) -> bool:
        return True


TARGETS: dict[str, type[Target]] = {
    SQLITE: SqliteTarget,
    **dict.fromkeys(MYSQL_TYPES, MysqlTarget),
    **dict.fromkeys(FILE_TYPES, FilesTarget),
    KAFKA: KafkaTarget,
    DELTA: LakeTarget,
    DELTA_S3: LakeTarget,
    FILE_S3: FilesTarget,
}
"""The downstreams, by the scheme of their URL; all others are of third parties."""


def target_of(url: str) -> Target:
    """Return the target that a URL names.

    Raises `NeedsOperator` for an unknown scheme or option, or an invalid value. As the URL may hold
    a password, no error repeats it.
    """
    cls: type[Target] = MysqlTarget
    try:
        parts = urlsplit(url)
        cls = TARGETS.get(parts.scheme, Target)
        asked = dict(parse_qsl(parts.query, True, bool(parts.query)))
        address = cls._address(parts)
    except ValueError as error:
        raise NeedsOperator(
            f"unreadable downstream URL: {error}", cls.HINT, Code.URL_INVALID
        ) from error
    if cls is Target:
        return _of_plugin(parts, asked)
    if cls is SqliteTarget and not url[len(SQLITE) :].startswith("://"):
        path = quote(unquote(parts.path))
        raise NeedsOperator(
            f"the downstream {SQLITE}:{parts.path} lacks slashes",
            f"write {SQLITE}:///{path} for this path, {SQLITE}:///{path.lstrip('/')} for one in the"
            " current folder",
            Code.URL_INVALID,
        )
    return cls(
        scheme=parts.scheme,
        place=parts.netloc.rpartition("@")[2],
        path=parts.path,
        named=tuple((k, v) for k, v in parse_qsl(parts.query) if k in _NAMES),
        **(address | _values(cls, asked)),
    )


def _of_plugin(parts: SplitResult, asked: dict[str, str]) -> PluginTarget:
    """Return the target of a scheme that an installed package provides."""
    names = plugins.schemes()
    if parts.scheme not in names:
        known = f"{_KNOWN}; {plugins.installed()}"
        raise no_sink(
            parts.scheme, did_you_mean(parts.scheme, [*TARGETS, *names], known, "{}://".format)
        )
    account, _, place = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    return PluginTarget(
        scheme=parts.scheme,
        place=place,
        path=parts.path,
        named=tuple(sorted((k, v) for k, v in asked.items() if k != "password-file")),
        user=unquote(user),
        password=unquote(password),
        password_file=asked.pop("password-file", ""),
        options=tuple(asked.items()),
    )


def no_sink(scheme: str, hint: str = f"use {_TABLES}") -> NeedsOperator:
    return NeedsOperator(f"no sink for downstream scheme {scheme!r}", hint, Code.URL_INVALID)


def options_of(cls: type[Target]) -> list[Any]:
    return [each for each in fields(cls) if "help" in each.metadata]


def option_name(option: Any) -> str:
    name: str = option.metadata["name"] or option.name.removesuffix("_s").replace("_", "-")
    return name


def _values(cls: type[Target], asked: dict[str, str]) -> dict[str, Any]:
    known = {option_name(each): each for each in options_of(cls)}
    kinds, values = typing.get_type_hints(cls), {}
    for name, text in asked.items():
        if name not in known:
            raise NeedsOperator(
                f"unknown downstream option {name!r}",
                f"known are {', '.join(sorted(known)) or 'none'}",
                Code.URL_INVALID,
            )
        option = known[name]
        values[option.name] = _value(name, option.name, kinds[option.name], text)
    for name in asked:
        option = known[name]
        kind = values.get(cls.KIND, getattr(cls, cls.KIND, ""))
        if option.metadata["only"] and kind not in option.metadata["only"]:
            raise NeedsOperator(
                f"the downstream option {name!r} is not one of this {cls.KIND}",
                f"leave it out, or choose another {cls.KIND}",
                Code.URL_INVALID,
            )
    return values


def _value(name: str, field_name: str, kind: Any, text: str) -> Any:
    """Return an option's value; raise `NeedsOperator` for a text that is none."""
    if isinstance(kind, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not types.NoneType)
    hint = "write a whole number"
    try:
        if kind is bool:
            hint = "use true or false"
            return {"true": True, "false": False}[text]
        if field_name.endswith("_s"):
            hint = "write 30s, 15m or 7d"
            return duration_s(text)
        if "_bytes" in field_name:
            hint = "write 64MiB"
            return size_bytes(text)
        if typing.get_origin(kind) is tuple:
            return tuple(filter(None, text.split(",")))
        return kind(text)
    except ValueError as error:
        raise out_of_range(name, text, f"{error}: {hint}") from error
    except KeyError as error:
        raise out_of_range(name, text, hint) from error
