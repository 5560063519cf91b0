"""Settings of reparo: ours, and those of TiDB-Binlog's program of this name.

    reparo.toml                          here
    data-dir, start-*, stop-*            the same
    replicate-do-*, replicate-ignore-*   the same
    dest-type, [dest-db]                 the same, or sink = mysql://…; also sqlite:///…
    txn-batch, worker-count, safe-mode   accepted: a batch is one transaction, and repeats nothing

Times are local unless they name a zone: "2026-11-22 10:00:00" is local, "2026-11-22T10:00:00Z" is
UTC.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from drainer.settings.targets import MYSQL_TYPES, MysqlTarget, Target, target_of
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import TablePattern
from penstock.filters.table_lists import TableFilter, drainer_list
from penstock.settings.compat import Met, Translation
from penstock.settings.load import read_settings
from penstock.settings.setting import out_of_range, setting
from penstock.ts import compose

PRINT, MYSQL = "print", "mysql"
_PREFIXES = ("Reparo", "REPARO")
_ONCE = "a batch is one transaction with its checkpoint, so nothing is applied twice"


@dataclass(frozen=True, kw_only=True)
class DestDb:
    """A MySQL target, under TiDB-Binlog's names."""

    host: str = setting("", "the target's host")
    port: int = setting(3306, "its port")
    user: str = setting("root", "the account")
    password: str = setting("", "its password. Better not in a file like this")
    password_file: str = setting("", "file that holds the password and nothing else")


@dataclass(frozen=True, kw_only=True)
class ReparoConfig:
    """Restores files in TiDB-Binlog's format into tables, up to a commit_ts or a time."""

    data_dir: str = setting("", "folder of the files, or file+s3://bucket/folder")
    sink: str = setting(
        "",
        "target: sqlite:///file.db or mysql://user:password@host:port/; empty: as dest-type says",
    )
    initial_commit_ts: int = setting(
        0, "the target, which has no checkpoint, holds a copy of all up to this commit_ts"
    )
    start_tso: int = setting(0, "first commit_ts to restore, instead of initial-commit-ts")
    start_datetime: str = setting("", "first time to restore, instead of start-tso")
    stop_tso: int = setting(0, "last commit_ts to restore; 0: all that the files hold")
    stop_datetime: str = setting("", "last time to restore, instead of stop-tso")
    dry_run: bool = setting(False, "read and check everything, count it, and change nothing")
    schema_file: str = setting(
        "", "CREATE statements of the tables at the start, for files without schemas beside them"
    )
    time_zone: str = setting(
        "", "of TIMESTAMPs in files of TiDB-Binlog, such as +08:00; ours say it themselves"
    )
    batch_rows_max: int = setting(50_000, "a batch is cut at this many rows")
    batch_bytes_max: int = setting(8 << 20, "a batch is cut at this many bytes")
    dest_type: str = setting("", "mysql, with dest-db, or print; default: print without a sink")
    dest_db: DestDb = field(default_factory=DestDb)
    replicate_do_db: tuple[str, ...] = setting((), "schemas to restore")
    replicate_do_table: tuple[TablePattern, ...] = setting((), "tables to restore")
    replicate_ignore_db: tuple[str, ...] = setting((), "schemas to leave out")
    replicate_ignore_table: tuple[TablePattern, ...] = setting((), "tables to leave out")
    log_level: str = setting("info", "debug, info, warning or error", flag="-L")
    log_file: str = setting("", "log to this file instead of stderr")

    @property
    def folder(self) -> Path:
        return Path(self.data_dir)

    @property
    def after_ts(self) -> int:
        """The commit_ts up to which, by the settings, the target holds everything."""
        if self.start_datetime:
            return _ts_of("start-datetime", self.start_datetime) - 1
        return self.start_tso - 1 if self.start_tso else self.initial_commit_ts

    @property
    def stop_ts(self) -> int:
        if self.stop_datetime:
            return _ts_of("stop-datetime", self.stop_datetime)
        return self.stop_tso

    @property
    def target(self) -> Target | None:
        """The target, password included; None where changes are only printed."""
        if self.sink or self.dest_type != MYSQL:
            return target_of(self.sink) if self.sink else None
        db = self.dest_db
        return MysqlTarget(
            scheme=MYSQL,
            host=db.host or "127.0.0.1",
            port=db.port,
            user=db.user,
            password=db.password,
            password_file=db.password_file,
        )

    def lists(self) -> TableFilter:
        return drainer_list(
            do_dbs=self.replicate_do_db,
            do_tables=self.replicate_do_table,
            ignore_dbs=self.replicate_ignore_db,
            ignore_tables=self.replicate_ignore_table,
        )

    def __post_init__(self) -> None:
        if not self.data_dir:
            raise NeedsOperator(
                "data-dir is empty", "name the folder of the binlog files", Code.SETTING_VALUE
            )
        if self.dest_type not in ("", PRINT, *MYSQL_TYPES):
            raise out_of_range("dest-type", self.dest_type, f"use {MYSQL} or {PRINT}")
        for name in ("initial_commit_ts", "start_tso", "stop_tso"):
            if getattr(self, name) < 0:
                raise out_of_range(name, getattr(self, name), "give a commit_ts")
        for name in ("batch_rows_max", "batch_bytes_max"):
            if getattr(self, name) < 1:
                raise out_of_range(name, getattr(self, name), "it must be above zero")
        self._check_named_once()
        if 0 < self.stop_ts <= self.after_ts:
            raise NeedsOperator(
                f"the stop, {self.stop_ts}, is not after the start, {self.after_ts}",
                "give a later stop",
                Code.SETTING_VALUE,
            )
        self.lists()

    def _check_named_once(self) -> None:
        starts = [self.initial_commit_ts, self.start_tso, self.start_datetime]
        for what, said in (
            ("sink and dest-type names a target", [self.sink, self.dest_type]),
            ("initial-commit-ts, start-tso or start-datetime says where to start", starts),
            ("stop-tso and stop-datetime says where to end", [self.stop_tso, self.stop_datetime]),
        ):
            if sum(map(bool, said)) > 1:
                raise NeedsOperator(
                    f"more than one of {what}", "leave all but one out", Code.SETTING_VALUE
                )


