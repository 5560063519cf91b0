"""Encoding: which encoder an output has, by name and options, from its URL to its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from drainer.task.events.encoder import Encoder
from penstock.codes import Code
from penstock.errors import Malformed

TIDB_BINLOG_FILE = "tidb-binlog-file"


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder's name and options."""

    format: str
    options: tuple[tuple[str, str], ...] = ()


@lru_cache(maxsize=16)
def encoder_of(encoding: Encoding) -> Encoder:
    """Return the (cached) encoder; raise `Malformed` for a format that this version lacks."""
    options = dict(encoding.options)
    if encoding.format == TIDB_BINLOG_FILE:
        from drainer.task.events.tidb_binlog_file import TidbBinlogFile

        return TidbBinlogFile(**options)
    raise Malformed(
        f"no encoder for the format {encoding.format!r}",
        hint="Drainer and Spark tasks must run the same version of Penstock",
        code=Code.SPARK_MESSAGE,
    )
