"""A TiDB's stream from its beginning on, and the SQLite it goes to."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from drainer.schema.rules import TIDB
from drainer.sinks.checkpoint import Checkpoint
from penstock.schema.model import DdlJob, TableInfo
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.tidb.tidb_history import TidbDdl, TidbHistory
from tests.kit.workloads.bank import Bank


def committed(ts: int, value: bytes = b"", **more: Any) -> bytes:
    """Return the binlog of a transaction that is committed at `ts`."""
    return encode_binlog(
        Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts, prewrite_value=value, **more)
    )


class TidbShop:
    """The database Shop; `binlogs` are its stream so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = TidbHistory()
        self.binlogs: list[tuple[int, bytes]] = []
        self.ddl("CREATE DATABASE Shop")

    @property
    def jobs(self) -> list[DdlJob]:
        return [ddl.job for ddl in self.history.all]

    @property
    def last_ts(self) -> int:
        return self.binlogs[-1][0]

    def table(self, name: str = "t") -> TableInfo:
        return self.history.table(name)

    def ddl(self, sql: str, **more: Any) -> TidbDdl:
        """Run a DDL; its binlog is in the stream."""
        done = self.history.run(sql, **more)
        self.binlogs.append((done.commit_ts, done.binlog()))
        return done

    def follow(self, *, up_to: int | None = None, **way: Any) -> Checkpoint:
        """Bring the stream downstream from the checkpoint on, or its first `up_to` binlogs."""
        part = TidbShop.__new__(TidbShop)
        part.history, part.binlogs = self.history, self.binlogs[:up_to]
        url = f"sqlite:///{self.folder}/d.db"
        drained = Way(url=url, folder=self.folder, rules=TIDB, **way)
        return asyncio.run(run_drainer(cast(Bank, part), drained))

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "d.db")) as connection:
            return list(connection.execute(f'SELECT {columns} FROM "Shop.{table}" ORDER BY 1'))