def _ts_of(name: str, text: str) -> int:
    """Return the first timestamp of a time; raise `NeedsOperator` for an invalid text."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return compose(int(moment.timestamp() * 1000), 0)  # Without a zone it is local.
    except (ValueError, OverflowError) as error:
        raise out_of_range(name, text, "write 2026-11-22 10:00:00") from error


def translation() -> Translation:
    same = ("data-dir", "start-datetime", "stop-datetime", "start-tso", "stop-tso", "txn-batch",
            "log-file", "dest-type", "safe-mode", "config")  # fmt: skip
    return Translation(
        keys={
            "txn-batch": Met(_ONCE, (20, "20")),
            "worker-count": Met(_ONCE, (16, "16")),
            "safe-mode": Met(_ONCE, (False, "false", "0")),
            "log-rotate": Met("logrotate does it", ("",)),
        },
        flags={**{name: name for name in same}, "c": "worker-count", "L": "log-level", "V": "V"},
        prefixes=_PREFIXES,
        switches=frozenset({"safe-mode"}),
    )


def load_reparo_settings(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[ReparoConfig, list[str]]:
    """Return the settings from every source, and the lines for the log about them.

    Exits for --help and --version. Raises `NeedsOperator` for invalid settings.
    """
    translated = translation()
    config = read_settings(
        ReparoConfig,
        translated.arguments(argv),
        prog="penstock reparo",
        env_prefix=_PREFIXES[1],
        env=translated.environment(os.environ if env is None else env),
        rewrite=translated.document,
    )
    return config, translated.notes
