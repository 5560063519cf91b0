"""Runs the initial load before a source's first run, and skips the binlog events that it covers.

The tables of a load with several attempts have different places (`pumpclient.mysql.load`). Until
the binlog has passed the last place, rows and statements that a table's load already covers are
skipped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from pumpclient.client import PumpClient
from pumpclient.mysql.load.loader import Load, LoadOptions
from pumpclient.mysql.load.state import ASKED, Floor, Floors, StateFile
from pumpclient.mysql.protocol.refusals import RELOAD_ALL
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.state.checkpoint import (
    Checkpoint,
    SourceStore,
    changed_within_load,
    fresh_epoch,
)
from pumpclient.mysql.translate.statements.ddl_pieces import Translation, Translator
from pumpclient.mysql.translate.statements.online import OnlineDdl

log = logging.getLogger(__name__)


def state_path(config: SourceConfig) -> Path:
    return config.data_dir / f"{config.source_id}.load.json"


def load_tables(
    config: SourceConfig,
    client: PumpClient,
    rules: Rules,
    stopped: threading.Event,
    may_commit: Callable[[], bool],
    epoch: int,
) -> tuple[str, str]:
    """Load all tables that the filters allow; return where to continue, and its GTIDs.

    A load is the first step of a source's start, so it is in the epoch of that start.

    Raises `Retryable` when stopped before the end; another run continues.
    """
    online = config.online_ddl.rules()

    def is_replicated(schema: str, table: str) -> bool:
        return rules.is_replicated(schema, table) and not _is_shadow(online, table)

    settings = config.load
    options = LoadOptions(
        translator=Translator(is_replicated=is_replicated, target=rules.target, online=None),
        policy=rules.of_rows,
        readers=settings.readers,
        rows_per_chunk=settings.rows_per_chunk,
        transaction_bytes=settings.transaction_bytes,
        rate_bytes_per_s=settings.rate_bytes_per_s or None,
        sink=settings.sink_options(),
        into_existing=settings.into_existing,
        may_commit=may_commit,
    )
    load = Load(
        config.source.address(),
        client,
        state_path(config),
        options,
        is_stopped=stopped.is_set,
    )
    asked = load.file.read()
    if asked is not None and asked.epoch == ASKED:
        load.file.write(replace(asked, epoch=epoch))
    start = load.run(config.source_id, epoch).start
    assert start is not None, "a load that is complete began somewhere"
    return f"{start.file}:{start.position}", start.gtids


def _is_shadow(online: OnlineDdl | None, table: str) -> bool:
    return online is not None and online.is_copy(table)


def begin_epoch(config: SourceConfig, client: PumpClient, store: SourceStore) -> int:
    """Return the epoch of a source without a checkpoint, after storing it in etcd.

    It is the load's if a process ended within a load, else an unused epoch.
    """
    begun, load = store.begun(), StateFile(state_path(config)).read()
    if load is not None and load.epoch != ASKED and not begun.is_followed:
        last = client.last_ddl_origin(config.source_id)
        # Before epochs were stored, only the cluster's DDL proves that the load is this cluster's.
        is_older = not begun.epoch and last is not None and last.epoch == load.epoch
        if load.epoch == begun.epoch or (is_older and not load.is_complete):
            return load.epoch
    epoch = fresh_epoch(client, config.source_id, max(begun.epoch, load.epoch if load else 0))
    store.begin(epoch)
    return epoch


def is_load_asked(config: SourceConfig) -> bool:
    """Return whether an operator requested a load, or a requested load is unfinished."""
    load = StateFile(state_path(config)).read()
    return load is not None and not load.is_complete


def floors_of(config: SourceConfig) -> Floors:
    state = StateFile(state_path(config)).read()
    return Floors() if state is None else state.floors


def load_report(config: SourceConfig) -> dict[str, Any]:
    state = StateFile(state_path(config)).read()
    return {} if state is None else state.report


class CatchUp:
    """The part of the binlog that was loaded; `at` is the end of the event that is being read."""

    def __init__(self, floors: Floors, checkpoint: Checkpoint) -> None:
        """Start after `checkpoint`; raise `NeedsOperator` for the floors of another load."""
        self._floors = floors
        self.at = checkpoint.place
        is_same_epoch = checkpoint.epoch == floors.epoch
        if checkpoint.is_within_load and not (is_same_epoch and floors.after == checkpoint.loaded):
            raise NeedsOperator(
                f"the source is at {checkpoint.done}, its load has rows up to {checkpoint.loaded},"
                " and the file in data-dir that says of which tables is missing or is of another"
                " load: these rows would come twice",
                hint=f"put the source's .load.json back as it was after the load; or {RELOAD_ALL}",
                code=Code.SOURCE_STATE_DAMAGED,
            )
        self.is_active = is_same_epoch and _floor(self.at) < floors.highest

    def has(self, *tables: Name) -> bool:
        return self.is_active and self._floors.has(tables, _floor(self.at))

    def without_loaded(self, translation: Translation) -> Translation:
        if not self.is_active:
            return translation
        left = tuple(piece for piece in translation.pieces if not self.has(*piece.tables))
        if len(left) == len(translation.pieces):
            return translation
        log.info("a statement up to %s is in the load already", self.at)
        return replace(translation, pieces=left)

    def passed(self) -> bool:
        """Note the end of a transaction; True while tables must be looked up again."""
        was_active = self.is_active
        if was_active and _floor(self.at) >= self._floors.highest:
            self.is_active = False
            log.info("the binlog has passed the load: the tables are of one moment from here on")
        return was_active

    def check_over(self) -> None:
        """Raise `NeedsOperator` if another history starts before the load was passed."""
        if self.is_active:
            raise changed_within_load()


def _floor(place: Location) -> Floor:
    return place.file.number, place.position
